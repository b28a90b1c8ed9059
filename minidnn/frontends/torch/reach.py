"""What the code of modules can reach beyond the modules: closures, globals, classes, objects.

A module's ``forward`` and its hooks may write to a list in a closure, a global, an attribute of a
class or of any object.  Nothing says where but the code itself: which globals it names, what its
functions close over, and what these things hold in turn.  PyTorch's, Python's and NumPy's own code
is not looked into.
"""

from __future__ import annotations

import array
import builtins
import contextvars
import copy
import dis
import functools
import io
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

#: Packages whose code keeps nothing of a network's, as far as a network's results go.  From
#: pytest's, which every ``assert`` in a test's file names, code reaches all tests that there are.
_NOT_LOOKED_INTO = frozenset(
    {"torch", "torchgen", "minidnn", "numpy", "sympy", "onnx", "triton", *sys.stdlib_module_names}
    | {"pytest", "_pytest"}
) - {"__main__"}
#: Python's own modules whose objects hold what users put into them.
_CONTAINERS = frozenset({"_queue", "_thread", "collections", "queue", "types", "weakref"})
_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()

#: What functions that keep their results are.
KEEPER = type(functools.lru_cache(lambda: None))
#: Things that hold nothing that code can write to.
_LEAVES = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Tensor)


def is_looked_into(module: Any) -> bool:
    """Whether code of a Python module of this name may keep what is a network's."""
    return isinstance(module, str) and module.partition(".")[0] not in _NOT_LOOKED_INTO


@functools.lru_cache(maxsize=8192)
def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code names, with the functions in it; and all other names."""
    named: set[str] = set()
    others: set[str] = set(code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname in _GLOBALS:
            named.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner, more = names_in(constant)
            named |= inner
            others |= more
    return frozenset(named), frozenset(others)


def code_of(module: nn.Module) -> list[Any]:
    """What runs of a module's class when it is called, as far as names tell it."""
    kind: Any = type(module)
    pending, seen = ["forward"], {"forward"}
    found = []
    while pending:
        name = pending.pop()
        each = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        found.append(each)
        for part in (each, *(getattr(each, inner, None) for inner in ("fget", "func", "__func__"))):
            if (code := getattr(part, "__code__", None)) is not None:
                named = {name for names in names_in(code) for name in names if hasattr(kind, name)}
                pending += sorted(named - seen)
                seen |= named
    return found


class Place:
    """Something that code can write to, as it was when it was met.

    Attributes:
        of: the object that holds it.
        label: how messages call it.
    """

    def __init__(self, of: Any, label: str) -> None:
        self.of = of
        self.label = label
        self.before = self.now()

    def now(self) -> dict[Any, Any]:
        """What is held, by key."""
        raise NotImplementedError

    def put(self, before: dict[Any, Any]) -> None:
        """Has this held again, and nothing else."""
        raise NotImplementedError

    def has_changed(self) -> bool:
        """Whether it holds other objects than before; equal numbers and texts are none."""
        return not is_alike(self.now(), self.before)

    def restore(self) -> None:
        """Puts back what was there."""
        if not is_alike(self.now(), self.before):
            self.put(self.before)


class _Global(Place):
    """One global of a Python module."""

    def __init__(self, of: Any, key: str) -> None:
        self.key = key
        super().__init__(of, f"the global {key!r}")

    def now(self) -> dict[Any, Any]:
        return {self.key: self.of[self.key]} if self.key in self.of else {}

    def put(self, before: dict[Any, Any]) -> None:
        self.of.update(before)
        if not before:
            del self.of[self.key]


class _Cell(Place):
    """A variable of a function around another."""

    def now(self) -> dict[Any, Any]:
        try:
            return {0: self.of.cell_contents}
        except ValueError:  # nothing was assigned yet
            return {}

    def put(self, before: dict[Any, Any]) -> None:
        if before:
            self.of.cell_contents = before[0]
        else:
            del self.of.cell_contents


class _Dict(Place):
    def now(self) -> dict[Any, Any]:
        return dict(self.of)

    def put(self, before: dict[Any, Any]) -> None:
        self.of.clear()
        self.of.update(before)


class _Attributes(Place):
    """The dict of an object: other threads may read it meanwhile, so it is never empty."""

    def now(self) -> dict[Any, Any]:
        return dict(self.of)

    def put(self, before: dict[Any, Any]) -> None:
        for name in [name for name in self.of if name not in before]:
            del self.of[name]
        self.of.update(before)


class _List(Place):
    def now(self) -> dict[Any, Any]:
        return dict(enumerate(self.of))

    def put(self, before: dict[Any, Any]) -> None:
        self.of.clear()
        self.of.extend(before.values())


class _Set(Place):
    def now(self) -> dict[Any, Any]:
        return {id(each): each for each in self.of}

    def put(self, before: dict[Any, Any]) -> None:
        self.of.clear()
        self.of.update(before.values())


