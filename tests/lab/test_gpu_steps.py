"""Every step of every ladder on a GPU, and what a wrong or a faulty one comes to there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidnn import lab
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import machine_of
from minidnn.lab.api import LADDERS
from minidnn.lab.cuda.step import CudaStep
from minidnn.lab.measure import run_once
from minidnn.lab.operands import OperandFolder
from minidnn.lab.step import Ladder, Point
from minidnn.lab.studies import job

from .generated import STEPS, generated

pytestmark = pytest.mark.gpu
SOME, ALL = 40, 200


def right(ladder: Ladder, step: CudaStep, count: int) -> None:
    """So many generated shapes: the result, and nothing beside it is written."""
    machine = machine_of(0)
    points = [
        (Point(step, case.block, step.with_own(case.parameters)), case.shape)
        for case in generated(ladder, step, count)
    ]
    fitting = [pair for pair in points if pair[0].why_not(pair[1], machine) is None]
    assert len(fitting) > count // 2
    with OperandFolder(ladder) as folder:
        jobs = [
            job(
                point, shape, machine, folder.of(step.operands(shape), shape, step.float16_operands)
            )
            for point, shape in fitting
        ]
        compile_kernels([call.launch.source for one in jobs for call in one.calls], machine.arch)
        for one in jobs:
            run_once(one)


@pytest.mark.early
@pytest.mark.parametrize(("ladder", "step"), STEPS, ids=lambda one: str(one.name))
@pytest.mark.parametrize("count", [SOME, pytest.param(ALL, marks=pytest.mark.full)])
def test_generated_shapes(count: int, ladder: Ladder, step: CudaStep) -> None:
    right(ladder, step, count)


# Full: those are among the shapes above.
@pytest.mark.full
@pytest.mark.race
@pytest.mark.parametrize(("ladder", "step"), STEPS, ids=lambda one: str(one.name))
def test_few_shapes_for_the_sanitizers(ladder: Ladder, step: CudaStep) -> None:
    right(ladder, step, 8)


@pytest.mark.early
@pytest.mark.parametrize(
    "ladder",
    [one for one in LADDERS.values() if one.device == "cuda"],
    ids=lambda one: str(one.name),
)
def test_a_measured_study_has_no_failure(ladder: Ladder) -> None:
    """On a small shape; the libraries compute the same."""
    name = ladder.name
    sizes: dict[str, Any] = {"batch": 2, "channels": 8, "height": 18, "width": 20, "filters": 16}
    if name == "product":
        sizes = {"rows": 256, "columns": 128, "depth": 64}
    if name in ("memory", "reverse"):
        sizes = {"count": 1 << 16}
    if name == "transpose":
        sizes = {"height": 128, "width": 96}
    study = lab.run(ladder, blocks=[(16, 16)], shapes=[sizes])
    failed = {cell["step"]: cell["failed"] for cell in study["cells"] if "failed" in cell}
    assert not failed
    (found,) = study["libraries"]
    assert "failed" not in found
    for row in found["algorithms"]:
        if "error" in row:
            assert row["error"] < (1e-5 if row["exact"] else 5e-2), row
    assert lab.table(study, ladder) and lab.study_page(study, ladder)


@pytest.mark.early
def test_a_wrong_and_a_faulty_kernel_are_findings() -> None:
    ladder = LADDERS["product"]
    step = ladder.step("naive")
    wrong = replace(
        step,
        name="wrong",
        source=step.text.replace("naive(", "wrong(").replace("sum;", "sum + 1.0f;", 1),
    )
    assert wrong.text.count("sum + 1.0f")
    faulty = replace(
        step,
        name="faulty",
        source=step.text.replace("naive(", "faulty(").replace("y[", "y[(1ll << 40) + "),
    )
    for one in (wrong, faulty):
        ladder = ladder.with_step(one)
    study = lab.run(ladder, ["wrong", "faulty", "coalesced"], shapes=[{"rows": 64}])
    told = {cell["step"]: cell.get("failed", "") for cell in study["cells"]}
    assert told["wrong"].startswith("WrongResultError") or "should be" in told["wrong"]
    assert "the kernel failed" in told["faulty"] and not told["coalesced"]
    assert np.isfinite(
        next(cell["measured_seconds"] for cell in study["cells"] if cell["step"] == "coalesced")
    )
