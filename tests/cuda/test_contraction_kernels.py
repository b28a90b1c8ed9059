"""Our kernels of contractions with Hopper's instructions, run by the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import halo, stream
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from tests.cuda.cards import A100, H200
from tests.sampling import mixed, some

from .contractions import EPSILON, HALO, STREAM, dense, draw_weights, far_apart, residual
from .lowered import (
    FEW,
    EmulatedProgram,
    Kernel,
    by_choice,
    by_halo,
    by_stream,
    problems_of,
)

pytestmark = pytest.mark.early

HALF = "float16"
Network = tuple[Callable[[], md.Layer], tuple[int, ...]]

WINDOWS: dict[str, Network] = {
    "3x3": (lambda: L.Sequential(L.Conv2d(48, 64, 3, padding=1), L.SiLU()), (2, 48, 7, 9)),
    "128-channels": (lambda: L.Conv2d(128, 32, 3, padding=1), (1, 128, 9, 13)),
    "64-channels": (lambda: L.Conv2d(64, 24, 3), (3, 64, 8, 11)),
    "32-channels-1x7": (lambda: L.Conv2d(32, 16, (1, 7), padding=(0, 3)), (2, 32, 6, 9)),
    "16-channels-5x3": (lambda: L.Conv2d(16, 40, (5, 3), padding=(2, 0)), (2, 16, 9, 8)),
    "96-filters": (lambda: L.Conv2d(16, 88, 3, padding=1), (2, 16, 9, 10)),
    "128-filters": (lambda: L.Conv2d(16, 112, 3, padding=1), (1, 16, 7, 9)),
    "dilated": (lambda: L.Conv2d(16, 8, 3, padding=2, dilation=2), (1, 16, 10, 10)),
    "8-channels": (lambda: L.Conv2d(8, 16, 3, padding=1), (2, 8, 9, 10)),
    "24-channels": (lambda: L.Conv2d(24, 32, 3, padding=1), (2, 24, 8, 10)),
    "stem": (lambda: L.Sequential(L.Conv2d(3, 16, 7, 2, 3), L.ReLU()), (1, 3, 21, 25)),
    "residual": (lambda: residual(32, 3), (1, 32, 14, 14)),
}


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_read_each_pixel_once(name: str, tmp_path: Path) -> None:
    dtype = "bfloat16" if list(WINDOWS).index(name) % 2 else "float16"
    check(*WINDOWS[name], dtype, by_halo, tmp_path)


LONG_LINES: dict[str, Network] = {
    "14x14": (lambda: L.Conv2d(16, 16, 3, padding=1), (12, 16, 14, 14)),
    "wide-rows": (lambda: L.Conv2d(16, 16, 3, padding=1, bias=False), (1, 16, 9, 230)),
}


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(("name", "groups"), mixed(2, [*LONG_LINES, "3x3", "128-filters"], [2, 3]))
def test_windows_by_groups(name: str, groups: int, tmp_path: Path) -> None:
    """Slabs of the ring are loaded anew while some groups multiply and others write."""
    every = LONG_LINES | WINDOWS

    def kernel(problem: ContractionProblem) -> Kernel:
        first = halo.HALOS[HALO.choices(problem, H200)[0]]
        return by_choice(HALO, problem, halo.HALOS.index(replace(first, groups=groups)))

    check(*every[name], "bfloat16", kernel, tmp_path)


def bottleneck(channels: int, filters: int) -> md.Layer:
    """A 1x1 convolution whose result a residual is added to."""
    x = md.Input((channels, 9, 15))
    wide = L.ReLU()(L.Conv2d(channels, filters, 1)(x))
    return md.Model(x, L.ReLU()(L.Conv2d(filters, filters, 1)(wide) + wide))


def two_residuals(channels: int) -> md.Layer:
    x = md.Input((channels, 9, 15))
    y = L.ReLU()(L.Conv2d(channels, channels, 1)(x))
    return md.Model(x, L.ReLU()(L.Conv2d(channels, channels, 1)(y) + y + x))


POINTWISE = {
    "one-slab": (lambda: L.Sequential(L.Conv2d(64, 48, 1), L.SiLU()), (2, 64, 9, 20)),
    "odd-chunks": (lambda: L.Sequential(L.Conv2d(72, 136, 1), L.ReLU()), (3, 72, 13, 11)),
    "few-channels": (lambda: L.Conv2d(8, 16, 1), (1, 8, 12, 12)),
    "many-slabs": (lambda: L.Conv2d(336, 96, 1), (4, 336, 12, 20)),
    "residual": (lambda: bottleneck(32, 256), (2, 32, 9, 15)),
    "two-residuals": (lambda: two_residuals(48), (3, 48, 9, 15)),
    "many-filters": (lambda: L.Conv2d(64, 328, 1), (2, 64, 9, 15)),
}


STREAMS = [
    # Two groups whose filters stay are what test_pixels_that_stream_past_filters runs, in part.
    pytest.param(
        i, marks=pytest.mark.full if i % 2 or (one.stays and one.groups == 2) else (), id=str(one)
    )
    for i, one in enumerate(stream.STREAMS)
]


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("choice", STREAMS)
def test_every_stream(choice: int, tmp_path: Path) -> None:
    """Behind a normalization with an odd number of chunks, and with a residual."""
    dtype = ("float16", "bfloat16")[choice % 2]

    def kernel(problem: ContractionProblem) -> Kernel:
        return by_choice(STREAM, problem, choice)

    normal = L.Sequential(L.BatchNorm2d(136), L.ReLU(), L.Conv2d(136, 72, 1), L.ReLU())
    check(lambda: normal, (3, 136, 13, 17), dtype, kernel, tmp_path)
    shape = (2, 64, 9, 15)
    # As many filters as leave the widest stream room for slabs beside the whole residual.
    fitting = (
        filters
        for filters in (264, 200)
        if all(
            STREAM.numbers(p, choice, FEW)[2]
            for p in problems_of(bottleneck(64, filters), shape, dtype)
        )
    )
    filters = next(fitting)
    check(lambda: bottleneck(64, filters), shape, dtype, kernel, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(("name", "choice"), mixed(2, POINTWISE, [0, 1]))
def test_pixels_that_stream_past_filters(name: str, choice: int, tmp_path: Path) -> None:
    dtype = "bfloat16" if list(POINTWISE).index(name) // 2 % 2 else "float16"

    def kernel(problem: ContractionProblem) -> Kernel:
        return by_stream(problem, choice)

    check(*POINTWISE[name], dtype, kernel, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_slices_and_what_comes_before(dtype: str, tmp_path: Path) -> None:
    """A block of a DenseNet: 1x1 convolutions normalize slices, 3x3 write them."""

    def kernel(problem: ContractionProblem) -> Kernel:
        pointwise = problem.w.shape[2:] == (1, 1)
        return by_stream(problem) if pointwise else by_halo(problem)

    check(lambda: dense(32), (2, 32, 14, 14), dtype, kernel, tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("core", [HALO.name, STREAM.name])
def test_threads_that_call_functions_meet_the_others(core: str, tmp_path: Path) -> None:
    """The emulator's always do; on a GPU they did not."""

    def kernel(problem: ContractionProblem) -> Kernel:
        return by_halo(problem) if core == HALO.name else by_stream(problem)

    size = 1 if core == STREAM.name else 3
    net = L.Sequential(L.Conv2d(64, 64, size, padding=size // 2), L.SiLU())
    check(lambda: net, (2, 64, 9, 20), HALF, kernel, tmp_path, far=True)


def test_every_geometry_is_run() -> None:
    """By the tests above, which compute-sanitizer watches on a GPU."""

    def all_of(networks: Mapping[str, Network]) -> list[ContractionProblem]:
        return [p for make, shape in networks.values() for p in problems_of(make(), shape, HALF)]

    problems = all_of(WINDOWS)
    first = {halo.HALOS[HALO.choices(problem, H200)[0]] for problem in problems}
    assert {(one.filters, one.groups) for one in first} == {(n, 2) for n in halo.WIDTHS}
    panels = {next(n for n in (8, 4, 2, 1) if p.w.shape[1] // 8 % n == 0) for p in problems}
    assert panels == {8, 4, 2, 1}


def first_of(layer: md.Layer, shape: tuple[int, ...], dtype: str = "float16") -> ContractionProblem:
    return problems_of(layer, shape, dtype)[0]


def test_what_streams() -> None:
    wide = first_of(L.Conv2d(64, 256, 1), (32, 64, 28, 28))
    assert STREAM.why_not(wide, H200) is None and algorithms_for(wide, H200)[0].core == STREAM.name
    chosen = [stream.STREAMS[i] for i in STREAM.choices(wide, H200)]
    assert [(one.filters, one.pixels) for one in chosen] == [(128, 192), (128, 128)]
    few = first_of(L.Conv2d(64, 256, 1), (1, 64, 28, 28))
    assert STREAM.name not in {algorithm.core for algorithm in algorithms_for(few, H200)}
    assert STREAM.name not in {algorithm.core for algorithm in algorithms_for(wide, A100)}
    for problem, machine, reason in (
        (wide, A100, "sm_80 has no wgmma"),
        (first_of(L.Conv2d(64, 8, 1), (2, 64, 9, 9), "tf32"), H200, "it is in float32"),
        (first_of(L.Conv2d(64, 8, 3), (2, 64, 9, 9)), H200, "it is no product of pixels and fil"),
        (first_of(L.Conv2d(64, 8, 1, 2), (2, 64, 9, 9)), H200, "it is no product of pixels and"),
        (
            first_of(L.Conv2d(64, 12, 1), (2, 64, 9, 9)),
            H200,
            "its tensors are not aligned to vectors of",
        ),
        (first_of(L.Conv2d(8192, 64, 1), (2, 8192, 9, 9)), H200, "its filters do not fit the sha"),
    ):
        assert (STREAM.why_not(problem, machine) or "").startswith(reason), problem.describe()


def test_rings_of_streams_are_as_long_as_their_bytes_allow() -> None:
    """Barriers lie beside them: 128 KiB of slabs of 64 channels of 128 pixels are eight."""
    (problem,) = problems_of(L.Conv2d(64, 64, 1, bias=False), (128, 64, 56, 56), HALF)
    choice = stream.STREAMS.index(stream.Stream(64))
    assert choice in STREAM.choices(problem, H200)
    assert STREAM.numbers(problem, choice, H200)[2] * 128 * 128 == 128 << 10


def test_two_residuals_are_one_streams() -> None:
    problems = problems_of(two_residuals(48), (3, 48, 9, 15), HALF)
    assert [len(problem.others) for problem in problems] == [0, 2]


def test_streams_differ_in_shared_memory_alone() -> None:
    """Launches of one kernel, of which each has a limit of its own."""
    problems = [first_of(L.Conv2d(c, 128, 1), (32, c, 28, 28)) for c in (64, 256, 480)]
    launches = [STREAM.launches(problem, 5, H200)[0] for problem in problems]
    assert len({launch.source for launch in launches}) == 1
    assert len({launch.shared_bytes for launch in launches}) == 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.full)])
def test_streams_keep_to_the_budget(dtype: str) -> None:
    """They compile without spills, with registers for all threads of a block."""
    problems = [
        problem
        for net, shape in (
            (bottleneck(64, 256), (64, 64, 9, 15)),
            (bottleneck(64, 192), (64, 64, 9, 15)),
            (two_residuals(48), (64, 48, 9, 15)),
            (dense(32), (64, 32, 14, 14)),
            (L.Conv2d(64, 64, 1), (64, 64, 14, 14)),
            (L.Sequential(L.BatchNorm2d(256), L.ReLU(), L.Conv2d(256, 192, 1)), (8, 256, 28, 28)),
        )
        for problem in problems_of(net, shape, dtype)
        if problem.is_pointwise
    ]
    launches = {
        launch.source: launch
        for problem in problems
        for i in STREAM.choices(problem, H200)
        for launch in STREAM.launches(problem, i, H200)
    }
    chosen = some(launches.values(), 5)
    kernels = compile_kernels([launch.source for launch in chosen], H200.arch)
    for launch, kernel in zip(chosen, kernels, strict=True):
        taken = kernel.resources
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0
        assert taken.registers * launch.block[0] <= 65536
        assert launch.shared_bytes + taken.shared_bytes <= H200.shared_bytes


def check(
    make: Callable[[], md.Layer],
    shape: tuple[int, ...],
    dtype: str,
    kernel: Callable[[ContractionProblem], Kernel],
    folder: Path,
    far: bool = False,
) -> None:
    net, random = make(), np.random.default_rng(0)
    draw_weights(net, random)
    x = random.standard_normal(shape).astype(np.float32)
    x = rounded_to(dtype, far_apart(x) if far else x).astype(np.float32)
    (expected,) = evaluate(to_graph(net, shape), [x], "float64")
    run = EmulatedProgram(net, shape, dtype, kernel, folder)
    y = run(x)
    scale = np.abs(expected).max()
    assert np.abs(y - expected).max() <= 4 * EPSILON[dtype] * scale
    np.testing.assert_array_equal(run(x, backwards=True), y)
