"""place_updates: what states become is written over them.

Handles: every update that is not computed straight over its state (``memory.liveness``), by a copy
behind the last node that reads the state, so that what is copied does not lie in memory for long.
A state that is an output, or that another one becomes, is read by a copy first, so that two states
may become each other; such copies are behind all other nodes.  It is no optimization, and takes no
fuel.
Refuses: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from minidnn.graph.ir import Graph, Node, Rewriter, State, Value
from minidnn.graph.operators import Identity
from minidnn.memory.annotations import Annotations
from minidnn.memory.liveness import last_reads, storage_roots
from minidnn.passes.infrastructure import Context, Pass


def place_updates(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not graph.updates:
        return graph
    annotations = context.annotations
    roots = storage_roots(graph, annotations)
    rewriter = Rewriter(graph)

    def copied(value: Value) -> Node:
        return Node(Identity(), [value], rewriter.fresh(f"{value.name}.copy"), value.name)

    given = [v for v in graph.outputs if roots.get(v) in graph.updates]
    copies = {value: copied(value) for value in dict.fromkeys(given)}
    outputs = [copies[v].output if v in copies else v for v in graph.outputs]
    updates, nodes = dict(graph.updates), [*graph.nodes, *copies.values()]
    graph = _with(graph, nodes, outputs, updates)
    while left := list(_elsewhere(graph, annotations)):
        behind: dict[int, list[Node]] = {}
        places = _places(graph, annotations, left)
        for state in left:
            node = copied(updates[state])
            updates[state] = node.output
            behind.setdefault(places[state], []).append(node)
        nodes = [n for i, node in enumerate(graph.nodes) for n in (node, *behind.get(i, ()))]
        graph = _with(graph, [*behind.get(-1, ()), *nodes], outputs, updates)
    return graph


def _places(graph: Graph, annotations: Annotations, left: list[State]) -> dict[State, int]:
    """Behind which node each state is written: once its new value is computed and the state was
    read for the last time, or behind the last node if that value lies in a state."""
    roots = storage_roots(graph, annotations)
    last = last_reads(graph, roots)
    ends = list(range(len(graph.nodes)))
    for group in annotations.groups:
        first = graph.position[group[0]]
        ends[first : first + len(group)] = [first + len(group) - 1] * len(group)
    found = {}
    for state in left:
        value = graph.updates[state]
        made = graph.position[value.producer] if value.producer is not None else -1
        place = max(made, last.get(state, -1))
        stored = isinstance(roots.get(value, value), State)
        found[state] = len(graph.nodes) - 1 if stored else ends[place] if place >= 0 else -1
    return found


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
