"""Nodes whose kernels know float32 alone, on copies of their values in bfloat16.

Sums, statistics and powers are computed in float32 whatever they are of; where these nodes stand,
values are small beside those of contractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....graph.expression import argument
from ....graph.ir import Constant, Graph, Node, Value
from ....graph.operators import (
    ArgMax,
    GroupNorm,
    LayerNorm,
    LogSoftmax,
    MatMul,
    RandomDrop,
    Reduce,
    Softmax,
    SumOverRanks,
)
from ....graph.types import TensorType
from .broadcast import print_elementwise
from .kernels import Shaped

_KINDS = (
    *(ArgMax, GroupNorm, LayerNorm, LogSoftmax, MatMul),
    *(RandomDrop, Reduce, Softmax, SumOverRanks),
)


def needs_copies(node: Node) -> bool:
    """Whether a node is computed on copies."""
    values = (*node.inputs, *node.outputs)
    return isinstance(node.op, _KINDS) and any(value.dtype == "bfloat16" for value in values)


@dataclass(frozen=True)
class Widened:
    """A node over float32 values, alone in a graph, and what stands in it for each value of the
    given one's that is computed: the value itself, or a copy of another dtype."""

    graph: Graph
    twins: Mapping[Value, Value]

    def copied(self, values: tuple[Value, ...]) -> list[Value]:
        """Those that have copies, each once."""
        given = dict.fromkeys(values)
        return [v for v in given if v in self.twins and self.twins[v].dtype != v.dtype]


def widened(node: Node) -> Widened:
    """The node over float32 values."""
    twins = {value: _in_float32(value) for value in node.inputs}
    twin = Node(node.op, [twins[value] for value in node.inputs], node.name, node.source)
    twins |= zip(node.outputs, twin.outputs, strict=True)
    inputs = dict.fromkeys(v for v in twin.inputs if not isinstance(v, Constant))
    known = {old: new for old, new in twins.items() if not isinstance(old, Constant)}
    return Widened(Graph(inputs, twin.outputs, [twin], node.name), known)


def print_conversion(source: TensorType, result: TensorType) -> Shaped:
    """The kernel that copies a dense value to another dtype."""
    return print_elementwise(argument(0), [source], result, "float32")


def _in_float32(value: Value) -> Value:
    if value.dtype != "bfloat16":
        return value
    type = replace(value.type, dtype="float32")
    if isinstance(value, Constant):
        return Constant(type, value.name, lambda: value.data)
    return Value(type, value.name)
