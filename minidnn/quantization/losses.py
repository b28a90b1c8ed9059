"""What each layer loses by itself where its input and its weight are rounded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Formula, Reduce
from minidnn.quantization.calibration import Calibration, Twins

MOST_LOST = 0.05
"""Of a layer's results, as roots of mean squares: with more, it stays as it was for
``accuracy="high"``."""


def losses(
    network: Calibration,
    layers: Collection[Node],
    near: Callable[[Graph, Twins, Node], Sequence[Node]],
) -> dict[Node, float]:
    """How far a layer's results are from those of nodes near it, on all data.

    In units of the results, both as roots of mean squares.

    Args:
        near: the nodes, the last of which gives what is compared, for a layer of the graph of some
            size; all read what the layer itself reads.
    """

    def compared(graph: Graph, twins: Twins) -> Graph:
        return _compared(graph, {twins[node]: near(graph, twins, node) for node in layers})

    ordered = [node for node in network.graph.nodes if node in layers]
    program = network.program(compared)
    found = np.zeros(2 * len(ordered))
    for batch in network.batches:
        found += np.array([float(np.asarray(each)) for each in program(*batch)])
    sizes, differences = found[::2], found[1::2]
    with np.errstate(all="ignore"):
        shares = np.sqrt(differences / sizes)
    # A layer that gives nothing but zeros is exact, or as far off as can be.
    shares = np.where(sizes > 0, shares, np.where(differences > 0, np.inf, 0.0))
    return dict(zip(ordered, map(float, shares), strict=True))


def _compared(graph: Graph, near: Mapping[Node, Sequence[Node]]) -> Graph:
    """The graph of sums of squares: of a layer's results, and of how far others are from them."""
    nodes: list[Node] = []
    sums: list[Value] = []
    squares = argument(0) * argument(0)
    apart = argument(0) - argument(1)
    for node in graph.nodes:
        nodes.append(node)
        if node not in near:
            continue
        nodes += near[node]
        pair = [node.output, near[node][-1].output]
        for name, op, given in (
            ("size", Formula(squares), pair[:1]),
            ("apart", Formula(apart * apart, 2), pair),
        ):
            squared = Node(op, given, f"{node.name}.{name}")
            axes = tuple(range(node.output.type.rank))
            total = Node(Reduce("sum", axes), squared.outputs, f"{node.name}.{name}.sum")
            nodes += [squared, total]
            sums.append(total.output)
    return Graph(graph.inputs, sums, nodes, graph.name)
