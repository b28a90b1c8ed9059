"""Mean and variance of what a contraction writes, added up by its kernel: in the emulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import stream
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.stream import Stream
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.graph.types import HALF_DTYPES, rounded_to
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.arrays import from_bits, to_bits
from minidnn.runtime.plan import Plan, make_plan
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import H200

from .contractions import EPSILON, STREAM
from .emulator.run import Emulated
from .lowered import FEW


def planned(network: md.Layer, shape: tuple[int, ...], dtype: str) -> Plan:
    """The plan of a training step."""
    objective = Objective(md.losses.CrossEntropy(), {})
    graph = step_graph(network, shape, objective, md.optim.SGD(0.1))
    context = Context(CudaTarget(H200.device(dtype), dtype), stored=True)
    return make_plan(optimize(graph, context, verify=True), context)


def network(channels: int, filters: int) -> md.Layer:
    """A 1x1 convolution before a normalization."""
    return L.Sequential(
        *(L.Conv2d(channels, filters, 1, bias=False), L.BatchNorm2d(filters), L.ReLU()),
        *(L.AdaptiveAvgPool2d(1), L.Flatten(), L.Linear(filters, 3)),
    )


def problem_of(shape: tuple[int, ...], filters: int, dtype: str) -> ContractionProblem:
    tasks = lower_plan(planned(network(shape[1], filters), shape, dtype), H200, tf32=False)
    problems = [task.work for task in tasks if isinstance(task.work, ContractionProblem)]
    (problem,) = (each for each in problems if each.reduction and each.direction == "forward")
    return problem


STREAMS = [i for i, one in enumerate(stream.STREAMS) if one.adds(3)]
#: Three and one chunk of a row to a thread, groups that share pixels and filters, two and three.
QUICK = [
    stream.STREAMS.index(one) for one in (Stream(48), Stream(256, False), Stream(64, False, 3))
]
#: Several tiles of a block, a last one in part, blocks without some filters, channels of a slab in
#: part.
SHAPE, FILTERS = (3, 40, 13, 17), 72


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Emulated]:
    """The kernels of a stream; those of the quick ones are compiled at once."""
    known: dict[int, Emulated] = {}

    def kernels(choice: int) -> Emulated:
        if choice not in known:
            together = QUICK if choice in QUICK else [choice]
            launches = [
                launch
                for each in together
                for launch in STREAM.launches(problem_of(SHAPE, FILTERS, dtype_of(each)), each, FEW)
            ]
            folder = tmp_path_factory.mktemp("statistics")
            found = Emulated([launch.source for launch in launches], folder, busy=True)
            known.update(dict.fromkeys(together, found))
        return known[choice]

    return kernels


def dtype_of(choice: int) -> str:
    return HALF_DTYPES[choice % 2]


def computed(
    kernels: Emulated, choice: int, x: np.ndarray, w: np.ndarray, backwards: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Result, mean and variance by a stream, for images (N, C, H, W) and filters (K, C)."""
    dtype = dtype_of(choice)
    problem = problem_of(x.shape, len(w), dtype)
    first, join = STREAM.launches(problem, choice, FEW)
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    y = _aligned(to_bits(np.full((*pixels.shape[:3], len(w)), np.nan, np.float32), dtype))
    parts = np.full(STREAM.workspace(problem, choice, FEW) // 4 + 4, -77, np.float32)
    mean, variance = (np.full(len(w), np.nan, np.float32) for _ in range(2))
    numbers = [np.array([n]) for n in STREAM.numbers(problem, choice, FEW)]
    given = [_aligned(to_bits(array, dtype)) for array in (pixels, w)]
    kernels.launch(first, [*given, y, parts, *numbers], backwards)
    assert (parts[-4:] == -77).all() and (parts[:-4] != -77).all()
    kernels.launch(join, [parts, mean, variance], backwards)
    return from_bits(y, dtype).astype(np.float64), mean, variance


def _aligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 256, np.uint8)
    begin = -memory.ctypes.data % 256
    found = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def drawn(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal(SHAPE).astype(np.float32) + 0.5
    w = random.standard_normal((FILTERS, SHAPE[1])).astype(np.float32) / 6.0
    return rounded_to(dtype, x).astype(np.float32), rounded_to(dtype, w).astype(np.float32)


@pytest.mark.race
@pytest.mark.parametrize(
    "choice",
    [pytest.param(i, marks=() if i in QUICK else pytest.mark.full) for i in STREAMS],
)
def test_every_stream(choice: int, compiled: Callable[[int], Emulated]) -> None:
    """The result is that of the products, mean and variance those of what is stored, and the bits
    do not depend on which threads come first."""
    kernels = compiled(choice)
    x, w = drawn(dtype_of(choice))
    y, mean, variance = computed(kernels, choice, x, w)
    products = np.einsum("nchw,kc->nhwk", x.astype(np.float64), w)
    np.testing.assert_allclose(y, products, EPSILON[dtype_of(choice)], 1e-5)
    np.testing.assert_allclose(mean, y.mean((0, 1, 2)), 1e-6, 1e-6)
    np.testing.assert_allclose(variance, y.var((0, 1, 2)), 2e-6)
    for other, one in zip(computed(kernels, choice, x, w, True), (y, mean, variance), strict=True):
        np.testing.assert_array_equal(other, one)


def test_special_values(compiled: Callable[[int], Emulated]) -> None:
    """Large means cost no digits, NaN and infinities stay in their channels, and what overflows is
    infinite."""
    choice = QUICK[1]
    x, w = drawn(dtype_of(choice))
    x[:, 0] = 1.0
    w[:, 0] = 0.0
    w[1, 0] = 200.0
    w[2] = w[3] = w[4] = 0.0
    w[2, 0], w[3, 0], w[4, 1] = np.nan, np.inf, 65504.0
    y, mean, variance = computed(compiled(choice), choice, x, w)
    flat = y.reshape(-1, FILTERS)
    assert abs(mean[1] - 200.0) < 2.0
    np.testing.assert_allclose(variance[1], flat[:, 1].var(), 1e-5)
    assert np.isnan(mean[2]) and np.isnan(variance[2]) and np.isnan(variance[3])
    assert not np.isnan(np.delete(mean, [2, 3, 4])).any()
