"""A window of several operands that no pass has made a region of."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.trace import apply
from minidnn.graph.window import Window, WindowAxis
from tests.passes.build import graph_of

_SHAPE = (2, 3, 7, 5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("same", [False, True], ids=["two", "one-twice"])
def test_all_operands_are_read(device: str, same: bool) -> None:
    axis = WindowAxis(3, 1, (1, 1), 1)
    window = Window(axis, axis, "sum", argument(0) * argument(1), under=2)
    graph = graph_of(lambda _, x, y: apply(ops.Pool2d(window), x, x if same else y), _SHAPE, _SHAPE)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(_SHAPE).astype(np.float32) for _ in "xy"]
    product = given[0] * np.float64(given[0] if same else given[1])
    product = np.pad(product, ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = np.lib.stride_tricks.sliding_window_view(product, (3, 3), (2, 3)).sum((-1, -2))
    result = md.compile(graph, device=device, fuel=0)(*given)
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)
