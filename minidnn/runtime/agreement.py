"""The consensus check of ranks: before they run a program together, they make sure that all of them
compute the same sums over ranks (all-reduces) in the same order."""

from __future__ import annotations

from minidnn.graph.ir import Graph
from minidnn.graph.operators import SumOverRanks
from minidnn.graph.operators.ranks import process_group_of

WHY_NO_TIMES = (
    "regions of a program that sums over ranks are not timed: all ranks would have to do it at once"
)


def sums_over_ranks(graph: Graph) -> list[str]:
    """Describes the sums over several ranks, in the order in which a graph computes them."""
    return [
        f"{node.name}: {node.op} of {', '.join(str(value.type) for value in node.inputs)}"
        for node in graph.nodes
        if isinstance(node.op, SumOverRanks) and node.op.ranks > 1
    ]


def agree_on_sums(graph: Graph) -> None:
    """Waits until all ranks have called this, if the graph sums over several, and compares sums.

    GraphError if this process is none of the ranks, DistributedError if the sums of ranks differ:
    passes may order nodes differently for different devices.
    """
    sums = sums_over_ranks(graph)
    if sums:
        ranks = next(n.op.ranks for n in graph.nodes if isinstance(n.op, SumOverRanks))
        process_group_of(ranks).agree("\n".join(sums))
