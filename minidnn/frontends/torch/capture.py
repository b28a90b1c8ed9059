"""Capturing a whole module: what it computes, as one functional graph of ATen operations."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import operator
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from minidnn._torch_internals import pytree
from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError, UnsupportedError
from minidnn.frontends.torch.captured import CAPTURING, Captured, Held, layers_in_full
from minidnn.frontends.torch.convert import convert, judge_operations
from minidnn.frontends.torch.functional import functional
from minidnn.frontends.torch.rehearsal import unchanged
from minidnn.graph.ir import Graph


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
