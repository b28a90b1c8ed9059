"""Modules that PyTorch keeps from changing between training and evaluation mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.comparison import Comparison
from minidnn.errors import GraphError

X = torch.linspace(-1, 1, 192).reshape(1, 3, 8, 8)


@pytest.mark.parametrize(
    "make",
    [
        lambda program: md.optimize(program, X, device="reference"),
        lambda program: md.compile(program, X.shape, device="reference"),
        lambda program: md.compare(program, X, device="reference"),
    ],
)
def test_an_exported_program(make: Callable[[Any], Any]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    program = torch.export.export(net, (X,)).module()
    text = (
        r"GraphModule\w* is in training mode; valid is a module in evaluation mode: it is an "
        r"exported program, which computes in the mode that it was exported in and forbids "
        r"eval\(\); export a module in evaluation mode and set module.training = False$"
    )
    with pytest.raises(GraphError, match=text):
        make(program)
    program.training = False
    made = make(program)
    if isinstance(made, Comparison):
        assert made.equal
    else:
        with torch.no_grad():
            torch.testing.assert_close(torch.as_tensor(made(X)), net(X), rtol=1e-4, atol=1e-5)
