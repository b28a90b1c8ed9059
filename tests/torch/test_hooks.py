"""What hooks, closures and other code write beyond results: seen at every call, as in PyTorch."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import minidnn as md
from minidnn._torch_internals import VERSION
from minidnn.errors import UnsupportedError
from tests.sampling import every

#: Makes a network, and what tells the state of the things that it writes to.
Make = Callable[[], tuple[nn.Module, Callable[[], Any]]]
MAKES: dict[str, Make] = {}

ACTIVATIONS: dict[str, Any] = {}
COUNT = 0


def case(make: Make) -> Make:
    MAKES[make.__name__] = make
    return make


def examples(shift: float = 0.0, size: int = 5) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)) + shift


class Net(nn.Module):
    """Three layers, of which the middle one is hooked, or watched, by each case in its way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 1)
        self.middle = nn.Conv2d(4, 4, 1)
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)).relu())


@dataclass
class Record:
    last: Any = None
    all: list[Any] = field(default_factory=list)


class Slotted:
    __slots__ = ("last",)


class Keeper:
    """Keeps what passes, in its class."""

    kept: ClassVar[dict[str, Any]] = {}
    latest: Any = None


@case
def a_dict_in_a_closure() -> Any:
    net = Net()
    seen: dict[str, Any] = {}
    net.middle.register_forward_hook(lambda m, i, o: seen.__setitem__("a", o))
    return net, lambda: seen


@case
def a_list_in_a_closure() -> Any:
    net, seen = Net(), []

    def hook(module: Any, args: Any, result: Any) -> None:
        seen.append(result.detach())

    net.middle.register_forward_hook(hook)
    return net, lambda: seen


@case
def an_item_of_a_list() -> Any:
    net, seen = Net(), [None, None]

    def hook(module: Any, args: Any) -> None:
        seen[1] = args[0]

    net.middle.register_forward_pre_hook(hook)
    return net, lambda: seen


@case
def a_global_dict() -> Any:
    net = Net()
    ACTIVATIONS.clear()

    def hook(module: Any, args: Any, result: Any) -> None:
        ACTIVATIONS["a"] = result

    net.middle.register_forward_hook(hook)
    return net, lambda: ACTIVATIONS


@case
def a_global_number() -> Any:
    net = Net()
    globals()["COUNT"] = 0

    def hook(*_: Any) -> None:
        global COUNT
        COUNT += 1

    net.middle.register_forward_hook(hook)
    return net, lambda: COUNT


@case
def a_variable_of_the_function_around() -> Any:
    net = Net()
    count, last = 0, None

    def hook(module: Any, args: Any, result: Any) -> None:
        nonlocal count, last
        count, last = count + 1, result

    net.middle.register_forward_hook(hook)
    return net, lambda: (count, last)


@case
def an_attribute_of_the_module() -> Any:
    net = Net()
    net.middle.register_forward_hook(lambda m, i, o: setattr(m, "seen", o))
    return net, lambda: getattr(net.middle, "seen", None)


@case
def an_attribute_of_the_network_in_a_closure() -> Any:
    net = Net()

    def hook(module: Any, args: Any, result: Any) -> None:
        net.seen = result

    net.middle.register_forward_hook(hook)
    return net, lambda: getattr(net, "seen", None)


@case
def a_dict_by_modules() -> Any:
    net, seen = Net(), collections.OrderedDict()

    def hook(module: Any, args: Any, result: Any) -> None:
        seen[module] = result

    for module in (net.first, net.middle):
        module.register_forward_hook(hook)
    return net, lambda: [seen.get(net.first), seen.get(net.middle)]


@case
def an_object_that_is_called() -> Any:
    class Hook(Record):
        def __call__(self, module: Any, args: Any, result: Any) -> None:
            self.last = result
            self.all.append({"result": (result, [result + 1])})

    net, hook = Net(), Hook()
    net.middle.register_forward_hook(hook)
    return net, lambda: (hook.last, hook.all)


@case
def a_method_of_an_object() -> Any:
    class Watcher:
        def __init__(self) -> None:
            self.seen: collections.deque[Any] = collections.deque(maxlen=2)

        def note(self, module: Any, args: Any, result: Any) -> None:
            self.seen.append(result.mean())

    net, watcher = Net(), Watcher()
    net.middle.register_forward_hook(watcher.note)
    return net, lambda: list(watcher.seen)


@case
def a_partial() -> Any:
    net, record = Net(), Record()

    def note(where: Record, module: Any, args: Any, result: Any) -> None:
        where.last = result

    net.middle.register_forward_hook(functools.partial(note, record))
    return net, lambda: record.last


@case
def named_arguments() -> Any:
    net, seen = Net(), []
    net.middle.register_forward_hook(lambda m, a, k, o: seen.append(k), with_kwargs=True)
    return net, lambda: seen


@case
def one_that_also_changes_the_result() -> Any:
    net, seen = Net(), []

    def hook(module: Any, args: Any, result: Any) -> Any:
        seen.append(float(result.sum()))
        return result * len(seen)

    net.middle.register_forward_hook(hook)
    return net, lambda: seen


