"""Kernels of planes of any size: operator cases, the bits of those of one size, and one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
import models
from minidnn import layers as L
from minidnn.backends.cuda.contraction.config import FIXED, CudaAlgorithm, finish_of
from minidnn.backends.cuda.contraction.gather import (
    Gathering,
    print_gather,
    print_gather_for_any_size,
)
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import Task
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType, rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests import cases
from tests.cases import Case, check
from tests.cases.record import Shape

from .arrays import STORED
from .cards import H200
from .emulator.run import Emulated
from .lowered import EmulatedProgram, Kernel, problems_of
from .test_operators import is_supported, run


@cache
def lowered(case: Case, shapes: tuple[Shape, ...]) -> tuple[Plan, list[Task]]:
    context = Context(CudaTarget(any_size=True), "contractions")
    plan = make_plan(optimize(case.graph(shapes), context), context)
    return plan, lower_plan(plan, H200, False, any_size=True)


def launches_of(tasks: Sequence[Task]) -> list[Launch]:
    return [task.work for task in tasks if isinstance(task.work, Launch)]


def is_chosen(case: Case) -> bool:
    """Whether kernels of any size compute it, and nothing of a library."""
    if not is_supported(case):
        return False
    tasks = lowered(case, case.shapes[0])[1]
    launches = launches_of(tasks)
    return len(launches) == len(tasks) and any(launch.numbers for launch in launches)


CHOSEN = tuple(case for case in cases.CASES if is_chosen(case))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    tasks = [task for c in CHOSEN for shapes in c.shapes for task in lowered(c, shapes)[1]]
    sources = [launch.source for launch in launches_of(tasks)]
    return Emulated(sources, tmp_path_factory.mktemp("any_size"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_cases(case: Case, kernels: Emulated) -> None:
    def compute(graph: Graph, inputs: Sequence[np.ndarray], dtype: str) -> Sequence[Any]:
        plan, tasks = lowered(case, tuple(x.shape for x in inputs))
        return run(plan, tasks, kernels, inputs)

    check(case, "float32", compute, by_torch=False)


class Joined(L.Layer):
    """Windows that are joined, what stands behind them, and averages."""

    def __init__(self) -> None:
        self.normal = L.BatchNorm2d(5)
        self.scale = L.BatchNorm2d(10)
        self.most = L.MaxPool2d(3, 1, padding=1)
        self.mean = L.AvgPool2d(3, 1, padding=1, count_include_pad=False)
        self.last = L.AvgPool2d(2, ceil_mode=True, count_include_pad=False)

    def forward(self, x: Any) -> Any:
        y = L.Sigmoid()(self.normal(x))
        joined = apply(ops.Concat(1), self.most(y), self.mean(y))
        y = self.last(L.ReLU()(self.scale(joined)))
        return apply(ops.Mul(), y, L.Sigmoid()(L.AdaptiveAvgPool2d(1)(y)))


def none(problem: object) -> Kernel:
    raise AssertionError(problem)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_bits_are_those_of_one_size(precision: str, tmp_path: Path) -> None:
    """Also where there are NaN and infinities, in slices of a join, and in either order."""
    net, random = Joined(), np.random.default_rng(0)
    for layer in (net.normal, net.scale):
        for name in ("weight", "bias", "running_mean", "running_var"):
            values = getattr(layer, name)
            setattr(layer, name, random.uniform(0.5, 1.5, values.shape).astype(np.float32))
    for plane in ((9, 7), (4, 13)):
        x = random.standard_normal((2, 5, *plane)).astype(np.float32)
        x[0, 1, 2, 3], x[1, 0, 0, 0], x[1, 2, -1, -1] = np.nan, np.inf, -np.inf
        x = rounded_to(precision, x).astype(np.float32)
        own, any_size = (
            EmulatedProgram(net, x.shape, precision, none, tmp_path, any_size=whether)
            for whether in (False, True)
        )
        y = any_size(x)
        assert np.isnan(y).any() and np.isfinite(y).any()
        np.testing.assert_array_equal(y, own(x))
        np.testing.assert_array_equal(any_size(x, backwards=True), y)


@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=str)
def test_gathered_images_are_the_same(layout: Layout, tmp_path: Path) -> None:
    made: list[tuple[Tensor, Launch, Launch]] = []
    for kernel, stride, pad, whole in ((7, 2, 3, False), (3, 1, 1, True), (11, 4, 2, False)):
        how = Gathering((stride, stride), (pad, pad), kernel if whole else stride)
        for rows, columns in ((21, 25), (16, 33)):
            source = tensor_of(TensorType((2, 3, rows, columns), "float16"), layout)
            high, wide = ((size + 2 * pad - kernel) // stride + 1 for size in (rows, columns))
            gathered = how.gathered(source, (high, wide), how.taps((kernel, kernel)))
            own = print_gather(2, source, gathered, how)
            made.append((gathered, own, print_gather_for_any_size(2, source, gathered, how)))
    assert len({any_size.source.name for _, _, any_size in made}) == 3
    sources = [launch.source for _, *launches in made for launch in launches]
    emulated = Emulated(sources, tmp_path)
    x = np.random.default_rng(0).standard_normal(2 * 3 * 40 * 40).astype(np.float16)
    for gathered, *launches in made:
        found = [np.full(2 * gathered.image, np.float16(-77)) for _ in launches]
        for launch, result in zip(launches, found, strict=True):
            emulated.launch(launch, [x, result])
        np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_follows_a_contraction_has_the_same_bits(precision: str, tmp_path: Path) -> None:
    x = md.Input((6, 5, 7))
    y = L.Sequential(L.Conv2d(6, 6, 3, padding=1, bias=False), L.BatchNorm2d(6))(x)
    net = md.Model(x, L.SiLU()(y + x))
    (problem,) = problems_of(net, (2, 6, 5, 7), precision)
    algorithms = [replace(problem, any_size=whether) for whether in (False, True)]
    launches = [finish_of(one, CudaAlgorithm(FIXED, 0)) for one in algorithms]
    assert launches[0] is not None and launches[1] is not None
    emulated = Emulated([one.source for one in launches if one is not None], tmp_path)
    random, stored = np.random.default_rng(0), STORED[precision]
    count = problem.batch * problem.y.image
    given = [random.standard_normal(count).astype(stored) for _ in range(2)]
    vectors = [random.standard_normal(6).astype(STORED[dtype]) for dtype in problem.vectors]
    found = [np.full(count, -77).astype(stored) for _ in launches]
    for launch, result in zip(launches, found, strict=True):
        assert launch is not None
        emulated.launch(launch, [*given, *vectors, result])
    np.testing.assert_array_equal(found[0], found[1])
    assert not (found[0] == -77).any()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_kernels_of_networks_are_the_same_for_all_sizes(precision: str) -> None:
    net = models.squeezenet1_1()
    target = CudaTarget(H200.device(precision), precision, any_size=True)

    def names(batch: int, rows: int, columns: int) -> set[str]:
        context = Context(target, "contractions")
        plan = make_plan(optimize(to_graph(net, (batch, 3, rows, columns)), context), context)
        launches = launches_of(lower_plan(plan, H200, False, any_size=True))
        return {launch.source.name for launch in launches}

    known = names(2, 512, 512)
    assert known
    for size in [(2, 64, 64), (2, 224, 193), (2, 97, 640)]:
        assert names(*size) <= known, size
