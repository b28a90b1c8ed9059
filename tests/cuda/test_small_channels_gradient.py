"""Gradients of filters of few input channels, run by the emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.small_channels_gradient import (
    MOST_CHANNELS,
    MOST_TAPS,
    WARPS,
    rows_of,
    shape_of,
)
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine

from .cards import A100, H200, on_each
from .precisions import PRODUCTS
from .stems import KERNEL, Stem, drawn_stem, emulated, reference

pytestmark = pytest.mark.early

RESNET = Stem((2, 3, 25, 31), 64, (7, 7), (2, 2), (3, 3))
STEMS = {
    "resnet": RESNET,
    "vgg": Stem((1, 3, 11, 19), 64, (3, 3), (1, 1), (1, 1)),
    "mobilenet": Stem((2, 3, 13, 33), 32, (3, 3), (2, 2), (1, 1)),
    "segments": Stem((1, 3, 5, 300), 8, (3, 3), (1, 1), (1, 1)),
    "one pixel": Stem((1, 4, 3, 3), 8, (3, 3)),
    "eight channels": Stem((1, 8, 9, 18), 72, (7, 7), (1, 1), (3, 3)),
    "stride over the end": Stem((2, 5, 10, 17), 24, (2, 3), (3, 4)),
}
WHOLE = {
    "resnet": Stem((128, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3)),
    "vgg": Stem((128, 3, 224, 224), 64, (3, 3), (1, 1), (1, 1)),
    "mobilenet": Stem((128, 3, 224, 224), 32, (3, 3), (2, 2), (1, 1)),
    "cifar": Stem((128, 3, 32, 32), 64, (3, 3), (1, 1), (1, 1)),
    "mnist": Stem((128, 1, 28, 28), 20, (5, 5)),
    "eight channels": Stem((8, 8, 64, 64), 64, (7, 7), (1, 1), (3, 3)),
    "six channels": Stem((8, 6, 56, 56), 64, (7, 5), (2, 3), (3, 2)),
}


def check(
    stem: Stem,
    dtype: str,
    folder: Path,
    parts: int = 3,
    wide: int = 0,
    machine: Machine = H200,
) -> None:
    """Beside float64, and the same bits when threads take turns backwards."""
    given = stem.drawn(0, dtype)
    result = emulated(stem, given, dtype, folder, parts, wide, machine=machine)
    exact, size = reference(stem, given), reference(stem, [*map(np.abs, given)])
    assert (np.abs(result - exact) <= PRODUCTS[dtype] * np.abs(exact) + 2.0**-20 * size).all()
    again = emulated(stem, given, dtype, folder, parts, wide, True, machine)
    np.testing.assert_array_equal(again, result)


LONG = ("mobilenet", "stride over the end")


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if n in LONG else ()) for n in STEMS]
)
def test_numbers(name: str, tmp_path: Path) -> None:
    number = list(STEMS).index(name)
    check(STEMS[name], ("bfloat16", "float16")[number % 2], tmp_path)


def test_warps_that_a_gpu_with_fewer_sums_has(tmp_path: Path) -> None:
    problem = RESNET.problem("float16")
    assert shape_of(problem, A100) != shape_of(problem, H200)
    check(RESNET, "float16", tmp_path, machine=A100)


SEEDS = [pytest.param(i, marks=pytest.mark.full if i > 1 else ()) for i in range(40)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_geometry(seed: int, tmp_path: Path) -> None:
    stem = drawn_stem(np.random.default_rng(seed))
    check(stem, ("float16", "bfloat16")[seed % 2], tmp_path, 1 + seed % 5, seed % 3)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.full)])
def test_nan_and_infinities_stay_where_they_belong(dtype: str, tmp_path: Path) -> None:
    """Beside the last pixel of a row lies room for others, which must not bring NaN to taps that
    read it nowhere."""
    stem = Stem((2, 3, 12, 21), 24, (3, 5), (2, 2), (1, 2))
    x, gradient = stem.drawn(0, dtype)
    x[1, 0, 11, 20], x[0, 1, 0, 0], gradient[0, 7, 3, 4] = np.nan, np.inf, -np.inf
    given = [x, gradient]
    result, exact = emulated(stem, given, dtype, tmp_path), reference(stem, given)
    assert np.isnan(exact).any() and np.isinf(exact).any() and np.isfinite(exact).any()
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    np.testing.assert_array_equal(result[np.isinf(exact)], exact[np.isinf(exact)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("parts", [1, 4])
def test_sums_in_any_number_of_parts(parts: int, tmp_path: Path) -> None:
    check(RESNET, "float16", tmp_path, parts)


MOST_REGISTERS = ("resnet", "six channels")


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in MOST_REGISTERS else pytest.mark.full) for n in WHOLE]
)
def test_they_keep_to_the_budget(name: str, machine: Machine) -> None:
    """They compile without spills, and two blocks have room side by side."""
    launches: list[Launch] = []
    for dtype in ("bfloat16", "float16"):
        problem = WHOLE[name].problem(dtype)
        assert KERNEL.refusal(problem, machine) is None
        launches += KERNEL.launches(problem, KERNEL.choices(problem, machine)[0], machine)
    kernels = compile_kernels([launch.source for launch in launches], machine.arch)
    for launch, kernel in zip(launches, kernels, strict=True):
        taken = kernel.resources
        assert taken.spill_bytes == 0 and taken.stack_bytes == 0
        assert 2 * taken.registers * launch.block[0] <= 65536
        assert 2 * (launch.shared_bytes + 1024) <= machine.shared_bytes + 1024


def test_windows_of_eight_pixels_lie_on_different_banks() -> None:
    for channels in range(1, MOST_CHANNELS + 1):
        for stride in (1, 2):
            for window in range(1, MOST_TAPS + 1):
                rows = rows_of(channels, window, stride)
                pitch = rows.pitch(64)
                places = [
                    p % rows.copies * pitch + p // rows.copies * rows.copies * rows.step
                    for p in range(8)
                ]
                assert all(place % 8 == 0 for place in places)
                banks = len({place // 8 % 8 for place in places})
                assert banks == 8 or (rows.copies == 1 and rows.step == 16 and banks == 4)


def test_every_window_has_a_shape() -> None:
    for channels in range(1, MOST_CHANNELS + 1):
        for window in range(1, MOST_TAPS + 1):
            problem = Stem((1, channels, 40, 40), 64, (window, window), (2, 2)).problem("float16")
            for machine in (H200, A100):
                shape = shape_of(problem, machine)
                assert shape is not None and shape.blocks(machine) == 2 - (
                    machine is A100 and shape.filters * shape.window > 64 * 40
                )
                groups = shape.filter_groups * shape.tap_groups * shape.pixel_groups
                assert groups == WARPS and shape.chunks * shape.tap_groups >= shape.window


def test_what_it_refuses() -> None:
    stem = Stem((2, 3, 20, 20), 16, (3, 3))
    problem = stem.problem("float16")
    assert KERNEL.refusal(problem, H200) is None
    assert KERNEL.name in {algorithm.core for algorithm in algorithms_for(problem, H200)}
    many = replace(stem, images=(2, 9, 20, 20))
    large = replace(stem, window=(8, 3))
    for other, reason in (
        (stem.problem("float32"), "it is in float32"),
        (stem.problem("tf32"), "it is in float32"),
        (many.problem("float16"), "it has more than 8 input channels"),
        (large.problem("float16"), "its window is dilated or larger than 7 x 7"),
        (replace(problem, dilation=(2, 2)), "its window is dilated or larger than 7 x 7"),
        (replace(problem, groups=2), "it has 2 groups"),
        (replace(problem, planar=True), "its images are planar"),
        (replace(problem, direction="forward"), "it computes no forward"),
        (replace(problem, batch=1 << 30), "its images do not fit 32-bit indices"),
    ):
        assert KERNEL.refusal(other, H200) == reason
    far = replace(stem, images=(2, 8, 40, 3000), stride=(30, 30)).problem("float16")
    assert KERNEL.refusal(far, H200) == "rows of its image do not fit the shared memory of sm_90"
