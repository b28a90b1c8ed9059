"""docs/results is what ``python -m benchmarks.report`` makes of benchmarks/results."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.report import facts, written


def test_pages_of_results_are_as_generated(root: Path) -> None:
    folder = root / "docs" / "results"
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    made = written()
    assert set(there) == set(made)
    changed = [name for name, text in made.items() if there[name] != text]
    assert changed == [], "run python -m benchmarks.report"


def test_tables_say_where_their_figures_are_from(root: Path) -> None:
    """Each section with a table does, in its head, and a plot comes before the table."""
    for page in sorted((root / "docs" / "results").glob("*.md")):
        for section in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            head, found, rest = section.partition("\n|")
            title = f"{page.name}, {head.splitlines()[0]}"
            assert found, f"{title}: no table"
            for fact in ("Machine", "Versions", "Commit", "Command", "Figures"):
                assert f"\n- {fact}: " in head, f"{title}: no {fact}"
            assert "![" not in rest, f"{title}: a plot after its table"


def test_the_page_beside_the_paper_has_its_figures_from_there(root: Path) -> None:
    page = (root / "docs/explanation/beside-the-brainslug-paper.md").read_text(encoding="utf-8")
    results = (root / "docs/results/brainslug.md").read_text(encoding="utf-8")
    figures = re.findall(r"-?\d[\d.]*(?= %)", page)
    assert figures and set(figures) <= set(results.split())
    (stacks,) = re.findall(r"DenseNet-121 has (\d+) optimizable layers in\s+(\d+) stacks", page)
    (row,) = re.findall(r"\| densenet121 \| 429 \| .*", results)
    assert row.split(" | ")[2:4] == list(stacks)


def test_facts_stand_anywhere() -> None:
    engine = {"about": {"version": "2.13.0+cpu"}, "ms": 1.0}
    found = {"machine": "a CPU", "rows": [{"commit": "0123456789ab", "engines": {"eager": engine}}]}
    told = [("Machine", "a CPU"), ("Commit", "0123456"), ("Versions", "eager 2.13.0+cpu")]
    assert list(facts(found)) == told
