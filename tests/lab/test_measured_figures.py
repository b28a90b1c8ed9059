"""Recorded studies of an H100: predictions beside times, and counters beside what hands count."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from minidnn import lab
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.nvrtc import Resources
from minidnn.lab.explain import model_error
from minidnn.lab.model import Prediction
from minidnn.lab.operands import ConvolutionShape, ProductShape

#: Constants of the model were fitted to cells of other shapes; the model was what it is before
#: these were measured.
HELD_OUT = {
    "conv": (
        *("64-64@56,3/1", "128-128@28,3/1", "256-256@14,3/1", "256-512@56,1/2", "48-192@35,5/1"),
        ConvolutionShape(64, 24, 60, 60, 48, 1, 1),
        ConvolutionShape(32, 160, 12, 12, 320, padding=1),
    ),
    "product": (
        ProductShape(768, 1536, 512),
        ProductShape(3072, 1024, 2048),
        ProductShape(384, 4096, 1024),
    ),
}
SIDE = 1024


def measured(name: str) -> list[dict[str, Any]]:
    study = lab.load_study(lab.recorded_studies()[name])
    cells = [cell for cell in study["cells"] if "measured_seconds" in cell]
    return [cell | {"sizes": study["shapes"][cell["shape"]]} for cell in cells]


def within(cells: list[dict[str, Any]]) -> float:
    return sum(model_error(cell) <= 1.5 for cell in cells) / len(cells)


@pytest.mark.parametrize("name", HELD_OUT)
def test_predictions_of_shapes_that_nothing_was_fitted_to(name: str) -> None:
    ladder = lab.ladder_of(name)
    shapes = [ladder.shapes[one] if isinstance(one, str) else one for one in HELD_OUT[name]]
    held_out = [vars(shape) for shape in shapes]
    cells = [cell for cell in measured(name) if cell["sizes"] in held_out]
    assert len(cells) >= 36 and within(cells) >= 0.8


@pytest.mark.parametrize("name", ["conv", "product", "memory", "transpose", "reverse"])
def test_predictions_of_everything_that_was_measured(name: str) -> None:
    assert within(measured(name)) >= 0.8


@pytest.mark.parametrize(
    "name", [name for name in lab.recorded_studies() if not name.endswith("-cpu")]
)
def test_recorded_predictions_are_those_of_the_model(name: str) -> None:
    """Of cells of one kernel, here and there: its resources are recorded."""
    study, ladder = lab.load_study(lab.recorded_studies()[name]), lab.ladder_of(name)
    machine = Machine(**study["machine"] | {"capability": tuple(study["machine"]["capability"])})
    cells = [cell for cell in study["cells"] if "grid" in cell and "kernels" not in cell]
    for cell in cells[:: max(1, len(cells) // 12)]:
        step = ladder.step(cell["step"])
        shape = type(ladder.shape)(**study["shapes"][cell["shape"]])
        where = (shape, tuple(cell["block"]), cell["parameters"])
        grid, threads, shared_bytes = step.sizes(*where)
        (work,) = step.works(*where)
        assert [*grid] == cell["grid"]
        found = Prediction(
            Launch(KernelSource(step.name, ""), grid, threads, shared_bytes),
            machine,
            Resources(
                cell["registers"], 0, cell["spill_bytes"], cell["shared_bytes"] - shared_bytes
            ),
            work,
            shape.operations,
            shape.operands,
        )
        assert found.seconds == pytest.approx(cell["predicted_seconds"], rel=1e-4), cell["step"]


def test_the_model_chooses_blocks_that_are_nearly_the_best() -> None:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for cell in measured("conv"):
        groups.setdefault((cell["step"], cell["shape"]), []).append(cell)
    losses = []
    for cells in groups.values():
        chosen = min(cells, key=lambda cell: float(cell["predicted_seconds"]))
        best = min(cell["measured_seconds"] for cell in cells)
        losses.append(chosen["measured_seconds"] / best)
    assert median(losses) <= 1.15


def counted(name: str, step: str, block: list[int]) -> dict[str, float]:
    (found,) = (
        cell["counters"]
        for cell in measured(name)
        if (cell["step"], cell["block"]) == (step, block) and "counters" in cell
    )
    return dict(found)


@pytest.mark.parametrize(
    ("step", "sectors"),
    [
        # Of a warp's 16 rows a sector each; of its two columns' words one sector.
        ("naive", (16 + 1) / 2),
        # Of its two rows a sector each; of 16 columns two.
        ("coalesced", 2),
        # Two rows of 16 words, of both factors.
        ("tiled", 4),
        # A vector of four words a lane.
        ("vectors", 16),
    ],
)
def test_products_counted_by_hand(step: str, sectors: float) -> None:
    found = counted("product", step, [16, 16])
    # Files keep six digits.
    assert found["operations"] == pytest.approx(2 * SIDE**3, rel=1e-5)
    assert found["sectors a request"] == pytest.approx(sectors, rel=1e-3)
    seconds = found["operations"] / found["compute throughput"]
    moved = found["memory throughput"] * seconds
    assert moved == pytest.approx(2 * 4 * SIDE**2, rel=0.05)  # the result stays in L2


@pytest.mark.parametrize(("step", "turns"), [("shared", (1 + 32) / 2), ("padded", 1)])
def test_transposed_tiles_counted_by_hand(step: str, turns: float) -> None:
    """A column of a tile of 32 is in one bank: 32 turns to read what one wrote."""
    found = counted("transpose", step, [32, 8])
    assert found["operations"] == 0 and found["sectors a request"] == 4
    assert 1 / found["shared memory efficiency"] == pytest.approx(turns, rel=2e-3)
