"""Which values share storage, and from when to when each storage is in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn.graph.ir import Constant, Graph, Node, Value
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
    """For each computed value the value whose storage it lies in: itself, a join, a viewed one."""
    roots: dict[Value, Value] = {value: value for value in graph.inputs}
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

    Inputs and outputs themselves are the caller's memory and are left out, and so is what a
    group of nodes needs for one image at a time (:func:`group_lifetimes`).  What a group reads
    or writes of whole batches lives as long as the group.
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
    """For each storage but those of inputs and outputs the first and the last node that uses it."""
    roots = storage_roots(graph)
    outside = {roots.get(value) for value in (*graph.inputs, *graph.outputs)}
    found: dict[Value, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes if order is None else order):
        for value in (*node.outputs, *node.tensors):
            root = roots[value]
            if root not in outside:
                found[root] = (found.get(root, (i, i))[0], i)
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
