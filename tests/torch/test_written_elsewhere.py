"""What code reads that others have written during a call: no program has it in it as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import minidnn as md
from tests.torch.test_graph_breaks import Around, conv, kinds, quick


def examples(shift: float = 0.0) -> torch.Tensor:
    return torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1)) + shift


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.middle: nn.Module = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(4, 2, 1)


SHARED: dict[str, torch.Tensor] = {}


class Reading(nn.Module):
    """Computes with what others have written somewhere."""

    def __init__(self, read: Callable[[Any], torch.Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        return y + self.read(self)


class GlobalReading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        return y * SHARED["scale"]


class Telling(Net):
    """Writes in its own code what modules below read."""

    def __init__(self, write: Callable[[Any, torch.Tensor], Any], middle: nn.Module) -> None:
        super().__init__()
        self.write = write
        self.middle = middle

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        self.write(self, y)
        return self.last(self.middle(y))


class ByAttribute(Net):
    """The issue's: a hook stores, the network's code reads."""

    def __init__(self) -> None:
        super().__init__()
        acts: dict[str, torch.Tensor] = {}
        self.middle = nn.Sequential(nn.Conv2d(4, 4, 1))
        self.middle[0].register_forward_hook(lambda m, i, o: acts.__setitem__("a", o))
        self.middle.acts = acts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.middle(self.first(x))
        return self.last(self.middle.acts["a"])


class BySetting(Net):
    """A hook sets an attribute of the network by a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = [None]

        def hook(module: Any, args: Any, result: Any) -> None:
            self.feature = result
            self.found[0] = result.mean()

        self.middle.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.middle(self.first(x))
        return self.last(self.feature) + self.found[0]


def _siblings() -> nn.Module:
    acts: dict[str, torch.Tensor] = {}
    first = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    first[0].register_forward_hook(lambda m, i, o: acts.update(a=o.mean()))
    return nn.Sequential(first, Reading(lambda self: acts["a"]), nn.Conv2d(4, 2, 1))


def _by_global(own: bool) -> nn.Module:
    read = GlobalReading() if own else Reading(lambda self: SHARED["scale"])
    return Telling(lambda self, y: SHARED.update(scale=y.amax()), read)


READERS: dict[str, Callable[[], nn.Module]] = {
    "the network's code reads what a hook stored": ByAttribute,
    "the network's code reads an attribute that a hook set": BySetting,
    "a module reads what another's hook stored": _siblings,
    "a module's function reads a global": lambda: _by_global(False),
    "a module reads a global": lambda: _by_global(True),
    "a module reads an attribute that the network sets": lambda: Telling(
        lambda self, y: setattr(self.middle, "scale", y.amax()), Reading(lambda self: self.scale)
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("is_warm", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", READERS)
def test_it_is_read_at_every_call(name: str, is_warm: bool) -> None:
    def made() -> nn.Module:
        SHARED.clear()
        torch.manual_seed(0)
        net = READERS[name]().eval()
        if is_warm:
            net(examples(3.0))
        return net

    net = made()
    expected = [net(examples(shift)) for shift in (0.0, 1.0, -1.0)]
    net = made()
    fast = md.optimize(net, examples(), device="reference", strict=True)
    assert len(SHARED) == ("global" in name and is_warm)
    close([fast(examples(shift)) for shift in (0.0, 1.0, -1.0)], expected)
    close(net(examples()), expected[0])
    (piece,) = fast.pieces
    assert all(program.parts for program in piece.programs)


class Keeping(nn.Module):
    """Writes to what it holds, as it is told."""

    def __init__(self, write: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.write = write
        self.calls = 0
        self.last: torch.Tensor | None = None
        self.seen: list[torch.Tensor] = []
        self.by_name: dict[str, Any] = {"nested": []}
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (self.calls + 1) + self.mean
        if self.last is not None:
            y = y + self.last
        self.write(self, x)
        return y + len(self.seen)


WRITES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "calls": lambda self, x: setattr(self, "calls", self.calls + 1),
    "last": lambda self, x: setattr(self, "last", x.detach()),
    "seen": lambda self, x: self.seen.append(x),
    "by_name": lambda self, x: self.by_name["nested"].append(x),
    "feature": lambda self, x: setattr(self, "feature", x),
}


@torch.no_grad()
@pytest.mark.parametrize("name", quick(WRITES))
def test_one_that_keeps_state(name: str) -> None:
    """A rehearsal leaves no trace in it."""
    net = Around(Keeping(WRITES[name])).eval()
    kept, seen, eager = net.middle, net.middle.seen, copy.deepcopy(net)
    before = dict(vars(kept))
    fast = md.optimize(net, examples(), device="reference")
    assert vars(kept) == before and kept.seen is seen == [] and kept.by_name == {"nested": []}
    for shift in range(3):
        x = examples() + shift
        close(fast(x), eager(x))
    close(*(vars(each.middle)[name] for each in (net, eager)))
    assert kinds(fast).count("Conv2d") >= 2


def _flagged(inner: Any, y: torch.Tensor) -> None:
    inner.flag = not getattr(inner, "flag", False)


@torch.no_grad()
@pytest.mark.parametrize("read", [lambda inner, y: inner.last, _flagged])
def test_state_that_another_reads_or_writes(read: Callable[[Any, torch.Tensor], Any]) -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.inner = conv(), Keeping(WRITES["last"])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(self.conv(x))
            found = read(self.inner, y)
            return y if found is None else y + found

    net, x = Outside().eval(), examples()
    net(x - 1)
    eager = copy.deepcopy(net)
    fast = md.optimize(net, x, device="reference", strict=True)
    for _ in range(3):
        close(fast(x), eager(x))
    assert vars(net.inner).get("flag") == vars(eager.inner).get("flag")