class _Bytes(Place):
    """What an array of NumPy's or Python's, or a ``bytearray``, has in its memory."""

    def __init__(self, of: Any, label: str) -> None:
        self._copy = copy.copy(of)
        super().__init__(of, label)

    def now(self) -> dict[Any, Any]:
        return {0: self.of.tobytes() if isinstance(self.of, np.ndarray) else bytes(self.of)}

    def put(self, before: dict[Any, Any]) -> None:
        self.of[:] = self._copy


class _Text(Place):
    """What was written to a file in memory, and where one is in it."""

    def now(self) -> dict[Any, Any]:
        return {} if self.of.closed else {0: self.of.getvalue(), 1: self.of.tell()}

    def put(self, before: dict[Any, Any]) -> None:
        if not self.of.closed:
            self.of.seek(0)
            self.of.truncate()
            self.of.write(before[0])
            self.of.seek(before[1])


class _Random(Place):
    """The state of a generator of Python's random numbers that is an object of its own."""

    def __init__(self, of: Any, label: str) -> None:
        self._state = of.getstate()
        super().__init__(of, label)

    def now(self) -> dict[Any, Any]:
        return {0: repr(self.of.getstate())}

    def put(self, before: dict[Any, Any]) -> None:
        self.of.setstate(self._state)


class _Variable(Place):
    """A variable of a context: of one that nobody else has, as it cannot be unset."""

    def now(self) -> dict[Any, Any]:
        return {0: self.of.get(MISSING)}

    def put(self, before: dict[Any, Any]) -> None:
        if before[0] is not MISSING:
            self.of.set(before[0])


class _Slots(Place):
    """The attributes of an object that has no dict for them."""

    def now(self) -> dict[Any, Any]:
        found = {name: getattr(self.of, name, MISSING) for name in _slots(type(self.of))}
        return {name: value for name, value in found.items() if value is not MISSING}

    def put(self, before: dict[Any, Any]) -> None:
        for name in self.now().keys() - before.keys():
            object.__delattr__(self.of, name)
        for name, value in before.items():
            if getattr(self.of, name, MISSING) is not value:
                object.__setattr__(self.of, name, value)


class _Class(Place):
    """The attributes of a class."""

    def now(self) -> dict[Any, Any]:
        return {name: each for name, each in vars(self.of).items() if name not in _OF_CLASSES}

    def put(self, before: dict[Any, Any]) -> None:
        now = self.now()
        for name in now.keys() - before.keys():
            delattr(self.of, name)
        for name, value in before.items():
            if now.get(name, MISSING) is not value:
                setattr(self.of, name, value)


#: Which classes have, and Python itself writes to.
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "_abc_impl"})


