"""Gradients of convolutions by kernels of ours: in the emulator, compiled, and refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from minidnn.backends.cuda.contraction import filter_gradient
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.kernel import ContractionKernel
from minidnn.backends.cuda.contraction.kernel_registry import KERNELS, LoadedContraction
from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    IMAGE_GRADIENT,
    Addresses,
    Direction,
)
from minidnn.backends.cuda.functions import Loaded, compile_kernels
from minidnn.backends.cuda.machine import Machine
from minidnn.runtime.arrays import from_bits, to_bits

from .arrays import STORED
from .cards import A100, H200, on_each
from .contractions import DIRECT
from .emulator.run import Emulated, guarded
from .gradients import Convolved, Gradient
from .lowered import graph_problems
from .precisions import EPSILON
from .single import EmulatedLaunch

IMAGE, FILTER = KERNELS["backward direct"], KERNELS["filter gradient"]
KINDS = {IMAGE_GRADIENT: IMAGE, FILTER_GRADIENT: FILTER}
DEPTHWISE, STEPS = KERNELS["backward depthwise"], KERNELS["depthwise steps"]
DEPTHWISE_FILTER = KERNELS["depthwise filter"]
HALO = KERNELS["backward halo"]


def kernel_of(gradient: Gradient) -> ContractionKernel:
    """What computes it."""
    if gradient.case.groups == 1:
        return KINDS[gradient.of] if gradient.precision == "float32" else HALO
    if gradient.of == FILTER_GRADIENT:
        return DEPTHWISE_FILTER
    return DEPTHWISE if gradient.case.stride == (1, 1) else STEPS


def emulated(
    gradient: Gradient,
    given: Sequence[np.ndarray],
    choice: int,
    folder: Path,
    wide: int = 0,
    backwards: bool = False,
) -> np.ndarray:
    """By the emulator, from an incoming gradient that lies between ``wide`` channels of NaN on
    either side; nothing but the result and the workspace is written."""
    problem, kernel = gradient.problem, kernel_of(gradient)
    y = problem.y
    channels, pixels = y.channels + 2 * wide, y.rows * y.columns
    if problem.planar:
        lies = replace(y, image=channels * pixels, offset=wide * pixels)
    else:
        line = y.columns * channels
        lies = replace(y, image=y.rows * line, row=line, pixel=channels, offset=wide)
    problem = replace(problem, y=lies)
    assert kernel.refusal(problem, H200) is None
    launches = kernel.launches(problem, choice, H200)
    kernels = Emulated([launch.source for launch in launches], folder)
    incoming, other = given if gradient.of == IMAGE_GRADIENT else reversed(given)
    padded = np.pad(incoming, ((0, 0), (wide, wide), (0, 0), (0, 0)), constant_values=np.nan)
    made_shape = gradient.graph.outputs[0].shape
    stored = STORED[gradient.precision]
    sizes = (padded.size, other.size, int(np.prod(made_shape)))
    (_, dy), (_, read), (whole_made, made) = (guarded(size, stored) for size in sizes)
    whole_room, room = guarded(kernel.workspace(problem, choice, H200) // 4, np.dtype("f"))
    order = (0, 1, 2, 3) if problem.planar else (0, 2, 3, 1)
    for to, array in ((dy, padded), (read, other)):
        to[:] = to_bits(array.transpose(order), gradient.precision).ravel()
    margins = [
        np.isnan(from_bits(whole_made, gradient.precision)).sum(),
        np.isnan(whole_room).sum(),
    ]
    margins = [count - array.size for count, array in zip(margins, (made, room), strict=True)]
    arrays = [dy, read, made, room]
    loaded: list[Any] = [EmulatedLaunch(one, kernels, backwards, arrays) for one in launches]
    computed = LoadedContraction(problem, kernel, choice, H200, cast(Sequence[Loaded], loaded))
    at_y, at_read, at_made, at_room = (array.ctypes.data for array in arrays)
    x, w = (at_made, at_read) if gradient.of == IMAGE_GRADIENT else (at_read, at_made)
    for row in computed.rows(Addresses(x, w, at_y, workspace=at_room)):
        row.bind(())()
    result = from_bits(made, gradient.precision)
    left = [
        np.isnan(from_bits(whole_made, gradient.precision)).sum() - np.isnan(result).sum(),
        np.isnan(whole_room).sum() - np.isnan(room).sum(),
    ]
    assert left == margins, "something else was written"
    moved = result.reshape([made_shape[i] for i in order])
    return np.asarray(moved.transpose(np.argsort(order)), np.float32)


STEMS = {
    "1x1": Convolved((3, 21, 5, 7), 40, (1, 1)),
    "1x1, many": Convolved((2, 136, 4, 4), 70, (1, 1)),
    "3x3": Convolved((2, 16, 8, 12), 24, (3, 3), padding=(1, 1)),
    "odd": Convolved((1, 5, 9, 6), 33, (2, 3), padding=(0, 2)),
    "dilated": Convolved((2, 6, 9, 9), 12, (3, 2), padding=(2, 1), dilation=(2, 3)),
    "one pixel": Convolved((5, 8, 1, 1), 9, (3, 3), padding=(1, 1)),
    "over the edge": Convolved((1, 3, 4, 5), 4, (2, 2), padding=(3, 4)),
}
STRIDED = {
    "stem": Convolved((2, 3, 19, 17), 16, (7, 7), (2, 2), (3, 3)),
    "1x1, strided": Convolved((2, 20, 9, 8), 40, (1, 1), (2, 2)),
    "strides": Convolved((2, 5, 10, 17), 24, (2, 3), (3, 4)),
}
STEPPED = {
    "1x1, stepped": Convolved((2, 20, 9, 35), 40, (1, 1), (2, 3)),
    "1x1, stepped to the end": Convolved((3, 9, 8, 7), 12, (1, 1), (3, 2)),
    "1x1, one pixel": Convolved((1, 6, 4, 4), 5, (1, 1), (4, 5)),
}
GROUPED = {
    "float16": Convolved((2, 24, 9, 11), 24, (3, 3), padding=(1, 1), groups=24),
    "bfloat16, odd": Convolved((1, 16, 12, 7), 16, (5, 2), padding=(3, 1), groups=16),
    "float16, steps": Convolved((2, 24, 9, 11), 24, (3, 3), (2, 2), (1, 1), groups=24),
    "bfloat16, steps": Convolved((1, 12, 13, 8), 12, (5, 4), (2, 3), (2, 3), (1, 2), groups=12),
    "float16, far": Convolved((3, 5, 8, 9), 5, (2, 2), (3, 4), groups=5),
    "bfloat16, over the edge": Convolved((1, 6, 4, 5), 6, (2, 3), (2, 2), (3, 4), groups=6),
}
WINDOWS = {
    "float16": Convolved((2, 24, 9, 11), 48, (3, 3), padding=(1, 1)),
    "bfloat16, far": Convolved((2, 40, 8, 7), 16, (2, 5)),
    "float16, dilated": Convolved((1, 8, 9, 12), 32, (3, 2), padding=(4, 1), dilation=(2, 3)),
    "bfloat16, wide": Convolved((1, 128, 7, 7), 8, (3, 3), padding=(1, 1)),
}
GRADIENTS = {
    **{f"image {name}": Gradient(IMAGE_GRADIENT, stem) for name, stem in (STEMS | STEPPED).items()},
    **{
        f"filter {name}": Gradient(FILTER_GRADIENT, stem)
        for name, stem in (STEMS | STRIDED).items()
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of compiled kernels: one text serves several tests."""
    return tmp_path_factory.mktemp("emulated")


