"""place_sums: sums over ranks go on beside the nodes that do not need them.

Handles: sums that may be computed beside others, which each begin as soon as their operands are
there; what depends on their results comes behind all other nodes, in the order of the sums.  Only
the order changes, after the pass schedule, which knows of no such sums.
Refuses: sums that the next nodes need, such as statistics.
"""

from __future__ import annotations

from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.passes.infrastructure import Context, Pass


def place_sums(graph: Graph, context: Context) -> Graph:
    """See the module."""
    sums = [node for node in graph.nodes if node.op.lasts]
    if not sums or not context.allow(f"compute {len(sums)} sums over ranks beside other nodes"):
        return graph
    #: Of what depends on sums the number of the last one, counted from 1.
    behind: dict[Node, int] = {}
    number = {node: i for i, node in enumerate(sums, 1)}
    for node in graph.nodes:
        found = 0
        for value in node.tensors:
            made = value.producer
            if made is not None:
                found = max(found, behind.get(made, 0), number.get(made, 0))
        if found:
            behind[node] = found
    first = [node for node in graph.nodes if node not in behind and node not in number]
    place = {node: i for i, node in enumerate(first)}
    ready: dict[int, list[Node]] = {}
    for node in sums:
        if node not in behind:
            makers = [place[v.producer] for v in node.tensors if v.producer is not None]
            ready.setdefault(max(makers, default=-1), []).append(node)
    order = list(ready.get(-1, ()))
    for i, node in enumerate(first):
        order += (node, *ready.get(i, ()))
    rewriter = Rewriter(graph)
    for node in (*order, *sorted(behind, key=behind.__getitem__)):
        rewriter.keep(node)
    return rewriter.finish()


PLACE_SUMS = Pass("place_sums", place_sums, requires=("schedule",))
