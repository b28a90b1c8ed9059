"""schedule: orders the nodes so that little memory is in use at once.

Handles: of the given order and two greedy ones, takes the one with the smallest peak.  One begins
with the first node (among those that can run, the one after which the least storage is in use), the
other with the last (among those that nobody waits for, the one before which the least is): it
computes as late as it can what is only read late, such as weights of a backward pass in another
order.  Only the order changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.memory import Annotations, lifetimes, peak_bytes, storage_roots
from minidnn.passes.infrastructure import Context, Pass


def schedule(graph: Graph, context: Context) -> Graph:
    """See the module."""
    found = [
        graph,
        *(_ordered(graph, _greedy(graph, context.annotations, b)) for b in (False, True)),
    ]
    peaks = [peak_bytes(lifetimes(each, context.annotations)) for each in found]
    before, after = peaks[0], min(peaks)
    if after >= before or not context.allow(f"reorder nodes: {before} to {after} bytes at once"):
        return graph
    return found[peaks.index(after)]


def _ordered(graph: Graph, nodes: Sequence[Node]) -> Graph:
    rewriter = Rewriter(graph)
    for node in nodes:
        rewriter.keep(node)
    return rewriter.finish()


def _greedy(graph: Graph, annotations: Annotations, backwards: bool) -> list[Node]:
    """An order of the nodes, found from the first to the last or from the last to the first."""
    roots = storage_roots(graph, annotations)
    outside = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    touched = {node: _touched(node, roots) for node in graph.nodes}
    touching: dict[Value, list[Node]] = {}
    for node, storages in touched.items():
        for root in storages:
            touching.setdefault(root, []).append(node)
    left = {root: len(nodes) for root, nodes in touching.items()}
    live: set[Value] = set()

    def growth(node: Node) -> int:
        """By how many bytes storage in use grows past the node."""
        grown = 0
        for root in touched[node]:
            if root in outside:
                continue
            if root not in live:
                grown += annotations.storage_bytes(root)
            if left[root] == 1:
                grown -= annotations.storage_bytes(root)
        return grown

    waiting = {n: len(_behind(graph, n) if backwards else _before(n)) for n in graph.nodes}
    sign = -1 if backwards else 1
    #: Nodes that can be next with the growth that each has just now; the heap has old ones, too.
    ready: dict[Node, int] = {}
    heap: list[tuple[int, int, int]] = []

    def enter(node: Node) -> None:
        place = graph.position[node]
        ready[node] = growth(node)
        heappush(heap, (ready[node], sign * place, place))

    for node in graph.nodes:
        if waiting[node] == 0:
            enter(node)
    order = []
    while heap:
        grown, _, place = heappop(heap)
        node = graph.nodes[place]
        if ready.get(node) != grown:
            continue
        del ready[node]
        order.append(node)
        for root in touched[node]:
            left[root] -= 1
            if root not in live or left[root] == 1:
                live.add(root)
                for other in touching[root]:
                    if other in ready:
                        enter(other)
        for other in _before(node) if backwards else _behind(graph, node):
            waiting[other] -= 1
            if waiting[other] == 0:
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


SCHEDULE = Pass("schedule", schedule, requires=("place_parts",))
