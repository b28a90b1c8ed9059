"""docs/results is what ``python -m benchmarks.report`` makes of benchmarks/results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import facts, written


def test_pages_of_results_are_as_generated(root: Path) -> None:
    folder = root / "docs" / "results"
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    made = written()
    assert set(there) == set(made)
    changed = [name for name, text in made.items() if there[name] != text]
    assert changed == [], "run python -m benchmarks.report"


def test_facts_stand_anywhere() -> None:
    engine = {"about": {"version": "2.13.0+cpu"}, "ms": 1.0}
    found = {"machine": "a CPU", "rows": [{"commit": "0123456789ab", "engines": {"eager": engine}}]}
    told = [("Machine", "a CPU"), ("Commit", "0123456"), ("Versions", "eager 2.13.0+cpu")]
    assert list(facts(found)) == told
