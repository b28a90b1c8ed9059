"""mix_precision: automatic mixed precision for graphs with states, which stay float32.

Handles: graphs with float32 states, such as parameters, where the target stores values in float16
or bfloat16.  Contractions read and write half precision: a state is rounded once in each run,
however often it is read.  So do windows and moves of such values.  Element-wise nodes between
contractions compute in float32, whatever the dtypes of their operands; their results are stored in
half precision unless exactly one element-wise node reads them.  All other values stay float32: sums
and statistics, softmax and normalizations, losses, gradients of parameters and what follows from
them, inputs, outputs and states.  Library functions declare themselves which dtypes they read.
Refuses: graphs without states, which ``reduce_precision`` handles, and targets that keep float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from minidnn.fusion.functions import LayerFunction
from minidnn.fusion.stacks import why_not_fusable
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Value, fresh, live_nodes
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
from minidnn.graph.types import HALF_DTYPES, rounded_to
from minidnn.passes.infrastructure import Context, Pass

_PRODUCTS = (Contraction, MatMul, Conv2dInputGradient, Conv2dWeightGradient)
_WINDOWS = (Windowed, AdaptiveAvgPool2d)
#: Operators whose result has the dtype of their operands, and that lose no accuracy by it.
_FOLLOWS = (*_WINDOWS, Movement, RandomDrop)
#: Inputs of lower rank are vectors or scalars, which formulas read in float32.
_LEAST_RANK = 2


def mix_precision(graph: Graph, context: Context) -> Graph:
    """See the module."""
    dtype = context.target.storage
    if dtype not in HALF_DTYPES or not graph.states:
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
    """The graph with products, and the values between them, in ``dtype``.

    inputs: the graph's float32 inputs that callers pass in ``dtype``.
    outputs: for each output, True for ``dtype``, False for its own dtype, and None for the dtype in
        which the graph computes it.  By default all outputs keep their dtypes.
    """
    wanted = [False] * len(graph.outputs) if outputs is None else list(outputs)
    return _Mixing(graph, dtype, set(inputs), wanted).graph()


class HalfGraph:
    """Builds a graph in which some values are in half precision.

    Attributes:
        given: the float32 graph.
        dtype: "float16" or "bfloat16".
        nodes: the new graph's nodes, in order.
        full, half: for values of the given graph, the new values in their own dtype, and in half
            precision; most have only one of the two.
        names: all names that are in use.
    """

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.given = graph
        self.dtype = dtype
        self.nodes: list[Node] = []
        self.full: dict[Value, Value] = {v: v for v in graph.values if v.producer is None}
        self.half: dict[Value, Value] = {}
        self.names = {value.name for value in graph.values} | {n.name for n in graph.nodes}

    def in_half(self, value: Value) -> Value:
        """A value of the given graph in half precision, rounded once for all readers."""
        result = self.half.get(value)
        if result is None:
            result = self.half[value] = self._rounded(value)
        return result

    def _rounded(self, value: Value) -> Value:
        source, dtype = self.full[value], self.dtype
        node = value.producer
        if node is not None and isinstance(node.op, (Reshaping, Transpose)):
            # The operand of a view is rounded, so that readers of any of its shapes share it.
            operand = self.in_half(node.inputs[0])
            return self._new(node.op, [operand], f"{value.name}.{dtype}", node.source)
        if isinstance(source, Constant):
            type = replace(source.type, dtype=dtype)
            return Constant(type, source.name, lambda: rounded_to(dtype, source.data))
        op = Formula(argument(0), title="Cast", dtype=dtype, compute="float32")
        return self._new(op, [source], f"{value.name}.{dtype}", value.name)

    def in_full(self, value: Value, source: str) -> Value:
        """A value of the given graph in its own dtype.  One in half precision gets a cast for each
        reader, which is fused into it."""
        if value in self.full:
            return self.full[value]
        op = Formula(argument(0), title="Cast", compute="float32")
        return self._new(op, [self.half[value]], f"{value.name}.float32", source)

    def _new(self, op: Operator, operands: Sequence[Value], name: str, source: str) -> Value:
        node = Node(op, operands, fresh(name, self.names), source)
        self.nodes.append(node)
        return node.output

    def keep(
        self, node: Node, op: Operator, operands: Sequence[Value], known: dict[Value, Value]
    ) -> None:
        """Adds a node under the name of one of the given graph; its results go into ``known``,
        which is :attr:`full` or :attr:`half`."""
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        known.update(zip(node.outputs, new.outputs, strict=True))


def computing_in_float32(op: Elementwise, dtype: str) -> Formula:
    """An element-wise operator that computes in float32, whatever it reads, with a result in
    ``dtype``."""
    if isinstance(op, Formula):
        return replace(op, dtype=dtype, compute="float32")
    tensors = op.arity - op.channel_count
    return Formula(op.expression(), tensors, op.channel_count, op.name, dtype, "float32")


def is_exact_in(op: Elementwise, dtype: str) -> bool:
    """Whether all constants of a formula can be represented in half precision."""
    numbers = [line.value for line in op.lines if line.op == "constant"]
    constants = np.array([float(number or 0.0) for number in numbers])
    return rounded_to(dtype, constants).astype(np.float64).tolist() == constants.tolist()


class _Mixing(HalfGraph):
    """Builds the graph of :func:`mixed`."""

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
        """Adds the new input for one that callers pass in half precision."""
        new = Value(replace(value.type, dtype=self.dtype), value.name)
        del self.full[value]
        self.half[value] = new
        if value.type.rank < _LEAST_RANK:
            self.full[value] = self.in_full(value, value.name)
        return new

    def _result(self, value: Value, half: bool | None) -> Value:
        """The new value for an output; ``half`` as in :func:`mixed`."""
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
        elif isinstance(op, _FOLLOWS) and self._keeps_half(op, floats):
            operands = [
                self.in_half(v) if v.dtype == "float32" else self.full[v] for v in node.inputs
            ]
            self.keep(node, op, operands, self.half)
        else:
            operands = [self.in_full(value, node.name) for value in node.inputs]
            self.keep(node, op, operands, self.full)

    def _keeps_half(self, op: Operator, floats: Sequence[Value]) -> bool:
        """Whether a window or move has its result in half precision: all float operands are, or,
        for concatenations, one is."""
        if isinstance(op, Gather):
            floats = floats[:1]
        halves = sum(map(self._is_half, floats))
        concatenates = isinstance(op, (Concat, TakeChannels))
        return halves > 0 if concatenates else 0 < halves == len(floats)

    def _is_half(self, value: Value) -> bool:
        """Whether the new graph has a value only in half precision."""
        return value in self.half and value not in self.full

    def _elementwise(self, node: Node, op: Elementwise) -> None:
        """Adds an element-wise node: in its own dtype if no operand and no result is half, in half
        precision if all operands are and constants are exact, and otherwise computing in
        float32."""
        floats = [v for v in node.inputs if v.dtype == "float32"]
        halves = [value for value in floats if self._is_half(value)]
        gives_half = node.output in self.between and self._is_stored(node)
        if not halves and not gives_half:
            operands = [self.full[value] for value in node.inputs]
            self.keep(node, op, operands, self.full)
            return
        is_representable = all(value in halves or self._is_exact(value) for value in floats)
        if gives_half and is_representable and is_exact_in(op, self.dtype):
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
        """Adds a library function, whose tensors all have one dtype."""
        narrowable = [v for v in node.inputs if op.narrows(v.type)]
        half = op.precision == "half" or (bool(narrowable) and all(map(self._is_half, narrowable)))
        operands = [
            self.in_half(v) if half and v in narrowable else self.in_full(v, node.name)
            for v in node.inputs
        ]
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            (self.half if made.dtype == self.dtype else self.full)[old] = made

    def _attention(self, node: Node, op: Operator) -> None:
        """Adds attention, or its gradient, whose logarithms stay float32."""
        operands = [
            self.in_full(v, node.name) if name == "logarithms" else self.in_half(v)
            for name, v in zip(op.operand_names, node.inputs, strict=True)
        ]
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            (self.half if made.dtype == self.dtype else self.full)[old] = made

    def _is_stored(self, node: Node) -> bool:
        """Whether the result of a node is likely to be written to memory: it has not exactly one
        reader, is a result of the graph, or its reader cannot be fused with the node."""
        readers = self.given.readers[node.output]
        if len(readers) != 1 or node.output in self.given.results:
            return True
        return not isinstance(readers[0].op, Elementwise) or (
            why_not_fusable(readers[0]) is not None
        )

    def _is_exact(self, value: Value) -> bool:
        """Whether a value is a constant that half precision represents exactly."""
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
    """The float32 values between products: element-wise nodes, windows and moves compute them from
    results of products, and products or windows read them, directly or through such nodes.  These
    are activations and their gradients.  Products outside of the graph compute the ``given`` values
    and read the values ``passed_on``."""
    from_products = {value for value in given if value.type.rank >= _LEAST_RANK}
    for node in graph.nodes:
        if _is_product(node):
            from_products.update(node.outputs)
        elif isinstance(node.op, (Elementwise, LayerFunction, *_FOLLOWS)):
            count = node.op.channel_count if isinstance(node.op, Elementwise) else 0
            if any(value in from_products for value in node.inputs[: len(node.inputs) - count]):
                from_products.update(node.outputs)
    to_products = set(passed_on)
    for node in reversed(graph.nodes):
        is_passed_on = _is_product(node) or isinstance(node.op, _WINDOWS)
        if isinstance(node.op, (Elementwise, LayerFunction, *_FOLLOWS)):
            is_passed_on |= any(value in to_products for value in node.outputs)
        if is_passed_on:
            to_products.update(value for value in node.inputs if value.dtype == "float32")
    return from_products & to_products


MIX_PRECISION = Pass("mix_precision", mix_precision, requires=("simplify", "fold_batch_norm"))
