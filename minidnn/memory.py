"""Where the values of a graph lie in memory, and how long they are needed there.

A graph says what is computed, and nothing of this.  Passes write their annotations into the
context, and the plan hands them to backends.

Offsets of all storage in one arena are found greedily (Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", arXiv 2001.03288): storage is placed in some order, each
in the tightest gap among those that live at the same time.  Several orders are tried and the
smallest arena is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, State, Value
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


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Storage of ``bytes`` that is in use from node ``first`` to node ``last``, both included."""

    value: Value
    bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def storage_roots(graph: Graph, annotations: Annotations) -> dict[Value, Value]:
    """For each value that is no constant the value whose storage it lies in: itself, a join, a
    viewed one, or the state that it becomes in place."""
    roots = _roots(graph, annotations)
    inside = updates_in_place(graph, annotations, roots)
    return {value: inside.get(root, root) for value, root in roots.items()} if inside else roots


def updates_in_place(
    graph: Graph, annotations: Annotations, roots: Mapping[Value, Value] | None = None
) -> dict[Value, State]:
    """The values that are written straight over the state that they become.

    A value is if the node that computes it is the last that may read the state, and reads it, if
    at all, element by element.  What else states become is kept until every node was computed; the
    pass ``place_updates`` copies it.
    """
    if not graph.updates:
        return {}
    roots = _roots(graph, annotations) if roots is None else roots
    kept = {roots.get(value, value) for value in graph.outputs}
    becomes = Counter(roots.get(value, value) for value in graph.updates.values())
    buffers = {place.buffer for place in annotations.placements.values()}
    last = last_reads(graph, roots)
    grouped = {node for group in annotations.groups for node in group}
    found: dict[Value, State] = {}
    for state, value in graph.updates.items():
        node = value.producer
        if node is None or node not in graph.position or node in grouped:
            continue
        own = roots.get(value) is value and value not in annotations.placements
        planar = annotations.layout(value) == PLANAR
        if not own or value in buffers or not planar or value in kept or state in kept:
            continue
        if becomes[value] > 1 or state in becomes:
            continue
        position = graph.position[node]
        pointwise = node.op.in_place and all(
            roots[v] is not state or v.type == value.type for v in node.tensors
        )
        if last.get(state, -1) < position or (last[state] == position and pointwise):
            found[value] = state
    return found


def _roots(graph: Graph, annotations: Annotations) -> dict[Value, Value]:
    roots: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.states)}
    for node in graph.nodes:
        for value in node.outputs:
            if value in annotations.placements:
                buffer = annotations.placements[value].buffer
                roots[value] = roots.get(buffer, buffer)  # an input's, or a join's behind it
            elif annotations.is_view(node):
                roots[value] = roots[node.inputs[0]]
            else:
                roots[value] = value
    return roots


def lifetimes(graph: Graph, annotations: Annotations) -> list[Lifetime]:
    """The lifetimes of all storage of whole batches that the graph needs between its inputs and
    its outputs.

    Inputs and outputs themselves are the caller's memory and states a store's; they are left out,
    and so is what a group of nodes needs for one image at a time (:func:`group_lifetimes`).  What
    a group reads or writes of whole batches lives as long as the group.
    """
    groups = [_positions(graph, group) for group in annotations.groups]
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for root, (begin, end) in touched(graph, annotations).items():
        inside = [g for g in groups if begin < g.stop and g.start <= end]
        if any(begin in group and end in group for group in inside):
            continue
        first[root] = min([begin, *(g.start for g in inside if begin in g)])
        last[root] = max([end, *(g.stop - 1 for g in inside if end in g)])
    return [
        Lifetime(root, annotations.storage_bytes(root), first[root], last[root]) for root in first
    ]


def group_lifetimes(
    graph: Graph, annotations: Annotations, group: tuple[Node, ...]
) -> list[Lifetime]:
    """The lifetimes of the storage, of one image, that only the nodes of a group use."""
    positions = _positions(graph, group)
    return [
        Lifetime(root, annotations.storage_bytes(root, 1), begin, end)
        for root, (begin, end) in touched(graph, annotations).items()
        if begin in positions and end in positions
    ]


def _positions(graph: Graph, group: tuple[Node, ...]) -> range:
    first = graph.position[group[0]]
    return range(first, first + len(group))


