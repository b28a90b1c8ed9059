"""After a capture, whether it worked or not, all is as if there had been none."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import minidnn as md
from minidnn.acceleration.dynamo import backend

GRIDS: dict[Any, torch.Tensor] = {}
LATEST: torch.Tensor | None = None


@functools.cache
def cached(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32)


@functools.lru_cache(maxsize=4)
def cached_pair(size: int, scale: float = 1.0) -> dict[str, list[torch.Tensor]]:
    return {"grid": [torch.arange(size) * scale, torch.ones(size)]}


def from_globals(size: int) -> torch.Tensor:
    if size not in GRIDS:
        GRIDS[size] = torch.arange(size, dtype=torch.float32)
    return GRIDS[size]


class Holder:
    grids: ClassVar[dict[int, torch.Tensor]] = {}
    latest: ClassVar[Any] = None

    @staticmethod
    @functools.cache
    def of(size: int) -> torch.Tensor:
        return torch.linspace(0, 1, size)

    @classmethod
    def grid(cls, size: int) -> torch.Tensor:
        return cls.grids.setdefault(size, torch.arange(size).float())


class Adding(nn.Module):
    """Adds a grid that comes from somewhere."""

    def __init__(self, grid: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 1)
        self.grid = grid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x) + self.grid(x.shape[-1]))


class OwnCache(nn.Module):
    """Has its grids kept by its own methods."""

    def __init__(self, has_cached: bool) -> None:
        super().__init__()
        self.has_cached = has_cached
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 1)

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def kept(self, size: int) -> torch.Tensor:
        return torch.arange(size) * 2.0

    @functools.cached_property
    def scale(self) -> torch.Tensor:
        return torch.full((3, 1, 1), 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x) + self.kept(x.shape[-1])
        return x * self.scale if self.has_cached else x


local = threading.local()


def from_a_thread(size: int) -> torch.Tensor:
    if not hasattr(local, "grid"):
        local.grid = torch.arange(size).float()
    return local.grid


STATE: contextvars.ContextVar[Any] = contextvars.ContextVar("STATE", default=None)
WEAK: Any = weakref.WeakKeyDictionary()


def from_a_context(size: int) -> torch.Tensor:
    if STATE.get() is None:
        STATE.set(torch.arange(size).float())
    found: torch.Tensor = STATE.get()
    return found


def by_name(size: int) -> torch.Tensor:
    if "BY_NAME" not in globals():
        globals()["BY_NAME"] = torch.arange(size).float()
    found: torch.Tensor = globals()["BY_NAME"]
    return found


def by_weak_key(size: int) -> torch.Tensor:
    found: torch.Tensor = WEAK.setdefault(Holder, torch.arange(size).float())
    return found


@dataclasses.dataclass
class Config:
    seen: Any = None
    more: Any = dataclasses.field(default_factory=collections.deque)


config = Config()


def noting(size: int) -> torch.Tensor:
    config.seen = (torch.ones(size), {"a": torch.zeros(size)})
    config.more.append(config.seen)
    return config.seen[0]


def assigning(size: int) -> torch.Tensor:
    global LATEST
    LATEST = torch.ones(size) * 3
    Holder.latest = [LATEST]
    return LATEST


NETS: dict[str, Callable[[], nn.Module]] = {
    "lru_cache": lambda: Adding(cached),
    "lru_cache with a size": lambda: Adding(lambda size: cached_pair(size, scale=2.0)["grid"][0]),
    "a global dict": lambda: Adding(from_globals),
    "a class's cache": lambda: Adding(Holder.of),
    "a class's dict": lambda: Adding(Holder.grid),
    "a method's cache": lambda: OwnCache(False),
    "a cached property": lambda: OwnCache(True),
    "a thread's": lambda: Adding(from_a_thread),
    "an object": lambda: Adding(noting),
    "a global": lambda: Adding(assigning),
    "a context's variable": lambda: Adding(from_a_context),
    "a global by its name": lambda: Adding(by_name),
    "a weak dict": lambda: Adding(by_weak_key),
}


def examples(shift: float = 0.0, size: int = 5) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)) + shift


@pytest.fixture(autouse=True)
def _forget() -> None:
    global LATEST
    LATEST = None
    for clear in (cached.cache_clear, cached_pair.cache_clear, GRIDS.clear, Holder.grids.clear):
        clear()
    Holder.of.cache_clear()
    OwnCache.kept.cache_clear()
    Holder.latest = None
    vars(local).clear()
    WEAK.clear()
    STATE.set(None)
    globals().pop("BY_NAME", None)
    config.seen = None
    config.more.clear()


def kept() -> list[Any]:
    """All that the networks above keep, by identity."""
    things: list[Any] = [
        LATEST,
        GRIDS,
        Holder.grids,
        Holder.latest,
        vars(local),
        config.seen,
        config.more,
    ]
    things += [STATE.get(), dict(WEAK), globals().get("BY_NAME")]
    return [torch.utils._pytree.tree_leaves(dict(enumerate(map(_plain, things))))]


def _plain(thing: Any) -> Any:
    return list(thing) if isinstance(thing, collections.deque) else thing


def same_objects(now: list[Any], before: list[Any]) -> None:
    for one, other in zip(now, before, strict=True):
        assert len(one) == len(other)
        assert all(a is b for a, b in zip(one, other, strict=True))


def right(net: Callable[..., Any], x: torch.Tensor, expected: torch.Tensor) -> None:
    found = net(x)
    assert not isinstance(found, FakeTensor)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def pytorchs(name: str, shift: float) -> torch.Tensor:
    """What a network of its own gives."""
    return NETS[name]().eval()(examples(shift))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*a piece runs in PyTorch:minidnn.errors.MiniDNNWarning")
@pytest.mark.parametrize("name", NETS)
def test_the_network_is_right_afterwards(name: str) -> None:
    is_warm = list(NETS).index(name) in (1, 3, 8)  # called before, so that something is kept
    expected = pytorchs(name, 1.0)
    _forget.__wrapped__()  # type: ignore[attr-defined]
    net = NETS[name]().eval()
    if is_warm:
        net(examples(2.0))
    before, attributes = kept(), dict(vars(net))
    fast = md.optimize(net, examples(), device="reference")
    if name != "a global by its name":  # which the code does not name
        same_objects(kept(), before)
    assert vars(net) == attributes
    right(net, examples(1.0), expected)
    right(fast, examples(1.0), expected)
    right(fast, examples(1.0), expected)
    right(net, examples(1.0), expected)


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(NETS)[::2])
def test_when_it_cannot_be_captured(name: str) -> None:
    """As by ``compile``, which takes all or nothing."""
    expected = pytorchs(name, 1.0)
    _forget.__wrapped__()  # type: ignore[attr-defined]

    class Sorted(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self[0](x)
            return y if float(y.sum()) < 1e9 else -y

    net = Sorted(NETS[name]()).eval()
    before, attributes = kept(), dict(vars(net[0]))
    with pytest.raises(md.UnsupportedError, match="cannot be captured"):
        md.compile(net, (2, 3, 5, 5))
    same_objects(kept(), before)
    assert vars(net[0]) == attributes
    right(net, examples(1.0), expected)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@pytest.mark.parametrize("name", ["lru_cache", "a global dict", "an object", "a class's dict"])
def test_torch_compile(name: str) -> None:
    expected = pytorchs(name, 1.0)
    _forget.__wrapped__()  # type: ignore[attr-defined]
    torch.compiler.reset()
    net = NETS[name]().eval()
    fast = torch.compile(net, backend=backend, options={"device": "reference"})
    for _ in range(2):
        right(fast, examples(1.0), expected)
        right(net, examples(1.0), expected)
