"""Hooks of an optimized module in training mode, and on tensors within it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from minidnn._torch_internals import VERSION
from minidnn.errors import MiniDNNWarning
from tests.torch.test_optimize import examples
from tests.torch.test_trained import both, close, network, program, same_gradients, x_of


def test_hooks() -> None:
    seen: list[str] = []
    fast, own = both(network())
    fast[0].weight.register_hook(lambda gradient: 2 * gradient)
    fast[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append("weight"))
    fast.register_full_backward_hook(lambda *_: seen.append("outer"))
    fast.register_forward_hook(lambda *_: seen.append("forward"))
    fast[1].register_forward_hook(lambda *_: seen.append("inner"))
    for module in (fast, own):
        module(x_of().requires_grad_()).sum().backward()
    assert seen[:2] == ["inner", "forward"] and sorted(seen[2:]) == ["outer", "weight"]
    close(fast[0].weight.grad, 2 * own[0].weight.grad)
    close(fast[4].weight.grad, own[4].weight.grad)
    assert not program(fast).left


def test_hooks_on_the_way_back_run_where_the_module_is_pytorchs() -> None:
    seen: list[Any] = []
    fast, own = both(network())
    for module in (fast, own):
        module[2].inplace = False
        module[1].register_full_backward_hook(lambda _, given, got: seen.append(given[0].clone()))
        module(x_of()).sum().backward()
    close(*seen)
    same_gradients(fast, own)


def warned(match: str) -> Any:
    """PyTorch before 2.13 says nothing of it."""
    return pytest.warns(MiniDNNWarning, match=match) if VERSION >= (2, 13) else nullcontext()


def test_hooks_on_tensors_within() -> None:
    class Scaling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.first(x).relu()
            y.register_hook(lambda gradient: 3 * gradient)
            return self.second(y)

    fast, own = both(Scaling())
    with warned("runs in PyTorch"):
        fast(examples(5, 4)).square().sum().backward()
    own(examples(5, 4)).square().sum().backward()
    same_gradients(fast, own)


def test_hooks_within_a_call() -> None:
    class Registering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x)
            if y.requires_grad:
                y.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
            return y.relu()

    torch.manual_seed(0)
    fast, own = both(nn.Sequential(Registering(), nn.Linear(4, 2)))
    with warned("register_hook"):
        fast(examples(3, 4)).square().sum().backward()
    own(examples(3, 4)).square().sum().backward()
    same_gradients(fast, own)
