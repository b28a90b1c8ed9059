"""Which values share storage, and from when to when each storage is in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidnn.graph.ir import Constant, Graph, Node, State, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR
from minidnn.graph.operator import Reshaping
from minidnn.graph.operators import Transpose

#: Storage begins at multiples of this many bytes: a cache line, an AVX-512 vector.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Storage of ``bytes`` that is in use from node ``first`` to node ``last``, both included."""

    value: Value
    bytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def is_view(graph: Graph, node: Node) -> bool:
    """Whether a node only gives another shape to storage that it shares with its operand."""
    value = node.inputs[0] if node.inputs else None
    if isinstance(node.op, Transpose):
        return not isinstance(value, Constant) and _keeps_order(graph, node)
    if not isinstance(node.op, Reshaping) or value is None:
        return False
    layout = graph.layouts.get(value, PLANAR)
    channels, pixels = value.type.plane[1], value.type.plane[2] * value.type.plane[3]
    same_order = layout.block == 1 or (
        pixels == 1 and (layout.block == 0 or channels % layout.block == 0)
    )
    return same_order and not isinstance(value, Constant)


def _keeps_order(graph: Graph, node: Node) -> bool:
    """Whether moving channels is what the layouts of operand and result differ in."""
    assert isinstance(node.op, Transpose)
    given, made = (graph.layouts.get(v, PLANAR) for v in (node.inputs[0], node.output))
    if node.op.dims == (0, 2, 3, 1):
        return (given, made) == (CHANNELS_LAST, PLANAR)
    return node.op.dims == (0, 3, 1, 2) and (given, made) == (PLANAR, CHANNELS_LAST)


def storage_roots(graph: Graph) -> dict[Value, Value]:
    """For each value that is no constant the value whose storage it lies in: itself, a join, a
    viewed one, or the state that it becomes in place."""
    roots = _roots(graph)
    inside = updates_in_place(graph, roots)
    return {value: inside.get(root, root) for value, root in roots.items()} if inside else roots


def updates_in_place(
    graph: Graph, roots: Mapping[Value, Value] | None = None
) -> dict[Value, State]:
    """The values that are written straight over the state that they become.

    A value is if the node that computes it is the last that may read the state, and reads it, if
    at all, element by element.  What else states become is kept until every node was computed; the
    pass ``place_updates`` copies it.
    """
    if not graph.updates:
        return {}
    roots = _roots(graph) if roots is None else roots
    kept = {roots.get(value, value) for value in graph.outputs}
    becomes = [roots.get(value, value) for value in graph.updates.values()]
    last = {roots[v]: i for i, node in enumerate(graph.nodes) for v in node.tensors}
    grouped = {graph.nodes[i] for group in graph.groups for i in group}
    found: dict[Value, State] = {}
    for state, value in graph.updates.items():
        node = value.producer
        if node is None or node not in graph.position or node in grouped:
            continue
        own = roots.get(value) is value and value not in graph.placements
        shared = any(place.buffer is value for place in graph.placements.values())
        planar = graph.layouts.get(value, PLANAR) == PLANAR
        if not own or shared or not planar or value in kept or state in kept:
            continue
        if becomes.count(value) > 1 or state in becomes:
            continue
        position = graph.position[node]
        pointwise = node.op.in_place and all(
            roots[v] is not state or v.type == value.type for v in node.tensors
        )
        if last.get(state, -1) < position or (last[state] == position and pointwise):
            found[value] = state
    return found


def _roots(graph: Graph) -> dict[Value, Value]:
    roots: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.states)}
    for node in graph.nodes:
        for value in node.outputs:
            placement = graph.placements.get(value)
            if placement is not None:
                roots[value] = placement.buffer
            elif is_view(graph, node):
                roots[value] = roots[node.inputs[0]]
            else:
                roots[value] = value
    return roots


def storage_bytes(graph: Graph, value: Value, images: int | None = None) -> int:
    """Bytes of a value's own storage, in its layout, rounded up to the alignment; for that many
    images instead of all."""
    type = value.type if images is None else value.type.with_shape((images, *value.shape[1:]))
    size = graph.layouts.get(value, PLANAR).bytes(type)
    return -(-size // ALIGNMENT) * ALIGNMENT


def lifetimes(graph: Graph, order: Sequence[Node] | None = None) -> list[Lifetime]:
    """The lifetimes of all storage of whole batches that the graph needs between its inputs and
    its outputs.

    Inputs and outputs themselves are the caller's memory and states a store's; they are left out,
    and so is what a group of nodes needs for one image at a time (:func:`group_lifetimes`).  What
    a group reads or writes of whole batches lives as long as the group.
    """
    groups = graph.groups if order is None else ()
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for root, (begin, end) in touched(graph, order).items():
        inside = [g for g in groups if begin < g.stop and g.start <= end]
        if any(begin in group and end in group for group in inside):
            continue
        first[root] = min([begin, *(g.start for g in inside if begin in g)])
        last[root] = max([end, *(g.stop - 1 for g in inside if end in g)])
    return [Lifetime(root, storage_bytes(graph, root), first[root], last[root]) for root in first]


def group_lifetimes(graph: Graph, group: range) -> list[Lifetime]:
    """The lifetimes of the storage, of one image, that only the nodes of a group use."""
    return [
        Lifetime(root, storage_bytes(graph, root, 1), begin, end)
        for root, (begin, end) in touched(graph).items()
        if begin in group and end in group
    ]


def touched(graph: Graph, order: Sequence[Node] | None = None) -> dict[Value, tuple[int, int]]:
    """For each storage but those of inputs, outputs and states the first and the last node that
    uses it.  What a state becomes, but not in place, is in use beyond the last node."""
    roots = storage_roots(graph)
    outside = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    found: dict[Value, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes if order is None else order):
        for value in (*node.outputs, *node.tensors):
            root = roots[value]
            if root not in outside:
                found[root] = (found.get(root, (i, i))[0], i)
    for kept in dict.fromkeys(graph.updates.values()):
        root = roots.get(kept, kept)
        if root in found:
            found[root] = (found[root][0], len(graph.nodes))
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
