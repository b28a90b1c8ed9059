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
    screened = results.part("screen")
    for key, record in results.part("compare").items():
        peer, gain = best_peer(record["engines"])
        both = ("minidnn", peer)
        own, other = (median([1e3 * s for s in record["engines"][name]]) for name in both)
        about = [screened[key]["engines"][name]["about"] for name in both]
        kernels = " / ".join(str(each.get("kernels")) for each in about)
        print(f"{_begin(record)} {own:.2f} | {peer} | {other:.2f} | {gain:.2f} | {kernels} |")
    print("\nAll engines, ms (in brackets: one after the other, the best of three runs)\n")
    names = list(next(iter(screened.values()))["engines"])
    print(f"| chain | blocks | size | {' | '.join(names)} | largest deviation |")
    print("|---" * (4 + len(names)) + "|")
    for key, record in screened.items():
        times = results.part("compare").get(key, {"engines": {}})["engines"]
        cells = [
            f"{1e3 * statistics.median(times[name]):.2f}"
            if name in times
            else f"({1e3 * record['engines'][name]['seconds']:.0f})"
            for name in names
        ]
        deviation = max(row["deviation"] for row in record["engines"].values())
        print(f"{_begin(record)} {' | '.join(cells)} | {deviation:.1e} |")


def best_peer(engines: Mapping[str, list[float]]) -> tuple[str, Estimate]:
    """The engine that is fastest but for ours, and how many times as long it takes."""
    medians = {n: statistics.median(times) for n, times in engines.items() if n != "minidnn"}
    peer = min(medians, key=medians.__getitem__)
    return peer, ratio(engines[peer], engines["minidnn"])


def _begin(record: Mapping[str, Any]) -> str:
    return f"| {record['variant']} | {record['blocks']} | {_size(record)} |"


def _size(record: Mapping[str, Any]) -> str:
    return "x".join(map(str, record["shape"]))


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
