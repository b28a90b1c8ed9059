"""The network that is quantized, for one size or for ranges, the data it is calibrated with, and
what is found out by them.

That is what values the network has, as histograms and means of channels, which range of a value's
numbers its bytes stand for, and what each layer loses by itself where its input and its weight are
rounded.
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

#: For values and nodes of the graph that was measured those of another size.
Twins = Mapping[Any, Any]

_FEW_SIZES = 4
"""Of batches with more sizes not each gets a program of its own."""


@dataclass(frozen=True)
class Calibration:
    """A network and data.

    Attributes:
        graph: the network's for one size: all that is found out is said of its values and nodes.
        sized: the same for all sizes in ranges, if it has any.
        device: which computes.
    """

    graph: Graph
    sized: SizedGraph | None
    batches: Sequence[Batch]
    device: str | None

    def made(self, change: Callable[[Graph, Twins], Graph]) -> Graph | SizedGraph:
        """What becomes of the network, for one size or for all.

        ``change`` is given the graph of a size, and what stands in it for values and nodes.
        """
        if self.sized is None:
            return change(self.graph, _twins(self.graph, self.graph))
        return self.sized.mapped(lambda graph: change(graph, _twins(self.graph, graph)))

    def program(self, change: Callable[[Graph, Twins], Graph]) -> Callable[..., Any]:
        """What computes :meth:`made` for the arrays of any batch."""
        network = self.made(change)
        if isinstance(network, Graph):
            return compile_network(network, device=self.device)
        sizes = {tuple(array.shape for array in batch) for batch in self.batches}
        own: dict[str, Any] = {"background": len(sizes) > _FEW_SIZES}
        return compile_network(network, None, device=self.device, **own)


def _twins(one: Graph, other: Graph) -> Twins:
    values = zip(one.values, other.values, strict=True)
    return {**dict(values), **dict(zip(one.nodes, other.nodes, strict=True))}


def batches_of(graph: Graph, sized: SizedGraph | None, data: object) -> list[Batch]:
    """The data as tuples with an array for each input; GraphError if they are not that."""
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


#: Bins of a histogram, and the levels that a byte has.
BINS = 2048
LEVELS = 256
#: Parts of the whole range that are tried, where one is looked for.
_PARTS = np.linspace(1.0, 0.2, 81)


@dataclass(frozen=True)
class Histogram:
    """How often numbers fell into bins of equal width.

    Attributes:
        low, high: the least and the largest number; 0 lies between them.
        counts: of each bin.
    """

    low: float
    high: float
    counts: np.ndarray

    @property
    def centers(self) -> np.ndarray:
        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (np.arange(len(self.counts)) + 0.5)


#: From a histogram, and the part of all numbers that "percentile" keeps, to a range.
Choose = Callable[[Histogram, float], tuple[float, float]]


def steps_of(low: float, high: float, dtype: str) -> Steps:
    """The bytes for numbers from ``low`` to ``high``, which 0 is one of: of uint8 all between, of
    int8 as far on both sides of 0."""
    if dtype == "int8":
        scale, zero = max(-low, high) / 127, 0
    else:
        scale = (high - low) / (LEVELS - 1)
        zero = 0
    least = float(np.finfo(np.float32).tiny)
    rounded = float(np.float32(max(scale, least)))
    if dtype == "uint8":
        zero = int(np.clip(np.rint(-low / rounded), 0, LEVELS - 1))
    return Steps(rounded, zero, dtype)


def _all(found: Histogram, percentile: float) -> tuple[float, float]:
    return found.low, found.high


def _percentile(found: Histogram, percentile: float) -> tuple[float, float]:
    """Without the same part of the numbers on either side, but with 0."""
    share = np.cumsum(found.counts) / max(1.0, float(found.counts.sum()))
    cut = (1 - percentile / 100) / 2
    edges = np.linspace(found.low, found.high, len(found.counts) + 1)
    first = int(np.searchsorted(share, cut, "right"))
    last = int(np.searchsorted(share, 1 - cut, "left"))
    return min(0.0, float(edges[first])), max(0.0, float(edges[min(last + 1, len(edges) - 1)]))


def _least(found: Histogram, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Of parts of the whole range the one that costs least."""
    ranges = [(part * found.low, part * found.high) for part in _PARTS]
    return min(ranges, key=lambda each: cost(*each))


def _error(found: Histogram, percentile: float) -> tuple[float, float]:
    """With the least squared error of the numbers."""
    centers = found.centers

    def squares(low: float, high: float) -> float:
        step = max(high - low, 1e-30) / (LEVELS - 1)
        rounded = np.clip(np.rint((centers - low) / step), 0, LEVELS - 1) * step + low
        return float(((centers - rounded) ** 2 * found.counts).sum())

    return _least(found, squares)


def _entropy(found: Histogram, percentile: float) -> tuple[float, float]:
    """With the least divergence (Kullback and Leibler) of the bytes' distribution from that of the
    numbers, of which those beyond the range are counted at its ends."""
    counts = found.counts.astype(np.float64)
    centers = found.centers
    # 0 has a byte of its own; behind an activation it is most of all numbers, and would decide.
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
        # What falls where no byte's share is counts as if a little did.
        some = p > 0
        return float((p[some] * np.log(p[some] / np.maximum(q[some], 1e-9))).sum())

    return _least(found, divergence)


RANGES: Mapping[str, Choose] = {
    "minmax": _all,
    "percentile": _percentile,
    "entropy": _entropy,
    "error": _error,
}
"""How a range is chosen, by name."""


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
