"""Captures a whole module as one functional graph of ATen operations, and converts it.

Capturing runs the module's own Python code, which may have side effects.  :func:`unchanged` takes
a snapshot of all objects that the code can reach by name, and restores it afterwards.
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

#: Packages whose objects are not part of a snapshot: a network's code does not write to them.
_LIBRARIES = sys.stdlib_module_names | {"numpy", "pytest", "torch", "_pytest"}
_INDEXED = (list, bytearray, array.array)
_CACHED = type(functools.lru_cache(len))
#: The prefix of attributes in which PyTorch records how it compiles for a tensor; they are kept.
_NOTES = "_dynamo"


@contextlib.contextmanager
def unchanged(network: nn.Module) -> Iterator[None]:
    """Undoes the side effects of a network's code when the block ends.

    Restored are attributes, containers, buffers, the states of random number generators, and the
    globals and closures of its code and hooks.  Tensors other than buffers are not restored:
    programs write nothing to them meanwhile, see
    :data:`minidnn.acceleration.program.REHEARSING`.
    """
    snapshot = _Snapshot(network)
    tensors = [(each, each.detach().clone()) for each in network.buffers()]
    generator_states = random.getstate(), np.random.get_state()
    devices = {each.device.index for each in network.parameters() if each.is_cuda}
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(generator_states[0])
        np.random.set_state(generator_states[1])
        snapshot.put_back()
        with torch.no_grad():
            for tensor, value in tensors:
                # A write bumps the buffer's version, so everything that holds it would recompile.
                if tensor.layout is not torch.strided or not torch.equal(tensor, value):
                    tensor.copy_(value)


class _Snapshot:
    """The state of all objects that a network's code can reach and may write to.

    The objects are found by a graph search from the network, over attributes, items, slots,
    classes, closures, and the globals that code names.  For each object that can change, a function
    that restores its state is kept.
    """

    def __init__(self, root: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        seen: dict[int, Any] = {}
        pending = [root]
        while pending:
            reachable = pending.pop()
            if id(reachable) not in seen:
                seen[id(reachable)] = reachable
                pending += self._taken(reachable)

    def put_back(self) -> None:
        """Restores the state of all objects."""
        for undo in self._undo:
            undo()

    def _taken(self, value: Any) -> Iterable[Any]:
        """Records the state of an object, and returns the objects that it refers to."""
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, _INDEXED):
            self._undo.append(functools.partial(value.__setitem__, slice(None), value[:]))
            return value if isinstance(value, list) else ()
        if isinstance(value, (set, collections.deque)):
            copied = value.copy()
            self._undo.append(lambda: _refill(value, copied))
            return copied
        if isinstance(value, (tuple, frozenset)):
            return value
        if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
            weak: Any = value
            return self._dict(weak.data)
        if isinstance(value, threading.local):
            return self._dict(vars(value))
        if isinstance(value, _CACHED):
            return self._cache(value)
        if isinstance(value, torch.Tensor):
            return self._dict(vars(value)) if type(value) is nn.Parameter else ()
        if isinstance(value, np.ndarray):
            if value.flags.writeable:
                self._undo.append(functools.partial(np.copyto, value, value.copy()))
            return ()
        if isinstance(value, random.Random):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
            self._file(value)
        return self._code(value) if callable(value) else self._object(value)

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
        """Handles a function under ``lru_cache``: its cache is cleared if results were added."""
        kept = function.cache_info()

        def undo() -> None:
            now = function.cache_info()
            if (now.misses, now.currsize) != (kept.misses, kept.currsize):
                function.cache_clear()

        self._undo.append(undo)
        return (function.__wrapped__,)

    def _file(self, file: io.StringIO | io.BytesIO) -> None:
        content, offset = file.getvalue(), file.tell()

        def undo() -> None:
            file.seek(0)
            file.truncate()
            file.write(content)  # type: ignore[arg-type]
            file.seek(offset)

        self._undo.append(undo)

    def _code(self, each: Any) -> Iterable[Any]:
        """Handles a callable."""
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
            with contextlib.suppress(ValueError):  # the cell is empty
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
        """Handles an instance of the network's own classes, or a module of PyTorch's.  Lazy modules
        keep the weights that they initialize at their first call."""
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
                for member in vars(owner).values():
                    if isinstance(member, types.MemberDescriptorType):
                        yield self._slot(each, member)

    def _slot(self, each: Any, slot: types.MemberDescriptorType) -> Any:
        try:
            value = slot.__get__(each)
        except AttributeError:  # the slot is empty
            self._undo.append(lambda: _emptied(each, slot))
            return None
        self._undo.append(lambda: slot.__set__(each, value))
        return value


def _refill(each: Any, kept: Any) -> None:
    """Restores the elements of a set or a deque in place."""
    each.clear()
    each.update(kept) if isinstance(each, set) else each.extend(kept)


def _emptied(each: Any, slot: types.MemberDescriptorType) -> None:
    """Empties a slot of an object."""
    with contextlib.suppress(AttributeError):
        slot.__delete__(each)


def _is_note(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(_NOTES)


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in a code object and in the code objects within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def capture(
    root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Captured:
    """Captures a module without gradients, specialized to the shapes of these arguments.

    ``torch.export`` runs the module's own Python on fake tensors.

    Raises UnsupportedError, with PyTorch's message, if the module cannot be exported; or the
    exception that the module's own code raises for these arguments.
    """
    check_scripted(root)
    name = type(root).__name__
    with CAPTURING, torch.no_grad():
        try:
            with _logs_silenced(), layers_in_full():
                program = contextvars.copy_context().run(_exported, root, args, kwargs or {})
        except Exception as error:  # exporting may raise anything
            with unchanged(root):
                root(*args, **(kwargs or {}))  # invalid arguments raise the module's own error
            text = " ".join(str(error).split())
            raise UnsupportedError(
                f"{name} cannot be captured: {type(error).__name__}: {text:.300}; "
                'torch.compile(model, backend="minidnn") splits a network at such places'
            ) from error
        leaves = iter(pytree.tree_leaves((tuple(args), dict(kwargs or {}))))
        held: dict[int, Held] = {}
        arguments: list[Any] = []
        for position, spec in enumerate(program.graph_signature.input_specs):
            if spec.kind is InputKind.USER_INPUT:
                arguments.append(next(leaves))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                held[position] = _held(root, str(spec.target))
                arguments.append(held[position].tensor)
            elif spec.kind is InputKind.CONSTANT_TENSOR:
                held[position] = Held(program.constants, spec.target, str(spec.target))
                arguments.append(held[position].tensor)
            else:
                raise UnsupportedError(f"{name} is given {spec.target!r} of kind {spec.kind}")
        captured = functional(program.graph_module, arguments, held, trained=False, enabled=False)
    user_inputs = [position for position in range(len(arguments)) if position not in held]
    leaf_of = {position: i for i, position in enumerate(user_inputs)}
    names = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    for node, position in captured.given.items():
        node.meta["minidnn_name"] = names[position]
    captured.given = {node: leaf_of[position] for node, position in captured.given.items()}
    captured.arranged = program.call_spec.out_spec
    return captured


def _exported(root: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Exports a module.  Its code may store fake tensors in objects, which are restored."""
    with unchanged(root):
        return torch.export.export(root, tuple(args), dict(kwargs), strict=False)


