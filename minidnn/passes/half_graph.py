"""A graph in which some values are stored in half precision, as passes put it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Elementwise, Operator, Reshaping
from minidnn.graph.operators import Formula, Transpose
from minidnn.graph.types import rounded_to


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
