"""Converts captured ATen operations to graphs.

A single operation is converted to judge whether it is known and the device can run it; the
operations of a whole part are converted to compile them.  The converters are in :mod:`.aten`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from minidnn._torch_internals import HigherOrderOperator
from minidnn.errors import GraphError
from minidnn.frontends.torch import aten
from minidnn.frontends.torch.aten.call import (
    AtenCall,
    Refused,
    key_of,
    operator_named,
    type_of,
    why_left,
)
from minidnn.graph import ir
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import numpy_dtype

#: Returns the current tensor of a constant node: a weight, or a value computed from weights.
Tensors = Callable[[Node], Any]

#: Returns the reason why a device cannot run a graph, or None if it can.
Judge = Callable[[Graph], str | None]

assert aten.__all__  # converters are registered by importing their families


@dataclass(frozen=True)
class Part:
    """The graph of a part of a captured program, and the captured nodes of its inputs and outputs.

    Attributes:
        graph: the converted operations.
        inputs: the captured nodes of the graph's first inputs.
        outputs: the captured nodes of the graph's first outputs.
        written: inputs that the part updates in place; their new values are the graph's last
            outputs, in this order.
        random: number of further inputs, the states of the random number generator.
        differentiable: number of leading outputs that may require gradients; None means all.
        overwritten: positions of inputs whose memory is written to after the part has run.
    """

    graph: Graph
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    written: tuple[Node, ...] = ()
    random: int = 0
    differentiable: int | None = None
    overwritten: frozenset[int] = frozenset()


def convert(
    nodes: Sequence[Node],
    constants: Mapping[Node, None],
    tensors: Tensors,
    name: str,
    results: Sequence[Node] | None = None,
    trained: bool = False,
) -> Part:
    """Returns the graph of operations that are all known.

    Args:
        nodes: the operations, in the program's order.
        constants: nodes that become constants of the graph.
        tensors: reads a constant's tensor when its data is first needed.
        name: of the graph.
        results: the outputs; by default the nodes that others outside of ``nodes`` read.
        trained: whether the network is trained; the states of the random number generator are then
            inputs, too.
    """
    members = dict.fromkeys(nodes)
    with tracing(name, training=trained) as trace:
        values = _Values(trace, constants, tensors)
        for node in nodes:
            for operand in node.all_input_nodes:
                if operand not in members and operand not in constants:
                    values.add_input(operand)
        for node in nodes:
            values.compute(node)
        outputs = [node for node in nodes if any(user not in members for user in node.users)]
        outputs = outputs if results is None else list(results)
        graph = trace.graph([values[node] for node in outputs])
    if not graph.states:
        return Part(graph, tuple(values.inputs), tuple(outputs))
    with_inputs = _given_states(graph)
    return Part(with_inputs, tuple(values.inputs), tuple(outputs), random=len(graph.states))


def _given_states(graph: Graph) -> Graph:
    """Returns the graph with its states as further inputs, and without the operations that update
    them: the caller updates the states."""
    replaced: dict[Value, Value] = {state: Value(state.type, state.name) for state in graph.states}
    nodes: list[ir.Node] = []
    for node in graph.nodes:
        operands = [replaced.get(value, value) for value in node.inputs]
        new = node.on(operands)
        replaced.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [replaced.get(value, value) for value in graph.outputs]
    inputs = [*graph.inputs, *(replaced[state] for state in graph.states)]
    return Graph(inputs, outputs, ir.live_nodes(nodes, outputs), graph.name)


#: Blocks of a module that are one higher-order operation each, and why they are left.
_BLOCKS = {"wrap_with_autocast": "it is a block under autocast, which PyTorch honours"}


def judge_operations(
    nodes: Iterable[Node],
    constants: Mapping[Node, None],
    tensors: Tensors,
    judge: Judge,
    left: dict[Node, str],
    trained: bool = False,
) -> None:
    """Adds to ``left`` each of ``nodes`` (in the program's order) that cannot be converted, or that
    the device cannot run, with the reason."""
    verdicts: dict[Any, str | None] = {}
    for node in nodes:
        if node not in left:
            reason = _reason(node, constants, tensors, judge, left, verdicts, trained)
            if reason is not None:
                left[node] = reason


def _reason(
    node: Node,
    constants: Mapping[Node, None],
    tensors: Tensors,
    judge: Judge,
    left: Mapping[Node, str],
    verdicts: dict[Any, str | None],
    trained: bool,
) -> str | None:
    """Why an operation is left; None if it is taken.  ``verdicts`` caches those of ``judge`` by
    operators and types."""
    if node.target is operator.getitem:
        container = node.all_input_nodes[0]
        return left.get(container)
    try:
        if isinstance(node.target, HigherOrderOperator):
            raise Refused(_BLOCKS.get(key_of(node), "it is a block of operations"))
        if any(isinstance(value, (list, tuple)) for value in _results(node)):
            raise Refused("it gives lists within lists")
        with tracing("one", training=trained) as trace:
            values = _Values(trace, constants, tensors)
            for operand in node.all_input_nodes:
                if operand not in constants:
                    values.add_input(operand)
            values.compute(node)
            results = values.all_of(node)
            for user in node.users:
                if user.target is operator.getitem and results[_place(user)] is None:
                    raise Refused(f"its result {_place(user)} is not computed")
            graph = trace.graph([v for v in results if v is not None])
            graph = _given_states(graph) if graph.states else graph
    except (Refused, GraphError) as error:
        return str(error)
    key = tuple((n.op, tuple((type(v), v.type) for v in n.inputs)) for n in graph.nodes)
    if key not in verdicts:
        verdicts[key] = judge(graph)
    return verdicts[key]


def _place(node: Node) -> int:
    """The index of the result that a ``getitem`` node selects."""
    place: Any = node.args[1]
    return int(place)


def _results(node: Node) -> Sequence[Any]:
    """The fake tensors of a node's results."""
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)):
        return (value,)
    if any(user.target is not operator.getitem for user in node.users):
        raise Refused("its results are used as a list")
    return value


