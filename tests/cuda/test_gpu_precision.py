"""precision="auto" on a GPU: all of its precisions are tried, and timed by its clock."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.executable import Executable
from minidnn.runtime.program import ClockedProgram

pytestmark = pytest.mark.gpu

SHAPE = (32, 64, 56, 56)


def compiled(tolerance: float) -> Executable:
    net = md.Sequential(
        *(L.Conv2d(64, 128, 3, padding=1), L.ReLU()),
        *(L.Conv2d(128, 128, 3, padding=1), L.ReLU(), L.AdaptiveAvgPool2d(1), L.Flatten()),
    )
    net.initialize(0)
    return md.compile(net, SHAPE, device="cuda", precision="auto", tolerance=tolerance)


def test_half_precision_is_taken_where_errors_may_be_large() -> None:
    found = compiled(0.1)
    assert found.precision in ("float16", "bfloat16")
    assert found.automatic_precision is not None
    errors = {each.precision: each.error for each in found.automatic_precision.trials}
    assert sorted(errors) == ["bfloat16", "float16", "tf32"]
    assert all(error is not None and 0 < error < 0.02 for error in errors.values())
    assert f"precision auto: {found.precision} (error " in found.explain()


def test_float32_is_taken_where_they_may_not() -> None:
    assert compiled(1e-7).precision == "float32"


def test_the_clock_counts_runs_and_no_copies() -> None:
    program = compiled(1e-7).program
    assert isinstance(program, ClockedProgram)
    clock = program.clock([np.zeros(SHAPE, np.float32)])
    clock(1)
    # Others use the GPU meanwhile, so the fastest of many counts.
    pairs = [(clock(1), clock(20)) for _ in range(20)]
    once, often = (min(times) for times in zip(*pairs, strict=True))
    assert 0 < once < 0.1
    assert often == pytest.approx(once, rel=0.5)
