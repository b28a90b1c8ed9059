"""Gradients of convolutions with what makes what they read, and with what is added up behind them:
in the emulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from minidnn.backends.cuda.contraction.config import (
    AlgorithmConfig,
    ContractionExecutable,
    CudaAlgorithm,
    prepare_of,
    sums_of,
)
from minidnn.backends.cuda.contraction.epilogue_reduction_text import sweep_of
from minidnn.backends.cuda.contraction.graphs import CONVOLUTION
from minidnn.backends.cuda.contraction.kernel_registry import LoadedContraction
from minidnn.backends.cuda.functions import Loaded, compile_kernels
from minidnn.backends.cuda.memory import aligned
from minidnn.backends.cuda.task import Task
from minidnn.backends.cuda.tensor import Tensor
from minidnn.fusion.region import FusedGradient
from minidnn.graph.types import HALF_DTYPES
from tests.cuda.cards import A100, H200
from tests.sampling import some

from .arrays import STORED
from .emulator.run import Emulated
from .lowered import FEW
from .single import EmulatedLaunch
from .summed import (
    addresses,
    check,
    drawn,
    expected,
    kernel_of,
    laid,
    problem_of,
    read,
    tasks_of,
)

SHAPE, INNER = (3, 80, 9, 11), 24
WINDOWS = (2, 16, 9, 11)


@pytest.fixture(scope="module", params=HALF_DTYPES)
def tasks(request: pytest.FixtureRequest) -> list[Task]:
    return [*tasks_of(SHAPE, INNER, request.param), *tasks_of(WINDOWS, 0, request.param)]


def test_there_is_every_kind(tasks: list[Task]) -> None:
    """Kept gradients behind a mask, and joins that store what they add up, of one and two
    branches; what is in front behind an activation and without; gradients that have one alone."""
    fronts = [problem_of(task).producer for task in tasks]
    assert {len(producer.operators) for producer in fronts if producer is not None} == {4, 7}
    reduction = [problem_of(task).reduction for task in tasks]
    assert None in fronts or None in reduction
    kinds = {(b.keeps, len(b.tensors), len(b.stored)) for b in reduction if b is not None}
    assert (True, 1, 0) in kinds and {True, False} == {keeps for keeps, *_ in kinds}
    assert any(stored for _, _, stored in kinds)
    for task in tasks:
        problem = problem_of(task)
        assert kernel_of(task).why_not(problem, H200) is None
        assert "no wgmma" in (kernel_of(task).why_not(problem, A100) or "")


@pytest.mark.race
def test_numbers(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Results are those of the nodes, one by one, and the same whichever threads come first; what
    is no number stays none."""
    cases = []
    for i, task in enumerate(tasks):
        problem, kernel = problem_of(task), kernel_of(task)
        choices = kernel.choices(problem, H200)
        for choice in [choices[i % len(choices)]] if problem.is_pointwise else choices:
            cases.append((task, choice, kernel.launches(problem, choice, FEW)))
    sources = [launch.source for *_, launches in cases for launch in launches]
    kernels = Emulated(sources, tmp_path_factory.mktemp("summed"), busy=True)
    for task, choice, launches in cases:
        given = drawn(task)
        found = computed(task, choice, launches, kernels, given)
        check(task, given, found)
        again = computed(task, choice, launches, kernels, given, backwards=True)
        slices = computed(task, choice, launches, kernels, given, sides=8)
        for one, *others in zip(found, again, slices, strict=True):
            for other in others:
                np.testing.assert_array_equal(one, other)
        given[0][0, 1, 2, 3], given[0][-1, 2, -1, -1] = np.nan, np.inf
        check_no_numbers(task, given, computed(task, choice, launches, kernels, given))


def check_no_numbers(task: Task, given: list[np.ndarray], found: list[np.ndarray]) -> None:
    """NaN and infinity are where they ought to be, and nowhere else."""
    op = task.node.op
    assert isinstance(op, FusedGradient)
    values = expected(task, given)
    for value, one in zip(op.body.outputs, found, strict=True):
        right = values[value]
        assert not np.isfinite(right).all()
        np.testing.assert_array_equal(np.isnan(one), np.isnan(right))
        np.testing.assert_array_equal(np.isinf(one), np.isinf(right))


