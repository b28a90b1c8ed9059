"""What the chain's figures say: tables in Markdown, and the plot of the strategies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures import Results, markdown
from benchmarks.line_plot import Panel, line_plot
from minidnn.bench.results import interval

OWN = "minidnn"

Record = Mapping[str, Any]

NAMES = {
    "layers": "layer by layer",
    "one": "one step",
    "five": "five steps",
    "unrestricted": "unrestricted",
    "model": "by predicted time",
}


def tables(results: Results) -> str:
    """Every case: our time, the best peer's, and their ratio, with 95 % intervals; then all peers,
    each by the ratio in the turns that it took part in."""
    cases: dict[tuple[Any, ...], list[Record]] = {}
    for record in results.part("compare").values():
        key = record["variant"], record["blocks"], tuple(record["shape"])
        cases.setdefault(key, []).append(record)
    times = []
    for records in cases.values():
        record, peer = best_peer(records)
        rows = [record["engines"][name] for name in (OWN, peer)]
        own, other = (interval(record["seconds"][name], 1e3, 2) for name in (OWN, peer))
        gain = interval(record["ratio"][peer], 1.0, 2)
        kernels = " / ".join(str(row["about"].get("kernels")) for row in rows)
        times.append([*_begin(record), own, peer, other, gain, kernels])
    engines = (n for records in cases.values() for r in records for n in r["engines"])
    names = [name for name in dict.fromkeys(engines) if name != OWN]
    ratios = []
    for records in cases.values():
        cells = dict.fromkeys(names, "")
        for record in records:
            cells |= {name: interval(found, 1.0, 1) for name, found in record["ratio"].items()}
        deviation = max(row["deviation"] for r in records for row in r["engines"].values())
        ratios.append([*_begin(records[0]), *cells.values(), f"{deviation:.1e}"])
    first = ("chain", "blocks", "size")
    titles = (*first, "minidnn ms", "best peer", "ms", "times faster", "kernels")
    note = "Times as long as minidnn, and the largest deviation from its output:"
    return "\n\n".join(
        [markdown(titles, times), note, markdown((*first, *names, "deviation"), ratios)]
    )


def best_peer(records: Sequence[Record]) -> tuple[Record, str]:
    """The record of a case that has the fastest engine but for ours, and that engine."""

    found = ((record, name) for record in records for name in record["ratio"])
    return min(found, key=lambda one: float(one[0]["ratio"][one[1]]["value"]))


def _begin(record: Record) -> tuple[Any, ...]:
    return record["variant"], record["blocks"], _size(record)


def _size(record: Record) -> str:
    return "x".join(map(str, record["shape"]))


def plot(results: Results) -> str:
    """Milliseconds over the number of blocks, a line for each strategy, a panel for each size."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for record in results.part("strategies").values():
        lines = panels.setdefault(_size(record), {})
        for name, seconds in record["seconds"].items():
            point = (record["blocks"], 1e3 * seconds["value"])
            lines.setdefault(NAMES[name], []).append(point)
    return line_plot(
        [Panel(size, {n: sorted(p) for n, p in lines.items()}) for size, lines in panels.items()],
        "blocks of max pooling, normalization, ReLU",
        "milliseconds",
    )
