"""Results in one JSON file: by commit, then by machine, then by case, then by engine.

    {"format": "minidnn bench 1",
     "runs": {commit: {machine: {case: {"network": ..., ..., "engines": {engine: {...}}}}}}}

Files of several runs, commits and machines merge entry by entry.  Results are shown as tables in
plain text or Markdown, and as an SVG picture of each peer's time over minidnn's, with its
confidence interval, for each case.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import minidnn
from minidnn.bench.engines import NAMES, OWN
from minidnn.bench.networks import Case
from minidnn.errors import MiniDNNError
from minidnn.measure import write_figures

TITLES = ("engine", "ms", "ratio", "deviation", "compile s", "memory MB", "precision", "version")
LEFT, TOP, ROW, WIDTH, GAP = 310.0, 66.0, 15.0, 560.0, 10.0
COLOURS = (
    "#3465b0", "#8fb0e0", "#c77712", "#3c8a3f", "#b3394c", "#e08a98", "#7d4aa8", "#00808a",
    "#777777",
)  # fmt: skip
TEXT, FAINT, GRID = "#20242b", "#5c6470", "#d9dce1"


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
    """An estimate with its interval, scaled: ``7.31 [7.20, 7.42]``."""
    value, low, high = (f"{estimate[key] * scale:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def text(name: str, engines: Mapping[str, Record]) -> str:
    """The table of a case, as aligned text."""
    table = [TITLES, *rows(engines)]
    widths = [max(len(row[i]) for row in table) for i in range(len(TITLES))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    return "\n".join([name, *(f"  {line}".rstrip() for line in lines)])


def markdown(cases: Sequence[tuple[str, Mapping[str, Record]]]) -> str:
    """A table with a row for each case: minidnn's time, the peers' times over it, and minidnn's
    deviation."""
    names = [n for n in NAMES if n != OWN and any(n in engines for _, engines in cases)]
    lines = [f"| case | {OWN}, ms | {' | '.join(names)} | deviation |"]
    lines.append("|" + "---|" * (len(names) + 3))
    for case, engines in cases:
        own = engines[OWN]
        cells = [case, interval(own["seconds"], 1e3, 2)]
        for name in names:
            record = engines.get(name)
            succeeded = record is not None and not failed(record)
            cells.append(interval(record["ratio"], 1.0, 2) if record and succeeded else "-")
        cells.append("not finite" if own["deviation"] is None else f"{own['deviation']:.1e}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


FORMAT = "minidnn bench 1"
#: Keys of a record that only a resumed run needs; they are no part of a merged result.
WORKING = ("rounds", "begun")
Record = dict[str, Any]


@dataclass
class Results:
    """The content of a file: ``runs[commit][machine][case]["engines"][engine]`` is a record."""

    runs: dict[str, dict[str, dict[str, Record]]]

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file; empty if there is no such file.

        Raises:
            MiniDNNError: it cannot be read, or has another format.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError) as error:
            raise MiniDNNError(f"{path} cannot be read as results of bench: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise MiniDNNError(f"{path} has no results of bench (no 'format': {FORMAT!r})")
        runs = document.get("runs")
        if not isinstance(runs, dict):
            raise MiniDNNError(f"{path} is damaged: its 'runs' are {type(runs).__name__}, no dict")
        return cls(runs)

    def write(self, path: Path) -> None:
        """Writes the file atomically.

        Raises:
            MiniDNNError: it cannot be written.
        """
        try:
            write_figures(path, {"format": FORMAT, "runs": self.runs})
        except OSError as error:
            raise MiniDNNError(f"{path} cannot be written: {error.strerror}") from error

    def merge(self, other: Results) -> None:
        """Adds the records of ``other``, without the times of single rounds.  Where both have a
        record of an engine, the later one stays."""
        for commit, machine, case, entry in other.cases():
            mine = self.entry(commit, machine, case, entry)
            for engine, record in entry["engines"].items():
                old = mine.get(engine)
                if old is None or old["measured"] <= record["measured"]:
                    mine[engine] = {k: v for k, v in record.items() if k not in WORKING}

    def cases(self) -> Iterator[tuple[str, str, str, Record]]:
        """Commit, machine, name and entry of every case."""
        for commit, machines in self.runs.items():
            for machine, cases in machines.items():
                for case, entry in cases.items():
                    yield commit, machine, case, entry

    def entry(self, commit: str, machine: str, case: str, about: Record) -> dict[str, Record]:
        """The records of a case by engine, to be updated in place; ``about`` describes a new
        case."""
        cases = self.runs.setdefault(commit, {}).setdefault(machine, {})
        fresh = {key: value for key, value in about.items() if key != "engines"}
        engines: dict[str, Record] = cases.setdefault(case, fresh | {"engines": {}})["engines"]
        return engines

    def records(self, commit: str, machine: str, case: Case) -> dict[str, Record]:
        """The records of a case by engine, to be updated in place."""
        return self.entry(commit, machine, case.name, asdict(case))


def commit() -> str:
    """The key of results for this minidnn: the commit of its checkout with a digest of uncommitted
    changes, or the version of an installed copy.
    """
    folder = Path(minidnn.__file__).parent
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    listed = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
    if not head or not listed:
        return f"version {minidnn.__version__}"
    changes = _git(folder, "diff", "HEAD", "--", ":/minidnn", ":/models")
    changed = hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ""
    return head.strip() + (f"+{changed}" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    """The output of a git command; "" if it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def failed(record: Mapping[str, Any]) -> bool:
    return "error" in record


