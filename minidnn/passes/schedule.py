"""schedule: orders the nodes so that little memory is in use at once.

Handles: of the given order and a greedy one (among the nodes that can run, the one after which
the least storage is in use), takes the one with the smaller peak.  Only the order changes.
"""

from __future__ import annotations

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.memory.annotations import Annotations
from minidnn.memory.liveness import lifetimes, peak_bytes, storage_roots
from minidnn.passes.infrastructure import Context, Pass


def schedule(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    for node in _greedy(graph, context.annotations):
        rewriter.keep(node)
    result = rewriter.finish()
    before, after = (peak_bytes(lifetimes(g, context.annotations)) for g in (graph, result))
    if after >= before or not context.allow(f"reorder nodes: {before} to {after} bytes at once"):
        return graph
    return result


def _greedy(graph: Graph, annotations: Annotations) -> list[Node]:
    roots = storage_roots(graph, annotations)
    outside = {roots.get(value) for value in (*graph.inputs, *graph.states, *graph.outputs)}
    readers_left: dict[Value, int] = {}
    waiting: dict[Node, int] = {}
    for node in graph.nodes:
        operands = set(node.tensors)
        waiting[node] = sum(1 for value in operands if value.producer is not None)
        for root in _touched(node, roots):
            readers_left[root] = readers_left.get(root, 0) + 1
    live: set[Value] = set()

    def growth(node: Node) -> int:
        """By how many bytes storage in use grows once the node has run."""
        grown = 0
        for root in _touched(node, roots):
            if root in outside:
                continue
            if root not in live:
                grown += annotations.storage_bytes(root)
            if readers_left[root] == 1:
                grown -= annotations.storage_bytes(root)
        return grown

    ready = [node for node in graph.nodes if waiting[node] == 0]
    order = []
    while ready:
        node = min(ready, key=lambda n: (growth(n), graph.position[n]))
        ready.remove(node)
        order.append(node)
        for root in _touched(node, roots):
            readers_left[root] -= 1
            live.add(root)
        for value in node.outputs:
            for reader in graph.readers[value]:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    return order


def _touched(node: Node, roots: dict[Value, Value]) -> list[Value]:
    return list(dict.fromkeys(roots[value] for value in (*node.tensors, *node.outputs)))


SCHEDULE = Pass("schedule", schedule, requires=("place_concat",))
