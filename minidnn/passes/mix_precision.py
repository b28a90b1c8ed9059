"""mix_precision: graphs with states compute in half precision, and their states stay float32.

Handles: graphs that keep float32 states, such as parameters, where the target keeps values in half
precision.  Contractions read and give halves: a state is rounded once a run, however often it is
read.  So do windows and moves of such values.  Element-wise nodes between contractions compute in
float32, of halves and float32 values alike; what they give is a half where something else than one
element-wise node reads it.  All else stays float32: sums and statistics, softmax and normalizations
by it, losses, what becomes of gradients of parameters, inputs, outputs and states.  Functions of a
library say themselves what they take.
Refuses: graphs without states, which reduce_precision handles, and targets that keep float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from minidnn.fusion.functions import LayerFunction
from minidnn.fusion.stacks import why_not_fusable
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Value, live_nodes
from minidnn.graph.operator import Contraction, Elementwise, Movement, Operator, Reshaping, Windowed
from minidnn.graph.operators import (
    AdaptiveAvgPool2d,
    ArgMax,
    Attention,
    AttentionGradient,
    Concat,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Formula,
    Gather,
    MatMul,
    RandomDrop,
    Reduce,
    TakeChannels,
    Transpose,
    Variance,
)
from minidnn.graph.types import HALVES, rounded_to
from minidnn.passes.infrastructure import Context, Pass

_PRODUCTS = (Contraction, MatMul, Conv2dInputGradient, Conv2dWeightGradient)
_WINDOWS = (Windowed, AdaptiveAvgPool2d)
#: What gives the dtype that it is given, and computes nothing that would suffer from it.
_FOLLOWS = (*_WINDOWS, Movement, RandomDrop)
#: What has fewer axes is a vector: formulas read it in float32.
_LEAST_RANK = 2


def mix_precision(graph: Graph, context: Context) -> Graph:
    """See the module."""
    dtype = context.target.storage
    if dtype not in HALVES or not graph.states:
        return graph
    if not any(map(_is_product, graph.nodes)):
        return graph
    if not context.allow(f"compute in {dtype} between states in float32"):
        return graph
    return mixed(graph, dtype)


def mixed(
    graph: Graph,
    dtype: str,
    inputs: Iterable[Value] = (),
    outputs: Sequence[bool | None] | None = None,
) -> Graph:
    """The graph with products, and what lies between them, in ``dtype``.

    inputs: those of its inputs, in float32, that are given in ``dtype``.
    outputs: for each output whether it is wanted in ``dtype``; None for one that is given as it
        lies.  By default all are wanted as they are.
    """
    wanted = [False] * len(graph.outputs) if outputs is None else list(outputs)
    return _Mixing(graph, dtype, set(inputs), wanted).graph()


class HalfGraph:
    """The nodes of a graph as they are added, with ``dtype`` for what becomes a half."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.given = graph
        self.dtype = dtype
        self.nodes: list[Node] = []
        #: For values of the graph what stands for them in float32, or any other dtype of theirs,
        #: and in half precision; of most there is one.
        self.full: dict[Value, Value] = {v: v for v in graph.values if v.producer is None}
        self.half: dict[Value, Value] = {}
        self.names = {value.name for value in graph.values} | {n.name for n in graph.nodes}

    def in_half(self, value: Value) -> Value:
        found = self.half.get(value)
        if found is None:
            found = self.half[value] = self._rounded(value)
        return found

    def _rounded(self, value: Value) -> Value:
        source, dtype = self.full[value], self.dtype
        node = value.producer
        if node is not None and isinstance(node.op, (Reshaping, Transpose)):
            # What it gives another shape is rounded once, for whoever reads it in this one or not.
            halves = self.in_half(node.inputs[0])
            return self._new(node.op, [halves], f"{value.name}.{dtype}", node.source)
        if isinstance(source, Constant):
            type = replace(source.type, dtype=dtype)
            return Constant(type, source.name, lambda: rounded_to(dtype, source.data))
        op = Formula(argument(0), title="Cast", dtype=dtype, compute="float32")
        return self._new(op, [source], f"{value.name}.{dtype}", value.name)

    def in_full(self, value: Value, source: str) -> Value:
        """A value in float32; one in half precision is converted for each reader by itself, which
        costs nothing where it is read."""
        if value in self.full:
            return self.full[value]
        op = Formula(argument(0), title="Cast", compute="float32")
        return self._new(op, [self.half[value]], f"{value.name}.float32", source)

    def _new(self, op: Operator, operands: Sequence[Value], name: str, source: str) -> Value:
        unique, count = name, 0
        while unique in self.names:
            unique, count = f"{name}.{count + 1}", count + 1
        self.names.add(unique)
        node = Node(op, operands, unique, source)
        self.nodes.append(node)
        return node.output

    def keep(
        self, node: Node, op: Operator, operands: Sequence[Value], known: dict[Value, Value]
    ) -> None:
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        known.update(zip(node.outputs, new.outputs, strict=True))


