"""Gradients of convolutions by cuDNN, beside those of PyTorch in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import ContractionExecutable, build
from minidnn.backends.cuda.contraction.graphs import PRODUCT
from minidnn.backends.cuda.contraction.problem import (
    IMAGE_GRADIENT,
    Addresses,
    ContractionProblem,
    packed,
    weight_strides,
)
from minidnn.backends.cuda.functions import LaunchLoader
from minidnn.backends.cuda.machine import machine_of
from minidnn.cudnn.errors import CuDNNError
from minidnn.errors import UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType, rounded_to
from tests.cases import Case
from tests.gradients.exact import assert_near_exact, exact_gradients
from tests.gradients.test_cases import SMALL

from .cards import some
from .lowered import graph_problems
from .precisions import PRODUCTS, storage
from .single import only

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

#: Name: image, filters, window, stride, padding, dilation, groups.
SHAPES: dict[str, tuple[Any, ...]] = {
    "1x1": ((8, 64, 14, 14), 48, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 stride": ((4, 32, 15, 13), 64, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    "3x3": ((4, 64, 17, 19), 64, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "3x3 stride": ((4, 24, 28, 27), 40, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    "3x3 odd channels": ((2, 7, 12, 13), 5, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    "5x5": ((3, 48, 18, 18), 64, (5, 5), (1, 1), (2, 2), (1, 1), 1),
    "7x7 of an image": ((2, 3, 64, 64), 32, (7, 7), (2, 2), (3, 3), (1, 1), 1),
    "1x7": ((2, 32, 17, 17), 48, (1, 7), (1, 1), (0, 3), (1, 1), 1),
    "dilation": ((2, 16, 20, 21), 24, (3, 3), (1, 1), (2, 2), (2, 2), 1),
    "groups": ((2, 32, 14, 14), 32, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    "groups stride": ((2, 24, 15, 16), 48, (3, 3), (2, 2), (1, 1), (1, 1), 3),
    "depthwise": ((4, 40, 14, 14), 40, (3, 3), (1, 1), (1, 1), (1, 1), 40),
    "depthwise stride": ((4, 32, 15, 15), 32, (5, 5), (2, 2), (2, 2), (1, 1), 32),
    "stride over the end": ((2, 8, 10, 11), 8, (2, 3), (3, 3), (0, 0), (1, 1), 1),
    "one image": ((1, 256, 7, 7), 128, (3, 3), (1, 1), (1, 1), (1, 1), 1),
}
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


def gradient(which: str, shape: str, asymmetric: bool = False) -> tuple[Graph, list[Any]]:
    """The graph of one gradient, and the shapes of its inputs."""
    x, filters, window, stride, padding, dilation, groups = SHAPES[shape]
    pads: Any = tuple((p, p + asymmetric) for p in padding)
    convolution = ops.Conv2d(stride, pads, dilation, groups)
    w = (filters, x[1] // groups, *window)
    (y,) = convolution.infer(TensorType(x), TensorType(w))
    op: Any = ops.Conv2dWeightGradient(convolution, window)
    shapes = [x, y.shape]
    if which == "image":
        op, shapes = ops.Conv2dInputGradient(convolution, x[2:]), [y.shape, w]
    inputs = [Value(TensorType(s), f"input{i}") for i, s in enumerate(shapes)]
    node = Node(op, inputs, "gradient", "gradient")
    return Graph(inputs, [node.output], [node], "gradient"), shapes


def drawn(shapes: list[Any], precision: str) -> list[np.ndarray]:
    random = np.random.default_rng(len(shapes[0]))
    arrays = (random.standard_normal(shape, np.float32) for shape in shapes)
    return [rounded_to(storage(precision), array).astype(np.float32) for array in arrays]


def expected_of(graph: Graph, given: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The gradient in float64, and the same sums of magnitudes."""
    (node,) = graph.nodes
    (exact,) = node.op.reference(*(one.astype(np.float64) for one in given))
    (size,) = node.op.reference(*(np.abs(one).astype(np.float64) for one in given))
    return exact, size


def rounds_more(precision: str, accuracy: str) -> bool:
    """Whether Winograd and FFT may compute it, whose errors follow from the numbers around."""
    return precision == "float32" and accuracy == "normal"


def ratio(
    result: np.ndarray,
    exact: np.ndarray,
    size: np.ndarray,
    precision: str,
    accuracy: str = "normal",
) -> float:
    """The largest error, in multiples of what is allowed."""
    if rounds_more(precision, accuracy):
        size = np.full_like(size, 64 * size.max())
    allowed = PRODUCTS[precision] * (1.25 * size + 10 * np.abs(exact)) + 1e-30
    worst = np.abs(result - exact) / allowed
    return float(np.where(np.isfinite(worst), worst, np.inf).max())


