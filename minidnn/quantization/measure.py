"""What values a network has on data: histograms, and means of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Graph, Value
from minidnn.quantization.calibration import Batch, Calibration, Twins
from minidnn.quantization.ranges import BINS, Histogram


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
