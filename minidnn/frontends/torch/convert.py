"""From captured operations to graphs: one operation to judge it, a whole part to compile it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from minidnn._torch_internals import HigherOrderOperator
from minidnn.errors import GraphError
from minidnn.frontends.torch import aten
from minidnn.frontends.torch.aten.call import AtenCall, Refused, key_of, known, type_of, why_left
from minidnn.graph import ir
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, tracing
from minidnn.graph.types import numpy_dtype

#: Gives the tensor of a constant, a weight or what is computed of weights, as it is now.
Tensors = Callable[[Node], Any]

#: Why a device cannot run a graph; None if it can.
Judge = Callable[[Graph], str | None]

assert aten.__all__  # converters are registered by importing their families


@dataclass(frozen=True)
class Part:
    """Taken operations as a graph, and the captured nodes that its inputs and outputs are.

    Attributes:
        written: inputs that the part writes to itself: what they become are further outputs of the
            graph, in this order.
        random: how many further inputs are numbers that random numbers follow from.
        overwritten: the inputs, by place, that are written to after the part has run.
        differentiable: how many of the outputs, from the first, may have gradients; all by default.
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
    """The graph of operations that are all taken.

    Its outputs are ``results``, or what others read; its inputs what the operations read of
    others.  Constants are read with ``tensors`` when they are first needed.  ``trained`` says that
    the network is: what it draws random numbers from are inputs, too.
    """
    within = dict.fromkeys(nodes)
    with tracing(name, training=trained) as trace:
        values = _Values(trace, constants, tensors)
        for node in nodes:
            for operand in node.all_input_nodes:
                if operand not in within and operand not in constants:
                    values.add_input(operand)
        for node in nodes:
            values.compute(node)
        outputs = [node for node in nodes if any(user not in within for user in node.users)]
        outputs = outputs if results is None else list(results)
        graph = trace.graph([values[node] for node in outputs])
    if not graph.states:
        return Part(graph, tuple(values.inputs), tuple(outputs))
    given = _given_states(graph)
    return Part(given, tuple(values.inputs), tuple(outputs), random=len(graph.states))


def _given_states(graph: Graph) -> Graph:
    """The graph with its states as further inputs; what they become is for the caller to say."""
    stands: dict[Value, Value] = {state: Value(state.type, state.name) for state in graph.states}
    nodes: list[ir.Node] = []
    for node in graph.nodes:
        operands = [stands.get(value, value) for value in node.inputs]
        new = ir.Node(node.op, operands, node.name, node.source)
        stands.update(zip(node.outputs, new.outputs, strict=True))
        nodes.append(new)
    outputs = [stands.get(value, value) for value in graph.outputs]
    live = set(outputs)
    kept: list[ir.Node] = []
    for node in reversed(nodes):
        if not live.isdisjoint(node.outputs):
            kept.append(node)
            live.update(node.inputs)
    inputs = [*graph.inputs, *(stands[state] for state in graph.states)]
    return Graph(inputs, outputs, kept[::-1], graph.name)


#: Blocks within a module, which are one operation each in its program.
_BLOCKS = {"wrap_with_autocast": "it is a block under autocast, which PyTorch honours"}


def judge_operations(
    nodes: Iterable[Node],
    constants: Mapping[Node, None],
    tensors: Tensors,
    judge: Judge,
    left: dict[Node, str],
    trained: bool = False,
) -> None:
    """Adds to ``left`` those of ``nodes`` (in the program's order) that are left, and why."""
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
    """Which of several results a getitem takes."""
    place: Any = node.args[1]
    return int(place)


def _results(node: Node) -> Sequence[Any]:
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)):
        return (value,)
    if any(user.target is not operator.getitem for user in node.users):
        raise Refused("its results are used as a list")
    return value


class _Values:
    """The values of a graph that is being recorded, by the captured nodes that they stand for."""

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
        found = self[node]
        return list(found) if isinstance(found, (list, tuple)) else [found]

    def add_input(self, node: Node) -> None:
        if node not in self._found:
            name = node.meta.get("minidnn_name") or label_of(node)
            self._found[node] = self._trace.input(type_of(node.meta.get("val")), name)
            self.inputs[node] = None

    def compute(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._found[node] = self[node.args[0]][_place(node)]
            return
        entry = known().get(key_of(node))
        if (why := getattr(node.target, "minidnn_left", None)) is not None:
            raise Refused(why)
        if entry is None:
            raise Refused(why_left(key_of(node)))
        with _scope(self._trace, node):
            found = entry.converter(AtenCall(node, self))
        self._found[node] = found
        for value, expected in zip(self.all_of(node), _results(node), strict=True):
            if value is not None and value.type != type_of(expected):
                raise Refused(f"it would give {value.type}, PyTorch gives {type_of(expected)}")

    def _constant(self, node: Node) -> Value:
        type = type_of(node.meta.get("val"))
        name = node.meta.get("minidnn_name", node.name)
        held = numpy_dtype(type.dtype)
        return self._trace.constant(
            node, name, type, lambda: as_numpy(self._tensors(node)).astype(held, copy=False)
        )


def as_numpy(tensor: Any) -> np.ndarray:
    """A tensor of any device as NumPy has it; on the CPU its memory is shared."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()  # NumPy has no bfloat16
    return np.asarray(tensor.cpu().resolve_conj().resolve_neg().numpy())


def path_of(node: Node) -> tuple[str, bool]:
    """The path of the module that an operation comes from, and whether that has no children."""
    stack = node.meta.get("nn_module_stack") or {}
    path, kind = "", ""
    for entry in stack.values():
        path, kind = str(entry[0]), str(entry[1])
    # torch.compile's paths begin with the name of a local variable.
    path = re.sub(r"^L\['\w+'\]\.?", "", path)
    plain = "torch.nn.modules." in kind and ".container." not in kind
    return path, plain or bool(node.meta.get("minidnn_leaf"))


def label_of(node: Node) -> str:
    """The name of what a node computes: its module's path, or the name PyTorch gave it."""
    path, leaf = path_of(node)
    return path if path and leaf else node.name


@contextmanager
def _scope(trace: Trace, node: Node) -> Iterator[None]:
    path, leaf = path_of(node)
    if not path:
        yield
        return
    with trace.scope(path, leaf):
        yield
