"""Regions over rows: chains of element-wise operators and reductions along the last axis.

All values of such a region belong to rows of one length.  A value has an element for each element
of the rows, for each row, for each position in a row (a vector), or one element.  So a row can stay
in the kernel that computes it, from the first operator to the last: it is read once, and written
once where another kernel needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from minidnn._cached_property import cached_property
from minidnn.fusion.region import Region
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Elementwise, Reshaping
from minidnn.graph.operators import Expand, LayerNorm, LogSoftmax, Reduce, Softmax
from minidnn.graph.registry import register
from minidnn.graph.types import HALF_DTYPES, TensorType

_STORED = ("float32", *HALF_DTYPES)

__all__ = [
    "FusedRows",
    "Role",
    "RowShape",
    "is_along_rows",
    "is_column_sum",
    "region_of_row_operator",
    "rows_of",
]


class Role(Enum):
    """What a value of a region over rows has an element for."""

    ROW = "each element of the rows"
    NUMBER = "each row"
    VECTOR = "each place of a row"
    SCALAR = "all rows"


@dataclass(frozen=True, slots=True)
class RowShape:
    """``count`` rows of ``length`` elements; a length of 0, of values with one element for each
    row, fits any."""

    count: int
    length: int

    def role(self, type: TensorType) -> Role | None:
        """The role of a value of that type; None if it belongs to other rows."""
        shape = type.shape
        last = shape[-1] if shape else 1
        wide = len(shape) > 1 and last == self.length
        if self.length and wide and type.size == self.count * self.length:
            return Role.ROW
        if shape and last == 1 and type.size == self.count:
            return Role.NUMBER
        if self.length and last == self.length == type.size:
            return Role.VECTOR
        return Role.SCALAR if type.size == 1 else None

    def merged(self, other: RowShape) -> RowShape | None:
        """The rows that fit both; None if they differ."""
        if self.count != other.count or (self.length and other.length not in (0, self.length)):
            return None
        return self if self.length else other


def is_along_rows(node: Node) -> bool:
    """Whether a node reduces rows, along the last axis: it needs all of a row at once."""
    op, rank = node.op, node.inputs[0].type.rank if node.inputs else 0
    if isinstance(op, Reduce):
        return op.dims == (rank - 1,) and op.keepdim
    if isinstance(op, (Softmax, LogSoftmax)):
        return op.dim in (-1, rank - 1)
    return isinstance(op, LayerNorm) and op.axes == 1


def is_column_sum(node: Node) -> bool:
    """Whether a node adds up all rows to a vector: it needs all of them."""
    op = node.op
    if not isinstance(op, Reduce) or op.how != "sum":
        return False
    return node.inputs[0].type.rank > 1 and op.dims == tuple(range(node.inputs[0].type.rank - 1))


def rows_of(node: Node) -> RowShape | str:
    """Returns the rows that a node computes, or why it computes none."""
    dtypes = {value.dtype for value in (*node.inputs, *node.outputs)}
    if not dtypes.issubset(_STORED) or not node.outputs or not node.inputs:
        return f"it computes with {' and '.join(sorted(dtypes)) or 'nothing'}"
    reduces = is_along_rows(node) or is_column_sum(node)
    type = node.inputs[0].type if reduces else node.outputs[0].type
    last = type.shape[-1] if type.rank > 1 else 0
    if not last or not type.size:
        return "it has no rows"
    rows = RowShape(type.size // last, last) if last > 1 else RowShape(type.size, 0)
    if reduces:
        return rows if rows.length else "its rows have one element"
    if isinstance(node.op, Elementwise):
        return _why_not_elementwise(node, node.op, rows) or rows
    if isinstance(node.op, Expand):
        return _why_not_repeated(node.inputs[0], node.output.shape) or rows
    if isinstance(node.op, Reshaping):
        source = node.inputs[0].type
        same = source.rank > 1 and source.shape[-1] == last
        return rows if same else "it makes other rows"
    return f"{node.op.name} is no operator over rows"


def _why_not_elementwise(node: Node, op: Elementwise, rows: RowShape) -> str | None:
    out = node.output.shape
    if op.channel_count and (len(out) != 2 or not rows.length):
        return "it has a vector over another axis than the last"
    for value in node.inputs[: len(node.inputs) - op.channel_count]:
        if value.shape != out and (reason := _why_not_repeated(value, out)) is not None:
            return reason
    return None


def _why_not_repeated(value: Value, shape: tuple[int, ...]) -> str | None:
    """Why a value cannot be broadcast to rows of a shape; None if it can."""
    is_number = value.shape == (*shape[:-1], 1)
    is_vector = value.type.size == shape[-1] == (value.shape or (1,))[-1]
    if is_number or is_vector or value.type.size == 1:
        return None
    return f"{value!r} is repeated otherwise than along rows"


@register
@dataclass(frozen=True, eq=False)
class FusedRows(Region):
    """A region over rows.  Its results are rows, values with one element for each row, and sums
    over all rows: vectors, which nothing else of the region reads."""

    @cached_property
    def rows(self) -> RowShape:
        """The rows that all nodes have in common."""
        return rows_of_all(self.body)

    @cached_property
    def sums(self) -> dict[int, Node]:
        """The nodes that add up rows, by the numbers of their results."""
        made = {node.output: node for node in self.body.nodes if is_column_sum(node)}
        return {i: made[value] for i, value in enumerate(self.body.outputs) if value in made}

    def role(self, value: Value) -> Role:
        """The role of a value of the body."""
        role = self.rows.role(value.type)
        assert role is not None, value
        return role


def rows_of_all(body: Graph) -> RowShape:
    """Returns the rows that all nodes of a body have in common."""
    common: RowShape | None = None
    for node in body.nodes:
        node_rows = rows_of(node)
        assert isinstance(node_rows, RowShape), f"{node.name}: {node_rows}"
        common = node_rows if common is None else common.merged(node_rows)
        assert common is not None, f"{node.name} computes other rows"
    assert common is not None
    return common


def region_of_row_operator(node: Node) -> FusedRows | None:
    """Returns the region of one reduction or normalization over trailing axes, its value seen as
    rows; None if a node is neither, or its rows have no more than one element.

    Its operands and its result are the node's, in other shapes.
    """
    op, x = node.op, node.inputs[0]
    if isinstance(op, Reduce):
        axes = len(op.dims)
        if not axes or op.dims != tuple(range(x.type.rank - axes, x.type.rank)):
            return None
    elif isinstance(op, LayerNorm):
        axes = op.axes
    elif isinstance(op, (Softmax, LogSoftmax)) and op.dim in (-1, x.type.rank - 1):
        axes = 1
    else:
        return None
    length = prod(x.shape[x.type.rank - axes :])
    if length < 2 or not x.type.size or x.dtype not in _STORED or node.output.dtype not in _STORED:
        return None
    rows = Value(TensorType((x.type.size // length, length), x.dtype), x.name)
    others = [Value(TensorType((length,), v.dtype), v.name) for v in node.inputs[1:]]
    if isinstance(op, Reduce):
        inner: Reduce | LayerNorm | Softmax | LogSoftmax = Reduce(
            op.how, (1,), keepdim=True, dtype=op.dtype
        )
    else:
        inner = LayerNorm(1, op.eps) if isinstance(op, LayerNorm) else type(op)(-1)
    one = Node(inner, [rows, *others], node.name, node.source)
    return FusedRows(Graph([rows, *others], one.outputs, [one], node.name))
