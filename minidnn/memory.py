"""Memory planning: layouts, views and lifetimes of a graph's values, and their arena offsets.

A graph says what is computed, and nothing of memory.  Passes write :class:`Annotations` into the
context, and the plan hands them to backends.

The offsets of all buffers in one arena are found greedily (Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", arXiv 2001.03288): buffers are placed in some order, each
in the tightest gap between those whose lifetimes overlap its own.  Several orders are tried, and
the smallest arena is taken.
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

#: The alignment of storage in bytes: a cache line, or an AVX-512 vector.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class BufferView:
    """The view of a value inside a wider one: its channels begin at ``channel`` of ``buffer``.

    Channels are axis 1; those of a vector are its elements.  A vector is contiguous inside a wider
    vector, so that its address alone says where it is, and kernels access it like any other.
    """

    buffer: Value
    channel: int


def channel_axis(value: Value) -> int:
    """The axis along which a value may be a view of a wider one: axis 1, or a vector's axis 0."""
    return min(1, value.type.rank - 1)


@dataclass(frozen=True)
class Annotations:
    """What passes decide about memory: layouts, views, and nodes computed image after image."""

    #: The layouts that the pass ``layout`` chose; NCHW for values that are not in it.
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    #: Values that are views of wider ones: operands that are written into their concatenation, by
    #: the pass ``concat_in_place``, and channels that are read there, by ``slice_in_place``.
    placements: Mapping[Value, BufferView] = field(default_factory=dict)
    #: Runs of consecutive nodes that the pass ``batch_tiling`` chose to compute one image at a
    #: time: all nodes of a run for one image before the next image.
    groups: tuple[tuple[Node, ...], ...] = ()

    def layout(self, value: Value) -> Layout:
        """The layout of a value."""
        return self.layouts.get(value, PLANAR)

    def place(self, value: Value) -> BufferView:
        """The view of a value; one without a placement is a view of itself."""
        return self.placements.get(value) or BufferView(value, 0)

    def within(self, value: Value) -> BufferView:
        """The view of a value as kernels see it: vectors have an address of their own."""
        return BufferView(value, 0) if value.type.rank < 2 else self.place(value)

    def copied(self, concat: Node) -> Iterator[tuple[Value, int]]:
        """The operands of a concatenation that must be copied, as they are not views of its result:
        each with its offset along the concatenated axis."""
        assert isinstance(concat.op, Concat)
        axis = concat.op.axis % concat.output.type.rank
        base, first = self.place(concat.output), 0
        for value in concat.inputs:
            wanted = BufferView(base.buffer, base.channel + first)
            if axis != channel_axis(value) or self.placements.get(value) != wanted:
                yield value, first
            first += value.shape[axis]

    def is_view(self, node: Node) -> bool:
        """Whether a node takes no kernel: its output shares its operand's storage, in another shape
        or layout, or as some of its channels."""
        if isinstance(node.op, TakeChannels):
            return self._is_part(node, node.op)
        if not isinstance(node.op, (Reorder, Transpose, Reshaping)):
            return False
        (value,) = node.inputs
        if isinstance(value, Constant):
            return False
        given = self.layout(value)
        if isinstance(node.op, Reorder):  # whether there is only one channel, or one pixel
            _, channels, rows, columns = value.type.plane
            blocks = given.block, node.op.layout.block
            return max(blocks) <= 1 and 1 in (channels, rows * columns)
        if isinstance(node.op, Transpose):  # whether the layouts differ by this transpose
            both = given, self.layout(node.output)
            if node.op.dims == (0, 2, 3, 1):
                return both == (CHANNELS_LAST, PLANAR)
            return node.op.dims == (0, 3, 1, 2) and both == (PLANAR, CHANNELS_LAST)
        _, channels, rows, columns = value.type.plane
        return given.block == 1 or (
            rows * columns == 1 and (given.block == 0 or channels % given.block == 0)
        )

    def _is_part(self, node: Node, op: TakeChannels) -> bool:
        """Whether the channels that a node takes are a view of its operand."""
        first, place = op.first_of_run, self.placements.get(node.output)
        if first is None or place is None:
            return False
        operand_view = self.place(node.inputs[0])
        return place == BufferView(operand_view.buffer, operand_view.channel + first)

    def storage_bytes(self, value: Value, images: int | None = None) -> int:
        """The size of a value's storage in bytes, in its layout, rounded up to the alignment; for
        ``images`` images instead of the whole batch."""
        type = value.type if images is None else value.type.with_shape((images, *value.shape[1:]))
        return -(-self.layout(value).bytes(type) // ALIGNMENT) * ALIGNMENT

    def check(self, graph: Graph) -> None:
        """Raises GraphError if an annotation is about values or nodes that are not in the graph."""
        values = set(graph.values)
        buffers = (place.buffer for place in self.placements.values())
        for value in (*self.layouts, *self.placements, *buffers):
            if value not in values:
                raise GraphError(f"annotations have {value!r}, which is not in the graph")
        for group in self.groups:
            first = graph.position.get(group[0], len(graph.nodes))
            if graph.nodes[first : first + len(group)] != group:
                raise GraphError(
                    f"{group[0].name} to {group[-1].name} are computed image after image, but do "
                    "not follow each other in the graph"
                )


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Storage of ``bytes`` bytes that is in use from node ``first`` to node ``last``, inclusive."""

    value: Value
    bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def storage_roots(graph: Graph, annotations: Annotations) -> dict[Value, Value]:
    """For each value but constants the value whose storage holds it: itself, a concatenation, the
    operand of a view, or the state that it updates in place."""
    roots = _roots(graph, annotations)
    inside = updates_in_place(graph, annotations, roots)
    return {value: inside.get(root, root) for value, root in roots.items()} if inside else roots


def updates_in_place(
    graph: Graph, annotations: Annotations, roots: Mapping[Value, Value] | None = None
) -> dict[Value, State]:
    """The values that are written straight over the states that they update.

    A value is if the node that computes it is the last that may read the state, and reads it, if
    at all, element by element.  Other new values of states are kept until every node has run; the
    pass ``update_in_place`` copies them.
    """
    if not graph.updates:
        return {}
    roots = _roots(graph, annotations) if roots is None else roots
    kept = {roots.get(value, value) for value in graph.outputs}
    becomes = Counter(roots.get(value, value) for value in graph.updates.values())
    buffers = {place.buffer for place in annotations.placements.values()}
    last = last_reads(graph, roots)
    grouped = {node for group in annotations.groups for node in group}
    in_place: dict[Value, State] = {}
    for state, value in graph.updates.items():
        node = value.producer
        if node is None or node not in graph.position or node in grouped:
            continue
        owns_storage = roots.get(value) is value and value not in annotations.placements
        planar = annotations.layout(value) == PLANAR
        if not owns_storage or value in buffers or not planar or value in kept or state in kept:
            continue
        if becomes[value] > 1 or state in becomes:
            continue
        position = graph.position[node]
        pointwise = node.op.in_place and all(
            roots[v] is not state or v.type == value.type for v in node.tensors
        )
        if last.get(state, -1) < position or (last[state] == position and pointwise):
            in_place[value] = state
    return in_place


def _roots(graph: Graph, annotations: Annotations) -> dict[Value, Value]:
    """Like :func:`storage_roots`, without updates in place."""
    roots: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.states)}
    for node in graph.nodes:
        for value in node.outputs:
            if value in annotations.placements:
                buffer = annotations.placements[value].buffer
                roots[value] = roots.get(
                    buffer, buffer
                )  # an input, or a concatenation computed later
            elif annotations.is_view(node):
                roots[value] = roots[node.inputs[0]]
            else:
                roots[value] = value
    return roots


def lifetimes(graph: Graph, annotations: Annotations) -> list[Lifetime]:
    """The lifetimes of all storage for whole batches between the graph's inputs and its outputs.

    Inputs and outputs are the caller's memory and states a store's; they are left out, and so is
    storage that a group of nodes needs for one image at a time (:func:`group_lifetimes`).  Storage
    of whole batches that a group reads or writes lives as long as the group runs.
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
    """The lifetimes of the storage that only the nodes of a group use, for one image."""
    positions = _positions(graph, group)
    return [
        Lifetime(root, annotations.storage_bytes(root, 1), begin, end)
        for root, (begin, end) in touched(graph, annotations).items()
        if begin in positions and end in positions
    ]


def _positions(graph: Graph, group: tuple[Node, ...]) -> range:
    """The positions of a group's nodes in the graph."""
    first = graph.position[group[0]]
    return range(first, first + len(group))


def touched(
    graph: Graph, annotations: Annotations, roots: Mapping[Value, Value] | None = None
) -> dict[Value, tuple[int, int]]:
    """For each storage but those of inputs, outputs and states the first and the last node that
    uses it.  A new value of a state, unless it is in place, is in use until the state's last read,
    after which it is copied."""
    roots = storage_roots(graph, annotations) if roots is None else roots
    excluded = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    uses: dict[Value, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in (*node.outputs, *node.tensors):
            root = roots[value]
            if root not in excluded:
                uses[root] = (uses.get(root, (i, i))[0], i)
    last = last_reads(graph, roots)
    for root, (begin, end) in uses.items():
        uses[root] = (begin, max(end, last.get(root, begin)))
    for state, kept in graph.updates.items():
        root = roots.get(kept, kept)
        if root in uses:
            begin, end = uses[root]
            uses[root] = (begin, max(end, last.get(state, begin)))
    return uses


def last_reads(graph: Graph, roots: Mapping[Value, Value]) -> dict[Value, int]:
    """The position of the last read of each storage: of the node that reads it, or, if that node
    runs asynchronously, of the node that waits for it (:func:`awaited`)."""
    last = {roots[v]: i for i, node in enumerate(graph.nodes) for v in node.tensors if v in roots}
    for place, nodes in awaited(graph).items():
        end = min(place, len(graph.nodes) - 1)
        for value in (v for node in nodes for v in node.tensors if v in roots):
            last[roots[value]] = max(last[roots[value]], end)
    return last


def awaited(graph: Graph) -> dict[int, list[Node]]:
    """The asynchronous nodes (``op.lasts``) that each position waits for: that of the first reader
    of their results, or the end of the graph if there is none."""
    waited_for: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op.lasts:
            readers = [graph.position[r] for value in node.outputs for r in graph.readers[value]]
            waited_for.setdefault(min(readers, default=len(graph.nodes)), []).append(node)
    return waited_for


def peak_bytes(found: Sequence[Lifetime]) -> int:
    """The most bytes in use at once: a lower bound of the arena for these lifetimes."""
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
    """One allocation for all storage between a graph's inputs and its outputs."""

    bytes: int
    #: The offset in bytes of each value that has storage of its own.
    offsets: dict[Value, int]
    #: The most bytes in use at once: no arena for this order of nodes is smaller.
    lower_bound: int


def plan_memory(graph: Graph, annotations: Annotations) -> Arena:
    """The smallest arena found for the graph's nodes in their order."""
    return _smallest(lifetimes(graph, annotations))


def plan_groups(graph: Graph, annotations: Annotations) -> Arena:
    """The arena of each thread for the groups of nodes that are computed image after image.

    Groups run one after another, so that they share the memory.
    """
    groups = annotations.groups
    arenas = [_smallest(group_lifetimes(graph, annotations, group)) for group in groups]
    return Arena(
        max((arena.bytes for arena in arenas), default=0),
        {value: offset for arena in arenas for value, offset in arena.offsets.items()},
        max((arena.lower_bound for arena in arenas), default=0),
    )


def _smallest(found: Sequence[Lifetime]) -> Arena:
    """The smallest arena over all orders; the search ends where the lower bound is reached."""
    bound = peak_bytes(found)
    best: Arena | None = None
    for key in _ORDERS:
        allocator = ArenaAllocator(len(found))  # each in the tightest gap
        offsets = {life.value: allocator.place(life) for life in sorted(found, key=key)}
        size = max((offsets[life.value] + life.bytes for life in found), default=0)
        if best is None or size < best.bytes:
            best = Arena(size, offsets, bound)
        if best.bytes == bound:
            break
    assert best is not None
    return best


class ArenaAllocator:
    """The buffers placed so far in one arena, with their lifetimes.

    Args:
        most: the largest number of buffers.
        alignment: the alignment of the offsets that :meth:`place` finds, in bytes.
    """

    def __init__(self, most: int, alignment: int = 1) -> None:
        # Rows: begin, end, first node, last node; columns are sorted by begin.
        self._allocated = np.zeros((4, most), np.int64)
        self._count, self._alignment = 0, alignment

    def place(self, life: Lifetime) -> int:
        """Places a buffer in the tightest gap between those with overlapping lifetimes, else after
        them; returns its offset."""
        begins, ends, first, last = self._allocated[:, : self._count]
        concurrent = np.flatnonzero((first <= life.last) & (last >= life.first))
        free_from = np.zeros(len(concurrent) + 1, np.int64)
        np.maximum.accumulate(ends[concurrent], out=free_from[1:])
        gaps = begins[concurrent] - free_from[:-1]
        large_enough = np.flatnonzero(gaps >= life.bytes)
        offset = int(
            free_from[large_enough[gaps[large_enough].argmin()]]
            if len(large_enough)
            else free_from[-1]
        )
        self.add(life, offset)
        return offset

    def add(self, life: Lifetime, offset: int) -> None:
        """Adds a buffer that is placed at an offset."""
        rows, count = self._allocated, self._count
        at = int(np.searchsorted(rows[0, :count], offset))
        rows[:, at + 1 : count + 1] = rows[:, at:count].copy()
        end = -(-(offset + life.bytes) // self._alignment) * self._alignment
        rows[:, at] = offset, end, life.first, life.last
        self._count += 1
