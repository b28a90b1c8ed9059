"""Depthwise convolutions of planes and their gradients: in the emulator, compiled, refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction import depthwise_nchw, depthwise_nchw_filter
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS, LoadedContraction
from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    IMAGE_GRADIENT,
    Addresses,
    Direction,
)
from minidnn.backends.cuda.functions import Loaded, compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.tensor import Tensor
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph

from .cards import A100, H200, on_each
from .emulator.run import Emulated, guarded
from .gradients import Convolved, Gradient, Pair
from .single import (
    EmulatedLaunch,
    Network,
    check_emulated,
    check_on_gpu,
    convolution,
    only,
)
from .single import emulated as emulated_network

PLANES, FILTER = KERNELS["depthwise NCHW"], KERNELS["depthwise NCHW filter"]
pytestmark = pytest.mark.early


def one_each(
    images: tuple[int, int, int, int],
    window: Pair = (3, 3),
    stride: Pair = (1, 1),
    padding: Pair = (1, 1),
    dilation: Pair = (1, 1),
) -> Convolved:
    """A depthwise convolution."""
    channels = images[1]
    return Convolved(images, channels, window, stride, padding, dilation, channels)


def with_gaps(t: Tensor, gaps: int) -> Tensor:
    """A slice of wider rows and more channels."""
    row = t.columns + gaps
    channel = t.rows * row
    offset = gaps * channel % 4
    return replace(
        t, row=row, channel=channel, image=(t.channels + 2 * gaps) * channel, offset=offset
    )


def view(buffer: np.ndarray, t: Tensor, batch: int) -> np.ndarray:
    """The tensor in a buffer."""
    shape = (batch, t.channels, t.rows, t.columns)
    strides = [4 * step for step in (t.image, t.channel, t.row, t.pixel)]
    return np.lib.stride_tricks.as_strided(buffer[t.offset :], shape, strides)


def emulated(
    case: Convolved,
    direction: Direction,
    given: Sequence[np.ndarray],
    choice: int,
    folder: Path,
    gaps: int = 0,
    backwards: bool = False,
) -> np.ndarray:
    """The gradient by the emulator.  Tensors lie between NaN and with them in gaps, which must
    stay."""
    kernel = PLANES if direction == IMAGE_GRADIENT else FILTER
    problem = Gradient(direction, case).problem
    problem = replace(problem, x=with_gaps(problem.x, gaps), y=with_gaps(problem.y, gaps))
    assert kernel.refusal(problem, H200) is None
    launches = kernel.launches(problem, choice, H200)
    kernels = Emulated([launch.source for launch in launches], folder)
    batch = case.images[0]
    wholes, buffers = zip(
        *(
            guarded(size, np.dtype("f"))
            for size in (
                batch * problem.x.image + problem.x.offset,
                int(np.prod(problem.w.shape)),
                batch * problem.y.image + problem.y.offset,
                kernel.workspace(problem, choice, H200) // 4,
            )
        ),
        strict=True,
    )
    views = {
        "x": view(buffers[0], problem.x, batch),
        "w": buffers[1].reshape(problem.w.shape),
        "y": view(buffers[2], problem.y, batch),
    }
    made, *read = ("x", "y", "w") if direction == IMAGE_GRADIENT else ("w", "x", "y")
    for name, array in zip(read, given, strict=True):
        views[name][:] = array
    loaded: list[Any] = [EmulatedLaunch(one, kernels, backwards, [*buffers]) for one in launches]
    computed = LoadedContraction(problem, kernel, choice, H200, cast(Sequence[Loaded], loaded))
    x, w, y, room = (buffer.ctypes.data for buffer in buffers)
    at = Addresses(x + 4 * problem.x.offset, w, y, workspace=room)
    for row in computed.rows(at):
        row.bind(())()
    result = views[made].copy()
    views[made][:] = np.nan
    whole = wholes["xw".index(made)]
    assert np.isnan(whole).all(), "something else was written"
    room = wholes[3].size - buffers[3].size
    assert np.isnan(wholes[3]).sum() - np.isnan(buffers[3]).sum() == room
    return result


def division(rows: int, parts: int) -> int:
    """The choice of units of that many rows, in so many parts."""
    return depthwise_nchw_filter.DIVISIONS.number(depthwise_nchw_filter.ROWS.index(rows), parts)


def check(
    case: Convolved, direction: Direction, folder: Path, choices: Sequence[int], gaps: int = 0
) -> None:
    """Each choice beside float64, and the same bits when blocks' threads take turns backwards."""
    given = Gradient(direction, case).drawn()
    exact = Gradient(direction, case).reference(given)
    size = Gradient(direction, case).reference([*map(np.abs, given)])
    for choice in choices:
        result = emulated(case, direction, given, choice, folder, gaps)
        assert (np.abs(result - exact) <= 2.0**-21 * size).all()
        again = emulated(case, direction, given, choice, folder, gaps, backwards=True)
        np.testing.assert_array_equal(again, result)


