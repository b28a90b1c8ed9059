"""Calibration for quantization: runs a network on data and measures its values.

:func:`measure` gives a histogram and channel means of each value, the functions in ``RANGES``
choose the range that its int8 or uint8 numbers cover, and :func:`losses` measures the error of each
layer when its input and weight alone are quantized.  :func:`minidnn.quantize` uses all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.compiler import compile as compile_network
from minidnn.dynamic.dim import Dim, Template, sizes_of
from minidnn.errors import GraphError
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Formula, Reduce
from minidnn.graph.quantization import Steps
from minidnn.runtime.interface import interface_of
from minidnn.sizes.sized_graph import SizedGraph, input_templates

Batch = tuple[np.ndarray, ...]

#: For values and nodes of the graph that is measured, those of the same network for another size.
Twins = Mapping[Any, Any]

_FEW_SIZES = 4
"""Up to so many sizes of batches, each gets a program of its own."""


@dataclass(frozen=True)
class Calibration:
    """A network and the data that it is calibrated with.

    Attributes:
        graph: the network's graph for one size: results are reported for its values and nodes.
        sized: the graph for all sizes in ranges, if the network has named sizes.
        batches: the data, each batch with one array for each input.
        device: the device that computes; None for the default one.
    """

    graph: Graph
    sized: SizedGraph | None
    batches: Sequence[Batch]
    device: str | None

    def made(self, change: Callable[[Graph, Twins], Graph]) -> Graph | SizedGraph:
        """The network after a rewrite, for one size or for all.

        ``change`` rewrites the graph of one size; it is given the values and nodes of that graph
        that correspond to those of :attr:`graph`.
        """
        if self.sized is None:
            return change(self.graph, _twins(self.graph, self.graph))
        return self.sized.mapped(lambda graph: change(graph, _twins(self.graph, graph)))

    def program(self, change: Callable[[Graph, Twins], Graph]) -> Callable[..., Any]:
        """Compiles the network of :meth:`made`, for arrays of any batch."""
        network = self.made(change)
        if isinstance(network, Graph):
            return compile_network(network, device=self.device)
        sizes = {tuple(array.shape for array in batch) for batch in self.batches}
        options: dict[str, Any] = {"background": len(sizes) > _FEW_SIZES}
        return compile_network(network, None, device=self.device, **options)


def _twins(one: Graph, other: Graph) -> Twins:
    """The values and nodes of ``other`` by those of ``one``, which has the same nodes in order."""
    values = zip(one.values, other.values, strict=True)
    return {**dict(values), **dict(zip(one.nodes, other.nodes, strict=True))}


def batches_of(graph: Graph, sized: SizedGraph | None, data: object) -> list[Batch]:
    """The data as batches, tuples with an array for each input; GraphError if they do not fit."""
    given = [data] if isinstance(data, np.ndarray) else data
    if not isinstance(given, Iterable):
        raise GraphError(
            f"data={data!r:.80} is a {type(data).__name__}; valid are an array and an iterable of "
            "batches"
        )
    templates = input_templates(graph if sized is None else sized)
    batches = []
    for number, batch in enumerate(given):
        arrays = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        _check_shapes(graph, templates, [np.shape(array) for array in arrays], number)
        batches.append(tuple(np.asarray(array) for array in arrays))
    if not batches:
        raise GraphError("data has no batches; valid is at least one")
    return batches


def _check_shapes(
    graph: Graph, templates: Sequence[Template], shapes: list[tuple[int, ...]], number: int
) -> None:
    is_sized = any(isinstance(size, Dim) for template in templates for size in template)
    if is_sized and len(shapes) == len(templates):
        try:
            sizes_of(interface_of(graph).inputs, templates, shapes)
        except GraphError as error:
            raise GraphError(f"data: batch {number}: {error}") from None
    elif shapes != list(templates):
        raise GraphError(
            f"data: batch {number} has arrays of shapes {shapes}; valid are {list(templates)}, as "
            "the network's inputs; with a minidnn.Dim as the first size of shape= batches may "
            "differ"
        )


#: Bins of a histogram, and the number of levels of int8 or uint8.
BINS = 2048
LEVELS = 256
#: Fractions of the whole range that the search for a range tries.
_PARTS = np.linspace(1.0, 0.2, 81)


@dataclass(frozen=True)
class Histogram:
    """How often numbers fell into bins of equal width.

    Attributes:
        low, high: the least and the largest number; 0 is between them.
        counts: how many numbers fell into each bin.
    """

    low: float
    high: float
    counts: np.ndarray

    @property
    def centers(self) -> np.ndarray:
        """The number in the middle of each bin."""
        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (np.arange(len(self.counts)) + 0.5)


#: Chooses a range from a histogram, and from the percentage of numbers that "percentile" keeps.
Choose = Callable[[Histogram, float], tuple[float, float]]


def steps_of(low: float, high: float, dtype: str) -> Steps:
    """The scale and zero point for numbers from ``low`` to ``high``, a range with 0 in it: uint8
    covers the range, int8 the symmetric range around 0 that includes it."""
    is_signed = dtype == "int8"
    scale = max(-low, high) / 127 if is_signed else (high - low) / (LEVELS - 1)
    least = float(np.finfo(np.float32).tiny)
    rounded = float(np.float32(max(scale, least)))
    zero = 0 if is_signed else int(np.clip(np.rint(-low / rounded), 0, LEVELS - 1))
    return Steps(rounded, zero, dtype)


def _all(found: Histogram, percentile: float) -> tuple[float, float]:
    """The range of all numbers."""
    return found.low, found.high


def _percentile(found: Histogram, percentile: float) -> tuple[float, float]:
    """The range without the same fraction of numbers at either end, extended to 0."""
    share = np.cumsum(found.counts) / max(1.0, float(found.counts.sum()))
    cut = (1 - percentile / 100) / 2
    edges = np.linspace(found.low, found.high, len(found.counts) + 1)
    first = int(np.searchsorted(share, cut, "right"))
    last = int(np.searchsorted(share, 1 - cut, "left"))
    return min(0.0, float(edges[first])), max(0.0, float(edges[min(last + 1, len(edges) - 1)]))


def _least(found: Histogram, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """The one of the ranges that ``_PARTS`` scales from the whole range with the least cost."""
    ranges = [(part * found.low, part * found.high) for part in _PARTS]
    return min(ranges, key=lambda each: cost(*each))


def _error(found: Histogram, percentile: float) -> tuple[float, float]:
    """The range whose quantization has the least squared error."""
    centers = found.centers

    def squares(low: float, high: float) -> float:
        step = max(high - low, 1e-30) / (LEVELS - 1)
        rounded = np.clip(np.rint((centers - low) / step), 0, LEVELS - 1) * step + low
        return float(((centers - rounded) ** 2 * found.counts).sum())

    return _least(found, squares)


def _entropy(found: Histogram, percentile: float) -> tuple[float, float]:
    """The range with the least Kullback-Leibler divergence of the quantized distribution from the
    original one, in which numbers beyond the range count at its ends."""
    counts = found.counts.astype(np.float64)
    centers = found.centers
    # 0 has a level of its own; after a ReLU it is most of all numbers, and would decide alone.
    counts[int(np.abs(centers).argmin())] = 0
    if not counts.any():
        return found.low, found.high

    def divergence(low: float, high: float) -> float:
        inside = np.flatnonzero((centers >= low) & (centers <= high))
        if len(inside) < 2:
            return np.inf
        first, last = inside[0], inside[-1]
        kept = counts[first : last + 1].copy()
        level = np.arange(len(kept)) * LEVELS // len(kept)
        filled = kept > 0
        total = np.bincount(level, kept, LEVELS)
        bins = np.bincount(level, filled, LEVELS)
        spread = np.where(filled, (total / np.maximum(bins, 1))[level], 0)
        kept[0] += counts[:first].sum()
        kept[-1] += counts[last + 1 :].sum()
        p, q = kept / kept.sum(), spread / max(spread.sum(), 1e-30)
        # Bins to which no level contributes count as if they had a little probability.
        nonempty = p > 0
        return float((p[nonempty] * np.log(p[nonempty] / np.maximum(q[nonempty], 1e-9))).sum())

    return _least(found, divergence)


RANGES: Mapping[str, Choose] = {
    "minmax": _all,
    "percentile": _percentile,
    "entropy": _entropy,
    "error": _error,
}
"""How a range is chosen, by name."""


MOST_LOST = 0.05
"""Relative error of a layer's results, as roots of mean squares, up to which ``accuracy="high"``
quantizes the layer."""


def losses(
    network: Calibration,
    layers: Collection[Node],
    near: Callable[[Graph, Twins, Node], Sequence[Node]],
) -> dict[Node, float]:
    """The relative error of each layer's approximation, on all data: the root mean square of the
    difference, divided by that of the layer's results.

    Args:
        near: the nodes that approximate a layer of the graph of some size, by what the layer itself
            reads; the result of the last one is compared.
    """

    def compared(graph: Graph, twins: Twins) -> Graph:
        return _compared(graph, {twins[node]: near(graph, twins, node) for node in layers})

    ordered = [node for node in network.graph.nodes if node in layers]
    program = network.program(compared)
    sums = np.zeros(2 * len(ordered))
    for batch in network.batches:
        sums += np.array([float(np.asarray(each)) for each in program(*batch)])
    squares, differences = sums[::2], sums[1::2]
    with np.errstate(all="ignore"):
        errors = np.sqrt(differences / squares)
    # The error of a layer whose results are all zero is 0 or infinite.
    errors = np.where(squares > 0, errors, np.where(differences > 0, np.inf, 0.0))
    return dict(zip(ordered, map(float, errors), strict=True))


def _compared(graph: Graph, near: Mapping[Node, Sequence[Node]]) -> Graph:
    """The graph of sums of squares: for each layer those of its results, and those of the
    differences of its approximation."""
    nodes: list[Node] = []
    sums: list[Value] = []
    squares = argument(0) * argument(0)
    difference = argument(0) - argument(1)
    for node in graph.nodes:
        nodes.append(node)
        if node not in near:
            continue
        nodes += near[node]
        pair = [node.output, near[node][-1].output]
        for name, op, given in (
            ("size", Formula(squares), pair[:1]),
            ("apart", Formula(difference * difference, 2), pair),
        ):
            squared = Node(op, given, f"{node.name}.{name}")
            axes = tuple(range(node.output.type.rank))
            total = Node(Reduce("sum", axes), squared.outputs, f"{node.name}.{name}.sum")
            nodes += [squared, total]
            sums.append(total.output)
    return Graph(graph.inputs, sums, nodes, graph.name)


@dataclass(frozen=True)
class MeasuredValue:
    """Measurements of a value over all batches.

    Attributes:
        histogram: the distribution of its numbers.
        channels, features: means for each index of axis 1, over which convolutions sum, and of the
            last axis, over which linear layers sum.
    """

    histogram: Histogram
    channels: np.ndarray
    features: np.ndarray


def measure(network: Calibration, values: Sequence[Value]) -> dict[Value, MeasuredValue]:
    """Measures values of a network on all batches, which it runs twice: for the ranges, then for
    the histograms.

    GraphError if one of them is not finite.
    """
    graph, batches = network.graph, network.batches
    computed = [value for value in values if value.producer is not None]

    def watched(graph: Graph, twins: Twins) -> Graph:
        return Graph(graph.inputs, [twins[v] for v in computed], graph.nodes, graph.name)

    program = network.program(watched) if computed else None
    # Means are weighted by the rows of each batch.
    rows = [batch[0].shape[0] if batch[0].ndim else 1 for batch in batches]

    def run(batch: Batch) -> dict[Value, np.ndarray]:
        arrays = dict(zip(graph.inputs, batch, strict=True))
        if program is not None:
            results = program(*batch)
            listed = results if isinstance(results, tuple) else (results,)
            arrays |= dict(zip(computed, listed, strict=True))
        return {value: np.asarray(arrays[value], np.float32) for value in values}

    low = dict.fromkeys(values, 0.0)
    high = dict.fromkeys(values, 0.0)
    sums: dict[tuple[Value, int], np.ndarray] = {}
    for batch, count in zip(batches, rows, strict=True):
        for value, array in run(batch).items():
            if not np.isfinite(array).all():
                raise GraphError(f"data: value {value.name!r} is not finite on them")
            low[value] = min(low[value], float(array.min()))
            high[value] = max(high[value], float(array.max()))
            for axis_kept in {min(1, array.ndim - 1), array.ndim - 1}:
                axes = tuple(axis for axis in range(array.ndim) if axis != axis_kept)
                mean = array.mean(axes, dtype=np.float64)
                sums[value, axis_kept] = sums.get((value, axis_kept), 0) + mean * count / sum(rows)
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
