"""Tables of what ``cuda_zoo.py`` measured: every cell, what failed, what is missing.

    python benchmarks/cuda_zoo_report.py results.jsonl [--commit COMMIT]

A row's ratio is the time of the fastest peer by minidnn's.  The last cell of a name counts, of the
commit asked for, else of any.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
OWN = "minidnn"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--commit")
    options = parser.parse_args()
    lines = [text for path in options.results for text in path.read_text().splitlines()]
    print(report(json.loads(text) for text in lines if options.commit in (None, _commit(text))))


def _commit(text: str) -> str:
    return str(json.loads(text)["commit"])


def report(cells: Iterable[Cell]) -> str:
    """Markdown: a summary of stages, then a row for each cell."""
    last = {(c["precision"], c["batch"], c["network"]): c for c in cells}
    stages: dict[tuple[str, int], list[Cell]] = {}
    for cell in last.values():
        stages.setdefault((cell["precision"], cell["batch"]), []).append(cell)
    rows = ["| precision | batch | cells | geometric mean | least | under 1 | failed |"]
    rows.append("|---|---|---|---|---|---|---|")
    for (precision, batch), found in stages.items():
        rows.append(f"| {precision} | {batch} | {summary(found)} |")
    every = [cell for found in stages.values() for cell in found]
    rows.append(f"| all | | {summary(every)} |")
    engines = list(dict.fromkeys(e for c in every for e in c["ms"]))
    rows += ["", "| network | precision | batch | " + " | ".join(engines) + " | ratio |"]
    rows.append("|" + "---|" * (len(engines) + 4))
    for found in stages.values():
        for cell in sorted(found, key=lambda c: str(c["network"])):
            times = [_ms(cell, engine) for engine in engines]
            names = [cell["network"], cell["precision"], str(cell["batch"])]
            rows.append("| " + " | ".join((*names, *times, _ratio_text(cell))) + " |")
    return "\n".join(rows)


def ratio(cell: Cell) -> float | None:
    """How many times as long the fastest peer takes; None where either is missing."""
    peers = [ms for engine, ms in cell["ms"].items() if engine != OWN]
    return min(peers) / cell["ms"][OWN] if OWN in cell["ms"] and peers else None


def summary(cells: Sequence[Cell]) -> str:
    """Columns about some cells: how many, geometric mean, least, those under 1, what failed."""
    found = [(r, str(c["network"])) for c in cells if (r := ratio(c)) is not None]
    if not found:
        return f"{len(cells)} | - | - | - | {_failures(cells)}"
    mean = math.exp(sum(math.log(r) for r, _ in found) / len(found))
    least, name = min(found)
    under = sum(r < 1 for r, _ in found)
    return f"{len(cells)} | {mean:.2f} | {least:.2f} ({name}) | {under} | {_failures(cells)}"


def _failures(cells: Sequence[Cell]) -> str:
    failed = [f"{c['network']}: {engine}" for c in cells for engine in c["failed"]]
    return ", ".join(failed) or "none"


def _ms(cell: Cell, engine: str) -> str:
    if engine in cell["failed"]:
        return "failed"
    return f"{cell['ms'][engine]:.3f}" if engine in cell["ms"] else "-"


def _ratio_text(cell: Cell) -> str:
    found = ratio(cell)
    return "-" if found is None else f"{found:.2f}"


if __name__ == "__main__":
    main()