def computing_in_float32(op: Elementwise, dtype: str) -> Formula:
    """An element-wise operator that computes in float32, whatever it reads, and gives ``dtype``."""
    if isinstance(op, Formula):
        return replace(op, dtype=dtype, compute="float32")
    tensors = op.arity - op.channel_count
    return Formula(op.expression(), tensors, op.channel_count, op.name, dtype, "float32")


def is_exact_in(op: Elementwise, dtype: str) -> bool:
    """Whether a formula's numbers are the same in half precision."""
    numbers = [line.value for line in op.lines if line.op == "constant"]
    held = np.array([float(number or 0.0) for number in numbers])
    return rounded_to(dtype, held).astype(np.float64).tolist() == held.tolist()


class _Mixing(HalfGraph):
    def __init__(
        self, graph: Graph, dtype: str, inputs: set[Value], wanted: Sequence[bool | None]
    ) -> None:
        super().__init__(graph, dtype)
        self.wanted = wanted
        passed_on = (v for v, half in zip(graph.outputs, wanted, strict=True) if half)
        self.between = _between_products(graph, inputs, passed_on)
        self.inputs = [self._narrow(value) if value in inputs else value for value in graph.inputs]

    def graph(self) -> Graph:
        for node in self.given.nodes:
            self._add(node)
        given = self.given
        results = [
            self._result(v, half) for v, half in zip(given.outputs, self.wanted, strict=True)
        ]
        updates = {s: self.in_full(v, v.name) for s, v in given.updates.items()}
        nodes = live_nodes(self.nodes, (*results, *updates.values()))
        return Graph(self.inputs, results, nodes, given.name, given.output_names, updates=updates)

    def _narrow(self, value: Value) -> Value:
        """What stands for an input that is given in half precision."""
        given = Value(replace(value.type, dtype=self.dtype), value.name)
        del self.full[value]
        self.half[value] = given
        if value.type.rank < _LEAST_RANK:
            self.full[value] = self.in_full(value, value.name)
        return given

    def _result(self, value: Value, half: bool | None) -> Value:
        if half and value.dtype == "float32":
            return self.in_half(value)
        if half is None and self._is_half(value):
            return self.half[value]
        return self.in_full(value, value.name)

    def _add(self, node: Node) -> None:
        op = node.op
        floats = [v for v in node.inputs if v.dtype == "float32"]
        if isinstance(op, _PRODUCTS) and len(floats) == len(node.inputs):
            self.keep(node, op, [self.in_half(value) for value in node.inputs], self.half)
        elif isinstance(op, (Attention, AttentionGradient)):
            self._attention(node, op)
        elif isinstance(op, Elementwise):
            self._elementwise(node, op)
        elif isinstance(op, LayerFunction):
            self._function(node, op)
        elif isinstance(op, Reduce) and self._is_half(node.inputs[0]):
            self.keep(node, replace(op, dtype="float32"), [self.half[node.inputs[0]]], self.full)
        elif isinstance(op, Variance) and self._is_half(node.inputs[0]):
            x, mean = node.inputs
            operands = [self.half[x], self.in_full(mean, node.name)]
            self.keep(node, replace(op, dtype="float32"), operands, self.full)
        elif isinstance(op, ArgMax) and self._is_half(node.inputs[0]):
            self.keep(node, op, [self.half[node.inputs[0]]], self.full)
        elif isinstance(op, _FOLLOWS) and self._follows(op, floats):
            operands = [
                self.in_half(v) if v.dtype == "float32" else self.full[v] for v in node.inputs
            ]
            self.keep(node, op, operands, self.half)
        else:
            operands = [self.in_full(value, node.name) for value in node.inputs]
            self.keep(node, op, operands, self.full)

    def _follows(self, op: Operator, floats: Sequence[Value]) -> bool:
        if isinstance(op, Gather):
            floats = floats[:1]
        halves = sum(map(self._is_half, floats))
        joins = isinstance(op, (Concat, TakeChannels))
        return halves > 0 if joins else 0 < halves == len(floats)

    def _is_half(self, value: Value) -> bool:
        """Whether a value is there in half precision alone."""
        return value in self.half and value not in self.full

    def _elementwise(self, node: Node, op: Elementwise) -> None:
        floats = [v for v in node.inputs if v.dtype == "float32"]
        halves = [value for value in floats if self._is_half(value)]
        gives_half = node.output in self.between and self._is_stored(node)
        if not halves and not gives_half:
            operands = [self.full[value] for value in node.inputs]
            self.keep(node, op, operands, self.full)
            return
        known = all(value in halves or self._is_exact(value) for value in floats)
        if gives_half and known and is_exact_in(op, self.dtype):
            if isinstance(op, Formula) and op.dtype is not None:
                op = replace(op, dtype=self.dtype)
            operands = [
                self.in_half(v) if v.dtype == "float32" else self.full[v] for v in node.inputs
            ]
            self.keep(node, op, operands, self.half)
            return
        result = self.dtype if gives_half else node.output.dtype
        operands = [self.half[v] if v in halves else self.full[v] for v in node.inputs]
        self.keep(
            node,
            computing_in_float32(op, result),
            operands,
            self.half if gives_half else self.full,
        )

    def _function(self, node: Node, op: LayerFunction) -> None:
        """A function of a library, whose tensors are all of one dtype."""
        narrow = [v for v in node.inputs if op.narrows(v.type)]
        half = op.precision == "half" or (bool(narrow) and all(map(self._is_half, narrow)))
        operands = [
            self.in_half(v) if half and v in narrow else self.in_full(v, node.name)
            for v in node.inputs
        ]
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            (self.half if made.dtype == self.dtype else self.full)[old] = made

    def _attention(self, node: Node, op: Operator) -> None:
        """Attention, or its gradient, whose logarithms stay in float32."""
        operands = [
            self.in_full(v, node.name) if name == "logarithms" else self.in_half(v)
            for name, v in zip(op.operand_names, node.inputs, strict=True)
        ]
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            (self.half if made.dtype == self.dtype else self.full)[old] = made

    def _is_stored(self, node: Node) -> bool:
        """Whether a value is likely to be written to memory: more than one element-wise node reads
        it, or the one that does cannot be computed with it."""
        readers = self.given.readers[node.output]
        if len(readers) != 1 or node.output in self.given.results:
            return True
        return not isinstance(readers[0].op, Elementwise) or (
            why_not_fusable(readers[0]) is not None
        )

    def _is_exact(self, value: Value) -> bool:
        """Whether a value is a constant whose numbers are the same in half precision."""
        if not isinstance(value, Constant):
            return False
        data = value.data
        return bool((rounded_to(self.dtype, data).astype(np.float32) == data).all())


