"""Capturing a whole module: what it computes, as one functional graph of ATen operations.

A rehearsal runs a network's code once without a trace of it: what it writes is put back.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import functools
import io
import logging
import operator
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from math import prod
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.nn.modules.lazy import LazyModuleMixin

from minidnn._torch_internals import pytree
from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError, UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, Captured, Held, layers_in_full
from minidnn.frontends.torch.convert import convert, judge_operations
from minidnn.frontends.torch.functional import functional
from minidnn.graph.ir import Graph

#: What is in the objects of these packages is not the network's to write.
_LIBRARIES = sys.stdlib_module_names | {"numpy", "pytest", "torch", "_pytest"}
_INDEXED = (list, bytearray, array.array)
_CACHED = type(functools.lru_cache(len))
#: PyTorch notes under such names how it compiles for a tensor, which is to stay.
_NOTES = "_dynamo"


@contextlib.contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Puts back, at the end, what a network's code writes: attributes, containers, buffers, the
    state of generators of random numbers, and what its code and its hooks name or close over.

    Tensors other than buffers are left: pieces write nothing to them, see
    :data:`minidnn.acceleration.program.REHEARSING`.
    """
    snapshot = _Snapshot(network)
    tensors = [(each, each.detach().clone()) for each in network.buffers()]
    states = random.getstate(), np.random.get_state()
    devices = {each.device.index for each in network.parameters() if each.is_cuda}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        snapshot.put_back()
        with torch.no_grad():
            for tensor, value in tensors:
                # A write would have everything compiled again that holds the buffer.
                if tensor.layout is not torch.strided or not torch.equal(tensor, value):
                    tensor.copy_(value)


