"""reduce_precision: float32 values are stored in the dtype that the target prefers.

Where arithmetic stays in float32 (``stored_in``), values of a float32 graph are stored in half
precision: contractions multiply float16 or bfloat16, accumulate in float32 and read their bias in
float32.  A value from which a contraction's factors are computed is rounded once, when it is
stored; element-wise nodes compute in float32, and a value whose only reader is an element-wise node
that can be fused with its producer stays float32.  So do inputs, outputs, and values from which no
contraction follows.  In a graph without contractions all values that nodes read count as leading to
one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minidnn.fusion.functions import LayerFunction
from minidnn.fusion.stacks import why_not_fusable
from minidnn.fusion.target import Target
from minidnn.graph.attention_patterns import expand_attention
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, State, Stored, Value
from minidnn.graph.operator import Contraction, Elementwise, Operator
from minidnn.graph.operators import Attention, AttentionGradient, Formula
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.mix_precision import HalfGraph, computing_in_float32, is_exact_in


def stored_in(graph: Graph, dtype: str, target: Target) -> Graph:
    """The graph with values stored in ``dtype``, float16 or bfloat16, as the module describes."""
    expanded, _ = expand_attention(graph)
    return _Storing(expanded, dtype, target).graph()


class _Storing(HalfGraph):
    """Builds the graph of :func:`stored_in`."""

    def __init__(self, graph: Graph, dtype: str, target: Target) -> None:
        super().__init__(graph, dtype)
        self.target = target
        self.leading = _leading_to_contractions(graph)

    def graph(self) -> Graph:
        for node in self.given.nodes:
            self._add(node)
        given = self.given
        outputs = [self.in_full(value, value.name) for value in given.outputs]
        return Graph(given.inputs, outputs, self.nodes, given.name, given.output_names)

    def _add(self, node: Node) -> None:
        op, inputs = node.op, node.inputs
        if isinstance(op, Contraction) and inputs[0].dtype == "float32":
            stays_full = self._stays_full(node)
            operands = [*map(self._half_of, inputs[:2]), *self._in_full(node, inputs[2:])]
            self._give(node, _with_result_dtype(op, "float32" if stays_full else None), operands)
        elif isinstance(op, Elementwise):
            self._elementwise(node, op)
        elif self.leading.isdisjoint(node.outputs):
            self._give(node, op, self._in_full(node, inputs))
        else:
            self._give(node, op, [self._half_of(value) for value in inputs])

    def _elementwise(self, node: Node, op: Elementwise) -> None:
        floats = [value for value in node.inputs if value.dtype == "float32"]
        halves = [value for value in floats if value not in self.full]
        stays_full = node.output.dtype != "float32" or self._stays_full(node)
        operands = [self.half[v] if v in halves else self.full[v] for v in node.inputs]
        if stays_full and not halves:
            self._give(node, op, operands)
        elif not stays_full and 0 < len(halves) == len(floats) and is_exact_in(op, self.dtype):
            if isinstance(op, Formula) and op.dtype is not None:
                op = replace(op, dtype=self.dtype)
            self._give(node, op, operands)
        else:
            result = node.output.dtype if stays_full else self.dtype
            self._give(node, computing_in_float32(op, result), operands)

    def _stays_full(self, node: Node) -> bool:
        """Whether the result of a contraction or an element-wise node is float32."""
        value = node.output
        if value not in self.leading:
            return True
        readers = self.given.readers[value]
        if len(readers) != 1 or value in self.given.results:
            return False
        (reader,) = readers
        if not isinstance(reader.op, Elementwise) or why_not_fusable(reader) is not None:
            return False
        contracts = isinstance(node.op, Contraction)
        return not contracts or self.target.refuse_epilogue(node, reader) is None

    def _half_of(self, value: Value) -> Value:
        return self.in_half(value) if value.dtype == "float32" else self.full[value]

    def _in_full(self, node: Node, values: Sequence[Value]) -> list[Value]:
        return [self.in_full(value, node.name) for value in values]

    def _give(self, node: Node, op: Operator, operands: Sequence[Value]) -> None:
        """Adds a node; notes for each result whether it is stored in half precision."""
        new = Node(op, operands, node.name, node.source)
        self.nodes.append(new)
        for old, made in zip(node.outputs, new.outputs, strict=True):
            narrowed = old.dtype == "float32" and made.dtype == self.dtype
            (self.half if narrowed else self.full)[old] = made


def _with_result_dtype(op: Contraction, dtype: str | None) -> Contraction:
    changed: Any = op
    return replace(changed, dtype=dtype)


def _leading_to_contractions(graph: Graph) -> set[Value]:
    """The float32 values from which the input or the weight of a contraction is computed; without
    contractions, all float32 values that nodes read."""
    leading: set[Value] = set()
    no_contractions = not any(isinstance(node.op, Contraction) for node in graph.nodes)
    for node in reversed(graph.nodes):
        if no_contractions or any(value in leading for value in node.outputs):
            leading.update(node.inputs)
        elif isinstance(node.op, Contraction):
            leading.update(node.inputs[:2])
    return {value for value in leading if value.dtype == "float32"}


def reduce_precision(graph: Graph, context: Context) -> Graph:
    """Float32 values are stored in the dtype that the target prefers.

    Handles: every float32 input, constant and node output, at once; constants are rounded when they
    are first needed, after normalizations have been folded into them.  Where the target keeps the
    dtypes of inputs and outputs, only the values that the module names are stored so.
    Refuses: graphs with states, which ``mix_precision`` handles, and graphs that already have mixed
    precision.  For targets that keep float32 nothing changes, nor do other dtypes.
    """
    dtype = context.target.storage
    if dtype is None or dtype == "float32" or graph.states or context.mixed:
        return graph
    if not context.allow(f"keep float32 values in {dtype}"):
        return graph
    if context.target.keeps_interface:
        return stored_in(graph, dtype, context.target)
    return in_dtype(graph, {"float32"}, dtype)


def in_dtype(graph: Graph, given: Container[str], dtype: str) -> Graph:
    """The graph with all values of the floating-point dtypes ``given`` in ``dtype``: inputs,
    constants, states and node outputs, formulas with a dtype of their own included.
    """
    converted: dict[Value, Value] = {}
    names = {value.name for value in graph.values} | {node.name for node in graph.nodes}
    nodes: list[Node] = []
    #: Logarithms that attention keeps for its gradient stay as they are.
    kept = {node.inputs[4] for node in graph.nodes if isinstance(node.op, AttentionGradient)}

    def cast(value: Value, to: str, source: str) -> Value:
        """Adds a node that casts a value to another dtype."""
        name = f"{value.name}.{to}"
        while name in names:
            name += "."
        names.add(name)
        op = Formula(argument(0), title="Cast", dtype=to, compute="float32")
        nodes.append(Node(op, [value], name, source))
        return nodes[-1].output

    def convert(old: Value) -> Value:
        """The new value for one of the graph; inputs, constants and states are converted when they
        are first read."""
        if old not in converted:
            stays = old.dtype not in given or old in kept
            converted[old] = old if stays else _converted(old, dtype)
        return converted[old]

    inputs = [convert(value) for value in graph.inputs]
    for node in graph.nodes:
        op = node.op
        if isinstance(op, LayerFunction):
            operands = [
                convert(value)
                if op.narrows(value.type) or value.dtype not in given
                else value
                if isinstance(value, Constant)
                else cast(convert(value), value.dtype, node.name)
                for value in node.inputs
            ]
        else:
            operands = [convert(value) for value in node.inputs]
        if isinstance(op, Formula) and op.dtype is not None and op.dtype in given:
            op = replace(op, dtype=dtype)
        new = Node(op, operands, node.name, node.source)
        nodes.append(new)
        for value, made in zip(node.outputs, new.outputs, strict=True):
            needs_cast = value.dtype in given and made.dtype == value.dtype
            needs_cast = needs_cast and not (isinstance(op, Attention) and value is node.outputs[1])
            converted[value] = (
                cast(made, dtype, node.name) if needs_cast and dtype != made.dtype else made
            )
    outputs = [convert(value) for value in graph.outputs]
    updates: Any = {convert(state): convert(value) for state, value in graph.updates.items()}
    return Graph(inputs, outputs, nodes, graph.name, graph.output_names, updates=updates)


def _converted(old: Value, dtype: str) -> Value:
    type = replace(old.type, dtype=dtype)
    if isinstance(old, (Constant, State)):
        return old.__class__(type, old.name, _rounded(old, dtype))
    return Value(type, old.name)


def _rounded(stored: Stored, dtype: str) -> Callable[[], np.ndarray]:
    return lambda: rounded_to(dtype, stored.data)


REDUCE_PRECISION = Pass(
    "reduce_precision", reduce_precision, requires=("simplify", "fold_batch_norm")
)
