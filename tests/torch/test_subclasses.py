"""Weights of classes derived from PyTorch's tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minidnn.errors import UnsupportedError

from .test_results import close, examples, optimized


class Tagged(torch.Tensor):
    """Of a class that results have, too."""


class Named(nn.Parameter):
    """Of a class that says nothing to what is computed."""


@pytest.mark.parametrize("of_another", [lambda x: x.as_subclass(Tagged), lambda x: TwoTensor(x, x)])
def test_weights_that_compute_in_their_own_way_are_refused(of_another: Any) -> None:
    net, x = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval(), examples(2, 3)
    fast, weight = optimized(net, x), net[0].weight.detach()
    net[0].weight = Named(weight + 1)
    close(fast(x), net(x))
    close(optimized(net, x)(x), net(x))
    net[0].weight = nn.Parameter(of_another(weight), requires_grad=False)
    kind = type(net[0].weight).__name__
    said = f"^Sequential cannot be compiled: its weight 0.weight is a {kind}"
    with pytest.raises(UnsupportedError, match=said):
        optimized(net, x)
    with pytest.raises(UnsupportedError, match=said):
        fast(x)