@pytest.mark.parametrize(("tune", "accuracy"), [("heuristic", "high"), ("quick", "normal")])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", ["image", "filter"])
def test_numbers_and_bits(which: str, shape: str, precision: str, tune: str, accuracy: str) -> None:
    """As exact as the precision allows, and the same in every run."""
    graph, shapes = gradient(which, shape)
    given = drawn(shapes, precision)
    exe = md.compile(graph, device="cuda", precision=precision, tune=tune, accuracy=accuracy)
    result = np.asarray(exe(*given), np.float32)
    worst = ratio(result, *expected_of(graph, given), precision, accuracy)
    assert worst <= 1, f"{worst:.2f} times the allowed error\n{exe.explain(measure=True)}"
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(exe(*given), np.float32), result)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("which", ["image", "filter"])
def test_asymmetric_padding_is_composed(which: str, precision: str) -> None:
    graph, shapes = gradient(which, "3x3 stride", asymmetric=True)
    given = drawn(shapes, precision)
    exe = md.compile(graph, device="cuda", precision=precision, tune="heuristic")
    assert ratio(exe(*given), *expected_of(graph, given), precision) <= 1


def candidates(problem: ContractionProblem) -> list[ContractionExecutable]:
    """All that may ever be chosen."""
    machine = machine_of(0)
    load = LaunchLoader(machine.arch)
    tuning = tune.Tuning(machine, "exhaustive", 1 << 30, load)
    return [
        build(problem, config, core, machine, load)
        for algorithm in algorithms_for(problem, machine)
        for config, core in tune._candidates(problem, algorithm, None, tuning)
    ]


@cache
def expected_at(which: str, shape: str, precision: str) -> tuple[Any, ...]:
    graph, shapes = gradient(which, shape)
    given = drawn(shapes, precision)
    return graph, given, *expected_of(graph, given)


@pytest.mark.early
@pytest.mark.parametrize(
    "precision", some(["float32 NCHW", *PRECISIONS], ["float32 NCHW", *PRECISIONS[:3]])
)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("which", ["image", "filter"])
def test_every_algorithm(which: str, shape: str, precision: str) -> None:
    """Each that may be chosen: whatever tuning finds fastest, it is right, and gives the same bits
    again."""
    planar = precision.endswith("NCHW")
    precision = precision.partition(" ")[0]
    graph, given, exact, size = expected_at(which, shape, precision)
    (problem,) = graph_problems(graph, precision)
    problem = replace(
        problem,
        x=packed(problem.x, planar),
        y=packed(problem.y, planar),
        w=replace(problem.w, strides=weight_strides(problem.w.shape, planar)),
        planar=planar,
    )
    kind = getattr(torch, storage(precision))
    order = torch.contiguous_format if planar else torch.channels_last

    def laid(array: np.ndarray) -> Any:
        return torch.from_numpy(array).cuda().to(kind).contiguous(memory_format=order)

    one, two = map(laid, given)
    out = laid(np.zeros(exact.shape, np.float32))
    by_image = problem.direction == IMAGE_GRADIENT
    tensors = (out, two, one) if by_image else (one, out, two)
    at = Addresses(*(tensor.data_ptr() for tensor in tensors))
    wrong = []
    for built in candidates(problem):
        room = torch.full((max(1, built.workspace),), 255, dtype=torch.uint8, device="cuda")
        run, results = built.bind(at, room.data_ptr()), []
        name = built.config.algorithm_name(problem)
        try:
            for _ in range(3):
                out.fill_(float("nan"))
                torch.cuda.synchronize()
                run()
                torch.cuda.synchronize()
                results.append(out.float().cpu().numpy())
        except CuDNNError:  # cuDNN builds plans that then fail, which a tuner finds out, too
            continue
        worst = ratio(results[0], exact, size, precision)
        same = all(np.array_equal(results[0], other) for other in results)
        if worst > 1 or not same:
            wrong.append(f"{name}: {worst:.2f} times{'' if same else ', other bits'}")
    assert not wrong


@pytest.mark.parametrize("which", ["image", "filter"])
def test_any_order_is_allowed_by_wish(which: str) -> None:
    graph, shapes = gradient(which, "3x3")
    given = drawn(shapes, "float32")
    exe = md.compile(graph, device="cuda", tune="exhaustive", deterministic=False)
    assert ratio(exe(*given), *expected_of(graph, given), "float32") <= 1


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradients_of_every_operator(case: Case) -> None:
    graph, arrays, exact = exact_gradients(case)
    try:
        exe = md.compile(graph, device="cuda", precision="float32", tune="heuristic")
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert_near_exact(graph, exe(*arrays), exact)


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("which", ["image", "filter"])
@pytest.mark.parametrize("x", [(2, 24, 7, 5), (37, 40, 1, 1), (1, 8, 131, 3), (700, 16, 1, 1)])
def test_products_of_matrices(
    x: tuple[int, ...], which: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of 1x1 convolutions by cuDNN's matrix products: as exact as the others, and the
    same bits in every run."""
    only(monkeypatch, lambda algorithm: algorithm.core == PRODUCT)
    monkeypatch.setitem(SHAPES, "1x1", (x, 56, (1, 1), (1, 1), (0, 0), (1, 1), 1))
    graph, shapes = gradient(which, "1x1")
    given = drawn(shapes, precision)
    exe = md.compile(graph, device="cuda", precision=precision)
    assert "product" in exe.explain(measure=True)
    result = np.asarray(exe(*given), np.float32)
    worst = ratio(result, *expected_of(graph, given), precision)
    assert worst <= 1, f"{worst:.2f} times the allowed error"
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(exe(*given), np.float32), result)
