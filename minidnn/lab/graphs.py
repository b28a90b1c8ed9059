"""The fifteen graphs of a study, over blocks and parameters: each from times, the compiler, the
model, or counters; or why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..pages.charts import Dot, Scale, figure, points
from ..pages.page import paragraph

Cell = Mapping[str, Any]
_Figure = Callable[[Cell, Mapping[str, Any]], float | None]

_BY = Scale("block, parameters")


def configuration(cell: Cell) -> str:
    """Block and parameters of a cell, in a few letters."""
    own = [f"{name[:1]}{number}" for name, number in cell["parameters"].items()]
    block = ["x".join(map(str, cell["block"]))] if cell["block"] else []
    return " ".join([*block, *own]) or "-"


def _milliseconds(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return 1e3 * float(cell["measured_seconds"])


def _rate(key: Callable[[Cell], float]) -> _Figure:
    def figure(cell: Cell, machine: Mapping[str, Any]) -> float | None:
        return key(cell) / float(cell["measured_seconds"]) / 1e9

    return figure


def _counter(metric: str, factor: float = 1.0) -> _Figure:
    def figure(cell: Cell, machine: Mapping[str, Any]) -> float | None:
        value = cell.get("counters", {}).get(metric)
        return None if value is None else factor * float(value)

    return figure


def _bytes(level: str) -> _Figure:
    return _rate(lambda cell: float(cell["bytes"].get(level, 0.0)))


def _bandwidth_share(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return 100 * cell["bytes"]["memory"] / cell["measured_seconds"] / float(machine["bandwidth"])


def _pressure(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return 100 * cell["registers"] / 255 if "registers" in cell else None


def _cycles(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return cell["measured_seconds"] * machine["hertz"] / 1e6 if "hertz" in machine else None


def _clock_ratio(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return _counter("memory clock to multiprocessor clock")(cell, machine)


@dataclass(frozen=True)
class StudyGraph:
    """A graph: ``x`` is None where it is drawn over configurations."""

    title: str
    y: _Figure
    y_axis: Scale
    x: _Figure | None = None
    x_axis: Scale = _BY


_TIME = Scale("execution time, ms", log=True)
_COMPUTE = _rate(lambda cell: float(cell["operations"]))
_SHARE = Scale("%")
_ACTIVE = _counter("multiprocessor efficiency", 100)

GRAPHS = (
    StudyGraph("1. Execution time", _milliseconds, _TIME),
    StudyGraph(
        "2. Multiprocessor efficiency",
        _ACTIVE,
        Scale("active, %"),
    ),
    StudyGraph("3. Compute throughput over time", _COMPUTE, Scale("GFLOP/s"), _milliseconds, _TIME),
    StudyGraph(
        "4. Memory throughput over time", _bytes("memory"), Scale("GB/s"), _milliseconds, _TIME
    ),
    StudyGraph(
        "5. Memory throughput over the ratio of clocks",
        _counter("memory throughput", 1e-9),
        Scale("GB/s"),
        _clock_ratio,
        Scale("memory clock / multiprocessor clock"),
    ),
    StudyGraph("6. L1 hit rate", _counter("L1 hit rate", 100), _SHARE),
    StudyGraph(
        "7. L1 throughput over L2 throughput",
        _bytes("L1"),
        Scale("L1, GB/s"),
        _bytes("L2"),
        Scale("L2, GB/s"),
    ),
    StudyGraph(
        "8. Multiprocessor utilization over memory throughput",
        _ACTIVE,
        _SHARE,
        _bytes("memory"),
        Scale("GB/s"),
    ),
    StudyGraph(
        "9. Achieved over theoretical occupancy",
        _counter("occupancy", 100),
        Scale("achieved, %"),
        lambda cell, machine: 100 * cell["occupancy"] if "occupancy" in cell else None,
        Scale("theoretical, %"),
    ),
    StudyGraph(
        "10. Variability", lambda cell, machine: 100 * float(cell["variability"]), Scale("%")
    ),
    StudyGraph("11. Memory bandwidth utilization", _bandwidth_share, _SHARE),
    StudyGraph(
        "12. Register pressure over time", _pressure, Scale("of 255, %"), _milliseconds, _TIME
    ),
    StudyGraph(
        "13. Elapsed cycles, at the nominal clock", _cycles, Scale("million cycles", log=True)
    ),
    StudyGraph(
        "14. Active cycles over time",
        _counter("active cycles", 1e-6),
        Scale("million cycles"),
        _milliseconds,
        _TIME,
    ),
    StudyGraph(
        "15. Instructions a cycle and multiprocessor",
        _counter("instructions per cycle"),
        Scale("instructions a cycle"),
    ),
)


def draw_graph(graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]) -> str:
    """The graph of the cells of a shape, or why there is none."""
    series: dict[str, list[Dot]] = {}
    order = list(dict.fromkeys(configuration(cell) for cell in cells))
    for cell in sorted(cells, key=lambda cell: order.index(configuration(cell))):
        y, x = graph.y(cell, machine), configuration(cell) if graph.x is None else None
        number = graph.x(cell, machine) if graph.x is not None else None
        place: float | str | None = x if graph.x is None else number
        if not y or place is None:
            continue
        told = f"{configuration(cell)}: {y:.4g}"
        series.setdefault(cell["step"], []).append(Dot(place, y, told))
    if not series:
        return figure(graph.title, paragraph(_why_missing(machine), "soft"))
    picture = points(series, graph.x_axis, graph.y_axis, joined=graph.x is None)
    return figure(graph.title, picture)


def _why_missing(machine: Mapping[str, Any]) -> str:
    if "isa" in machine:
        return "Missing: it is about a GPU's multiprocessors, or needs counters."
    return (
        "Missing: it needs hardware counters, which were not read for this study. They are read "
        "by Nsight Compute where its use is permitted."
    )
