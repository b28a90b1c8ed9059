"""Writes in place keep their meaning, to views, bases, inputs and buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Writing(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(self, x)


def _to_view(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0].mul_(3)
    return y + 1


def _to_base(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    view = y.flatten(1)
    y.relu_()
    return view + 1


def _to_input(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.relu_() + 1


def _to_buffer(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.count.add_(1)
    return x * module.count


def _chain(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = torch.dropout(y, 0.5, False).relu_().add_(1)
    return z + y.sum() + y.sub_(0.5)


@pytest.mark.parametrize("body", [_to_view, _to_base, _to_input, _to_buffer, _chain])
def test_writes_in_place_keep_their_meaning(body: Any) -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    module, other = Writing(body).eval(), Writing(body).eval()
    fast = md.optimize(module, device="reference")
    for _ in range(2):
        given, expected = x.clone(), x.clone()
        close(fast(given), other(expected))
        close(given, expected)
        close(module.count, other.count)