def to_svg(cases: Sequence[tuple[str, Mapping[str, Record]]], title: str) -> str:
    """The picture of all ratios, as SVG.  ``cases``: names, and records by engine; failed ones are
    left out."""
    shown = [(name, _ratios(engines)) for name, engines in cases]
    shown = [(name, ratios) for name, ratios in shown if ratios]
    values = [e[key] for _, ratios in shown for e in ratios.values() for key in ("low", "high")]
    ticks = _ticks(min([1.0, *values]), max([1.0, *values]))
    names = [n for n in NAMES if any(n in ratios for _, ratios in shown)]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = TOP + sum(len(ratios) * ROW + GAP for _, ratios in shown) + 24

    def x(value: float) -> float:
        low, high = math.log(ticks[0]), math.log(ticks[-1])
        return LEFT + WIDTH * (math.log(value) - low) / (high - low)

    body = [_text(12, 20, title, TEXT, "start", bold=True)]
    body.append(_text(12, 38, f"time of a peer over {OWN}'s; right of 1: {OWN} is faster", FAINT))
    for tick in ticks:
        body.append(
            f'<path d="M{x(tick):.1f},{TOP - 6:.0f} V{height - 18:.0f}" '
            f'stroke="{TEXT if tick == 1 else GRID}"/>'
        )
        body.append(_text(x(tick), height - 5, f"{tick:g}", FAINT, "middle"))
    y = TOP
    for name, ratios in shown:
        body.append(_text(12, y + ROW * 0.7, name, TEXT, bold=True))
        for engine, estimate in ratios.items():
            body += _mark(x, y + ROW / 2, engine, estimate, colours[engine])
            y += ROW
        y += GAP
    size = f'width="{LEFT + WIDTH + 130:.0f}" height="{height:.0f}"'
    style = 'font-family="sans-serif" font-size="11"'
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{lines}\n</svg>\n'
    )


def _ratios(engines: Mapping[str, Record]) -> dict[str, Mapping[str, float]]:
    return {
        name: engines[name]["ratio"]
        for name in NAMES
        if name in engines and not failed(engines[name]) and "ratio" in engines[name]
    }


def _mark(
    x: Callable[[float], float], y: float, engine: str, estimate: Mapping[str, float], colour: str
) -> list[str]:
    low, value, high = (x(estimate[key]) for key in ("low", "value", "high"))
    label = f"{engine} {estimate['value']:.2f}"
    return [
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
        'stroke-width="2.5" stroke-opacity="0.5"/>',
        f'<circle cx="{value:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>',
        _text(high + 7, y + 4, label, colour),
    ]


def _ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: round numbers that enclose a range, 1 among them."""
    steps = sorted(d * 10.0**e for e in range(-3, 4) for d in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7.5))
    below = max(s for s in steps if s <= low or s == steps[0])
    above = min(s for s in steps if s >= high * 1.001 or s == steps[-1])
    inside = [s for s in steps if below <= s <= above]
    # At most a dozen ticks.
    while len(inside) > 12:
        inside = [inside[0], *inside[2:-1:2], inside[-1]]
    return sorted({*inside, 1.0})


def _text(
    x: float, y: float, text: str, colour: str, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )
