"""The bound of what fusion gains: which time counts as contractions', and the row of the table."""

from __future__ import annotations

from benchmarks.fusion_bound import ALONE, FUSED, line, measure


def test_the_time_of_every_kernel_is_in_one_of_the_parts() -> None:
    record = measure("digits", batch=2, threads=1, rounds=3)
    for strategy in (ALONE, FUSED):
        assert len(record[strategy]["contractions"]) == len(record[strategy]["other"]) == 3
        assert min(record[strategy]["contractions"]) > 0
    # Its normalizations and activations stand alone, so there is something that fusion can take.
    assert min(record[ALONE]["other"]) > 0


def test_a_row_has_the_bound_and_the_gain() -> None:
    parts = {"contractions": [2e-3] * 6, "other": [1e-3] * 6}
    record = {
        "network": "net",
        "batch": 4,
        ALONE: parts,
        FUSED: {"contractions": [2.4e-3] * 6, "other": [0.1e-3] * 6},
    }
    assert line(record) == (
        "| net | 4 | 3.00 | 2.00 | 1.500 [1.500, 1.500] | 2.50 | 2.40 | 1.200 [1.200, 1.200] |"
    )
