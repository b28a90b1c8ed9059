"""schedule: orders the nodes for low peak memory.

Handles: takes the order with the smallest peak among the given one and two greedy list schedules.
One schedules forwards: among the nodes whose operands are computed, it takes the one after which
the least storage is live.  The other schedules backwards: among the nodes whose readers are all
scheduled, it takes the one before which the least storage is live, so that values which are only
read late, such as transposed weights of a backward pass, are computed late.  Only the order
changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.memory import Annotations, lifetimes, peak_bytes, storage_roots
from minidnn.passes.infrastructure import Context, Pass


def schedule(graph: Graph, context: Context) -> Graph:
    """See the module."""
    orders = [
        graph,
        *(_ordered(graph, _greedy(graph, context.annotations, b)) for b in (False, True)),
    ]
    peaks = [peak_bytes(lifetimes(each, context.annotations)) for each in orders]
    before, after = peaks[0], min(peaks)
    if after >= before or not context.allow(f"reorder nodes: {before} to {after} bytes at once"):
        return graph
    return orders[peaks.index(after)]


def _ordered(graph: Graph, nodes: Sequence[Node]) -> Graph:
    rewriter = Rewriter(graph)
    for node in nodes:
        rewriter.keep(node)
    return rewriter.finish()


def _greedy(graph: Graph, annotations: Annotations, backwards: bool) -> list[Node]:
    """An order of the nodes: a greedy list schedule from the first node to the last, or, with
    ``backwards``, from the last to the first."""
    roots = storage_roots(graph, annotations)
    outside = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    storages_of = {node: _touched(node, roots) for node in graph.nodes}
    users: dict[Value, list[Node]] = {}
    for node, node_storages in storages_of.items():
        for root in node_storages:
            users.setdefault(root, []).append(node)
    uses_left = {root: len(nodes) for root, nodes in users.items()}
    live: set[Value] = set()

    def growth(node: Node) -> int:
        """The bytes by which live storage grows when the node is scheduled next."""
        grown = 0
        for root in storages_of[node]:
            if root in outside:
                continue
            if root not in live:
                grown += annotations.storage_bytes(root)
            if uses_left[root] == 1:
                grown -= annotations.storage_bytes(root)
        return grown

    unscheduled = {n: len(_behind(graph, n) if backwards else _before(n)) for n in graph.nodes}
    sign = -1 if backwards else 1
    #: Nodes that can be scheduled next, with their current growth; the heap has old entries, too.
    ready: dict[Node, int] = {}
    heap: list[tuple[int, int, int]] = []

    def enter(node: Node) -> None:
        position = graph.position[node]
        ready[node] = growth(node)
        heappush(heap, (ready[node], sign * position, position))

    for node in graph.nodes:
        if unscheduled[node] == 0:
            enter(node)
    order = []
    while heap:
        grown, _, position = heappop(heap)
        node = graph.nodes[position]
        if ready.get(node) != grown:
            continue
        del ready[node]
        order.append(node)
        for root in storages_of[node]:
            uses_left[root] -= 1
            if root not in live or uses_left[root] == 1:
                live.add(root)
                for other in users[root]:
                    if other in ready:
                        enter(other)
        for other in _before(node) if backwards else _behind(graph, node):
            unscheduled[other] -= 1
            if unscheduled[other] == 0:
                enter(other)
    return order[::sign]


def _before(node: Node) -> list[Node]:
    """The nodes whose results a node reads."""
    found = (value.producer for value in node.tensors)
    return [each for each in dict.fromkeys(found) if each is not None]


def _behind(graph: Graph, node: Node) -> list[Node]:
    """The nodes that read a node's results."""
    return list(dict.fromkeys(r for value in node.outputs for r in graph.readers[value]))


def _touched(node: Node, roots: dict[Value, Value]) -> list[Value]:
    return list(dict.fromkeys(roots[value] for value in (*node.tensors, *node.outputs)))


SCHEDULE = Pass("schedule", schedule, requires=("slice_in_place",))
