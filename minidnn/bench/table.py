"""Results as a table, in plain text or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from minidnn.bench.engines import NAMES, OWN
from minidnn.bench.results import Record, failed

TITLES = ("engine", "ms", "ratio", "deviation", "compile s", "memory MB", "precision", "version")


def rows(engines: Mapping[str, Record]) -> list[tuple[str, ...]]:
    """A row of cells for each engine of a case: minidnn's first, the others by time."""
    known = {name: record for name, record in engines.items() if name in NAMES}

    def order(name: str) -> tuple[bool, bool, float]:
        record = known[name]
        return (name != OWN, failed(record), 0.0 if failed(record) else record["seconds"]["value"])

    return [_row(name, known[name]) for name in sorted(known, key=order)]


def _row(name: str, record: Record) -> tuple[str, ...]:
    if failed(record):
        first = record["error"].splitlines()[0]
        return (name, "failed", "", "", "", "", "", first)
    return (
        name,
        interval(record["seconds"], 1e3, 2),
        interval(record["ratio"], 1.0, 2) if "ratio" in record else "",
        "not finite" if record["deviation"] is None else f"{record['deviation']:.1e}",
        f"{record['compile_seconds']:.2f}",
        f"{record['memory_bytes'] / 1e6:.0f}",
        str(record.get("precision", "")),
        re.split("[-+]", str(record.get("version", "")))[0],
    )


def interval(estimate: Mapping[str, float], scale: float, digits: int) -> str:
    """``7.31 [7.20, 7.42]``."""
    value, low, high = (f"{estimate[key] * scale:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def text(name: str, engines: Mapping[str, Record]) -> str:
    """The table of a case, in columns."""
    table = [TITLES, *rows(engines)]
    widths = [max(len(row[i]) for row in table) for i in range(len(TITLES))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    return "\n".join([name, *(f"  {line}".rstrip() for line in lines)])


def markdown(cases: Sequence[tuple[str, Mapping[str, Record]]]) -> str:
    """One row a case: minidnn's time, the others' time over it, and the deviations' range."""
    names = [n for n in NAMES if n != OWN and any(n in engines for _, engines in cases)]
    lines = [f"| case | {OWN}, ms | {' | '.join(names)} | deviation |"]
    lines.append("|" + "---|" * (len(names) + 3))
    for case, engines in cases:
        own = engines[OWN]
        cells = [case, interval(own["seconds"], 1e3, 2)]
        for name in names:
            record = engines.get(name)
            there = record is not None and not failed(record)
            cells.append(interval(record["ratio"], 1.0, 2) if record and there else "-")
        cells.append("not finite" if own["deviation"] is None else f"{own['deviation']:.1e}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
