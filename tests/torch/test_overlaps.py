"""Memory that is written to and is something else's, too, is written and read as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.overlaps import _any_meet
from minidnn.acceleration.program import OverlapError

CallerArray = tuple[torch.Tensor, torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch")


class Writes(nn.Module):
    """Writes to its first argument and to a buffer, then reads all it has."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.0, 8))
        held = torch.linspace(0, 1, 24)
        self.register_buffer("n", held[:8])
        self.register_buffer("m", held[8:16])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        with torch.no_grad():
            self.n.mul_(0.5)
        return x * 2 + y.exp() * self.weight + self.m + self.n


def memory() -> torch.Tensor:
    return torch.linspace(0, 1, 64)


#: What a module is given of some memory, and of itself.
GIVEN: dict[str, Callable[[torch.Tensor, Any], CallerArray]] = {
    "apart": lambda memory, net: (memory[:32].view(4, 8), memory[32:].view(4, 8)),
    "overlapping": lambda memory, net: (memory[:32].view(4, 8), memory[16:48].view(4, 8)),
    "one memory": lambda memory, net: (memory[:32].view(4, 8), memory[:32].view(4, 8)),
    "the buffer": lambda memory, net: (net.n.view(1, 8), memory[:8].view(1, 8)),
    "read of the buffer": lambda memory, net: (memory[:8].view(1, 8), net.n.view(1, 8)),
    "another buffer": lambda memory, net: (net.m.view(1, 8), memory[:8].view(1, 8)),
    "a transposed one": lambda memory, net: (
        memory[:32].view(8, 4).t(),
        memory[32:].view(4, 8),
    ),
}


def optimized(net: nn.Module) -> Any:
    return md.optimize(net, device="reference")


def compiled(net: nn.Module) -> Any:
    return torch.compile(net, backend="minidnn", options={"device": "reference"})


def once(net: Any, run: Any, kind: str) -> list[torch.Tensor]:
    """What a call gives, and leaves behind."""
    base = memory()
    result = run(*GIVEN[kind](base, net))
    return [result.detach(), base, net.n.clone(), net.m.clone()]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("way", [optimized, compiled])
def test_arguments(way: Callable[[nn.Module], Any], gradients: bool) -> None:
    torch._dynamo.reset()
    eager, net = Writes(), Writes()
    run = way(net)
    with torch.set_grad_enabled(gradients):
        for kind in (*GIVEN, "apart", "overlapping"):
            torch.testing.assert_close(once(net, run, kind), once(eager, eager, kind))


def test_other_strides_than_those_of_the_capture_are_refused() -> None:
    net = Writes()
    run = optimized(net)
    with torch.no_grad():
        run(torch.ones(8, 8), torch.ones(8, 8))
    (program,) = run.programs
    leaves = dict.fromkeys(program.captured.given.values(), torch.ones(8, 8).t())
    given = [leaves.get(place) for place in range(1 + max(leaves))]
    with torch.no_grad(), pytest.raises(OverlapError, match="shares memory"):
        program.run(given)
    with torch.no_grad(), pytest.raises(OverlapError, match="other strides"):
        program.run([None if each is None else each.t().clone().t() for each in given])


@pytest.mark.parametrize("gradients", [False, True])
def test_buffers_of_one_memory(gradients: bool) -> None:
    eager, net = Writes(), Writes()
    run = optimized(net)
    for each in (eager, net):
        each.m = each.n[:1].expand(8)
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            torch.testing.assert_close(once(net, run, "apart"), once(eager, eager, "apart"))


@pytest.mark.parametrize("gradients", [False, True])
def test_a_buffer_that_moves_into_the_memory_of_another(gradients: bool) -> None:
    eager, net = Writes(), Writes()
    run = optimized(net)
    with torch.set_grad_enabled(gradients):
        torch.testing.assert_close(once(net, run, "apart"), once(eager, eager, "apart"))
        for each in (eager, net):
            each.m.data = each.n.data
        torch.testing.assert_close(once(net, run, "apart"), once(eager, eager, "apart"))


@pytest.mark.parametrize(
    ("extents", "written", "expected"),
    [
        ([(0, 4), (4, 8)], [True, True], False),
        ([(0, 5), (4, 8)], [False, True], True),
        ([(0, 5), (4, 8)], [True, False], True),
        ([(0, 5), (4, 8)], [False, False], False),
        ([(0, 90), (4, 8), (20, 30)], [False, False, True], True),
        ([(0, 9), (1, 2), (8, 20)], [True, False, False], True),
        ([(0, 9), None, (9, 20)], [True, True, False], False),
    ],
)
def test_what_meets(extents: Any, written: list[bool], expected: bool) -> None:
    assert _any_meet(extents, written) is expected


class Keeps(nn.Module):
    """Keeps what its argument was in a buffer, and then writes to the argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n.copy_(x.detach()[1])
        x.mul_(0.5)
        return x


class Shows(Keeps):
    """Keeps the bits of its argument, of which PyTorch makes a view, and writes to that first."""

    def __init__(self) -> None:
        super().__init__()
        self.n = torch.zeros(4, 8, dtype=torch.int32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bits = x.detach().view(torch.int32)
        self.n.copy_(bits)
        x.mul_(0.5)
        return x


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("make", [Keeps, Shows])
def test_what_is_written_is_read_before_anything_is(make: type[Keeps], gradients: bool) -> None:
    eager, net = make(), make()
    run = optimized(net)
    for shift in (0.0, 1.0):
        x = torch.linspace(shift, 1, 32).view(4, 8).requires_grad_(gradients)
        one, other = x.clone(), x.clone()
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(run(one), eager(other))
        torch.testing.assert_close([one, *net.buffers()], [other, *eager.buffers()])
