"""What values a network has on data, histograms and means of channels, and what each layer loses by
itself where its input and its weight are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Formula, Reduce
from minidnn.quantization.calibration import Batch, Calibration, Twins
from minidnn.quantization.ranges import BINS, Histogram

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


@dataclass(frozen=True)
class MeasuredValue:
    """A value on all data.

    Attributes:
        channels, features: means at the places of axis 1, which convolutions sum over, and of the
            last axis, which linear layers sum over.
    """

    histogram: Histogram
    channels: np.ndarray
    features: np.ndarray


def measure(network: Calibration, values: Sequence[Value]) -> dict[Value, MeasuredValue]:
    """Values of a network on all data.

    GraphError if one of them is not finite.
    """
    graph, batches = network.graph, network.batches
    computed = [value for value in values if value.producer is not None]

    def watched(graph: Graph, twins: Twins) -> Graph:
        return Graph(graph.inputs, [twins[v] for v in computed], graph.nodes, graph.name)

    program = network.program(watched) if computed else None
    # Of a batch that is smaller than others a mean counts less.
    rows = [batch[0].shape[0] if batch[0].ndim else 1 for batch in batches]

    def run(batch: Batch) -> dict[Value, np.ndarray]:
        found = dict(zip(graph.inputs, batch, strict=True))
        if program is not None:
            results = program(*batch)
            listed = results if isinstance(results, tuple) else (results,)
            found |= dict(zip(computed, listed, strict=True))
        return {value: np.asarray(found[value], np.float32) for value in values}

    low = dict.fromkeys(values, 0.0)
    high = dict.fromkeys(values, 0.0)
    sums: dict[tuple[Value, int], np.ndarray] = {}
    for batch, count in zip(batches, rows, strict=True):
        for value, array in run(batch).items():
            if not np.isfinite(array).all():
                raise GraphError(f"data: value {value.name!r} is not finite on them")
            low[value] = min(low[value], float(array.min()))
            high[value] = max(high[value], float(array.max()))
            for kept in {min(1, array.ndim - 1), array.ndim - 1}:
                axes = tuple(axis for axis in range(array.ndim) if axis != kept)
                mean = array.mean(axes, dtype=np.float64)
                sums[value, kept] = sums.get((value, kept), 0) + mean * count / sum(rows)
    counts = {value: np.zeros(BINS, np.int64) for value in values}
    for batch in batches:
        for value, array in run(batch).items():
            if high[value] > low[value]:
                limits = (low[value], high[value])
                counts[value] += np.histogram(array, BINS, limits)[0]
    return {
        value: MeasuredValue(
            Histogram(low[value], high[value], counts[value]),
            sums[value, min(1, value.type.rank - 1)],
            sums[value, value.type.rank - 1],
        )
        for value in values
    }
