"""Comparing what a backend computes with a case's oracles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from tests.cases.record import Case

#: Runs a graph on inputs with every floating-point value in the dtype of that name.
Run = Callable[[Graph, Sequence[np.ndarray], str], Sequence[Any]]


def reference(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, ...]:
    return evaluate(graph, inputs, dtype=dtype)


def check(case: Case, dtype: str, run: Run = reference, *, by_torch: bool = True) -> None:
    """Runs a case on all its inputs; AssertionError says which result is wrong, where and by
    how much.

    The formula in float64 is asked for everything, PyTorch in the same dtype and in float64
    for what it is trusted with.
    """
    graphs = {shapes: case.graph(shapes) for shapes in case.shapes}
    for what, shapes, inputs in case.variants(dtype):
        before = [array.copy() for array in inputs]
        (actual,) = run(graphs[shapes], inputs, dtype)
        for array, copy in zip(inputs, before, strict=True):
            np.testing.assert_array_equal(array, copy, f"{case} {what}: an input was changed")
        label = f"{case} {dtype} {what}"
        close = partial(assert_close, dtype, actual, case.ulps * case.magnitude(inputs, dtype))
        close(case.expected(inputs, dtype), f"{label}: formula")
        if by_torch and not (case.torch_differs and what.endswith("special")):
            wide = tuple(array.astype(np.float64) for array in inputs)
            if dtype != "float16":
                close(case.by_torch(wide, "float64"), f"{label}: torch in float64")
            close(case.by_torch(inputs, dtype), f"{label}: torch", slack=2)


def assert_close(
    dtype: str, actual: Any, ulps: np.ndarray, expected: np.ndarray, label: str, slack: float = 1
) -> None:
    """``actual`` is of that dtype, NaN and infinite exactly where ``expected`` is, and else
    within ``slack * ulps`` times the dtype's epsilon.  Zeros are equal whatever their sign."""
    assert actual.dtype == np.dtype(dtype), f"{label}: dtype {actual.dtype}"
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, not {expected.shape}"
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(dtype)
        wide = actual.astype(np.float64)
        finite = np.isfinite(rounded)
        # What is below the normal numbers has no epsilon of its own.
        allowed = slack * float(info.eps) * np.maximum(ulps, (ulps > 0) * float(info.tiny) * 8)
        wrong = np.where(
            finite,
            ~(np.abs(wide - rounded.astype(np.float64)) <= allowed),
            ~((wide == rounded) | (np.isnan(wide) & np.isnan(rounded))),
        )
    if not wrong.any():
        return
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    raise AssertionError(
        f"{label}: {int(wrong.sum())} of {wrong.size} elements are wrong, the first at {place}: "
        f"{actual[place]!r}, expected {rounded[place]!r}, tolerated error {allowed[place]:.3g}"
    )