def touched(
    graph: Graph, annotations: Annotations, roots: Mapping[Value, Value] | None = None
) -> dict[Value, tuple[int, int]]:
    """For each storage but those of inputs, outputs and states the first and the last node that
    uses it.  What a state becomes, but not in place, is in use until the state was read for the
    last time, for then it is copied."""
    roots = storage_roots(graph, annotations) if roots is None else roots
    outside = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    found: dict[Value, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in (*node.outputs, *node.tensors):
            root = roots[value]
            if root not in outside:
                found[root] = (found.get(root, (i, i))[0], i)
    last = last_reads(graph, roots)
    for root, (begin, end) in found.items():
        found[root] = (begin, max(end, last.get(root, begin)))
    for state, kept in graph.updates.items():
        root = roots.get(kept, kept)
        if root in found:
            begin, end = found[root]
            found[root] = (begin, max(end, last.get(state, begin)))
    return found


def last_reads(graph: Graph, roots: Mapping[Value, Value]) -> dict[Value, int]:
    """Where each storage is read for the last time: by a node, or by one that lasts until another
    is computed."""
    last = {roots[v]: i for i, node in enumerate(graph.nodes) for v in node.tensors if v in roots}
    for place, nodes in awaited(graph).items():
        end = min(place, len(graph.nodes) - 1)
        for value in (v for node in nodes for v in node.tensors if v in roots):
            last[roots[value]] = max(last[roots[value]], end)
    return last


def awaited(graph: Graph) -> dict[int, list[Node]]:
    """For positions of nodes those before them that last, and of which a result is read there.
    What nobody reads is waited for behind the last node."""
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op.lasts:
            readers = [graph.position[r] for value in node.outputs for r in graph.readers[value]]
            found.setdefault(min(readers, default=len(graph.nodes)), []).append(node)
    return found


def peak_bytes(found: Sequence[Lifetime]) -> int:
    """The most bytes in use at once: what no placement of these lifetimes can undercut."""
    changes: dict[int, int] = {}
    for life in found:
        changes[life.first] = changes.get(life.first, 0) + life.bytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.bytes
    peak = used = 0
    for _, change in sorted(changes.items()):
        used += change
        peak = max(peak, used)
    return peak


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (-life.bytes, life.first),
    lambda life: (life.first, -life.bytes),
    lambda life: (life.first - life.last, -life.bytes, life.first),
    lambda life: (-life.bytes * (life.last - life.first + 1), life.first),
)


@dataclass(frozen=True)
class Arena:
    """One block of memory for all that lives between a graph's inputs and outputs."""

    bytes: int
    #: Where the storage of each value that has its own begins.
    offsets: dict[Value, int]
    #: The most bytes in use at once: no arena for this order of nodes can be smaller.
    lower_bound: int


def plan_memory(graph: Graph, annotations: Annotations) -> Arena:
    """The smallest arena found for the graph's nodes in their order."""
    return _smallest(lifetimes(graph, annotations))


def plan_groups(graph: Graph, annotations: Annotations) -> Arena:
    """What each thread needs for the groups of nodes that are computed image after image.

    One group runs after the other, so that they share the memory.
    """
    groups = annotations.groups
    arenas = [_smallest(group_lifetimes(graph, annotations, group)) for group in groups]
    return Arena(
        max((arena.bytes for arena in arenas), default=0),
        {value: offset for arena in arenas for value, offset in arena.offsets.items()},
        max((arena.lower_bound for arena in arenas), default=0),
    )


def _smallest(found: Sequence[Lifetime]) -> Arena:
    bound = peak_bytes(found)
    best: Arena | None = None
    for key in _ORDERS:
        offsets = _place(sorted(found, key=key))
        size = max((offsets[life.value] + life.bytes for life in found), default=0)
        if best is None or size < best.bytes:
            best = Arena(size, offsets, bound)
        if best.bytes == bound:
            break
    assert best is not None
    return best


def _place(order: Sequence[Lifetime]) -> dict[Value, int]:
    """Offsets, one after another, each in the tightest gap that is large enough."""
    placed = Placed(len(order))
    return {life.value: placed.place(life) for life in order}


class Placed:
    """Storage that has its place in one block.

    Args:
        most: of how many values, at most.
        alignment: what offsets of those that are placed here are multiples of, in bytes.
    """

    def __init__(self, most: int, alignment: int = 1) -> None:
        # In the order of where it begins: its begin and end, first and last node.
        self._placed = np.zeros((4, most), np.int64)
        self._count, self._alignment = 0, alignment

    def place(self, life: Lifetime) -> int:
        """Finds one more its place, in the tightest gap beside what lives at the same time, else
        behind that: its offset."""
        begins, ends, first, last = self._placed[:, : self._count]
        beside = np.flatnonzero((first <= life.last) & (last >= life.first))
        reach = np.zeros(len(beside) + 1, np.int64)
        np.maximum.accumulate(ends[beside], out=reach[1:])
        gaps = begins[beside] - reach[:-1]
        wide = np.flatnonzero(gaps >= life.bytes)
        offset = int(reach[wide[gaps[wide].argmin()]] if len(wide) else reach[-1])
        self.add(life, offset)
        return offset

    def add(self, life: Lifetime, offset: int) -> None:
        """Takes one that lies at an offset."""
        placed, count = self._placed, self._count
        at = int(np.searchsorted(placed[0, :count], offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        end = -(-(offset + life.bytes) // self._alignment) * self._alignment
        placed[:, at] = offset, end, life.first, life.last
        self._count += 1
