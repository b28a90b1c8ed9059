"""What a trained part moves on alone, as running statistics, it writes itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.program import REHEARSING
from minidnn.acceleration.step import ProgramPair
from minidnn.errors import MiniDNNWarning, UnsupportedError
from tests.torch.steps import trained_programs


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).relu().sum((2, 3))


class Moving(nn.Module):
    """Scales by a buffer, which then is another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.0, 4))
        self.register_buffer("scale", torch.linspace(1.0, 2.0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight).tanh() * self.scale.clone()
        self.scale.mul_(0.5)
        return y


class Counting(Moving):
    """Reads the buffer again, once it is another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.scale


class Giving(Moving):
    """Gives the buffer as it is then."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.scale


class Looking(Moving):
    """Has PyTorch read the buffer before and after, by operations that minidnn does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.scale.logcumsumexp(0)
        y = super().forward(x)
        return y.cos().logcumsumexp(0) + before + self.scale.logcumsumexp(0)


class Late(Moving):
    """Writes to the buffer once a later part has read it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight).tanh().logcumsumexp(0) + self.scale
        self.scale.mul_(0.5)
        return y


class Alone(Moving):
    """Has a part that gives nothing but what the buffer becomes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x * self.weight).tanh().logcumsumexp(0)
        self.scale.mul_(y.detach().exp().mean(0))
        return y


class TwoParts(nn.Module):
    """Normalizes before and behind what minidnn does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.tanh()).logcumsumexp(0).tanh())


def pair_of(fast: Any) -> ProgramPair:
    """The programs that the first of the parts ran last."""
    (program,) = trained_programs(fast)
    return next(reversed(program.parts[0].pairs.values()))


def both(net: nn.Module, x: torch.Tensor, steps: int = 3) -> Any:
    """Has PyTorch and minidnn take steps, which are compared; gives the optimized module."""
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="reference").train()
    for factor in range(1, steps + 1):
        gradients = []
        for module in (own, fast):
            module.zero_grad()
            given = (x.detach() * factor).requires_grad_()
            results = module(given)
            one = results if isinstance(results, torch.Tensor) else results[0] + results[1]
            one.square().sum().backward()
            gradients.append([given.grad, *(p.grad for p in module.parameters())])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(list(net.buffers()), list(own.buffers()))
    return fast


def test_statistics_are_none_of_the_results_on_the_tape() -> None:
    fast = both(Normalized(), torch.randn(2, 3, 6, 6))
    (program,) = trained_programs(fast)
    pair = pair_of(fast)
    assert (pair.results, pair.outputs) == (1, 3)
    assert [len(program._writes), len(program.captured.counted)] == [0, 1]


def test_a_gradient_reads_what_was_there_before() -> None:
    fast = both(Moving(), torch.randn(2, 4))
    pair = pair_of(fast)
    assert (pair.results, pair.outputs) == (1, 2)


@pytest.mark.parametrize("kind", [Counting, Looking, Late])
def test_what_others_read_is_written_behind_all_parts(kind: type[Moving]) -> None:
    fast = both(kind(), torch.randn(2, 4))
    (program,) = trained_programs(fast)
    assert len(program._writes) == 1 and not any(part.part.written for part in program.parts)


def test_a_part_that_does_nothing_else() -> None:
    fast = both(Alone(), torch.randn(2, 4))
    (program,) = trained_programs(fast)
    assert [len(part.part.written) for part in program.parts] == [0, 1]
    assert program.parts[1].part.outputs == ()


def test_parts_before_others_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a later part cannot be compiled, PyTorch computes all, and writes all."""
    net, x = TwoParts(), torch.randn(8, 4, requires_grad=True)
    own = copy.deepcopy(net).train()
    fast = both(net, x, steps=1)
    own(x)
    (program,) = trained_programs(fast)
    assert [len(part.part.written) for part in program.parts] == [0, 2]

    def refused(*given: Any) -> Any:
        raise UnsupportedError("for this test")

    monkeypatch.setattr(program.parts[1], "_pair", refused)
    fast.pieces[0]._last = None  # whose errors are the caller's
    with pytest.warns(MiniDNNWarning, match="for this test"):
        fast(x)
    own(x)
    torch.testing.assert_close(list(net.buffers()), list(own.buffers()))


def test_a_buffer_that_is_given_is_what_it_became() -> None:
    both(Giving(), torch.randn(2, 4))


def test_writes_are_counted() -> None:
    net = Normalized()
    fast = md.optimize(net, device="reference").train()
    x = torch.randn(2, 3, 6, 6)
    fast(x)
    statistics = [net.norm.running_mean, net.norm.running_var]
    before = [each._version for each in statistics]
    fast(x)
    assert all(each._version > b for each, b in zip(statistics, before, strict=True))


def test_a_rehearsal_writes_nothing() -> None:
    net = Normalized()
    fast = md.optimize(net, device="reference").train()
    x = torch.randn(2, 3, 6, 6)
    fast(x)
    before = [each.clone() for each in net.buffers()]
    token = REHEARSING.set(True)
    try:
        fast(x)
    finally:
        REHEARSING.reset(token)
    assert all(map(torch.equal, net.buffers(), before))


def test_statistics_in_half_precision() -> None:
    """Under autocast, where a part computes in another precision than it writes."""
    net = Normalized()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="reference").train()
    x = torch.randn(2, 3, 6, 6)
    for module in (own, fast):
        with torch.autocast("cpu", torch.bfloat16):
            module(x).float().sum().backward()
    assert (pair_of(fast).results, pair_of(fast).outputs) == (1, 3)
    torch.testing.assert_close(list(net.buffers()), list(own.buffers()), rtol=0.02, atol=0.02)


def test_nothing_is_written_where_memory_is_shared() -> None:
    """PyTorch takes such a call, and writes as often as it would."""
    net = Normalized()
    own, fast = copy.deepcopy(net).train(), md.optimize(net, device="reference").train()
    x = torch.randn(2, 3, 6, 6)
    for module, norm in ((own, own.norm), (fast, net.norm)):
        module(x)
        norm.running_mean.data = norm.running_var.data
    own(x)
    with pytest.warns(MiniDNNWarning, match="shares memory"):
        fast(x)
    torch.testing.assert_close(list(net.buffers()), list(own.buffers()))
