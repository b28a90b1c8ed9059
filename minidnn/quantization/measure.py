"""What values a network has on data: histograms, and means of channels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.compiler import compile as compile_network
from minidnn.errors import GraphError
from minidnn.graph.ir import Graph, Value
from minidnn.quantization.ranges import BINS, Histogram

Batch = tuple[np.ndarray, ...]


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


def batches_of(graph: Graph, data: object) -> list[Batch]:
    """The data as tuples with an array for each input; GraphError if they are not that."""
    given = [data] if isinstance(data, np.ndarray) else data
    if not isinstance(given, Iterable):
        raise GraphError(
            f"data={data!r:.80} is a {type(data).__name__}; valid are an array and an iterable of "
            "batches"
        )
    batches = []
    for number, batch in enumerate(given):
        arrays = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        shapes = [np.shape(array) for array in arrays]
        wanted = [value.shape for value in graph.inputs]
        if shapes != wanted:
            raise GraphError(
                f"data: batch {number} has arrays of shapes {shapes}; valid are {wanted}, as the "
                "network's inputs"
            )
        batches.append(tuple(np.asarray(array) for array in arrays))
    if not batches:
        raise GraphError("data has no batches; valid is at least one")
    return batches


def measure(
    graph: Graph, values: Sequence[Value], batches: Sequence[Batch], device: str | None
) -> dict[Value, MeasuredValue]:
    """Values of a graph on all data.

    GraphError if one of them is not finite.
    """
    computed = [value for value in values if value.producer is not None]
    watched = Graph(graph.inputs, computed, graph.nodes, graph.name)
    program = compile_network(watched, device=device) if computed else None

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
    for batch in batches:
        for value, array in run(batch).items():
            if not np.isfinite(array).all():
                raise GraphError(f"data: value {value.name!r} is not finite on them")
            low[value] = min(low[value], float(array.min()))
            high[value] = max(high[value], float(array.max()))
            for kept in {min(1, array.ndim - 1), array.ndim - 1}:
                axes = tuple(axis for axis in range(array.ndim) if axis != kept)
                mean = array.mean(axes, dtype=np.float64)
                sums[value, kept] = sums.get((value, kept), 0) + mean / len(batches)
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
