"""A whole module as one graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.fx import Node

from minidnn._torch_internals import pytree
from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError, UnsupportedError
from minidnn.frontends.torch.capture import capture
from minidnn.frontends.torch.captured import Captured
from minidnn.frontends.torch.convert import convert, judge_operations
from minidnn.graph.ir import Graph


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
