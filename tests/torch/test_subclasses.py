"""Weights of classes derived from PyTorch's tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import minidnn as md
from minidnn.errors import UnsupportedError

from .test_results import close, examples, optimized


class Tagged(torch.Tensor):
    """Of a class that results have, too."""


class Named(nn.Parameter):
    """Of a class that says nothing to what is computed."""


@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("of_another", [lambda x: x.as_subclass(Tagged), lambda x: TwoTensor(x, x)])
def test_weights_of_other_classes(of_another: Any) -> None:
    """Results have the class that they have in PyTorch; what has no memory is left to it."""
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), examples(2, 3)
    fast, weight = optimized(net, x), net[0].weight.detach()
    with torch.no_grad():
        net[0].weight = Named(weight + 1)
        close(fast(x), net(x))
        close(optimized(net, x)(x), net(x))
        net[0].weight = nn.Parameter(of_another(weight), requires_grad=False)
        for _ in range(2):
            found, expected = fast(x), net(x)
            assert type(found) is type(expected)
            for part in ("a", "b") if isinstance(expected, TwoTensor) else ("data",):
                close(
                    getattr(found, part).as_subclass(torch.Tensor),
                    getattr(expected, part).as_subclass(torch.Tensor),
                )
    if isinstance(expected, TwoTensor):
        strict = md.optimize(net, device="reference", strict=True)
        with pytest.raises(UnsupportedError, match="a TwoTensor is given, which has no memory"):
            strict(x)
