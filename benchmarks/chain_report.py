"""What the chain's figures say: tables in Markdown, and the plot of the strategies."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Results
from benchmarks.line_plot import Panel, line_plot
from minidnn.bench.statistics import Estimate, median, ratio

NAMES = {
    "layers": "layer by layer",
    "one": "one step",
    "five": "five steps",
    "unrestricted": "unrestricted",
    "model": "by predicted time",
}


def print_tables(results: Results) -> None:
    """Every case: our time, the best peer's, and their ratio, with 95 % intervals."""
    print(results.machine)
    print("| chain | blocks | size | minidnn ms | best peer | ms | times faster | kernels |")
    print("|---|---|---|---|---|---|---|---|")
    for record in results.part("compare").values():
        engines = record["engines"]
        peer, gain = best_peer(engines)
        own, other = (median([1e3 * s for s in engines[n]["seconds"]]) for n in ("minidnn", peer))
        kernels = " / ".join(str(engines[n]["about"].get("kernels")) for n in ("minidnn", peer))
        print(
            f"| {record['variant']} | {record['blocks']} | {_size(record)} | {own:.2f} "
            f"| {peer} | {other:.2f} | {gain:.2f} | {kernels} |"
        )
    print("\nAll engines, ms (in brackets: the better of two runs, not taken in turn)\n")
    names = list(next(iter(results.part("compare").values()))["engines"])
    print(f"| chain | blocks | size | {' | '.join(names)} |")
    print("|---" * (3 + len(names)) + "|")
    for record in results.part("compare").values():
        cells = [_milliseconds(record["engines"][name]) for name in names]
        print(
            f"| {record['variant']} | {record['blocks']} | {_size(record)} | {' | '.join(cells)} |"
        )


def best_peer(engines: Mapping[str, Any]) -> tuple[str, Estimate]:
    """The engine that is fastest but for ours, and how many times as long it takes."""
    medians = {
        name: statistics.median(row["seconds"])
        for name, row in engines.items()
        if name != "minidnn" and row["seconds"]
    }
    peer = min(medians, key=medians.__getitem__)
    return peer, ratio(engines[peer]["seconds"], engines["minidnn"]["seconds"])


def _size(record: Mapping[str, Any]) -> str:
    return "x".join(map(str, record["shape"]))


def _milliseconds(row: Mapping[str, Any]) -> str:
    if row["seconds"]:
        return f"{1e3 * statistics.median(row['seconds']):.2f}"
    return f"({1e3 * row['first_seconds']:.0f})"


def write_plot(results: Results, path: Path) -> None:
    """Milliseconds over the number of blocks, a line for each strategy, a panel for each size."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in results.part("strategies").values():
        lines = panels.setdefault(_size(record), {})
        for name, row in record["strategies"].items():
            point = (record["blocks"], 1e3 * statistics.median(row["seconds"]))
            lines.setdefault(NAMES[name], []).append(point)
    text = line_plot(
        [Panel(size, {n: sorted(p) for n, p in lines.items()}) for size, lines in panels.items()],
        "blocks of max pooling, normalization, ReLU",
        "milliseconds",
    )
    path.write_text(text, encoding="utf-8")