def _held(root: nn.Module, name: str) -> Held:
    """The parameter or buffer of a module that has this path."""
    path, _, key = name.rpartition(".")
    owner = root.get_submodule(path)
    holder: MutableMapping[str, Any] = (
        owner._parameters if key in owner._parameters else owner._buffers
    )
    return Held(holder, key, name)


@contextlib.contextmanager
def _logs_silenced() -> Iterator[None]:
    """Silences PyTorch's log, which repeats the tracebacks of exceptions that are handled here."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def check_scripted(module: nn.Module) -> None:
    """Raises UnsupportedError if a module itself is a TorchScript module, scripted or traced."""
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
    """Returns the graph of a module for arguments of these shapes, by position and by name.

    The arguments have the dtype of the module's parameters (float32 if these have several floating-
    point dtypes, or none).

    Raises GraphError if the module fails on such arguments, OutOfMemoryError if they do not fit
    into memory, and UnsupportedError with a list of all operations that are not known and all
    results that are not computed from the arguments.
    """
    name = type(module).__name__
    zeros = partial(_zeros, module)
    args = [zeros(shape) for shape in shapes]
    kwargs = {key: zeros(shape) for key, shape in named.items()}
    try:
        captured = capture(module, args, kwargs)
    except MiniDNNError:
        raise
    except Exception as error:  # the module's own code may raise anything
        shown = ", ".join([*(str(tuple(a.shape)) for a in args), *(f"{k}=..." for k in kwargs)])
        raise GraphError(
            f"{name} fails on arguments of shapes {shown}, as shape gives them "
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
    """An argument of zeros on the device and in the dtype of the module's parameters."""
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
    """Returns the graph of a captured program of which every operation is known.

    The inputs are the arguments that the program reads, and the outputs are all of its results, in
    order.  If the results are a dict, its keys are the names of the outputs.
    """
    part = convert(captured.operations, captured.constants, captured.tensor, name)
    by_node = dict(zip(part.outputs, part.graph.outputs, strict=True))
    outputs = [by_node[node] for node in results_of(captured)]
    by_input = dict(zip(part.inputs, part.graph.inputs, strict=True))
    inputs = [by_input[node] for node in captured.given if node in by_input]
    positions = pytree.tree_unflatten(range(len(outputs)), captured.arranged)
    named = isinstance(positions, dict) and list(positions.values()) == list(range(len(outputs)))
    return Graph(inputs, outputs, part.graph.nodes, name, list(positions) if named else None)


def results_of(captured: Captured) -> list[Any]:
    """The results of a captured program, in order."""
    output = next(node for node in captured.module.graph.nodes if node.op == "output")
    results: Any = output.args[0]
    return list(results)


def _problems(captured: Captured) -> list[str]:
    """What keeps a captured program from being converted as a whole, one message each."""
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
    for position, result in enumerate(results_of(captured)):
        if result not in computed:
            name = result.meta.get("minidnn_name", result) if isinstance(result, Node) else result
            problems.append(f"result {position} is {name}, which is not computed of the arguments")
    return problems
