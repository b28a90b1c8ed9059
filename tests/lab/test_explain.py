"""Rules name the limit that was planted, and the step that is about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from minidnn.lab.api import H100, LADDERS
from minidnn.lab.cuda.convolution import CONVOLUTION
from minidnn.lab.explain import ADVICE, explain

IDLE = {
    "arithmetic": 1e-4,
    "issue": 1e-4,
    "load units": 1e-4,
    "L2": 1e-4,
    "memory": 1e-4,
    "latency": 1e-4,
}
SHARED, GLOBAL = {"shared": 9.0, "global": 1.0}, {"shared": 0.0, "global": 1.0}


def planted(busy: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """A cell of a millisecond in which nothing stands out but what is given."""
    cell = {
        "step": "naive",
        "grid": [64, 64, 1],
        "spill_bytes": 0,
        "waves": 31.0,
        "occupancy": 0.75,
        "occupancy_limit": "registers",
        "bank_conflicts": 1.0,
        "sectors_a_request": 4.0,
        "coalescing": 1.0,
        "load_turns": GLOBAL,
        "seconds_by_part": {**IDLE, **{part: 1e-3 * share for part, share in (busy or {}).items()}},
        "predicted_seconds": 1e-3,
        "measured_seconds": 1e-3,
    }
    return cell | changes


@pytest.mark.parametrize(
    ("cell", "limit", "evidence"),
    [
        (planted(grid=[8, 4, 1]), "too few blocks", "32 blocks for 132 multiprocessors"),
        (planted({"memory": 0.9}, grid=[131, 1, 1]), "too few blocks", "131 blocks"),
        (planted(spill_bytes=400), "spills", "400 bytes of registers"),
        (planted({"issue": 0.8}, spill_bytes=16), "spills", "16 bytes"),
        (planted(waves=1.05), "tail", "1.05 waves of blocks: 48 % of the places"),
        (planted({"arithmetic": 0.7}, waves=2.02), "tail", "2.02 waves"),
        (
            planted({"load units": 0.9}, load_turns=SHARED, bank_conflicts=8.0),
            "bank conflicts",
            "takes 8.0 times",
        ),
        (
            planted({"load units": 0.7}, load_turns=SHARED, counters={"bank conflicts": 4.0}),
            "bank conflicts",
            "takes 4.0 times",
        ),
        (
            planted({"load units": 0.9}, sectors_a_request=32.0, coalescing=0.125),
            "uncoalesced accesses",
            "touches 32.0 sectors",
        ),
        (
            planted({"L2": 0.8}, sectors_a_request=9.0, coalescing=0.4),
            "uncoalesced accesses",
            "9.0 sectors",
        ),
        (
            planted({"memory": 0.2}, counters={"memory bandwidth utilization": 0.95}),
            "memory",
            "busy for 95 %",
        ),
        (planted({"memory": 0.85}), "memory", "busy for 85 %"),
        (planted({"memory": 0.9}, sectors_a_request=16.0), "memory", "busy for 90 %"),  # vectors
        (planted({"L2": 0.8}), "L2", "busy for 80 %"),
        (planted({"load units": 0.9}, load_turns=SHARED), "shared memory", "busy for 90 %"),
        (planted({"load units": 0.8}), "load units", "busy for 80 %"),
        (planted({"issue": 0.75}), "issue", "busy for 75 %"),
        (planted(counters={"instructions per cycle": 3.2}), "issue", "busy for 80 %"),
        (planted({"arithmetic": 0.9, "issue": 0.8}), "arithmetic", "busy for 90 %"),
        (planted(occupancy=0.125), "occupancy", "12 % of the warps that could run; registers"),
        (planted(counters={"occupancy": 0.2}), "occupancy", "20 % of the warps"),
        (planted({"issue": 0.4}), "latency", "no part is busy, issue most of all with 40 %"),
        (planted({"latency": 1.0}), "latency", "no part is busy"),
    ],
)
def test_planted_limits(cell: dict[str, Any], limit: str, evidence: str) -> None:
    found = explain(cell, asdict(H100))
    assert found.limit == limit
    assert evidence in found.evidence
    counted = [name for name in cell.get("counters", {})]
    assert found.source == ("ncu" if counted else "compiler" if limit == "spills" else "model")


def test_a_prediction_is_explained_before_it_is_measured() -> None:
    cell = planted({"memory": 0.9})
    del cell["measured_seconds"]
    assert explain(cell, asdict(H100)).limit == "memory"


def test_the_next_step_is_a_later_one_about_the_limit() -> None:
    scattered = planted({"load units": 0.9}, sectors_a_request=20.0, coalescing=0.2)
    found = explain(scattered, asdict(H100), CONVOLUTION)
    assert found.next_step == "coalesced"
    assert "let neighbouring lanes read neighbouring addresses; next: coalesced" in str(found)
    later = {**scattered, "step": "tiled", "load_turns": SHARED}
    assert explain(later, asdict(H100), CONVOLUTION).next_step == "registers"
    assert explain({**later, "step": "tensor"}, asdict(H100), CONVOLUTION).next_step is None


def test_steps_help_against_limits_that_there_are() -> None:
    steps = [step for ladder in LADDERS.values() for step in ladder.steps]
    assert {limit for step in steps for limit in step.helps} <= set(ADVICE)