GRADIENTS: tuple[Direction, ...] = (IMAGE_GRADIENT, FILTER_GRADIENT)
CASES = {
    "plain": one_each((2, 3, 9, 13)),
    "strided": one_each((2, 2, 17, 14), stride=(2, 2)),
    "small planes": one_each((5, 3, 7, 7)),
    "5x5": one_each((1, 2, 12, 11), (5, 5), (2, 2), (2, 2)),
    "uneven": one_each((2, 2, 11, 10), (5, 3), (1, 2), (0, 3), (2, 1)),
    "stride over the end": one_each((2, 3, 10, 8), (2, 3), (3, 4), (1, 0)),
    "stride of one tap": one_each((1, 2, 9, 9), (1, 1), (3, 2), (0, 1)),
    "7x7": one_each((1, 2, 8, 9), (7, 7), (1, 1), (3, 3)),
    "one pixel": one_each((7, 5, 1, 1)),
    "wide padding": one_each((1, 2, 4, 5), (3, 3), (1, 1), (4, 3)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("direction", GRADIENTS)
def test_gradients(direction: Direction, name: str, folder: Path) -> None:
    case, number = CASES[name], list(CASES).index(name)
    problem = Gradient(direction, case).problem
    if direction == IMAGE_GRADIENT:
        choices = depthwise_nchw.possible(problem)
    else:
        possible = depthwise_nchw_filter.possible(problem)
        choices = [division(rows, 1 + number % 3) for rows in possible]
    every = name in ("plain", "strided")
    check(case, direction, folder, choices[::2] if every else choices[-1:], gaps=number % 3)


def drawn_case(random: np.random.Generator) -> Convolved:
    """Any geometry, small."""
    window, stride, dilation = (random.integers(1, most, 2).tolist() for most in (8, 4, 4))
    padding = random.integers(0, 4, 2).tolist()
    reach = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(dilation, window, padding, strict=True)]
    size = [max(1, r) + int(random.integers(0, 9)) for r in reach]
    batch, channels = random.integers(1, 4, 2).tolist()
    return one_each((batch, channels, *size), *map(tuple, (window, stride, padding, dilation)))


SEEDS = [pytest.param(i, marks=pytest.mark.full if i > 3 else ()) for i in range(40)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_geometry(seed: int, folder: Path) -> None:
    case = drawn_case(np.random.default_rng(seed))
    for direction, kernel in ((IMAGE_GRADIENT, PLANES), (FILTER_GRADIENT, FILTER)):
        problem = Gradient(direction, case).problem
        choices = kernel.choices(problem, H200)
        check(case, direction, folder, [choices[seed % len(choices)]], gaps=seed % 3)


def depthwise(channels: int, *geometry: Any, **options: Any) -> md.Layer:
    return L.Conv2d(channels, channels, *geometry, **{"groups": channels, **options})


def residual(channels: int) -> md.Layer:
    x = md.Input((channels, 9, 11))
    return md.Model(x, L.ReLU()(depthwise(channels, 3, padding=1)(x) + x))


NETWORKS: dict[str, Network] = {
    "3x3": (lambda: L.Sequential(depthwise(5, 3, 1, 1), L.ReLU6()), (2, 5, 17, 13)),
    "strided": (lambda: L.Sequential(depthwise(3, 3, 2, 1), L.Hardswish()), (2, 3, 15, 14)),
    "5x5": (lambda: L.Sequential(depthwise(3, 5, 2, 2), L.SiLU()), (1, 3, 12, 9)),
    "uneven": (
        lambda: depthwise(3, (4, 2), (3, 1), ((2, 0), (1, 3)), (1, 2), bias=False),
        (2, 3, 9, 6),
    ),
    "7x7": (lambda: L.Sequential(depthwise(3, 7, 1, 3), L.GELU()), (3, 3, 7, 7)),
    "residual": (lambda: residual(4), (2, 4, 9, 11)),
}


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions(name: str, folder: Path) -> None:
    make, size = NETWORKS[name]
    problem, _ = convolution(make(), size)
    choices = depthwise_nchw.possible(problem)
    every = name == "3x3"
    check_emulated(
        NETWORKS[name],
        PLANES.name,
        choices[::2] if every else choices[-1:],
        folder,
        wide=list(NETWORKS).index(name) % 3,
    )


def test_every_choice_gives_the_same_bits(folder: Path) -> None:
    """So that what is tuned on another day is the same program."""
    case = CASES["strided"]
    given = Gradient(IMAGE_GRADIENT, case).drawn()
    choices = depthwise_nchw.possible(Gradient(IMAGE_GRADIENT, case).problem)
    first, *others = (emulated(case, IMAGE_GRADIENT, given, one, folder) for one in choices)
    assert len(others) > 2
    for other in others:
        np.testing.assert_array_equal(other, first)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("direction", GRADIENTS)
def test_gradients_of_what_is_not_finite(direction: Direction, stride: int, folder: Path) -> None:
    """It reaches what reads it and nothing else; so do weights in taps that there are."""
    case = one_each((2, 3, 17, 14), stride=(stride, stride))
    given = Gradient(direction, case).drawn()
    first, second = given
    first[0, 0, 0, 0], first[1, 0, 5, 6], first[1, 2, -1, -1] = np.inf, np.nan, -np.inf
    if direction == IMAGE_GRADIENT:
        second[1, 0, 0, 2] = np.inf
    else:
        second[0, 1, 3, 4] = np.nan
    exact = Gradient(direction, case).reference(given)
    assert np.isnan(exact).any() and np.isinf(exact).any() and np.isfinite(exact).any()
    problem = Gradient(direction, case).problem
    possible = depthwise_nchw_filter.possible(problem)
    choices = [division(rows, 2) for rows in possible]
    if direction == IMAGE_GRADIENT:
        choices = depthwise_nchw.possible(problem)
    for choice in (choices[0], choices[-1]):
        result = emulated(case, direction, given, choice, folder, gaps=1)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
        np.testing.assert_array_equal(result[np.isinf(exact)], exact[np.isinf(exact)])


def test_images_that_are_not_finite(folder: Path) -> None:
    net = depthwise(3, 3, 1, 1)
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 9)).astype(np.float32)
    x[0, 0, 0, 0], x[0, 2, 16, 8], x[1, 1, 5, 4] = np.nan, np.inf, -np.inf
    (expected,) = evaluate(to_graph(net, x.shape), [x], "float64")
    y = emulated_network(net, x, PLANES.name, depthwise_nchw.ROWS.index(8), False, folder)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


