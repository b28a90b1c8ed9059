"""The ladders of a CPU: right on generated shapes, predicted, and refused with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidnn import lab
from minidnn.backends.cpu.compilers.kernels import compile_kernels
from minidnn.backends.cpu.execution.program import shared_pool
from minidnn.backends.cpu.isa import best_isa
from minidnn.errors import UnsupportedError
from minidnn.lab.ceilings import CeilingJob
from minidnn.lab.cpu.ladders import CONVOLUTION_CPU, MEMORY_CPU, CopyShape
from minidnn.lab.cpu.machine import CpuMachine, predict
from minidnn.lab.cpu.measure import ceilings, checked, job
from minidnn.lab.explain import explain
from minidnn.lab.operands import ConvolutionShape, OperandFolder, WrongResultError
from minidnn.lab.step import Ladder, Point, points_of

# In a nanosecond 100 vector multiply-adds, and as many bytes.
ISA = best_isa()
CPU = CpuMachine("a CPU", 2, ISA.name, 2e11 * ISA.lanes, 1e11, 1e12, 32 << 10, 1 << 20, 1 << 20)
LARGE = CONVOLUTION_CPU.shape


def generated(step: Any, count: int) -> list[tuple[ConvolutionShape, dict[str, int]]]:
    """Odd sizes, windows, strides, paddings, dilations and tiles that a step does not refuse."""
    random = np.random.default_rng([ord(letter) for letter in step.name])
    cases: list[tuple[ConvolutionShape, dict[str, int]]] = []
    while len(cases) < count:
        names = ("batch", "channels", "height", "width", "filters")
        sizes = dict(zip(names, random.integers(1, [3, 40, 14, 14, 80]).tolist(), strict=True))
        sizes |= {f"window_{axis}": int(random.integers(1, 6)) for axis in ("height", "width")}
        steps = random.integers([1, 0, 1], [4, 4, 3]).tolist()
        sizes |= dict(zip(("stride", "padding", "dilation"), steps, strict=True))
        try:
            shape = ConvolutionShape(**sizes)
        except UnsupportedError:
            continue
        parameters = {name: int(random.integers(1, 9)) for name in step.parameters}
        if step.why_not(shape, (), CPU, parameters) is None:
            cases.append((shape, parameters))
    return cases


def check(ladder: Ladder, step: Any, cases: list[Any]) -> None:
    with OperandFolder(ladder) as folder:
        jobs = []
        for shape, parameters in cases:
            # Files of a step's packed operands are beside those of the shape.
            operands = folder.of(step.operands(shape), shape)
            jobs.append(job(Point(step, (), parameters), shape, CPU, operands))  # type: ignore[arg-type]
        compile_kernels([one.kernel for one in jobs], ISA)
        for one, case in zip(jobs, cases, strict=True):
            try:
                checked(one, shared_pool())()
            except WrongResultError as error:
                raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("step", CONVOLUTION_CPU.steps, ids=lambda step: step.name)
@pytest.mark.together
def test_generated_shapes(step: Any) -> None:
    check(CONVOLUTION_CPU, step, generated(step, 12))


@pytest.mark.parametrize("step", MEMORY_CPU.steps, ids=lambda step: step.name)
@pytest.mark.together
def test_copies(step: Any) -> None:
    check(MEMORY_CPU, step, [(CopyShape(pieces), dict(step.parameters)) for pieces in (1, 3)])


@pytest.mark.together
def test_a_wrong_kernel_is_never_timed() -> None:
    step = MEMORY_CPU.step("vectors")
    wrong = replace(step, source=step.text.replace("y[at] = x[at]", "y[at] = at == 5 ? 7 : x[at]"))
    with pytest.raises(AssertionError, match=r"y\[5\] is 7 and should be .*; 1 of 16384 elements"):
        check(MEMORY_CPU, wrong, [(CopyShape(1), {})])


def cell(step: Any, shape: Any, **parameters: int) -> dict[str, Any]:
    (found,) = predict(points_of([step], [()], parameters), shape, CPU)  # type: ignore[list-item]
    assert not isinstance(found, str), found
    return {"step": step.name, "parameters": parameters, **found.record()}


def test_predictions_by_hand() -> None:
    lanes = CPU.lanes
    products = 56 * 56 * 64 * 64 * 9
    scalar = cell(CONVOLUTION_CPU.step("scalar"), LARGE)
    assert scalar["predicted_limit"] == "latency"
    assert scalar["seconds_by_part"]["arithmetic"] == pytest.approx(products / 1e11)
    assert scalar["predicted_seconds"] == pytest.approx(8 * products / 1e11, rel=1e-3)
    tile = cell(CONVOLUTION_CPU.step("tile"), LARGE, POSITIONS=7, VECTORS=2)
    assert tile["predicted_limit"] == "arithmetic" and tile["chains"] == 14
    assert tile["seconds_by_part"]["arithmetic"] == pytest.approx(products / lanes / 1e11)
    reads = products / lanes * (1 / 2 + 1 / 7)
    assert tile["seconds_by_part"]["load units"] == pytest.approx(reads / 1e11)
    # Rows of 56 in tiles of 10 are computed as 60.
    uneven = cell(CONVOLUTION_CPU.step("positions"), LARGE, POSITIONS=10)
    assert uneven["seconds_by_part"]["arithmetic"] == pytest.approx(
        products / lanes / 1e11 * 60 / 56
    )
    copy = cell(MEMORY_CPU.step("vectors"), CopyShape(64))
    assert copy["bytes"]["memory"] == 2 * 64 * 65536 and copy["predicted_limit"] == "memory"
    assert copy["predicted_seconds"] == pytest.approx(2 * 64 * 65536 / 1e11 + 3e-6)


@pytest.mark.parametrize(
    ("ladder", "name", "parameters", "limit", "following"),
    [
        (CONVOLUTION_CPU, "scalar", {}, "empty lanes", "plane"),
        (CONVOLUTION_CPU, "plane", {}, "latency", "positions"),
        (CONVOLUTION_CPU, "blocked", {}, "gathers", "packed"),
        (CONVOLUTION_CPU, "positions", {"POSITIONS": 2}, "latency", None),
        (CONVOLUTION_CPU, "positions", {"POSITIONS": 14}, "load units", "tile"),
        (CONVOLUTION_CPU, "tile", {"POSITIONS": 7, "VECTORS": 4}, "arithmetic", "winograd"),
        (MEMORY_CPU, "vectors", {}, "memory", "streamed"),
        (MEMORY_CPU, "apart", {"STRIDE": 8}, "gathers", "vectors"),
    ],
)
def test_explanations(
    ladder: Ladder, name: str, parameters: dict[str, int], limit: str, following: str | None
) -> None:
    machine = {"isa": ISA.name}
    found = explain(cell(ladder.step(name), ladder.shape, **parameters), machine, ladder)
    assert (found.limit, found.next_step) == (limit, following)


def test_refusals_are_reasons() -> None:
    tile = CONVOLUTION_CPU.step("tile")
    assert tile.why_not(LARGE, (), CPU, {"POSITIONS": 57}) == (
        "POSITIONS=57; rows of the result have 56"
    )
    vectors = 64 // CPU.lanes
    assert tile.why_not(LARGE, (), CPU, {"VECTORS": 3}) == (
        f"VECTORS=3; the {vectors} vectors of filters are no multiple"
    )
    with pytest.raises(UnsupportedError, match="blocks: 8x8; steps of conv-cpu have none"):
        lab.model("conv-cpu", blocks=[(8, 8)])
    with pytest.raises(UnsupportedError, match="gpu='H100'; conv-cpu is for this computer's CPU"):
        lab.model("conv-cpu", gpu="H100")
    with pytest.raises(UnsupportedError, match="step tiled is for device 'cuda'; conv-cpu is for"):
        CONVOLUTION_CPU.with_step(lab.ladder_of("conv").step("tiled"))
    with pytest.raises(UnsupportedError, match=r"pieces=0; valid are 1 to 131071"):
        CopyShape(0)
    wrong = replace(tile, source=tile.text.replace("w = MD_IN", "v = MD_IN"))
    with pytest.raises(UnsupportedError, match="step tile has operands 'x', 'v', 'y'; valid are"):
        wrong.operands(LARGE)
    wrong = replace(tile, name="other")
    with pytest.raises(UnsupportedError, match=r"its text has no MD_KERNEL\(other\)"):
        wrong.kernel(LARGE, {}, CPU.lanes)


def test_ceilings_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidnn.lab.cpu.measure._BUDGET_SECONDS", 0.05)
    shape = ConvolutionShape(2, 5, 9, 8, 20, padding=1)
    with OperandFolder(CONVOLUTION_CPU) as folder:
        rows = ceilings(CeilingJob(shape, folder.of(["x", "w", "y"], shape)))
    names = [row["name"] for row in rows]
    assert names == ["direct", "direct, compensated", "F(2x2, 3x3)", "F(4x4, 3x3)"]
    for row in rows:
        assert row["error"] < 3e-6 and row["measured_seconds"] > 0, row
