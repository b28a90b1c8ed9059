"""Before ranks run a program together, they make sure that all have the same sums to do."""

from __future__ import annotations

from minidnn.graph.ir import Graph
from minidnn.graph.operators import SumOverRanks
from minidnn.graph.operators.ranks import meeting_of

WHY_NO_TIMES = (
    "regions of a program that sums over ranks are not timed: all ranks would have to do it at once"
)


def sums_over_ranks(graph: Graph) -> list[str]:
    """The sums of several ranks, in the order in which a graph computes them."""
    return [
        f"{node.name}: {node.op} of {', '.join(str(value.type) for value in node.inputs)}"
        for node in graph.nodes
        if isinstance(node.op, SumOverRanks) and node.op.ranks > 1
    ]


def agree_on_sums(graph: Graph) -> None:
    """Waits for all ranks to come here, if the graph sums over several.

    GraphError if this process is none of them, DistributedError if they have other sums: passes may
    order nodes otherwise where a device is another one.
    """
    found = sums_over_ranks(graph)
    if found:
        ranks = next(n.op.ranks for n in graph.nodes if isinstance(n.op, SumOverRanks))
        meeting_of(ranks).agree("\n".join(found))
