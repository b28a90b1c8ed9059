"""The fifteen graphs of a study's cells, over blocks and parameters, or of one figure over another.

A graph reads times, compiler output, or hardware counters.  Where nothing was counted, it shows the
figure that the model calculates instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from ..pages.charts import Chart, Dot, Scale, chart_figure, figure

Cell = Mapping[str, Any]
_Figure = Callable[[Cell, Mapping[str, Any]], float | None]

_BY = Scale("block, parameters")


def configuration(cell: Cell) -> str:
    """The block and the parameters of a cell, abbreviated: ``16x16 G8``."""
    parameters = [f"{name[:1]}{number}" for name, number in cell["parameters"].items()]
    block = ["x".join(map(str, cell["block"]))] if cell["block"] else []
    return " ".join([*block, *parameters]) or "-"


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
    """The percentage of the time in which an average multiprocessor has blocks, if all blocks take
    equally long."""
    if "grid" not in cell:
        return None
    each = prod(cell["grid"]) / machine["multiprocessors"]
    return 100 * each / ceil(each)


def _filled(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    """The occupancy in percent, reduced by the slots that the last wave of blocks leaves empty."""
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
    """A graph of the cells of a shape.

    Attributes:
        title: what it shows.
        see: what to look for in it.
        y: the figure on the vertical axis, ``y_axis``.
        x: the figure on the horizontal axis, ``x_axis``; None to draw over configurations.
        second: name and function of a second figure, which is drawn as rings.
        calculated: replaces ``y`` in studies without counters.
        calculated_x: replaces ``x`` and ``x_axis`` there, if they differ.
        calculated_second: replaces the function of ``second`` there.
    """

    title: str
    see: str
    y: _Figure
    y_axis: Scale
    x: _Figure | None = None
    x_axis: Scale = _BY
    second: tuple[str, _Figure] | None = None
    calculated: _Figure | None = None
    calculated_x: tuple[_Figure, Scale] | None = None
    calculated_second: _Figure | None = None


def _theoretical(cell: Cell, machine: Mapping[str, Any]) -> float | None:
    return 100 * cell["occupancy"] if "occupancy" in cell else None


_TIME = Scale("execution time, ms", log=True)
_COMPUTE = _rate(lambda cell: float(cell["operations"]))
_SHARE = Scale("%")
_ACTIVE = _counter("multiprocessor efficiency", 100)

GRAPHS = (
    StudyGraph(
        "1. Execution time",
        "Lower is faster. A step whose points lie far apart depends on its block.",
        _milliseconds,
        _TIME,
    ),
    StudyGraph(
        "2. Multiprocessor efficiency",
        "Below 100 %, multiprocessors have no block for a part of the time: too few blocks, or a "
        "last wave that is nearly empty.",
        _ACTIVE,
        Scale("active, %"),
        calculated=_even,
    ),
    StudyGraph(
        "3. Compute throughput over time",
        "The best step is on the left and high up. All points of one shape lie on one curve, as "
        "they do the same work.",
        _COMPUTE,
        Scale("GFLOP/s"),
        _milliseconds,
        _TIME,
    ),
    StudyGraph(
        "4. Memory throughput over time",
        "High and on the right, a step is slow because it moves many bytes; low and on the right, "
        "it waits for something else.",
        _bytes("memory"),
        Scale("GB/s"),
        _milliseconds,
        _TIME,
    ),
    StudyGraph(
        "5. Memory throughput over the ratio of clocks",
        "Clocks that drift spread the points sideways; a throughput that follows them is bound by "
        "memory.",
        _counter("memory throughput", 1e-9),
        Scale("GB/s"),
        _counter("memory clock to multiprocessor clock"),
        Scale("memory clock / multiprocessor clock"),
        calculated=_bytes("memory"),
        calculated_x=(
            _bytes_a_cycle,
            Scale("bytes of memory for a multiprocessor's cycle"),
        ),
    ),
    StudyGraph(
        "6. Cache hit rates",
        "Dots are L1, rings are L2. High dots with low rings: what is read again is read within a "
        "block, as it should be.",
        _counter("L1 hit rate", 100),
        _SHARE,
        second=("L2", _counter("L2 hit rate", 100)),
        calculated=_hits("L1", "L2"),
        calculated_second=_hits("L2", "memory"),
    ),
    StudyGraph(
        "7. L1 throughput over L2 throughput",
        "The further above its L2 throughput a step's L1 throughput is, the more it finds in L1.",
        _bytes("L1"),
        Scale("L1, GB/s"),
        _bytes("L2"),
        Scale("L2, GB/s"),
    ),
    StudyGraph(
        "8. Multiprocessor utilization over memory throughput",
        "High up and on the left, multiprocessors are busy and memory is not; below, neither is.",
        _ACTIVE,
        _SHARE,
        _bytes("memory"),
        Scale("GB/s"),
        calculated=_even,
    ),
    StudyGraph(
        "9. Achieved over theoretical occupancy",
        "On the diagonal the occupancy is what registers and shared memory allow; below it, there "
        "are too few blocks, or their warps end too early.",
        _counter("occupancy", 100),
        Scale("achieved, %"),
        _theoretical,
        Scale("theoretical, %"),
        calculated=_filled,
    ),
    StudyGraph(
        "10. Variability",
        "The deviation of repeated measurements. Do not trust differences between steps that are "
        "smaller.",
        lambda cell, machine: 100 * float(cell["variability"]),
        Scale("%"),
    ),
    StudyGraph(
        "11. Memory bandwidth utilization",
        "Near 100 % only fewer bytes help; steps far below are bound by something else.",
        _bandwidth_share,
        _SHARE,
    ),
    StudyGraph(
        "12. Register pressure over time",
        "Register tiles move points up and to the left, until registers are spilled.",
        _pressure,
        Scale("of 255, %"),
        _milliseconds,
        _TIME,
    ),
    StudyGraph(
        "13. Elapsed cycles, at the nominal clock",
        "The same as time, for machines whose clocks differ.",
        _cycles,
        Scale("million cycles", log=True),
    ),
    StudyGraph(
        "14. Active cycles over time",
        "On a straight line all cycles are work; points below it had multiprocessors that waited.",
        _counter("active cycles", 1e-6),
        Scale("million cycles"),
        _milliseconds,
        _TIME,
        calculated=_working_cycles,
    ),
    StudyGraph(
        "15. Instructions a cycle and multiprocessor",
        "At most 4. A fast step may have few, if each of them does more work.",
        _counter("instructions per cycle"),
        Scale("instructions a cycle"),
        calculated=_issued,
    ),
)


def graph_chart(
    graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]
) -> Chart | None:
    """The graph of a shape's cells, from counters or else from the model; None if there is
    neither."""
    if series := _series(graph, cells, machine):
        return _chart(graph, graph.title, series)
    if graph.calculated is None:
        return None
    x, x_axis = graph.calculated_x or (graph.x, graph.x_axis)
    second = graph.calculated_second
    other = replace(
        graph,
        y=graph.calculated,
        x=x,
        x_axis=x_axis,
        second=(graph.second[0], second) if graph.second and second else None,
    )
    if series := _series(other, cells, machine):
        return _chart(other, f"{graph.title}, calculated", series)
    return None


def _chart(graph: StudyGraph, title: str, series: dict[str, list[Dot]]) -> Chart:
    return Chart(title, graph.see, series, graph.x_axis, graph.y_axis, is_line=not graph.x)


def draw_graph(graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]) -> str:
    """The graph as a figure of an HTML page, or a figure that says why it is missing."""
    chart = graph_chart(graph, cells, machine)
    return figure(graph.title, "", _WHY_MISSING) if chart is None else chart_figure(chart)


def _series(
    graph: StudyGraph, cells: Sequence[Cell], machine: Mapping[str, Any]
) -> dict[str, list[Dot]]:
    series: dict[str, list[Dot]] = {}
    order = list(dict.fromkeys(configuration(cell) for cell in cells))
    for cell in sorted(cells, key=lambda cell: order.index(configuration(cell))):
        x = configuration(cell) if graph.x is None else graph.x(cell, machine)
        drawn = [("", graph.y)]
        if graph.second is not None:
            drawn.append((f"{graph.second[0]}, ", graph.second[1]))
        for name, figure_of in drawn:
            y = figure_of(cell, machine)
            if y and x is not None:
                label = f"{name}{configuration(cell)}: {y:.4g}"
                dot = Dot(x, y, label, hollow=bool(name))
                series.setdefault(cell["step"], []).append(dot)
    steps = dict.fromkeys(cell["step"] for cell in cells)
    return {step: series[step] for step in steps if step in series}


_WHY_MISSING = "Missing: it is about a GPU's multiprocessors, or nothing of it was measured."
