"""Random numbers in networks that are trained: minidnn's, and those that PyTorch draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.frontends.torch.partition import may_draw
from tests.torch.test_constants import Of
from tests.torch.test_trained import DEVICE, both, close, program
from tests.torch.test_trained_programs import Custom


class DroppingSamples(nn.Module):
    """Stochastic depth, as torchvision and timm write it."""

    def __init__(self, kept: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.kept = kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.empty((len(x), 1, 1, 1), dtype=x.dtype, device=x.device)
        noise = noise.bernoulli_(self.kept)
        if self.kept > 0.0:
            noise.div_(self.kept)
        return x * self.weight[:, None, None] * noise


@pytest.mark.parametrize("kept", [0.75, 1.0, 0.0])
def test_samples_are_dropped(kept: float) -> None:
    fast, _ = both(DroppingSamples(kept), strict=True)
    x = torch.ones(512, 4, 2, 2)

    def drawn() -> torch.Tensor:
        result: torch.Tensor = fast(x)
        result.sum().backward()
        return result

    torch.manual_seed(5)
    first, second = drawn(), drawn()
    close(fast.weight.grad, (first + second).sum((0, 2, 3)))  # the same samples on the way back
    assert len(program(fast).parts) == 1
    torch.manual_seed(5)
    assert torch.equal(drawn(), first)
    assert torch.equal(first, first[:, :1, :1, :1].expand(x.shape))
    values = {0.75: [0.0, 1 / 0.75], 1.0: [1.0], 0.0: [0.0]}[kept]
    assert sorted(set(first.unique().tolist())) == pytest.approx(values)
    assert float((first > 0).float().mean()) == pytest.approx(kept, abs=0.08)
    assert torch.equal(first, second) == (kept != 0.75)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * torch.bernoulli(x.detach().relu(), 0.5), "self is computed at run time"),
        (lambda x: x * torch.empty(3).bernoulli_(torch.tensor([0.1, 0.5, 0.9])), "is not known"),
    ],
)
def test_what_draws_otherwise_is_left(function: Callable[..., Any], why: str) -> None:
    fast = md.optimize(nn.Sequential(nn.Linear(3, 3), Of(function)).train(), device=DEVICE)
    fast(torch.ones(2, 3)).sum().backward()
    assert why in fast.explain()


def test_zeros_and_ones_at_inference_are_pytorchs() -> None:
    fast, own = both(Of(lambda x: x.exp() * torch.empty(64).bernoulli_(0.5)))
    found = []
    for module in (fast.eval(), own.eval()):
        torch.manual_seed(5)
        with torch.no_grad():
            found.append(module(torch.ones(3, 64)))
    close(*found)
    assert "bernoulli.p: it draws random numbers, and is not trained" in fast.explain()


def test_what_reads_nothing_that_is_taken_runs_first() -> None:
    """What is taken stays one part."""

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(x).relu()
            return self.two(y + torch.randn(4).cumprod(0)).relu() + torch.rand(4)

    fast, own = both(Noisy())
    results = []
    for module in (fast, own):
        torch.manual_seed(5)
        results.append(module(torch.ones(3, 4)))
        results[-1].sum().backward()
    close(*results)
    close(fast.one.weight.grad, own.one.weight.grad)
    levels = program(fast).levels
    assert [level.taken for level in levels] == [False, True]


class Drawing(nn.Module):
    """Draws behind two layers of PyTorch's and what is taken, then of nothing, then behind one."""

    def __init__(self, last: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first, self.last = Custom(), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(self.one(x).exp())
        z = self.two(y).sigmoid()
        z = z + torch.rand_like(z)
        return (z.exp() * torch.rand(4)).tanh() + self.last(y)


@pytest.mark.parametrize(
    "last",
    [
        lambda y: torch.rand_like(y),
        lambda y: nn.functional.rrelu(-y, training=True),
        lambda y: y.detach().cumsum(0) * torch.rand(4),
    ],
)
def test_what_pytorch_draws_is_drawn_in_the_programs_order(last: Callable[..., Any]) -> None:
    fast, own = both(Drawing(last))
    results = []
    for module in (fast, own):
        torch.manual_seed(5)
        results.append(module(torch.linspace(-1, 1, 12).reshape(3, 4)))
        results[-1].sum().backward()
    close(*results)
    close(fast.one.weight.grad, own.one.weight.grad)
    assert len(program(fast).parts) > 1


def test_what_may_draw() -> None:
    aten = torch.ops.aten
    assert may_draw(aten.rand_like.default) and may_draw(aten.bernoulli.p)
    assert not may_draw(aten.cumsum.default) and not may_draw(max)
    assert may_draw(torch.ops.minidnn.untouched.default)  # somebody's own