def _is_product(node: Node) -> bool:
    op = node.op
    if isinstance(op, LayerFunction):
        return op.precision == "half"
    return isinstance(op, (*_PRODUCTS, Attention, AttentionGradient))


def _between_products(
    graph: Graph, given: Iterable[Value], passed_on: Iterable[Value]
) -> set[Value]:
    """The float32 values that are computed of results of products and that products or windows
    read, with nothing but element-wise nodes, windows and moves in between: activations and their
    gradients.  Products elsewhere make what is ``given`` and read what is ``passed_on``."""
    made = {value for value in given if value.type.rank >= _LEAST_RANK}
    for node in graph.nodes:
        if _is_product(node):
            made.update(node.outputs)
        elif isinstance(node.op, (Elementwise, LayerFunction, *_FOLLOWS)):
            count = node.op.channel_count if isinstance(node.op, Elementwise) else 0
            if any(value in made for value in node.inputs[: len(node.inputs) - count]):
                made.update(node.outputs)
    read = set(passed_on)
    for node in reversed(graph.nodes):
        passes = _is_product(node) or isinstance(node.op, _WINDOWS)
        if isinstance(node.op, (Elementwise, LayerFunction, *_FOLLOWS)):
            passes |= any(value in read for value in node.outputs)
        if passes:
            read.update(value for value in node.inputs if value.dtype == "float32")
    return made & read


MIX_PRECISION = Pass("mix_precision", mix_precision, requires=("simplify", "fold_batch_norm"))