def computed(
    task: Task,
    choice: int,
    launches: Sequence[Any],
    kernels: Emulated,
    given: Sequence[np.ndarray],
    backwards: bool = False,
    sides: int = 0,
) -> list[np.ndarray]:
    """The node's results; what is read beside the gradient lies between so many channels."""
    problem, node = problem_of(task), task.node
    wide, first = list[Any](), 3
    if (producer := problem.producer) is not None:
        lies = tuple(_wider(t, sides) for t in producer.tensors)
        problem = replace(problem, producer=replace(producer, tensors=lies))
        wide += task.pointers[3 : 3 + len(lies)]
        first += len(producer.read)
    if problem.reduction is not None:
        lies = tuple(_wider(t, sides) for t in problem.reduction.tensors)
        problem = replace(problem, reduction=replace(problem.reduction, tensors=lies))
        wide += task.pointers[first : first + len(lies)]
    bits = {}
    for value, x in zip(node.inputs, given, strict=True):
        pads = [(0, 0), (sides * (value in wide),) * 2, (0, 0), (0, 0)][: x.ndim]
        padded = np.pad(x, pads, constant_values=np.nan)
        bits[value] = _aligned(laid(value, padded))
    for value in node.outputs:
        bits[value] = _aligned(np.full(value.type.size, 0xFF, STORED[value.dtype]))
    kernel = kernel_of(task)
    room = _aligned(np.full(kernel.workspace(problem, choice, FEW) // 4, np.nan, np.float32))
    arrays = [*bits.values(), room]
    loaded: list[Any] = [EmulatedLaunch(one, kernels, backwards, arrays) for one in launches]
    made = LoadedContraction(problem, kernel, choice, FEW, cast(Sequence[Loaded], loaded))
    places = {value: array.ctypes.data for value, array in bits.items()}
    for row in made.rows(addresses(task, places, room.ctypes.data)):
        row.bind(())()
    return [read(value, bits[value]) for value in node.outputs]


def _wider(t: Tensor, sides: int) -> Tensor:
    """A tensor between other channels."""
    pixel = t.pixel + 2 * sides
    row = t.columns * pixel
    return replace(t, pixel=pixel, row=row, image=t.rows * row, offset=sides)


def _aligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 256, np.uint8)
    begin = -memory.ctypes.data % 256
    found = memory[begin : begin + array.nbytes].view(array.dtype)
    found[...] = array.reshape(-1)
    return found


@pytest.mark.parametrize("most", [1, pytest.param(5, marks=pytest.mark.full)])
def test_kernels_keep_to_the_budget(most: int) -> None:
    """They compile without spills, with registers for all threads of a block."""
    launches = {
        launch.source: launch
        for task in tasks_of((64, 256, 14, 14), 64, "bfloat16")
        for choice in kernel_of(task).choices(problem_of(task), H200)[:most]
        for launch in kernel_of(task).launches(problem_of(task), choice, H200)
    }
    chosen = some(launches.values(), 2)
    kernels = compile_kernels([launch.source for launch in chosen], H200.arch)
    for launch, kernel in zip(chosen, kernels, strict=True):
        taken = kernel.resources
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0, launch.source.name
        assert taken.registers * launch.block[0] <= 65536
        assert launch.shared_bytes + taken.shared_bytes <= H200.shared_bytes


def test_a_gradient_that_is_swept_lies_in_the_workspace_unless_it_is_kept(
    tasks: list[Task],
) -> None:
    """Behind cuDNN's: what it takes, the gradient and the parts of sums do not overlap, and the
    sweep reads where cuDNN writes; a kernel in front writes what cuDNN reads."""
    taken, begin = 1000, 1 << 20
    for task in tasks:
        problem = problem_of(task)
        algorithm = CudaAlgorithm(CONVOLUTION, 0)
        sweep = sums_of(problem, algorithm)
        core: Any = SimpleNamespace(workspace=taken, settled=())
        swept: Any = tuple(sweep)
        launch = prepare_of(problem, algorithm, H200)
        before: Any = None if launch is None else SimpleNamespace(launch=launch)
        built = ContractionExecutable(
            problem, AlgorithmConfig(algorithm, 0), core, before, None, swept
        )
        values = (*task.node.inputs, *task.node.outputs)
        places = {value: i << 30 for i, value in enumerate(values, 1)}
        at = addresses(task, places, begin)
        rows = built.rows(at, begin)
        if problem.producer is not None:
            taken_before = rows.pop(0).arguments
            assert Counter(taken_before) == Counter((*at.producer, at.y))
        library, *rows = rows
        y, w, x, room = library.arguments
        kept = problem.reduction is None or problem.reduction.keeps
        assert (y, w, room) == (at.y, at.w, begin)
        size = prod(problem.input.shape) * problem.x.itemsize
        assert x == (at.x if kept else begin + aligned(taken))
        if problem.reduction is None:
            assert not rows
            continue
        assert rows[0].arguments[0] == x and len(rows) == len(sweep)
        if len(rows) > 1:
            parts = rows[0].arguments[-1]
            assert (
                parts == rows[1].arguments[0] == begin + aligned(taken) + (not kept) * aligned(size)
            )
            assert parts + sweep_of(problem).bytes <= begin + built.workspace
        sums = [places[v] for v in task.node.outputs if v.type.rank == 1]
        assert list(rows[-1].arguments[-len(sums) :]) == sums
