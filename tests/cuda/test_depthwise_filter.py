"""Gradients of depthwise filters, channels last: in the emulator, and compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.contraction.depthwise_filter import UNITS
from minidnn.backends.cuda.contraction.problem import FILTER_GRADIENT
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import Machine

from .cards import A100, H200, on_each
from .gradients import Convolved, Gradient
from .test_own_gradients import DEPTHWISE_FILTER as KERNEL
from .test_own_gradients import check, emulated

CASES = {
    "float16": Convolved((2, 24, 9, 11), 24, (3, 3), padding=(1, 1), groups=24),
    "bfloat16, odd": Convolved((3, 12, 12, 7), 12, (5, 2), padding=(3, 1), groups=12),
    "float16, steps": Convolved((2, 72, 9, 21), 72, (3, 3), (2, 2), (1, 1), groups=72),
    "bfloat16, far": Convolved((1, 16, 13, 18), 16, (5, 4), (2, 3), (2, 3), (1, 2), groups=16),
    "bfloat16, wide": Convolved((2, 8, 8, 9), 8, (7, 7), padding=(3, 3), groups=8),
    "float16, one by one": Convolved((3, 5, 8, 9), 5, (2, 2), (3, 4), groups=5),
    "float16, over the edge": Convolved((1, 6, 4, 5), 6, (2, 3), (2, 2), (3, 4), groups=6),
    "bfloat16, one pixel": Convolved((37, 8, 3, 3), 8, (3, 3), groups=8),
}
WHOLE = {
    "3x3": Convolved((128, 96, 112, 112), 96, (3, 3), (2, 2), (1, 1), groups=96),
    "5x5": Convolved((128, 1152, 7, 7), 1152, (5, 5), padding=(2, 2), groups=1152),
    "7x7": Convolved((64, 96, 56, 56), 96, (7, 7), padding=(3, 3), groups=96),
}


def of(case: Convolved, precision: str) -> Gradient:
    return Gradient(FILTER_GRADIENT, case, precision)


@pytest.mark.sampled(3)
@pytest.mark.race
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, tmp_path: Path) -> None:
    gradient = of(CASES[name], name.partition(",")[0])
    choices = KERNEL.choices(gradient.problem, H200)
    assert choices
    for choice in (choices[0], choices[-1]):
        check(gradient, choice, tmp_path, wide=8)


@pytest.mark.parametrize("seed", [pytest.param(i, marks=pytest.mark.full) for i in range(24)])
def test_any_geometry(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    window, stride, padding, dilation = (
        tuple(random.integers(low, high, 2).tolist())
        for low, high in ((1, 7), (1, 4), (0, 5), (1, 3))
    )
    sizes = [
        max(1, (k - 1) * d + 1 - 2 * p) + int(random.integers(0, 14))
        for k, d, p in zip(window, dilation, padding, strict=True)
    ]
    channels = int(random.choice([2, 6, 8, 20, 72]))
    images = (int(random.integers(1, 4)), channels, sizes[0], sizes[1])
    case = Convolved(images, channels, window, stride, padding, dilation, channels)
    gradient = of(case, ("float16", "bfloat16")[seed % 2])
    choices = KERNEL.choices(gradient.problem, H200)
    check(gradient, choices[seed % len(choices)], tmp_path, wide=8 * (seed % 2), seed=seed)


@pytest.mark.parametrize("name", ["float16", "bfloat16, wide", "float16, over the edge"])
def test_nan_and_infinities_reach_what_reads_them_alone(name: str, tmp_path: Path) -> None:
    """What pads an image is zeros, which make NaN of an infinite gradient at the edge."""
    gradient = of(CASES[name], name.partition(",")[0])
    given = gradient.drawn()
    given[0][0, 3, 2, 2], given[1][-1, 4, 0, 0], given[1][0, 0, -1, -1] = np.nan, np.inf, -np.inf
    made = emulated(gradient, given, KERNEL.choices(gradient.problem, H200)[0], tmp_path)
    expected = gradient.reference(given)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isnan(made), np.isnan(expected))
    np.testing.assert_array_equal(made[np.isinf(expected)], expected[np.isinf(expected)])


@pytest.mark.sampled(3)
@on_each(H200, full=A100)
@pytest.mark.parametrize("name", WHOLE)
def test_kernels_keep_to_their_budget(name: str, machine: Machine) -> None:
    """Two blocks have registers side by side, without spills."""
    problem = of(WHOLE[name], "bfloat16").problem
    for choice in KERNEL.choices(problem, machine):
        first = KERNEL.launches(problem, choice, machine)[0]
        (kernel,) = compile_kernels([first.source], machine.arch)
        assert kernel.resources.spill_bytes == kernel.resources.stack_bytes == 0, UNITS[choice]
        assert 2 * kernel.resources.registers * first.block[0] <= 65536, UNITS[choice]


def test_what_is_refused() -> None:
    case = CASES["float16"]
    problem = of(case, "float16").problem
    assert KERNEL.refusal(problem, H200) is None
    grouped = of(replace(case, groups=8), "float16").problem
    assert KERNEL.why_not(grouped, H200) == "its groups have more than one channel"
    twice = of(replace(case, filters=48), "float16").problem
    assert KERNEL.why_not(twice, H200) == "its groups have more than one channel"
    long = of(replace(case, images=(1, 24, 9, 99), window=(1, 70), padding=(0, 0)), "float16")
    assert KERNEL.why_not(long.problem, H200) == "its windows do not fit registers"
