"""What families of kernels are worth, from races that were recorded."""

from __future__ import annotations

import pytest

from benchmarks.kernel_ledger import order, table, without

CELL = [
    {"cuDNN": [2.0], "tile": [1.2, 1.0], "halo": [4.0]},
    {"cuDNN": [1.0], "tile": [3.0]},
    {"halo": [2.0, 1.6, 1.6]},
]


def test_what_is_lost_without_families() -> None:
    """The fastest take 1, 1 and 1.6; the last problem keeps its time: nothing else computes it."""
    assert without(CELL, ["tile"]) == pytest.approx(4.6 / 3.6)
    assert without(CELL, ["halo"]) == without(CELL, []) == 1.0
    assert without(CELL, ["tile", "cuDNN"]) == pytest.approx((4 + 1 + 1.6) / 3.6)


def test_how_right_an_order_is() -> None:
    assert order(CELL, "tile") == "| 1 | 0 % | 1.200 | 1.000 "
    assert order(CELL, "halo") == "| 1 | 0 % | 1.250 | 1.000 "
    assert order([{"tile": [1.0, 1.02]}, {"tile": [2.0]}], "tile").startswith("| 1 | 100 % | 1.000")
    assert order(CELL, "stream") == "| 0 | | | "


def test_families_that_lose_least_come_first() -> None:
    cells = [{"network": "a", "batch": 1, "precision": "float16", "problems": CELL}]
    _, _, *rows = table(cells, ["tile", "halo"])
    assert [row.split("|")[1].strip() for row in rows] == ["halo", "tile", "tile, halo"]
    assert all(row.count("|") == 12 for row in rows)
    assert "| 1/1 | 1.2778 | 1.278 (a 1 float16) |" in rows[1]
