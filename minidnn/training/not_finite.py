"""Where the first value comes from that is not finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node


def first_not_finite(
    graph: Graph, arrays: Sequence[Any], states: Mapping[str, np.ndarray], dtype: str | None
) -> str:
    """Names the input, the parameter or the layer with the first value that is NaN or infinite, by
    computing the graph node by node in NumPy."""
    for value, array in zip(graph.inputs, arrays, strict=True):
        if _count(np.asarray(array)):
            return f"{value.name} of the batch has {_told(np.asarray(array))}"
    held = {state.name: states[state.name].copy() for state in graph.states}
    for name, array in held.items():
        if _count(array):
            return f"{name} has {_told(array)}, since an earlier step"
    found: list[str] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        for array in results:
            if not found and _count(array):
                found.append(f"layer {node.source!r} ({node.op.name}) made {_told(array)}")

    evaluate(graph, [np.asarray(array) for array in arrays], dtype, observe, held)
    return found[0] if found else "computed in NumPy it is finite"


def _count(array: np.ndarray) -> int:
    return int((~np.isfinite(array)).sum()) if array.dtype.kind == "f" else 0


def _told(array: np.ndarray) -> str:
    return f"{_count(array)} of {array.size} values that are NaN or infinite"