def near(gradient: Gradient, given: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The gradient in float64, and how far from it results may lie."""
    exact, size = gradient.reference(given), gradient.reference([*map(np.abs, given)])
    return exact, EPSILON[gradient.precision] * np.abs(exact) + 2.0**-20 * size


def check(gradient: Gradient, choice: int, folder: Path, wide: int = 0, seed: int = 0) -> None:
    """Beside float64, and the same bits when threads take turns backwards."""
    given = gradient.drawn(seed)
    made = emulated(gradient, given, choice, folder, wide)
    exact, allowed = near(gradient, given)
    assert (np.abs(made - exact) <= allowed).all()
    again = emulated(gradient, given, choice, folder, wide, backwards=True)
    np.testing.assert_array_equal(again, made)


def chosen(gradient: Gradient, shape: int, parts: int) -> int:
    """A choice of no more parts than there are slabs."""
    if gradient.of == FILTER_GRADIENT:
        pixels = gradient.case.images[0] * int(np.prod(gradient.graph.inputs[1].shape[2:]))
        shape %= len(filter_gradient.SHAPES)
        return filter_gradient.DIVISIONS.number(shape, min(parts, -(-pixels // 16)))
    products = gradient.case.filters * int(np.prod(gradient.case.window))
    return shape % 6 + 6 * (min(parts, -(-products // 16)) - 1)


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize("name", GRADIENTS)
def test_numbers(name: str, folder: Path) -> None:
    gradient, number = GRADIENTS[name], list(GRADIENTS).index(name)
    check(gradient, chosen(gradient, number, 1 + number % 3), folder, wide=number % 2 * 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", range(len(filter_gradient.SHAPES)))
def test_all_shapes_of_blocks(shape: int, folder: Path) -> None:
    gradient = GRADIENTS["filter 1x1, many"]
    check(gradient, chosen(gradient, shape, 2), folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GROUPED)
def test_images_of_depthwise_convolutions(name: str, folder: Path) -> None:
    gradient = Gradient(IMAGE_GRADIENT, GROUPED[name], name.partition(",")[0])
    for choice in kernel_of(gradient).choices(gradient.problem, H200)[:3]:
        check(gradient, choice, folder, wide=8 if kernel_of(gradient) is STEPS else 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WINDOWS)
def test_images_of_windows_in_half_precision(name: str, folder: Path) -> None:
    gradient = Gradient(IMAGE_GRADIENT, WINDOWS[name], name.partition(",")[0])
    for choice in HALO.choices(gradient.problem, H200):
        check(gradient, choice, folder, wide=8)


def test_windows_that_are_no_ones() -> None:
    over = Convolved((1, 8, 4, 5), 16, (2, 2), padding=(1, 2))
    for case, reason in (
        (over, "its padding is less than none"),
        (Convolved((1, 8, 9, 9), 16, (3, 3), (2, 2)), "its window has a stride of (2, 2)"),
        (Convolved((1, 8, 4, 5), 16, (1, 1)), "no two windows overlap"),
    ):
        assert HALO.why_not(Gradient(IMAGE_GRADIENT, case, "float16").problem, H200) == reason


@pytest.mark.parametrize("name", ["float16", "float16, steps"])
def test_nan_reaches_the_pixels_that_read_it_alone(name: str, folder: Path) -> None:
    gradient = Gradient(IMAGE_GRADIENT, GROUPED[name], name.partition(",")[0])
    given = gradient.drawn()
    given[0][0, 3, 2, 2], given[0][1, 4, 1, 0] = np.nan, np.inf
    if kernel_of(gradient) is STEPS:  # a convolution multiplies what pads its image
        given[1][5, 0, 0, 0] = -np.inf
    (choice, *_) = kernel_of(gradient).choices(gradient.problem, H200)
    made = emulated(gradient, given, choice, folder)
    np.testing.assert_array_equal(np.isfinite(made), np.isfinite(gradient.reference(given)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(8))
def test_any_geometry(seed: int, folder: Path) -> None:
    random = np.random.default_rng(seed)
    of = IMAGE_GRADIENT if seed % 2 else FILTER_GRADIENT
    batch, channels, filters = (int(random.integers(1, most)) for most in (4, 24, 80))
    window, dilation, padding = (
        random.integers(low, most, 2).tolist() for low, most in ((1, 6), (1, 4), (0, 4))
    )
    padding = (0, 0) if window == [1, 1] else tuple(padding)
    stride = tuple(random.integers(1, 4, 2).tolist())
    stride = stride if of == FILTER_GRADIENT or window == [1, 1] else (1, 1)
    sizes = [
        max(1, d * (k - 1) + 1 - 2 * p) + int(random.integers(0, 9))
        for d, k, p in zip(dilation, window, padding, strict=True)
    ]
    stem = Convolved(
        (batch, channels, sizes[0], sizes[1]),
        filters,
        tuple(window),
        stride,
        padding,
        tuple(dilation),
    )
    gradient = Gradient(of, stem)
    choice = chosen(gradient, int(random.integers(8)), int(random.integers(1, 4)))
    check(gradient, choice, folder, int(random.integers(3)), seed)


@pytest.mark.parametrize("of", KINDS)
def test_nan_and_infinities_reach_what_reads_them_alone(of: Direction, folder: Path) -> None:
    gradient = Gradient(of, Convolved((2, 5, 6, 7), 9, (3, 3), padding=(1, 1)))
    given = gradient.drawn()
    given[0][0, 3, 2, 2], given[0][1, 4, 5, 6], given[0][1, 0, 0, 3] = np.nan, np.inf, -np.inf
    expected = gradient.reference(given)
    made = emulated(gradient, given, chosen(gradient, 3, 2), folder)
    np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
def test_kernels_keep_to_their_budget(machine: Machine) -> None:
    """As many blocks as make 512 threads fit a multiprocessor, or 384 where it has less memory."""
    problem = GRADIENTS["filter 3x3"].problem
    for shape in range(len(filter_gradient.SHAPES)):
        launches = FILTER.launches(problem, filter_gradient.DIVISIONS.number(shape, 1), H200)
        ((launch, kernel),) = zip(
            launches, compile_kernels([launches[0].source], machine.arch), strict=True
        )
        taken, threads = kernel.resources, launch.block[0]
        blocks = (512 if machine is H200 else 384) // threads
        assert taken.spill_bytes == taken.stack_bytes == 0
        assert blocks * taken.registers * threads <= 65536
        assert blocks * (launch.shared_bytes + 1024) <= machine.shared_bytes


def test_one_text_serves_gradients_of_all_sizes() -> None:
    first, second = (
        FILTER.launches(GRADIENTS[f"filter {name}"].problem, 8, H200) for name in ("3x3", "stem")
    )
    assert [launch.source for launch in first] == [launch.source for launch in second]


def test_only_exact_planar_gradients_have_these_forms() -> None:
    def algorithms(gradient: Gradient, precision: str = "float32") -> set[str]:
        (problem,) = graph_problems(gradient.graph, precision)
        return {algorithm.core for algorithm in algorithms_for(problem, H200)}

    assert IMAGE.name in algorithms(GRADIENTS["image 3x3"])
    assert FILTER.name in algorithms(GRADIENTS["filter stem"])
    for precision in ("tf32", "bfloat16"):
        for name in ("image 1x1, many", "filter 1x1, many"):
            assert not {IMAGE.name, FILTER.name} & algorithms(GRADIENTS[name], precision)
    strided = Gradient(IMAGE_GRADIENT, STRIDED["stem"]).problem
    assert IMAGE.why_not(strided, H200) == "its window has a stride of (2, 2)"
    grouped = Convolved((2, 16, 6, 6), 16, (3, 3), groups=2)
    assert IMAGE.why_not(Gradient(IMAGE_GRADIENT, grouped).problem, H200) == "it has groups"
    assert FILTER.why_not(Gradient(FILTER_GRADIENT, grouped).problem, H200) == "it has 2 groups"
    image = Gradient(IMAGE_GRADIENT, grouped, "bfloat16").problem
    assert DEPTHWISE.why_not(image, H200) == "its groups have more than one input channel"
    wide = replace(GRADIENTS["filter 3x3"].problem, dilation=(1 << 14, 1))
    assert FILTER.why_not(wide, H200) == "its window reaches too far"
    stepped = Convolved((2, 16, 6, 6), 32, (3, 3), (2, 2), groups=16)
    image = Gradient(IMAGE_GRADIENT, stepped, "bfloat16").problem
    assert STEPS.why_not(image, H200) == "its groups have more than one channel"
    image = Gradient(IMAGE_GRADIENT, GROUPED["float16"], "float16").problem
    assert STEPS.why_not(image, H200) == "it steps over no pixels"
    assert DIRECT.why_not(replace(strided, direction="forward"), H200) is None


WHOLE = {
    "filters": Convolved((128, 320, 7, 7), 960, (1, 1)),
    "pixels": Convolved((128, 16, 112, 112), 96, (1, 1)),
    "stem": Convolved((128, 3, 224, 224), 32, (3, 3), (2, 2), (1, 1)),
    "tiny": Convolved((1, 1, 1, 1), 1, (1, 1)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_blocks_fill_the_gpu_and_no_part_is_empty(name: str) -> None:
    problem = Gradient(FILTER_GRADIENT, WHOLE[name]).problem
    slabs = -(-problem.batch * problem.y.rows * problem.y.columns // 16)
    choices = FILTER.choices(problem, H200)
    assert choices
    for choice in choices:
        _, parts = filter_gradient.DIVISIONS[choice]
        assert (parts - 1) * -(-slabs // parts) < slabs
        (blocks, across, _) = FILTER.launches(problem, choice, H200)[0].grid
        assert across == parts and (name == "tiny" or blocks * across >= H200.multiprocessors)
