"""Writes in place keep their meaning, to views, bases, inputs and buffers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.errors import MiniDNNWarning, UnsupportedError


def close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


class Writing(nn.Module):
    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("count", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()), requires_grad=False)

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


def _to_parameter(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.weight.mul_(2)
    return x * module.weight


def _chain(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    z = torch.dropout(y, 0.5, False).relu_().add_(1)
    return z + y.sum() + y.sub_(0.5)


BODIES = [_to_view, _to_base, _to_input, _to_buffer, _to_parameter, _chain]


@pytest.mark.parametrize("body", BODIES)
def test_writes_in_place_keep_their_meaning(body: Any) -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(2))
    module, other = Writing(body).eval(), Writing(body).eval()
    fast = md.optimize(module, device="reference")
    for _ in range(2):
        given, expected = x.clone(), x.clone()
        close(fast(given), other(expected))
        close(given, expected)
        close(module.count, other.count)
        close(module.weight, other.weight)


class Both(nn.Module):
    """Writes to its first argument before it reads the second."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x * y).relu() + self.count


def _same(module: Any, memory: torch.Tensor) -> Any:
    return memory[:2], memory[:2]


def _views(module: Any, memory: torch.Tensor) -> Any:
    return memory[:2], memory[1:]


def _buffer(module: Any, memory: torch.Tensor) -> Any:
    return module.count, memory[1:]


def warned(arguments: Any, said: str) -> Any:
    """A buffer that is an argument, too, is known to be one tensor."""
    return nullcontext() if arguments is _buffer else pytest.warns(MiniDNNWarning, match=said)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("arguments", [_same, _views, _buffer])
def test_memory_that_is_written_to_and_read_otherwise_is_left_to_pytorch(
    arguments: Any, is_compiled: bool
) -> None:
    memory = torch.randn(3, 3, generator=torch.Generator().manual_seed(2))
    net, other = Both().eval(), Both().eval()
    example = (torch.ones(2, 3), torch.ones(2, 3)) if is_compiled else None
    fast = md.optimize(net, example, device="reference")
    given, expected = memory.clone(), memory.clone()
    with warned(arguments, "Both: a piece runs in PyTorch: "):
        close(fast(*arguments(net, given)), other(*arguments(other, expected)))
    close(given, expected)
    close(net.count, other.count)
    # Such a call is left, others are not.
    close(fast(given[:1].clone(), given[1:2]), other(expected[:1].clone(), expected[1:2]))
    if arguments is not _buffer:
        strict = md.optimize(net, device="reference", strict=True)
        with pytest.raises(UnsupportedError, match="strict=True, and a piece of Both is left to"):
            strict(*arguments(net, given))
        close(given, expected)


class Counted(nn.Module):
    """Looks at values, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * 2 if float(x.sum()) < 1e9 else x


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counted()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        self.count.add_(1)
        return self.inner(x * 1) + self.count


def test_writes_around_a_graph_break_are_made_once_each() -> None:
    net, other = Around().eval(), Around().eval()
    fast = md.optimize(net, device="reference")
    given, expected = torch.ones(2, 3), torch.ones(2, 3)
    for _ in range(2):
        close(fast(given), other(expected))
        close(given, expected)
        close(net.state_dict(), other.state_dict())