class _Snapshot:
    """How things are now that the code of a network may write to, by what it names."""

    def __init__(self, root: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        seen: dict[int, Any] = {}
        reached = [root]
        while reached:
            each = reached.pop()
            if id(each) not in seen:
                seen[id(each)] = each
                reached += self._taken(each)

    def put_back(self) -> None:
        """Makes things what they were."""
        for undo in self._undo:
            undo()

    def _taken(self, each: Any) -> Iterable[Any]:
        """Notes how a thing is; gives what it leads to."""
        if isinstance(each, dict):
            return self._dict(each)
        if isinstance(each, _INDEXED):
            self._undo.append(functools.partial(each.__setitem__, slice(None), each[:]))
            return each if isinstance(each, list) else ()
        if isinstance(each, (set, collections.deque)):
            kept = each.copy()
            self._undo.append(lambda: _refill(each, kept))
            return kept
        if isinstance(each, (tuple, frozenset)):
            return each
        if isinstance(each, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
            held: Any = each
            return self._dict(held.data)
        if isinstance(each, threading.local):
            return self._dict(vars(each))
        if isinstance(each, _CACHED):
            return self._cache(each)
        if isinstance(each, torch.Tensor):
            return self._dict(vars(each)) if type(each) is nn.Parameter else ()
        if isinstance(each, np.ndarray):
            if each.flags.writeable:
                self._undo.append(functools.partial(np.copyto, each, each.copy()))
            return ()
        if isinstance(each, random.Random):
            self._undo.append(functools.partial(each.setstate, each.getstate()))
        elif isinstance(each, (io.StringIO, io.BytesIO)) and not each.closed:
            self._file(each)
        return self._code(each) if callable(each) else self._object(each)

    def _dict(self, each: dict[Any, Any]) -> Iterable[Any]:
        kept = dict(each)

        def undo() -> None:
            now = {key: value for key, value in each.items() if not _is_note(key)}
            old = {key: value for key, value in kept.items() if not _is_note(key)}
            if len(now) != len(old) or not all(
                map(is_, (*now, *now.values()), (*old, *old.values()))
            ):
                notes = {key: value for key, value in each.items() if _is_note(key)}
                each.clear()
                each.update(old | notes)

        self._undo.append(undo)
        return kept.values()

    def _cache(self, function: Any) -> Iterable[Any]:
        """Of a function that keeps its results: with new ones among them it forgets all."""
        kept = function.cache_info()

        def undo() -> None:
            now = function.cache_info()
            if (now.misses, now.currsize) != (kept.misses, kept.currsize):
                function.cache_clear()

        self._undo.append(undo)
        return (function.__wrapped__,)

    def _file(self, file: io.StringIO | io.BytesIO) -> None:
        kept, place = file.getvalue(), file.tell()

        def undo() -> None:
            file.seek(0)
            file.truncate()
            file.write(kept)  # type: ignore[arg-type]
            file.seek(place)

        self._undo.append(undo)

    def _code(self, each: Any) -> Iterable[Any]:
        """Of what can be called."""
        if isinstance(each, types.FunctionType):
            return self._function(each)
        if isinstance(each, types.MethodType):
            return each.__self__, each.__func__
        if isinstance(each, functools.partial):
            return each.func, each.args, each.keywords
        if isinstance(each, weakref.ref):
            return (each(),)
        if isinstance(each, type):
            return () if _is_library(each.__module__) else self._class(each)
        return self._object(each)

    def _function(self, function: types.FunctionType) -> Iterable[Any]:
        if _is_library(function.__module__):
            return
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                self._undo.append(
                    functools.partial(setattr, cell, "cell_contents", cell.cell_contents)
                )
                yield cell.cell_contents
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        names = list(_names(function.__code__))
        named = [function.__globals__.get(name) for name in names]
        modules = [
            vars(each)
            for each in named
            if isinstance(each, types.ModuleType) and not _is_library(each.__name__)
        ]
        for scope in (function.__globals__, *modules):
            for name in names:
                if name in scope:
                    self._undo.append(functools.partial(scope.__setitem__, name, scope[name]))
                    yield scope[name]

    def _class(self, kind: type) -> Iterable[Any]:
        kept = dict(vars(kind))

        def undo() -> None:
            for name in [*vars(kind)]:
                if name not in kept:
                    delattr(kind, name)
            for name, value in kept.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)

        self._undo.append(undo)
        for value in kept.values():
            yield from (getattr(value, name, value) for name in ("__func__", "fget", "func"))
        yield from kind.__mro__[1:]

    def _object(self, each: Any) -> Iterable[Any]:
        """Of an object of the network's classes, or a module of PyTorch's.  Modules that get their
        weights at their first call keep them."""
        kind = type(each)
        if kind.__module__.partition(".")[0] == "minidnn":
            yield vars(each).get("original") if isinstance(each, nn.Module) else None
            return
        is_plain = isinstance(each, (nn.Module, types.SimpleNamespace))
        if isinstance(each, (LazyModuleMixin, types.ModuleType)) or (
            _is_library(kind.__module__) and not is_plain
        ):
            return
        yield from (kind, getattr(each, "__dict__", None))
        for owner in kind.__mro__:
            if not _is_library(owner.__module__):
                for place in vars(owner).values():
                    if isinstance(place, types.MemberDescriptorType):
                        yield self._slot(each, place)

    def _slot(self, each: Any, place: types.MemberDescriptorType) -> Any:
        try:
            value = place.__get__(each)
        except AttributeError:  # it is empty
            self._undo.append(lambda: _emptied(each, place))
            return None
        self._undo.append(lambda: place.__set__(each, value))
        return value


def _refill(each: Any, kept: Any) -> None:
    each.clear()
    each.update(kept) if isinstance(each, set) else each.extend(kept)


def _emptied(each: Any, place: types.MemberDescriptorType) -> None:
    with contextlib.suppress(AttributeError):
        place.__delete__(each)


def _is_note(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(_NOTES)


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in code, and in what is defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def capture(
    root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """Captures what a module computes, without gradients, for arguments of these sizes.

    ``torch.export`` runs the module's own Python on tensors without data.

    UnsupportedError if that cannot be had, with what PyTorch says; what the module's own code
    raises for such arguments.
    """
    check_scripted(root)
    name = type(root).__name__
    with CAPTURING, torch.no_grad():
        try:
            with _unheard(), layers_in_full():
                program = contextvars.copy_context().run(_exported, root, args, kwargs or {})
        except Exception as error:  # whatever a module's own Python does
            with unchanged(root):
                root(*args, **(kwargs or {}))  # a mistake of the caller's comes to light here
            text = " ".join(str(error).split())
            raise UnsupportedError(
                f"{name} cannot be captured: {type(error).__name__}: {text:.300}; "
                'torch.compile(model, backend="minidnn") splits a network at such places'
            ) from error
        leaves = iter(pytree.tree_leaves((tuple(args), dict(kwargs or {}))))
        held: dict[int, Held] = {}
        given: list[Any] = []
        for place, spec in enumerate(program.graph_signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                given.append(next(leaves))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                held[place] = _held(root, str(spec.target))
                given.append(held[place].tensor)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                held[place] = Held(program.constants, spec.target, str(spec.target))
                given.append(held[place].tensor)
            else:
                raise UnsupportedError(f"{name} is given {spec.target!r} of kind {spec.kind}")
        captured = functional(program.graph_module, given, held, trained=False, enabled=False)
    of_user = [place for place in range(len(given)) if place not in held]
    places = {place: i for i, place in enumerate(of_user)}
    names = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    for node, place in captured.given.items():
        node.meta["minidnn_name"] = names[place]
    captured.given = {node: places[place] for node, place in captured.given.items()}
    captured.arranged = program.call_spec.out_spec
    return captured


def _exported(root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch makes of a module, whose code may keep tensors without data: all that it writes
    is put back."""
    with unchanged(root):
        return torch.export.export(root, tuple(args), dict(kwargs), strict=False)


def _held(root: nn.Module, name: str) -> Held:
    path, _, key = name.rpartition(".")
    owner = root.get_submodule(path)
    holder: MutableMapping[str, Any] = (
        owner._parameters if key in owner._parameters else owner._buffers
    )
    return Held(holder, key, name)


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """PyTorch logs what fails while it captures, with its traceback; here an exception tells it."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def check_scripted(module: nn.Module) -> None:
    """UnsupportedError if a module as a whole is scripted or traced."""
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedError(
            f"{type(module).__name__} cannot be captured: it is a TorchScript module, whose "
            "code is not Python's; valid is the module that it was made of"
        )


def graph_of_module(
    module: torch.nn.Module,
    shapes: Sequence[Sequence[int]],
    named: Mapping[str, Sequence[int]],
) -> Graph:
    """The graph for arguments of these shapes, in the dtype of the module's parameters (float32 if
    they have several, or none).

    GraphError if the module fails on such arguments, OutOfMemoryError if they do not fit into
    memory; UnsupportedError lists every operation that is not known, and results that are no
    tensors.
    """
    name = type(module).__name__
    zeros = partial(_zeros, module)
    args = [zeros(shape) for shape in shapes]
    kwargs = {key: zeros(shape) for key, shape in named.items()}
    try:
        captured = capture(module, args, kwargs)
    except MiniDNNError:
        raise
    except Exception as error:  # whatever the module's own code does
        given = ", ".join([*(str(tuple(a.shape)) for a in args), *(f"{k}=..." for k in kwargs)])
        raise GraphError(
            f"{name} fails on arguments of shapes {given}, as shape gives them "
            f"({type(error).__name__}: {error})"
        ) from error
    problems = _problems(captured)
    if problems:
        listed = "\n  ".join(problems)
        raise UnsupportedError(
            f"{name} cannot be taken whole (md.optimize runs the rest in PyTorch):\n  {listed}"
        )
    return convert_all(captured, name)


def _zeros(module: torch.nn.Module, shape: Sequence[int]) -> torch.Tensor:
    """An argument of that shape, where the module's parameters are and in their dtype."""
    parameters = list(module.parameters())
    dtypes = {p.dtype for p in parameters if p.dtype.is_floating_point}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    try:
        return torch.zeros(
            tuple(shape), dtype=dtype, device=parameters[0].device if parameters else "cpu"
        )
    except RuntimeError as error:  # PyTorch's allocator
        size = prod(shape) * dtype.itemsize
        raise OutOfMemoryError(
            f"shape={tuple(shape)}: an input of {size} bytes does not fit into memory, which "
            f"PyTorch needs to capture {type(module).__name__}"
        ) from error


def convert_all(captured: Captured, name: str) -> Graph:
    """The graph of a captured program that is known throughout: its inputs are the arguments that
    it reads, its outputs all results, in their order; a dict of results keeps their names."""
    part = convert(captured.operations, captured.constants, captured.tensor, name)
    by_node = dict(zip(part.outputs, part.graph.outputs, strict=True))
    outputs = [by_node[node] for node in results_of(captured)]
    by_input = dict(zip(part.inputs, part.graph.inputs, strict=True))
    inputs = [by_input[node] for node in captured.given if node in by_input]
    places = pytree.tree_unflatten(range(len(outputs)), captured.arranged)
    named = isinstance(places, dict) and list(places.values()) == list(range(len(outputs)))
    return Graph(inputs, outputs, part.graph.nodes, name, list(places) if named else None)


def results_of(captured: Captured) -> list[Any]:
    """What the program gives, in order."""
    output = next(node for node in captured.module.graph.nodes if node.op == "output")
    results: Any = output.args[0]
    return list(results)


def _problems(captured: Captured) -> list[str]:
    left: dict[Node, str] = {}
    operations = captured.operations
    judge_operations(operations, captured.constants, captured.tensor, lambda graph: None, left)
    problems = [
        captured.unknown(node, reason)
        for node, reason in left.items()
        if node.target is not operator.getitem
    ]
    if captured.writes:
        problems.append("it writes to its arguments or buffers")
    computed = dict.fromkeys(operations)
    for place, result in enumerate(results_of(captured)):
        if result not in computed:
            name = result.meta.get("minidnn_name", result) if isinstance(result, Node) else result
            problems.append(f"result {place} is {name}, which is not computed of the arguments")
    return problems
