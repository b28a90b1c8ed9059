"""What passes find out about how the values of a graph lie in memory.

A graph says what is computed, and nothing of this.  Passes write their annotations into the
context, and the plan hands them to backends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import Concat, Reorder, TakeChannels, Transpose

#: Storage begins at multiples of this many bytes: a cache line, an AVX-512 vector.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a value lies inside a wider one: from ``channel`` of ``buffer`` on.

    Channels are axis 1, and the elements of a vector.  A vector's elements lie side by side in a
    wider one, too: its address says where, and kernels read and write it like any other.
    """

    buffer: Value
    channel: int


def channel_axis(value: Value) -> int:
    """The axis along which a value may be a part of a wider one."""
    return min(1, value.type.rank - 1)


@dataclass(frozen=True)
class Annotations:
    """How the values of one graph lie, and which of its nodes are computed image after image."""

    #: As the pass layout chose; NCHW where nothing is said.
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    #: Values that are written straight into a wider one, as place_concat chose, and parts of one
    #: that are read there, as place_parts chose.
    placements: Mapping[Value, Placement] = field(default_factory=dict)
    #: Runs of consecutive nodes that are computed image after image, as by_image chose: all of
    #: them for one image before the next begins.
    groups: tuple[tuple[Node, ...], ...] = ()

    def layout(self, value: Value) -> Layout:
        return self.layouts.get(value, PLANAR)

    def place(self, value: Value) -> Placement:
        """Where a value lies; one that was not placed lies in itself."""
        return self.placements.get(value) or Placement(value, 0)

    def within(self, value: Value) -> Placement:
        """Where a value lies in what begins at its address, as kernels have to know it."""
        return Placement(value, 0) if value.type.rank < 2 else self.place(value)

    def copied(self, join: Node) -> Iterator[tuple[Value, int]]:
        """The operands of a join that are not written where it lies, each with the place along
        the joined axis that it is copied to."""
        assert isinstance(join.op, Concat)
        axis = join.op.axis % join.output.type.rank
        base, first = self.place(join.output), 0
        for value in join.inputs:
            wanted = Placement(base.buffer, base.channel + first)
            if axis != channel_axis(value) or self.placements.get(value) != wanted:
                yield value, first
            first += value.shape[axis]

    def is_view(self, node: Node) -> bool:
        """Whether a node only gives another shape or layout to storage that it shares with its
        operand, or names a part of it."""
        if isinstance(node.op, TakeChannels):
            return self._is_part(node, node.op)
        if not isinstance(node.op, (Reorder, Transpose, Reshaping)):
            return False
        (value,) = node.inputs
        if isinstance(value, Constant):
            return False
        given = self.layout(value)
        if isinstance(node.op, Reorder):  # whether there is but one channel, or one pixel
            _, channels, rows, columns = value.type.plane
            blocks = given.block, node.op.layout.block
            return max(blocks) <= 1 and 1 in (channels, rows * columns)
        if isinstance(node.op, Transpose):  # whether moving channels is what layouts differ in
            both = given, self.layout(node.output)
            if node.op.dims == (0, 2, 3, 1):
                return both == (CHANNELS_LAST, PLANAR)
            return node.op.dims == (0, 3, 1, 2) and both == (PLANAR, CHANNELS_LAST)
        _, channels, rows, columns = value.type.plane
        return given.block == 1 or (
            rows * columns == 1 and (given.block == 0 or channels % given.block == 0)
        )

    def _is_part(self, node: Node, op: TakeChannels) -> bool:
        """Whether the channels that a node takes lie where its operand has them."""
        first, place = op.first_of_run, self.placements.get(node.output)
        if first is None or place is None:
            return False
        whole = self.place(node.inputs[0])
        return place == Placement(whole.buffer, whole.channel + first)

    def storage_bytes(self, value: Value, images: int | None = None) -> int:
        """Bytes of a value's own storage, in its layout, rounded up to the alignment; for that
        many images instead of all."""
        type = value.type if images is None else value.type.with_shape((images, *value.shape[1:]))
        return -(-self.layout(value).bytes(type) // ALIGNMENT) * ALIGNMENT

    def check(self, graph: Graph) -> None:
        """Raises GraphError if this says something of what is not in the graph (any more)."""
        values = set(graph.values)
        buffers = (place.buffer for place in self.placements.values())
        for value in (*self.layouts, *self.placements, *buffers):
            if value not in values:
                raise GraphError(f"annotations say where {value!r} lies, which is not in the graph")
        for group in self.groups:
            first = graph.position.get(group[0], len(graph.nodes))
            if graph.nodes[first : first + len(group)] != group:
                raise GraphError(
                    f"{group[0].name} to {group[-1].name} are computed image after image, but do "
                    "not follow each other in the graph"
                )