class _Values:
    """The values of a graph that is being recorded, by the captured nodes that they come from.

    A node with several results has a list of values, with None for results that are not computed.
    """

    def __init__(self, trace: Trace, constants: Mapping[Node, None], tensors: Tensors) -> None:
        self._trace = trace
        self._constants = constants
        self._tensors = tensors
        self._found: dict[Node, Any] = {}
        self.inputs: dict[Node, None] = {}

    def __getitem__(self, node: Node) -> Any:
        if node not in self._found and node in self._constants:
            self._found[node] = self._constant(node)
        return self._found[node]

    def all_of(self, node: Node) -> list[Any]:
        value = self[node]
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def add_input(self, node: Node) -> None:
        if node not in self._found:
            name = node.meta.get("minidnn_name") or label_of(node)
            self._found[node] = self._trace.input(type_of(node.meta.get("val")), name)
            self.inputs[node] = None

    def compute(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._found[node] = self[node.args[0]][_place(node)]
            return
        entry = operator_named(key_of(node))
        if (why := getattr(node.target, "minidnn_left", None)) is not None:
            raise Refused(why)
        if entry is None:
            raise Refused(why_left(key_of(node)))
        path, is_leaf = path_of(node)
        with self._trace.scope(path, is_leaf) if path else nullcontext():
            results = entry.converter(AtenCall(node, self))
        self._found[node] = results
        for value, expected in zip(self.all_of(node), _results(node), strict=True):
            if value is not None and value.type != type_of(expected):
                raise Refused(f"it would give {value.type}, PyTorch gives {type_of(expected)}")

    def _constant(self, node: Node) -> Value:
        type = type_of(node.meta.get("val"))
        name = node.meta.get("minidnn_name", node.name)
        dtype = numpy_dtype(type.dtype)
        return self._trace.constant(
            node, name, type, lambda: as_numpy(self._tensors(node)).astype(dtype, copy=False)
        )


def as_numpy(tensor: Any) -> np.ndarray:
    """Returns a tensor of any device as an array, which shares the memory of a tensor on the CPU
    unless its dtype is bfloat16: that becomes float32."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()  # NumPy has no bfloat16
    return np.asarray(tensor.cpu().resolve_conj().resolve_neg().numpy())


def path_of(node: Node) -> tuple[str, bool]:
    """The path of the module that an operation comes from, and whether that counts as a leaf: it is
    a layer of PyTorch's, or calls no other module."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = "", ""
    for entry in stack.values():
        path, kind = str(entry[0]), str(entry[1])
    # torch.compile's paths begin with the name of a local variable.
    path = re.sub(r"^L\['\w+'\]\.?", "", path)
    is_leaf = "torch.nn.modules." in kind and ".container." not in kind
    return path, is_leaf or bool(node.meta.get("minidnn_leaf"))


def label_of(node: Node) -> str:
    """The label of a node: the path of its leaf module, or the name that PyTorch gave it."""
    path, leaf = path_of(node)
    return path if path and leaf else node.name
