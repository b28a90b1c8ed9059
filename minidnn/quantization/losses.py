"""What each layer loses by itself where its input and its weight are rounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minidnn.compiler import compile as compile_network
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Formula, Reduce
from minidnn.quantization.measure import Batch

MOST_LOST = 0.05
"""Of a layer's results, as roots of mean squares: with more, it stays as it was for
``accuracy="high"``."""


def losses(
    graph: Graph, near: Mapping[Node, Sequence[Node]], batches: Sequence[Batch], device: str | None
) -> dict[Node, float]:
    """How far a layer's results are from those of the last of its ``near`` nodes, on all data.

    In units of the results, both as roots of mean squares.  All read what the layer itself reads.
    """
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
    program = compile_network(Graph(graph.inputs, sums, nodes, graph.name), device=device)
    found = np.zeros(len(sums))
    for batch in batches:
        found += np.array([float(np.asarray(each)) for each in program(*batch)])
    sizes, differences = found[::2], found[1::2]
    with np.errstate(all="ignore"):
        shares = np.sqrt(differences / sizes)
    # A layer that gives nothing but zeros is exact, or as far off as can be.
    shares = np.where(sizes > 0, shares, np.where(differences > 0, np.inf, 0.0))
    layers = [node for node in graph.nodes if node in near]
    return dict(zip(layers, map(float, shares), strict=True))
