"""Recorded studies of an H100: predictions beside times, and counters beside what hands count."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from minidnn import lab
from minidnn.lab.convolution.ladder import CONVOLUTION
from minidnn.lab.table import model_error

#: Instructions beside products were estimated on the others.  These were seen, too, while the
#: model's form was chosen, so what holds here need not hold for any shape.
HELD_OUT = ("128-128@28,3/1", "256-256@14,3/1", "512-512@7,3/1", "256-512@56,1/2")
SIDE = 1024


def measured(name: str) -> list[dict[str, Any]]:
    study = lab.load_study(lab.recorded_studies()[name])
    return [cell for cell in study["cells"] if "measured_seconds" in cell]


def test_most_predictions_are_within_a_factor_of_one_and_a_half() -> None:
    names = list(CONVOLUTION.shapes)
    held_out = [cell for cell in measured("conv") if names[cell["shape"]] in HELD_OUT]
    for cells in (held_out, measured("product")):
        assert len(cells) > 80
        assert sum(model_error(cell) <= 1.5 for cell in cells) >= 0.8 * len(cells)


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
