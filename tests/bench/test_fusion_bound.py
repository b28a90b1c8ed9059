"""The bound of what fusion gains: which time counts as contractions', and the row of the table."""

from __future__ import annotations

from benchmarks.fusion_bound import ALONE, FUSED, figures_of, line, measure


def test_the_time_of_every_kernel_is_in_one_of_the_parts() -> None:
    record = measure("digits", batch=2, threads=1, rounds=3)
    assert record["rounds"] == 3
    for strategy in (ALONE, FUSED):
        assert record["seconds"][f"{strategy}, contractions"]["low"] > 0
    # Its normalizations and activations stand alone, so there is something that fusion can take.
    assert record["bound"]["low"] > 1


def test_a_row_has_the_bound_and_the_gain() -> None:
    found = {
        ALONE: {"contractions": [2e-3] * 6, "other": [1e-3] * 6},
        FUSED: {"contractions": [2.4e-3] * 6, "other": [0.1e-3] * 6},
    }
    assert line({"network": "net", "batch": 4, **figures_of(found)}) == (
        "| net | 4 | 3.00 | 2.00 | 1.500 [1.500, 1.500] | 2.50 | 2.40 | 1.200 [1.200, 1.200] |"
    )
