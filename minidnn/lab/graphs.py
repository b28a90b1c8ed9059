"""The fifteen graphs of a study, over blocks and parameters: each from times, the compiler, the
model, or counters; or why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
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


def _even(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    """The share of the time in which a multiprocessor has blocks, were all blocks alike."""
    if "grid" not in cell:
        return None
    each = prod(cell["grid"]) / machine["multiprocessors"]
    return 100 * each / ceil(each)


def _filled(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    """The occupancy, less the places that the last wave of blocks leaves empty."""
    if "waves" not in cell:
        return None
    return float(100 * cell["occupancy"] * cell["waves"] / ceil(cell["waves"]))


def _working_cycles(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    share, cycles = _even(cell, machine), _cycles(cell, machine)
    return None if share is None or cycles is None else share / 100 * cycles


def _bytes_a_cycle(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    if "multiprocessors" not in machine:
        return None
    return float(machine["bandwidth"] / machine["hertz"] / machine["multiprocessors"])


def _hits(level: str, below: str) -> _Figure:
    def figure(cell: Cell, machine: Mapping[str, Any]) -> float | None:
        if "grid" not in cell:
            return None
        asked, passed = cell["bytes"][level], cell["bytes"][below]
        return max(0.0, 100 * (1 - passed / asked))

    return figure


def _issued(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    if "grid" not in cell:
        return None
    return float(4 * cell["seconds_by_part"]["issue"] / cell["measured_seconds"])


@dataclass(frozen=True)
class StudyGraph:
    """A graph.

    Attributes:
        title: what it shows.
        y: the figure, and its axis.
        x: None where it is drawn over configurations.
        second: a name and a figure that is drawn beside ``y``.
        calculated: the counterpart without counters, for studies that have none.
    """

    title: str
    y: _Figure
    y_axis: Scale
    x: _Figure | None = None
    x_axis: Scale = _BY
    second: tuple[str, _Figure] | None = None
    calculated: StudyGraph | None = None


def _theoretical(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return 100 * cell["occupancy"] if "occupancy" in cell else None


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
        calculated=StudyGraph("2. Multiprocessor efficiency", _even, Scale("active, %")),
    ),
    StudyGraph("3. Compute throughput over time", _COMPUTE, Scale("GFLOP/s"), _milliseconds, _TIME),
    StudyGraph(
        "4. Memory throughput over time", _bytes("memory"), Scale("GB/s"), _milliseconds, _TIME
    ),
    StudyGraph(
        "5. Memory throughput over the ratio of clocks",
        _counter("memory throughput", 1e-9),
        Scale("GB/s"),
        _counter("memory clock to multiprocessor clock"),
        Scale("memory clock / multiprocessor clock"),
        calculated=StudyGraph(
            "5. Memory throughput over the bytes that memory has for a multiprocessor's cycle",
            _bytes("memory"),
            Scale("GB/s"),
            _bytes_a_cycle,
            Scale("bytes"),
        ),
    ),
    StudyGraph(
        "6. Cache hit rates",
        _counter("L1 hit rate", 100),
        _SHARE,
        second=("L2", _counter("L2 hit rate", 100)),
        calculated=StudyGraph(
            "6. Cache hit rates",
            _hits("L1", "L2"),
            _SHARE,
            second=("L2", _hits("L2", "memory")),
        ),
    ),
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
        calculated=StudyGraph(
            "8. Multiprocessor utilization over memory throughput",
            _even,
            _SHARE,
            _bytes("memory"),
            Scale("GB/s"),
        ),
    ),
    StudyGraph(
        "9. Achieved over theoretical occupancy",
        _counter("occupancy", 100),
        Scale("achieved, %"),
        _theoretical,
        Scale("theoretical, %"),
        calculated=StudyGraph(
            "9. Achieved over theoretical occupancy",
            _filled,
            Scale("achieved, %"),
            _theoretical,
            Scale("theoretical, %"),
        ),
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
        calculated=StudyGraph(
            "14. Active cycles over time",
            _working_cycles,
            Scale("million cycles"),
            _milliseconds,
            _TIME,
        ),
    ),
    StudyGraph(
        "15. Instructions a cycle and multiprocessor",
        _counter("instructions per cycle"),
        Scale("instructions a cycle"),
        calculated=StudyGraph(
            "15. Instructions a cycle and multiprocessor", _issued, Scale("instructions a cycle")
        ),
    ),
)


def graph_picture(
    graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]
) -> tuple[str, str | None]:
    """The title and the picture of the cells of a shape, calculated where nothing was counted; None
    if there is no picture."""
    if series := _series(graph, cells, machine):
        return graph.title, points(series, graph.x_axis, graph.y_axis, joined=not graph.x)
    if (other := graph.calculated) and (series := _series(other, cells, machine)):
        picture = points(series, other.x_axis, other.y_axis, joined=not other.x)
        return f"{other.title}, calculated", picture
    return graph.title, None


def draw_graph(graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]) -> str:
    """The graph as a figure of a page; or why there is none."""
    title, picture = graph_picture(graph, cells, machine)
    return figure(title, picture or paragraph(_WHY_MISSING, "soft"))


def _series(
    graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]
) -> dict[str, list[Dot]]:
    series: dict[str, list[Dot]] = {}
    order = list(dict.fromkeys(configuration(cell) for cell in cells))
    for cell in sorted(cells, key=lambda cell: order.index(configuration(cell))):
        place = configuration(cell) if graph.x is None else graph.x(cell, machine)
        drawn = [(cell["step"], graph.y)]
        if graph.second is not None:
            drawn.append((f"{cell['step']}, {graph.second[0]}", graph.second[1]))
        for name, figure_of in drawn:
            y = figure_of(cell, machine)
            if y and place is not None:
                told = f"{configuration(cell)}: {y:.4g}"
                series.setdefault(name, []).append(Dot(place, y, told))
    return series


_WHY_MISSING = "Missing: it is about a GPU's multiprocessors, or nothing of it was measured."
