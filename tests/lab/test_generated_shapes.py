"""Every step of every ladder on a GPU beside the ladder's reference, in the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn.lab.cuda.step import CudaStep
from minidnn.lab.step import Ladder

from .emulated import check
from .generated import STEPS, generated

ALL, AT_ONCE = 200, 25
#: What is long takes long to compile.
FEW, SOME, LONG = 4, 8, ("fft", "tensor")

on_each_step = pytest.mark.parametrize(("ladder", "step"), STEPS, ids=lambda one: str(one.name))


@pytest.mark.sampled(4)
@on_each_step
def test_some_generated_shapes(ladder: Ladder, step: CudaStep, tmp_path: Path) -> None:
    count = FEW if step.name in LONG else SOME
    check(ladder, step, generated(ladder, step, count), tmp_path)


@pytest.mark.full
@on_each_step
def test_two_hundred_generated_shapes(ladder: Ladder, step: CudaStep, tmp_path: Path) -> None:
    cases = generated(ladder, step, ALL)
    for first in range(0, ALL, AT_ONCE):
        check(ladder, step, cases[first : first + AT_ONCE], tmp_path)
