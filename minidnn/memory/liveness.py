"""Which values share storage, and from when to when each storage is in use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node, State, Value
from minidnn.graph.layout import PLANAR
from minidnn.memory.annotations import Annotations


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
