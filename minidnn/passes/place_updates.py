"""place_updates: what states become is written over them.

Handles: every update that is not computed straight over its state (``memory.liveness``), by copies
behind all other nodes.  A state that is an output, or that another one becomes, is read by a copy
first, so that two states may become each other.  It is no optimization, and takes no fuel.
Refuses: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from minidnn.graph.ir import Graph, Node, Rewriter, State, Value
from minidnn.graph.operators import Identity
from minidnn.memory.annotations import Annotations
from minidnn.memory.liveness import storage_roots
from minidnn.passes.infrastructure import Context, Pass


def place_updates(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not graph.updates:
        return graph
    roots = storage_roots(graph, context.annotations)
    rewriter = Rewriter(graph)
    nodes = list(graph.nodes)

    def copied(value: Value) -> Value:
        node = Node(Identity(), [value], rewriter.fresh(f"{value.name}.copy"), value.name)
        nodes.append(node)
        return node.output

    given = [v for v in graph.outputs if roots.get(v) in graph.updates]
    copies = {value: copied(value) for value in dict.fromkeys(given)}
    outputs = [copies.get(value, value) for value in graph.outputs]
    updates = dict(graph.updates)
    graph = _with(graph, nodes, outputs, updates)
    while left := list(_elsewhere(graph, context.annotations)):
        updates |= {state: copied(updates[state]) for state in left}
        graph = _with(graph, nodes, outputs, updates)
    return graph


def _with(
    graph: Graph, nodes: list[Node], outputs: list[Value], updates: dict[State, Value]
) -> Graph:
    return Graph(graph.inputs, outputs, nodes, graph.name, graph.output_names, dict(updates))


def _elsewhere(graph: Graph, annotations: Annotations) -> Iterator[State]:
    """The states that a run does not leave in their own storage."""
    roots = storage_roots(graph, annotations)
    return (s for s, value in graph.updates.items() if roots.get(value) is not s)


PLACE_UPDATES = Pass(
    "place_updates", place_updates, requires=("layout", "place_concat", "schedule", "by_image")
)