@case
def hooks_of_the_network_itself() -> Any:
    net, seen = Net(), []

    def before(module: Any, args: Any) -> Any:
        seen.append(module is net)
        return args[0] + 1

    def after(module: Any, args: Any, result: Any) -> Any:
        seen.append(result)
        return result * 2

    net.register_forward_pre_hook(before)
    net.register_forward_hook(after)
    return net, lambda: seen


@case
def a_hook_of_a_block() -> Any:
    net, seen = Net(), []
    net.middle = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)))
    net.middle.register_forward_hook(lambda m, i, o: seen.append(o))
    net.middle[1][1].register_forward_hook(lambda m, i, o: seen.append(o))
    return net, lambda: seen


class Writing(nn.Module):
    """Writes what passes where it is told, in its own code."""

    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        self.write(y)
        return y + 1


def _writing(write: Callable[[torch.Tensor], Any]) -> nn.Module:
    net = Net()
    net.middle = Writing(write)
    return net


@case
def code_that_writes_to_a_closure() -> Any:
    seen: dict[str, Any] = {}
    return _writing(lambda y: seen.update(a=y)), lambda: seen


@case
def code_that_writes_to_an_object() -> Any:
    record = Record()
    return _writing(lambda y: setattr(record, "last", y)), lambda: record.last


@case
def code_that_writes_to_an_object_with_slots() -> Any:
    record = Slotted()
    net = _writing(lambda y: setattr(record, "last", y))
    return net, lambda: getattr(record, "last", None)


@case
def code_that_writes_to_a_namespace() -> Any:
    space = types.SimpleNamespace(deep=Record())
    return _writing(lambda y: space.deep.all.append(y)), lambda: space.deep.all


@case
def code_that_writes_to_a_class() -> Any:
    Keeper.kept, Keeper.latest = {}, None

    def write(y: torch.Tensor) -> None:
        Keeper.kept["y"] = [y]
        Keeper.latest = y

    return _writing(write), lambda: (Keeper.kept, Keeper.latest)


@case
def code_that_writes_to_a_function() -> Any:
    def write(y: torch.Tensor) -> None:
        write.last = y  # type: ignore[attr-defined]

    return _writing(write), lambda: getattr(write, "last", None)


@case
def code_that_writes_to_a_default() -> Any:
    def write(y: torch.Tensor, seen: list[Any] = []) -> None:  # noqa: B006
        seen.append(y)

    return _writing(write), lambda: write.__defaults__


@case
def code_that_writes_into_a_tensor() -> Any:
    total = torch.zeros(4)
    return _writing(lambda y: total.add_(y.sum((0, 2, 3)))), lambda: total


@case
def code_that_writes_to_an_array() -> Any:
    seen, more = np.zeros(3), bytearray(2)

    def write(y: torch.Tensor) -> None:
        seen[1] += 1
        more[0] += 2

    return _writing(write), lambda: (seen.tolist(), list(more))


def same(found: Any, expected: Any) -> None:
    """Compares tensors, and what they are in."""
    if isinstance(expected, torch.Tensor):
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        same(list(found.values()), list(expected.values()))
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)
    else:
        assert found == expected


def copied(state: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, state)


#: Writes that Dynamo of PyTorch 2.11 loses, whatever the backend.
LOST = {"a_variable_of_the_function_around", "code_that_writes_to_a_default"}
LOST = LOST if VERSION < (2, 12) else set()


@pytest.mark.sampled(4)
@torch.no_grad()
@pytest.mark.parametrize("name", every(2, [name for name in MAKES if name not in LOST]))
def test_it_is_seen_at_every_call(name: str) -> None:
    is_warm = list(MAKES).index(name) % 2 == 0  # called before, so that there is something to read
    shifts = [0.0, 1.0, -1.0]

    def run(optimizes: bool) -> Any:
        net, state = MAKES[name]()
        net.eval()
        if is_warm:
            net(examples(3.0))
        before = copied(state())
        fast: Any = net
        if optimizes:
            fast = md.optimize(net, examples(), device="reference")
            same(state(), before)
            assert any(program.parts for program in fast.programs)
        return [(fast(examples(shift)), copied(state())) for shift in shifts]

    expected = run(False)
    found = run(True)
    same(found, expected)


#: Of which Dynamo cannot capture the write, so that the code goes on in Python.
BROKEN = ["code_that_writes_to_an_array"]
if VERSION < (2, 14):
    BROKEN.append("code_that_writes_to_a_function")
STRICT = [name for name in sorted({*MAKES} - {*BROKEN})[::4] if name not in LOST]


@pytest.mark.sampled(3)
@torch.no_grad()
@pytest.mark.parametrize("name", [*STRICT, *BROKEN])
def test_strictly_it_is_captured_whole_or_an_error(name: str) -> None:
    net, state = MAKES[name]()
    before = copied(state())
    if name in BROKEN:
        with pytest.raises(UnsupportedError, match=r"^strict=True, and Net cannot be captured who"):
            md.optimize(net.eval(), examples(), device="reference", strict=True)
        same(state(), before)
        return
    expected_net, expected = MAKES[name]()
    fast = md.optimize(net.eval(), examples(), device="reference", strict=True)
    same(state(), before)
    same(fast(examples(1.0)), expected_net.eval()(examples(1.0)))
    same(state(), expected())
    assert len(fast.pieces) == 1
