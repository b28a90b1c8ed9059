"""place_sums: sums over ranks go on beside the nodes that do not need them.

Handles: sums that may be computed beside others, which each begin as soon as their operands are
there.  What is computed for them alone, such as a gradient and its cast, is computed at once, which
takes memory; what depends on results of sums comes behind all other nodes, in the order of the
sums.  Only the order changes, after the pass schedule, which knows of no such sums.
Refuses: sums that the next nodes need, such as statistics.
"""

from __future__ import annotations

from collections.abc import Collection

from minidnn.fusion.product import FusedProduct
from minidnn.fusion.region import FusedContraction, FusedGradient
from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Conv2dInputGradient, Conv2dWeightGradient, MatMul
from minidnn.passes.infrastructure import Context, Pass

_PRODUCTS = (
    *(Contraction, FusedContraction, Conv2dInputGradient, Conv2dWeightGradient, MatMul),
    *(FusedGradient, FusedProduct),
)


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
    feeding = _feeding(graph, {*number, *behind})
    first = [n for n in graph.nodes if not (n in behind or n in number or n in feeding)]
    #: Behind which of these each node can be computed.
    place = {node: i for i, node in enumerate(first)}
    ready: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in feeding or (node in number and node not in behind):
            makers = [place[v.producer] for v in node.tensors if v.producer is not None]
            place[node] = max(makers, default=-1)
            ready.setdefault(place[node], []).append(node)
    order = list(ready.get(-1, ()))
    for i, node in enumerate(first):
        order += (node, *ready.get(i, ()))
    rewriter = Rewriter(graph)
    for node in (*order, *sorted(behind, key=behind.__getitem__)):
        rewriter.keep(node)
    return rewriter.finish()


def _feeding(graph: Graph, others: Collection[Node]) -> set[Node]:
    """The nodes whose results go into sums over ranks alone, or through such nodes; of products
    the last ones, for the whole backward pass is made for sums in the end."""
    found: set[Node] = set()
    passing: set[Node] = set()
    given = set(graph.results)
    for node in reversed(graph.nodes):
        if node in others or given.intersection(node.outputs):
            continue
        readers = [reader for value in node.outputs for reader in graph.readers[value]]
        if readers and all(reader.op.lasts or reader in passing for reader in readers):
            found.add(node)
            if not isinstance(node.op, _PRODUCTS):
                passing.add(node)
    return found


PLACE_SUMS = Pass("place_sums", place_sums, requires=("schedule",))
