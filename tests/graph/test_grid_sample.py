"""Images read along a grid, and their gradients, beside PyTorch's in float64."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import GraphError
from minidnn.gradients.reverse import pullback
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.resize import GRID_MODES, PADDINGS, grid_sample
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType
from tests.cases.record import one_thread
from tests.sampling import IS_FULL

torch = pytest.importorskip("torch")

#: Shapes of images or volumes, and of the places that are read.
SHAPES = (
    ((2, 3, 5, 7), (4, 6)),
    ((1, 1, 1, 1), (2, 3)),
    ((3, 2, 1, 4), (1, 1)),
    ((2, 3, 3, 4, 5), (2, 3, 4)),
)
HOW = [
    pytest.param(*how, id=" ".join(map(str, how)))
    for how in itertools.product(GRID_MODES, PADDINGS, (False, True))
]
NAN, INF = np.nan, np.inf
#: Coordinates that are not finite, beyond everything, at the outermost elements, and at ties.
SPECIAL = (
    *((NAN, 0.0), (0.0, NAN), (NAN, NAN), (INF, 0.0), (-INF, 0.0), (0.1, INF), (INF, -INF)),
    *((1e30, 0.0), (-1e30, 0.2), (-0.4, 1e19), (1.0, 1.0), (-1.0, -1.0), (0.99, 5.0), (0.25, 0.0)),
)


def graph_of(x: tuple[int, ...], grid: tuple[int, ...], *how: Any, dtype: str = "float64") -> Graph:
    with tracing("sampling") as trace:
        given = [trace.input(TensorType(s, dtype), n) for s, n in ((x, "x"), (grid, "grid"))]
        return trace.graph([grid_sample(given[0], given[1], *how)])


def arrays_of(x: tuple[int, ...], out: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """An image, and a grid of which a third lies outside."""
    random = np.random.default_rng(len(x) + sum(out))
    grid = random.uniform(-1.5, 1.5, (x[0], *out, len(x) - 2))
    return random.standard_normal(x), grid


def expected(x: np.ndarray, grid: np.ndarray, y: np.ndarray, *how: Any) -> list[np.ndarray]:
    """PyTorch's result and its gradients."""
    given = [torch.from_numpy(each.copy()).requires_grad_() for each in (x, grid)]
    with one_thread():
        found = torch.nn.functional.grid_sample(*given, *how)
        gradients = torch.autograd.grad(found, given, torch.from_numpy(y))
    return [each.detach().numpy() for each in (found, *gradients)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "padding", "corners"), HOW)
def test_values_and_gradients(mode: str, padding: str, corners: bool) -> None:
    """In CI of every second shape, of which others have the other corners."""
    begin = (GRID_MODES.index(mode) + PADDINGS.index(padding) + corners) % 2
    for shape, out in SHAPES if IS_FULL else SHAPES[begin::2]:
        if mode == "bicubic" and len(shape) == 5:
            continue
        x, grid = arrays_of(shape, out)
        graph = graph_of(x.shape, grid.shape, mode, padding, corners)
        y = np.random.default_rng(1).standard_normal(graph.outputs[0].shape)
        found = evaluate(graph, [x, grid])
        back = pullback(graph, graph.inputs)
        given = {"x": x, "grid": grid}
        found += evaluate(back, [given.get(value.name, y) for value in back.inputs])
        for ours, theirs in zip(found, expected(x, grid, y, mode, padding, corners), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mode", "padding", "corners"), HOW)
def test_coordinates_that_are_not_finite_or_lie_far_outside(
    mode: str, padding: str, corners: bool
) -> None:
    """Of values alone: PyTorch's gradients read beyond the image for some of them."""
    x = np.random.default_rng(2).standard_normal((1, 2, 3, 4))
    grid = np.array(SPECIAL).reshape(1, 1, -1, 2)
    (found,) = evaluate(graph_of(x.shape, grid.shape, mode, padding, corners), [x, grid])
    with one_thread():
        given = torch.from_numpy(x), torch.from_numpy(grid)
        theirs = torch.nn.functional.grid_sample(*given, mode, padding, corners).numpy()
    np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", PADDINGS)
def test_numbers_outside_and_gradients_there(padding: str) -> None:
    """What is not read changes nothing, whatever it is; what is read is told."""
    x = np.ones((1, 1, 3, 4))
    x[0, 0, 0, 0], x[0, 0, 2, 0] = NAN, INF
    places = [[0.9, 5.0], [0.1, -0.1], [-0.9, -0.9], [0.0, -7.0], [-0.8, 0.7], [9.0, 0.3]]
    grid = np.array(places).reshape(1, 2, 3, 2)
    graph = graph_of(x.shape, grid.shape, "bilinear", padding, True)
    back = pullback(graph, graph.inputs)
    y = np.ones((1, 1, 2, 3))
    given = {"x": x, "grid": grid}
    found = evaluate(graph, [x, grid])
    found += evaluate(back, [given.get(value.name, y) for value in back.inputs])
    for ours, theirs in zip(found, expected(x, grid, y, "bilinear", padding, True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_the_cpu_engine(mode: str) -> None:
    """With as many channels as need several vectors."""
    x, grid = arrays_of((2, 67, 5, 7), (3, 5))
    graph = graph_of(x.shape, grid.shape, mode, "zeros", False, dtype="float32")
    back = pullback(graph, graph.inputs if mode == "bilinear" else graph.inputs[:1])
    y = np.random.default_rng(1).standard_normal(graph.outputs[0].shape)
    given = {"x": x, "grid": grid, "y": y}
    single = {name: array.astype(np.float32) for name, array in given.items()}
    theirs = expected(*(each.astype(np.float64) for each in single.values()), mode, "zeros", False)
    found = [md.compile(graph, device="cpu", threads=2)(single["x"], single["grid"])]
    program = md.compile(back, device="cpu", threads=2)
    made = program(*(single.get(value.name, single["y"]) for value in back.inputs))
    found += made if isinstance(made, (tuple, list)) else [made]
    for ours, other in zip(found, theirs, strict=False):
        np.testing.assert_allclose(ours, other, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(
    ("x", "grid", "mode", "message"),
    [
        ((2, 3, 4), (2, 4, 1), "bilinear", r"input has shape \(2, 3, 4\), .*valid is rank 4 or 5"),
        ((1, 1, 2, 2, 2), (1, 1, 1, 1, 3), "bicubic", "mode='bicubic'; valid is rank 4 with"),
        ((1, 1, 2, 0), (1, 1, 1, 2), "nearest", "valid is rank 4 or 5 with elements"),
        ((2, 1, 2, 2), (1, 3, 3, 2), "nearest", r"valid is \(2, rows, columns, 2\)"),
        ((2, 1, 2, 2), (2, 3, 3, 3), "nearest", r"grid has shape \(2, 3, 3, 3\) beside an input"),
    ],
)
def test_what_does_not_fit(x: Any, grid: Any, mode: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph_of(x, grid, mode, "zeros", True)


def test_dtypes_that_differ() -> None:
    with tracing("sampling") as trace, pytest.raises(GraphError, match="is float32 and grid int64"):
        x = trace.input(TensorType((1, 1, 2, 2), "float32"), "x")
        grid_sample(
            x, trace.input(TensorType((1, 1, 1, 2), "int64"), "grid"), "nearest", "zeros", True
        )