def is_alike(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether the same keys have the same objects, or equal numbers and texts, in one order."""
    if len(now) != len(before):
        return False
    for (key, value), (key_before, then) in zip(now.items(), before.items(), strict=True):
        if key is not key_before and key != key_before:
            return False
        if value is not then and not (
            type(value) is type(then)
            and isinstance(value, (int, float, complex, str, bytes))
            and value == then
        ):
            return False
    return True


def _slots(kind: type) -> list[str]:
    found = []
    for each in kind.__mro__:
        names = each.__dict__.get("__slots__", ())
        for name in [names] if isinstance(names, str) else list(names):
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{each.__name__.lstrip('_')}{name}" if is_private else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


class Reach:
    """All places that code reaches from some things on.

    modules: those that are not entered when they are met on the way; who asks names them.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self.places: dict[Any, Place] = {}
        #: Functions that keep their results.
        self.caches: dict[int, Any] = {}
        self.tensors: dict[int, torch.Tensor] = {}
        self._stops = {id(module) for module in modules}
        self._links: dict[int, list[Any]] = {}
        self._alive: list[Any] = []

    def add(self, thing: Any, label: str) -> None:
        """Meets a thing, and what it holds."""
        pending = [(thing, label)]
        while pending:
            one, label = pending.pop()
            if id(one) in self._links or isinstance(one, _LEAVES) or id(one) in self._stops:
                if isinstance(one, torch.Tensor):
                    self.tensors[id(one)] = one
                continue
            found = list(self._within(one, label))
            self._alive.append(one)
            self._links[id(one)] = [each for each, _ in found]
            pending += found

    def add_attributes(self, of: dict[str, Any], label: str) -> None:
        """Meets the attributes of an object, but not what these are."""
        self._place(_Attributes(of, label))

    def add_entries(self, of: dict[Any, Any], label: str) -> None:
        """Meets a dict, but not what is in it."""
        self._place(_Dict(of, label))

    def reaches(self, thing: Any, aims: set[Any]) -> bool:
        """Whether one of these places (by their keys) is what a thing that was met leads to."""
        pending, seen = [thing], set()
        while pending:
            one = pending.pop()
            if id(one) in aims:
                return True
            if id(one) not in seen:
                seen.add(id(one))
                if isinstance(one, types.FunctionType) and any(
                    (id(one.__globals__), name) in aims for name in names_in(one.__code__)[0]
                ):
                    return True
                pending += self._links.get(id(one), ())
        return False

    def _within(self, one: Any, label: str) -> Iterator[tuple[Any, str]]:
        """The things that a thing leads to, and how they are called."""
        if isinstance(one, types.FunctionType):
            yield from self._of_function(one, label)
        elif isinstance(one, KEEPER):
            self.caches[id(one)] = one
            yield one.__wrapped__, label
        elif isinstance(one, types.MethodType):
            yield from ((one.__func__, label), (one.__self__, label))
        elif isinstance(one, (staticmethod, classmethod)):
            yield one.__func__, label
        elif isinstance(one, property):
            yield from ((each, label) for each in (one.fget, one.fset) if each is not None)
        elif isinstance(one, functools.cached_property):
            yield one.func, label
        elif isinstance(one, functools.partial):
            yield from ((each, label) for each in (one.func, one.args, one.keywords))
        elif isinstance(one, weakref.ref):
            yield one(), label
        elif isinstance(one, types.CellType):
            place = self._place(_Cell(one, label))
            yield from ((each, label) for each in place.before.values())
        elif isinstance(one, contextvars.ContextVar):
            self._place(_Variable(one, label))
        elif isinstance(one, (bytearray, array.array)) or (
            isinstance(one, np.ndarray) and one.ndim and one.flags.writeable
        ):
            self._place(_Bytes(one, label))
        elif isinstance(one, (io.StringIO, io.BytesIO)):
            self._place(_Text(one, label))
        elif type(one) is random.Random:
            self._place(_Random(one, label))
        elif isinstance(one, type):
            yield from self._of_class(one)
        elif isinstance(one, (tuple, frozenset)):
            yield from ((each, label) for each in one)
        elif not isinstance(one, (types.ModuleType, types.BuiltinFunctionType)):
            yield from self._of_object(one, label)

    def _place(self, place: Place, key: Any = None) -> Place:
        return self.places.setdefault(id(place.of) if key is None else key, place)

    def _of_function(self, function: types.FunctionType, label: str) -> Iterator[tuple[Any, str]]:
        for each in (function.__defaults__, function.__kwdefaults__):
            if each:
                yield each, f"a default of {function.__name__}()"
        own = self._place(_Attributes(function.__dict__, f"an attribute of {function.__name__}()"))
        yield from ((each, own.label) for each in own.before.values())
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            yield cell, f"the variable {name!r}"
        if not is_looked_into(function.__globals__.get("__name__")):
            return
        named, others = names_in(function.__code__)
        if "globals" in named:
            self._place(_Attributes(function.__globals__, "a global"))
        for name in sorted(named):
            value = function.__globals__.get(name, MISSING)
            if value is MISSING and hasattr(builtins, name):
                continue
            key = (id(function.__globals__), name)
            place = self._place(_Global(function.__globals__, name), key)
            if isinstance(value, types.ModuleType):
                yield from self._of_module(value, others)
            elif value is not MISSING:
                yield value, place.label

    def _of_module(self, module: types.ModuleType, names: Iterable[str]) -> Iterator[Any]:
        """The globals of a Python module that code elsewhere may mean by these names, and of the
        modules among them."""
        pending, seen = [module], {id(module)}
        while pending:
            one = pending.pop()
            inside = vars(one)
            if not is_looked_into(one.__name__):
                continue
            for name in sorted(names):
                value = inside.get(name, MISSING)
                if isinstance(value, types.ModuleType):
                    if id(value) not in seen:
                        seen.add(id(value))
                        pending.append(value)
                elif value is not MISSING:
                    place = self._place(_Global(inside, name), (id(inside), name))
                    yield value, place.label

    def _of_class(self, kind: type) -> Iterator[tuple[Any, str]]:
        for each in kind.__mro__:
            if is_looked_into(each.__module__):
                place = self._place(_Class(each, f"an attribute of class {each.__name__}"))
                yield from ((value, place.label) for value in place.before.values())

    def _of_object(self, one: Any, label: str) -> Iterator[tuple[Any, str]]:
        kind = type(one)
        if isinstance(one, dict):
            place: Place = self._place(_Dict(one, label))
        elif isinstance(one, (list, deque)):
            place = self._place(_List(one, label))
        elif isinstance(one, set):
            place = self._place(_Set(one, label))
        elif not (
            is_looked_into(kind.__module__)
            or kind.__module__.partition(".")[0] in _CONTAINERS
            or isinstance(one, nn.Module)
        ):
            return
        else:
            place = self._place(_Slots(one, label))
        yield from ((value, label) for value in place.before.values())
        inside = getattr(one, "__dict__", None)
        if type(inside) is dict:
            self._place(_Attributes(inside, label))
            yield from ((value, label) for value in inside.values())
        if is_looked_into(kind.__module__):
            yield kind, label
