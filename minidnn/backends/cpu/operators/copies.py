"""Copies of values: to another layout, and to float32 for nodes whose kernels take no bfloat16.

Reductions, statistics and exponentials of bfloat16 values are computed in float32.  The values of
such nodes are small compared with those of contractions, so copies cost little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ....fusion.planning import build_plan
from ....fusion.sequence import Schedule
from ....graph.expression import argument
from ....graph.ir import Constant, Graph, Node, Value
from ....graph.operators import (
    ArgMax,
    Formula,
    GroupNorm,
    Identity,
    LayerNorm,
    LogSoftmax,
    MatMul,
    RandomDrop,
    Reduce,
    Softmax,
    SumOverRanks,
)
from ....graph.types import INT8_DTYPES, TensorType
from ..isa import Isa
from ..sequences.sequence import SequenceKernel, print_sequence
from ..tensor import Tensor
from .kernels import Shaped, print_elementwise


def copied(type: TensorType) -> Graph:
    """A graph of one node that copies its input."""
    value = Value(type, "source")
    op = Formula(argument(0), title="Copy", dtype=type.dtype, compute="float32")
    node = Node(op if type.dtype in INT8_DTYPES else Identity(), [value], "copy")
    return Graph([value], node.outputs, [node])


def print_copy(
    type: TensorType, source: Tensor, result: Tensor, isa: Isa, channel: int = 0
) -> SequenceKernel:
    """The kernel that copies a value to another layout, or to the channels of a wider value from
    ``channel`` on."""
    _, _, rows, columns = type.plane
    plan, binding = build_plan(copied(type), Schedule(rows, columns))
    slots = tuple(replace(slot, channel=slot.channel - channel) for slot in binding.outputs)
    binding = replace(binding, outputs=slots)
    return print_sequence(plan, binding, [source], [result], isa)


#: Operators whose kernels take no bfloat16.
_KINDS = (
    *(ArgMax, GroupNorm, LayerNorm, LogSoftmax, MatMul),
    *(RandomDrop, Reduce, Softmax, SumOverRanks),
)


def needs_copies(node: Node) -> bool:
    """Whether a node is computed on float32 copies of bfloat16 values."""
    values = (*node.inputs, *node.outputs)
    return isinstance(node.op, _KINDS) and any(value.dtype == "bfloat16" for value in values)


@dataclass(frozen=True)
class Widened:
    """A node rewritten to float32, alone in a graph.

    ``twins`` maps the operands and results of the original node, constants aside, to those of the
    new one.  An operand that is not bfloat16 is its own twin.
    """

    graph: Graph
    twins: Mapping[Value, Value]

    def copied(self, values: tuple[Value, ...]) -> list[Value]:
        """The values among these whose twins have another dtype, each once."""
        unique = dict.fromkeys(values)
        return [v for v in unique if v in self.twins and self.twins[v].dtype != v.dtype]


def widened(node: Node) -> Widened:
    """Rewrites a node to float32."""
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
