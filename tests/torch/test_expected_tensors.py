"""Tensors whose memory is an array of a type are told from all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minidnn.acceleration.part import ExpectedTensors

SHAPE = (2, 3, 4)
TYPES = [(SHAPE, torch.float32, torch.device("cpu"))] * 2
EXPECTED = ExpectedTensors(TYPES)


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
    """Where there is nothing yet to compare them with, and after tensors that are as expected."""
    expected = ExpectedTensors(TYPES)
    for _ in range(2):
        for place in (0, 1):
            tensors = [torch.randn(SHAPE), torch.randn(SHAPE)]
            tensors[place] = make()
            assert not expected(tensors)
        assert expected([torch.randn(SHAPE), torch.randn(SHAPE)])


def test_tensors_of_another_kind_than_the_last() -> None:
    """All that may differ between tensors that are as expected."""
    x = torch.randn(SHAPE)
    with torch.inference_mode():
        inferred = torch.randn(SHAPE)
    kinds = [[x, x.clone()], [x, x], [nn.Parameter(x), x], [x[:], x.detach()], [inferred, x]]
    expected = ExpectedTensors(TYPES)
    for one in kinds:
        for other in kinds:
            with torch.autocast("cpu", torch.bfloat16):
                assert expected(one)
            assert expected(other)


def test_axes_of_one_element_lie_in_any_way() -> None:
    expected = ExpectedTensors([((1, 3), torch.float32, torch.device("cpu"))])
    for stride in (3, 1, 7):
        assert expected([torch.randn(8).as_strided((1, 3), (stride, 1))])


def test_a_tensor_that_changed_since() -> None:
    """The same objects, which PyTorch lets lie elsewhere and otherwise."""
    x, y = torch.randn(SHAPE), torch.randn(SHAPE)
    expected = ExpectedTensors(TYPES)
    assert expected([x, y])
    x.data = torch.randn(2, 4, 3).mT
    assert not expected([x, y])
    x.data = torch.randn(SHAPE)
    assert expected([x, y])
    y.data = y.data.double()
    assert not expected([x, y])


def test_another_count() -> None:
    assert not EXPECTED([torch.randn(SHAPE)]) and not EXPECTED([])
    assert not EXPECTED([torch.randn(SHAPE)] * 3)
