"""Tensors whose memory is an array of a type are told from all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minidnn.acceleration.part import ExpectedTensors

SHAPE = (2, 3, 4)
EXPECTED = ExpectedTensors([(SHAPE, torch.float32, torch.device("cpu"))] * 2)


def test_arrays() -> None:
    x = torch.randn(3, 3, 4)
    assert EXPECTED([nn.Parameter(torch.randn(SHAPE)), x[1:]])  # wherever it begins
    assert EXPECTED([torch.randn(SHAPE).requires_grad_() * 2, x[:2]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(2, 4, 3),
        lambda: torch.randn(2, 3),
        lambda: torch.randn(SHAPE, dtype=torch.float64),
        lambda: torch.empty(SHAPE, device="meta"),
        lambda: torch.randn(2, 4, 3).mT,
        lambda: torch.randn(1, 3, 4).expand(SHAPE),
        lambda: torch.randn(SHAPE, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(SHAPE).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.randn(3, 4)] * 2),
        lambda: TwoTensor(torch.randn(SHAPE), torch.randn(SHAPE)),
        lambda: 1.0,
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_others(make: Callable[[], torch.Tensor]) -> None:
    for place in (0, 1):
        tensors = [torch.randn(SHAPE), torch.randn(SHAPE)]
        tensors[place] = make()
        assert not EXPECTED(tensors)


def test_another_count() -> None:
    assert not EXPECTED([torch.randn(SHAPE)]) and not EXPECTED([])
    assert not EXPECTED([torch.randn(SHAPE)] * 3)