WHOLE = {
    "3x3": one_each((128, 32, 112, 112)),
    "strided": one_each((128, 96, 112, 112), stride=(2, 2)),
    "5x5 strided": one_each((128, 144, 56, 56), (5, 5), (2, 2), (2, 2)),
    "7x7": one_each((128, 96, 56, 56), (7, 7), (1, 1), (3, 3)),
}


def check_budget(launches: Sequence[Launch], machine: Machine) -> None:
    """They compile without spills into what they ask for."""
    kernels = compile_kernels([launch.source for launch in launches], machine.arch)
    for launch, kernel in zip(launches, kernels, strict=True):
        taken = kernel.resources
        assert taken.spill_bytes == taken.stack_bytes == 0, launch.source.text
        assert taken.registers * launch.block[0] <= 65536
        assert launch.shared_bytes <= machine.shared_bytes


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
@pytest.mark.parametrize("name", WHOLE)
def test_gradients_keep_to_their_budget(name: str, machine: Machine) -> None:
    launches: list[Launch] = []
    for direction, kernel in ((IMAGE_GRADIENT, PLANES), (FILTER_GRADIENT, FILTER)):
        problem = Gradient(direction, WHOLE[name]).problem
        for choice in kernel.choices(problem, machine)[:2]:
            launches += kernel.launches(problem, choice, machine)
    check_budget(launches, machine)


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
def test_convolutions_keep_to_their_budget(machine: Machine) -> None:
    launches: list[Launch] = []
    for kernel, padding in ((3, 1), (7, 3)):
        net = L.Sequential(depthwise(32, kernel, 1, padding), L.SiLU())
        problem, _ = convolution(net, (8, 32, 56, 56))
        choices = PLANES.choices(problem, machine)
        launches += PLANES.launches(problem, max(choices), machine)
    check_budget(launches, machine)


def test_one_text_serves_convolutions_of_all_sizes() -> None:
    cases = (one_each((1, 8, 40, 30)), one_each((7, 13, 64, 64)))
    for direction, kernel, choice in (
        (IMAGE_GRADIENT, PLANES, depthwise_nchw.ROWS.index(8)),
        (FILTER_GRADIENT, FILTER, division(8, 2)),
    ):
        first, second = (
            kernel.launches(Gradient(direction, case).problem, choice, H200)[0] for case in cases
        )
        assert first.source == second.source


def test_parts_fill_the_gpu_and_none_is_empty() -> None:
    for case in WHOLE.values():
        problem = Gradient(FILTER_GRADIENT, case).problem
        choices = FILTER.choices(problem, H200)
        assert FILTER.launches(problem, choices[0], H200)[0].grid[1] * 96 >= 132
        for choice in choices:
            units, every, *_ = FILTER.numbers(problem, choice, H200)
            parts = FILTER.launches(problem, choice, H200)[0].grid[1]
            assert (parts - 1) * units < every <= parts * units
    few = Gradient(FILTER_GRADIENT, one_each((8, 960, 7, 7))).problem
    launches = [FILTER.launches(few, choice, H200) for choice in FILTER.choices(few, H200)]
    assert all(len(one) == 1 and one[0].grid == (960, 1, 1) for one in launches)


def test_what_they_refuse() -> None:
    case = one_each((2, 4, 20, 20))
    for direction, kernel in ((IMAGE_GRADIENT, PLANES), (FILTER_GRADIENT, FILTER)):
        problem = Gradient(direction, case).problem
        assert kernel.refusal(problem, H200) is None
        assert algorithms_for(problem, H200)[0].core == kernel.name
        shape = (8, 1, 3, 3)
        for other, reason in (
            (Gradient(direction, case, "tf32").problem, "its pixels are not contiguous"),
            (
                Gradient(direction, case, "float16").problem,
                "it is in float16, or its image is gathered",
            ),
            (
                replace(problem, w=replace(problem.w, shape=shape)),
                "its groups have more than one channel or filter",
            ),
            (replace(problem, groups=2), "its groups have more than one channel or filter"),
            (replace(problem, batch=1 << 20), "it is too large for 32-bit indices"),
            (
                replace(problem, w=replace(problem.w, shape=(4, 1, 8, 3))),
                "its window is larger than 7 x 7",
            ),
            (replace(problem, dilation=(30, 1)), "its windows do not fit registers"),
        ):
            assert kernel.why_not(other, H200) == reason
    assert PLANES.refusal(Gradient(FILTER_GRADIENT, case).problem, H200) == (
        "it computes no gradient of the filter"
    )
    strided = Gradient(IMAGE_GRADIENT, one_each((2, 4, 40, 40), stride=(12, 12))).problem
    assert PLANES.why_not(strided, H200) == "its windows do not fit registers"


@pytest.mark.gpu
@pytest.mark.parametrize("direction", GRADIENTS)
@pytest.mark.parametrize("name", CASES | WHOLE)
def test_gradients_on_gpu(name: str, direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES.get(name) or replace(WHOLE[name], images=(5, *WHOLE[name].images[1:]))
    kernel = PLANES if direction == IMAGE_GRADIENT else FILTER
    only(monkeypatch, lambda algorithm: algorithm.core == kernel.name)
    exe = md.compile(Gradient(direction, case).graph, device="cuda", precision="float32")
    assert f"{kernel.name} of " in exe.explain(measure=True)
    given = Gradient(direction, case).drawn()
    result = np.asarray(exe(*given), np.float64)
    exact = Gradient(direction, case).reference(given)
    size = Gradient(direction, case).reference([*map(np.abs, given)])
    assert (np.abs(result - exact) <= 2.0**-20 * size).all()
    np.testing.assert_array_equal(np.asarray(exe(*given), np.float64), result)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_convolutions_on_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, lambda algorithm: algorithm.core == PLANES.name)
    check_on_gpu(NETWORKS[name], f"{PLANES.name} of ")
