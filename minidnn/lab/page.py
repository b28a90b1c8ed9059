"""HTML pages of studies, tunings, and the list of ladders; studies as SVG or PNG pictures.

Pages need no script, no network and no other file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..pages.charts import (
    SHEET_FONTS,
    Bar,
    Chart,
    Dot,
    Scale,
    bar_picture,
    bars,
    chart_figure,
    chart_picture,
    figure,
    sheet,
)
from ..pages.page import code, details, difference, guide, heading, page, paragraph, table
from .ceilings import fastest, fastest_of_engine
from .counters import METRICS
from .explain import best_cells, explain, model_error
from .graphs import GRAPHS, configuration, draw_graph, graph_chart
from .model import Roofline
from .step import Ladder
from .tuner import StepTuning

_ACROSS = 3
_TWICE = 2.0
"""Pixels of the PNG for each SVG unit."""
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    f'<text y="15" font-family="{SHEET_FONTS}">{{}}</text></svg>'
)
"""An SVG of one letter, which stays blank where no font is found; tells whether PNGs have text."""


def listing_page(ladders: Iterable[Ladder]) -> str:
    """The page of all ladders with their steps, and of the metrics."""
    return page("The laboratory", _listing(ladders))


def _listing(ladders: Iterable[Ladder]) -> Iterator[str]:
    for ladder in ladders:
        shape = ", ".join(f"{name} {number}" for name, number in asdict(ladder.shape).items())
        rows = [[step.name, step.title, step.idea, step.expectation] for step in ladder.steps]
        steps = table(["step", "title", "idea", "expect"], rows, ("title", "idea", "expect"))
        yield details(f"{ladder.name}: {ladder.title}", [paragraph(shape, "soft"), steps])
    yield details("Metrics", [_metrics()], True)


def _metrics() -> str:
    rows = [[one.name, one.unit or "-", one.formula, one.counter or "-"] for one in METRICS]
    text = ("formula", "counter")
    return table(["metric", "unit", *text], rows, text)


def tuning_page(tuning: StepTuning, ladder: Ladder) -> str:
    """The page of a tuning: the measured points from fast to slow, and the model's predictions."""
    return page(f"{ladder.name}: {tuning.step}, tuned", _tuning(tuning))


def _tuning(tuning: StepTuning) -> Iterator[str]:
    loss = f"takes {tuning.loss:.2f} times as long as the best" if tuning.loss else "is not right"
    yield paragraph(
        f"{len(tuning.tried)} points were tried, {tuning.refused} more cannot run. The model's own "
        f"choice {loss}."
    )
    timed = [{"step": tuning.step, **cell} for cell in tuning.tried if "measured_seconds" in cell]
    timed.sort(key=lambda cell: float(cell["measured_seconds"]))
    rows = [
        [
            configuration(cell),
            f"{1e3 * cell['measured_seconds']:.4f}",
            f"{1e3 * cell['predicted_seconds']:.4f}",
            f"{model_error(cell):.2f}",
        ]
        for cell in timed
    ]
    yield table(["block, parameters", "ms", "model ms", "error"], rows)
    if timed:
        yield '<div class="charts">' + chart_figure(prediction(timed)) + "</div>"
    for cell in tuning.tried:
        if "failed" in cell:
            yield paragraph(f"{configuration(cell)} failed: {cell['failed']}", "soft")


Cell = Mapping[str, Any]


def study_page(study: Mapping[str, Any], ladder: Ladder) -> str:
    """A study as one HTML page, which needs no network, no script and no other file.

    >>> from minidnn import lab
    >>> study = lab.load_study(lab.recorded_studies()["conv"])
    >>> text = lab.study_page(study, lab.ladder_of("conv"))
    >>> text[:15]
    '<!DOCTYPE html>'

    Args:
        study: what :func:`model`, :func:`run` or :func:`load_study` gave.
        ladder: that it is of.

    Returns:
        The text of the page: for each shape the ladder beside its ceilings, what limits each step,
        predictions beside measurements, and metrics over blocks; the roofline; the steps' sources.
    """
    title = f"{ladder.title[0].upper()}{ladder.title[1:]}, on {study['machine']['name']}"
    return page(title, _parts(study, ladder))


def _reading(study: Mapping[str, Any], ladder: Ladder, measured: int) -> list[str]:
    """The introduction of a study's page: what it shows, how to read it, and its main result."""
    texts = [
        f"This page is a study of a ladder: {len(ladder.steps)} steps that compute the same on "
        f"{study['machine']['name']}, each with one idea more than the one before. "
        f"{measured} of {len(study['cells'])} combinations of step, shape and block were measured, "
        f"on {len(study['shapes'])} shapes of the data."
    ]
    best = sorted(_best([cell for cell in study["cells"] if cell["shape"] == 0]), key=_seconds)
    if len(best) > 1:
        first, last = best[0], best[-1]
        texts.append(
            f"On the first shape, {first['step']} is fastest with {1e3 * _seconds(first):.3g} ms, "
            f"{_seconds(last) / _seconds(first):.1f} times as fast as {last['step']}. Its limit is "
            f"in the table under the bars, with the number that says so and the step that is about "
            "it."
        )
    return [
        *texts,
        "Begin with the bars of the ladder: longer is faster, and the dashed lines are what "
        "libraries and the roofline reach. Then look in the small pictures at what changes from "
        "step to step: each shows a few neighbouring steps in colour, with all others in grey "
        "behind, on the same axes.",
        'A place such as "16x16 G8" is a block of 16 x 16 threads with the parameter GROUP = 8; '
        "on a CPU there is no block. Words with dots under them explain themselves when one points "
        "at them, and at the end of the page. The text of each step is below, under Steps.",
    ]


def _parts(study: Mapping[str, Any], ladder: Ladder) -> Iterator[str]:
    machine = study["machine"]
    measured = [cell for cell in study["cells"] if "measured_seconds" in cell]
    yield guide("How to read this", _reading(study, ladder, len(measured)))
    for number, shape in enumerate(study["shapes"]):
        cells = [cell for cell in study["cells"] if cell["shape"] == number]
        sizes = ", ".join(f"{name} {size}" for name, size in shape.items())
        libraries = study["libraries"][number] if "libraries" in study else {}
        rows = libraries.get("algorithms", [])
        yield details(f"Shape: {sizes}", _shape(cells, rows, machine, ladder), number == 0)
    yield heading("All shapes under the roofline")
    yield _roofline([cell for cell in study["cells"] if "predicted_seconds" in cell], machine)
    if example := ladder.example():
        yield details("A small case, worked out", [code(example)])
    yield "<h2>Steps</h2>"
    yield from _steps(study, ladder)
    yield "<h2>Metrics</h2>"
    yield details("Formulas, units and counters", [_metrics()])


def _best(cells: Sequence[Cell]) -> list[Cell]:
    """Each step's fastest cell, by prediction where nothing was measured."""
    known = [cell for cell in cells if "predicted_seconds" in cell and "failed" not in cell]
    return best_cells(cells) or best_cells(known, "predicted_seconds")


def _seconds(cell: Cell) -> float:
    return float(cell.get("measured_seconds", cell["predicted_seconds"]))


def _shape(
    cells: Sequence[Cell], rows: list[dict[str, Any]], machine: Mapping[str, Any], ladder: Ladder
) -> Iterator[str]:
    best = _best(cells)
    if best:
        see = "What each step reaches with its best block; longer is faster."
        yield figure("The ladder", bars(*ladder_rates(best, rows, machine)), see)
        yield "<h3>What limits each step</h3>"
        yield table(
            ["step", "block", "ms", "model ms", "error", "limit"],
            [_row(cell, machine, ladder) for cell in best],
            ("limit",),
        )
    reasons = {cell["step"]: cell.get("why_not", cell.get("failed")) for cell in cells}
    for step in {cell["step"] for cell in best}:
        reasons.pop(step, None)
    for step, reason in reasons.items():
        yield paragraph(f"{step} has no time: {reason}", "soft")
    if rows:
        yield details("Libraries", [_libraries(rows)])
    measured = [cell for cell in cells if "measured_seconds" in cell]
    if measured:
        yield "<h3>Prediction beside measurement, and metrics over blocks and parameters</h3>"
        drawn = [chart_figure(prediction(measured))]
        drawn += [draw_graph(graph, measured, machine) for graph in GRAPHS]
        yield '<div class="charts">' + "\n".join(drawn) + "</div>"


def ladder_rates(
    best: Sequence[Cell], rows: list[dict[str, Any]], machine: Mapping[str, Any]
) -> tuple[list[Bar], dict[str, float]]:
    """A bar for each step, in operations a second or, where nothing is computed, in bytes a second;
    and the rates of libraries and of the roofline, as marks."""
    computes = bool(best[0]["operations"])
    work = float(best[0]["operations"] or best[0]["bytes"]["memory"])
    unit = "GFLOP/s" if computes else "GB/s"
    bars_of_steps = []
    for cell in best:
        rate = work / _seconds(cell) / 1e9
        bars_of_steps.append(
            Bar(cell["step"], rate, f"{rate:,.0f} {unit}, {1e3 * _seconds(cell):.4g} ms")
        )
    marks = {}
    if (ceiling := fastest(rows)) is not None:
        marks[f"{ceiling['name']}, the fastest exact one"] = (
            work / ceiling["measured_seconds"] / 1e9
        )
    if (plain := fastest(rows, plain=True)) is not None and plain is not ceiling:
        marks[f"{plain['name']}, the fastest direct one"] = work / plain["measured_seconds"] / 1e9
    if (engine := fastest_of_engine(rows)) is not None:
        marks[f"{engine['name']} kernel"] = work / engine["measured_seconds"] / 1e9
    if computes:
        marks["the roofline"] = best[0]["attainable_performance"] / 1e9
    else:
        marks["the rate of a copy"] = machine["bandwidth"] / 1e9
    return bars_of_steps, dict(sorted(marks.items(), key=lambda mark: mark[1]))


def _row(cell: Cell, machine: Mapping[str, Any], ladder: Ladder) -> list[str]:
    measured = "measured_seconds" in cell
    names = [step.name for step in ladder.steps]
    known = ladder if cell["step"] in names else None
    return [
        cell["step"],
        configuration(cell),
        f"{1e3 * cell['measured_seconds']:.4f}" if measured else "-",
        f"{1e3 * cell['predicted_seconds']:.4f}",
        f"{model_error(cell):.2f}" if measured else "-",
        str(explain(cell, machine, known)),
    ]


def _libraries(rows: list[dict[str, Any]]) -> str:
    table_rows = []
    for row in rows:
        seconds = row.get("measured_seconds")
        table_rows.append(
            [
                row["name"],
                row["precision"],
                f"{1e3 * seconds:.4f}" if seconds else "-",
                f"{row.get('workspace', 0) / 1e6:.1f}",
                "yes" if row["deterministic"] else "no",
                row.get("why_not", ""),
            ]
        )
    head = ["algorithm", "precision", "ms", "workspace MB", "deterministic", "why not"]
    return table(head, table_rows, ("why not",))


def prediction(cells: Sequence[Cell]) -> Chart:
    """The chart of predicted over measured times."""
    series: dict[str, list[Dot]] = {}
    for cell in cells:
        dot = Dot(
            1e3 * cell["measured_seconds"], 1e3 * cell["predicted_seconds"], configuration(cell)
        )
        series.setdefault(cell["step"], []).append(dot)
    times = [number for dots in series.values() for dot in dots for number in (dot.x, dot.y)]
    numbers = [float(number) for number in times]
    ends = (min(numbers), max(numbers))
    within = sum(model_error(cell) <= 1.5 for cell in cells)
    title = f"Predicted over measured time: {within} of {len(cells)} within a factor of 1.5"
    axes = (Scale("measured, ms", log=True), Scale("predicted, ms", log=True))
    see = "On the line the model is right; above it, it expects a step to be slower than it is."
    return Chart(title, see, series, *axes, {"equal": [(end, end) for end in ends]})


def _roofline(cells: Sequence[Cell], machine: Mapping[str, Any]) -> str:
    """The roofline chart of all cells."""
    series: dict[str, list[Dot]] = {}
    roofs: list[tuple[float, float]] = []
    for cell in cells:
        if not cell["operations"]:
            continue
        at, reached = cell["operational_intensity"], cell["operations"] / _seconds(cell) / 1e9
        label = f"shape {cell['shape']}, {configuration(cell)}: {reached:.4g} GFLOP/s"
        series.setdefault(cell["step"], []).append(Dot(at, reached, label))
        roofs.append((at, cell["attainable_performance"]))
    if not series:
        return paragraph("Nothing is computed, so there is no roofline: bytes alone count.")
    peak = machine.get("peak_operations") or max(height for _, height in roofs)
    roof = Roofline(peak, machine["bandwidth"])
    low, high = min(at for at, _ in roofs) / 2, max(at for at, _ in roofs) * 2
    intensities = sorted({low, high, min(max(roof.ridge, low), high)})
    line = [(at, roof.attainable(at) / 1e9) for at in intensities]
    axes = (Scale("FLOP a byte of memory", log=True), Scale("GFLOP/s", log=True))
    see = (
        "Each point is a step with a shape and a block. The closer to the line, the less is left; "
        "steps under the slope wait for memory, those under the flat part for arithmetic."
    )
    return chart_figure(Chart("Roofline", see, series, *axes, {"roofline": line}))


def _machine_code(cell: Cell) -> str:
    if not (code := cell.get("machine_code")):
        return "The study has no summary of its machine code: there was no cuobjdump."
    counts = ", ".join(f"{count} {name}" for name, count in code.items() if name != "all")
    return f"Its machine code has {code['all']} instructions, most of them {counts}."


def _steps(study: Mapping[str, Any], ladder: Ladder) -> Iterator[str]:
    compiled = {cell["step"]: cell for cell in study["cells"] if "registers" in cell}
    for step in ladder.steps:
        parts = [paragraph(step.idea), paragraph(f"Expect: {step.expectation}")]
        if (cell := compiled.get(step.name)) is not None:
            parts.append(
                paragraph(
                    f"With {configuration(cell)}: {cell['registers']} registers, "
                    f"{cell['spill_bytes']} bytes spilled, {cell['shared_bytes']} bytes of shared "
                    f"memory. {_machine_code(cell)}",
                    "soft",
                )
            )
        if (before := ladder.before(step)) is not None:
            lines = (before.text.splitlines(), step.text.splitlines())
            diff = difflib.unified_diff(*lines, before.name, step.name, lineterm="", n=1)
            parts.append(details(f"Difference to {before.name}", [difference(diff)]))
        parts.append(code(step.text))
        yield details(f"{step.name}: {step.title}", parts)


def save_plot(path: str | os.PathLike[str], study: Mapping[str, Any], ladder: Ladder) -> None:
    """Writes a study as one picture: the ladder, predictions and the fifteen graphs of each shape.

    >>> from minidnn import lab
    >>> study = lab.load_study(lab.recorded_studies()["transpose"])
    >>> lab.save_plot("transpose.svg", study, lab.ladder_of("transpose"))

    Args:
        path: of the file: its name ends with .svg, or with .png, for which the extra "plots" is
            needed, and a font.
        study: what :func:`model`, :func:`run` or :func:`load_study` gave.
        ladder: that it is of.

    Raises:
        UnsupportedError: the name ends otherwise, the file cannot be written, or there is nothing
            to draw a PNG with.
    """
    name, kind = os.fspath(path), Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise UnsupportedError(f"plot={name!r}; valid are names that end with .svg or .png")
    text = study_plot(study, ladder)
    data = text.encode() if kind == ".svg" else _drawn(text)
    try:
        Path(path).write_bytes(data)
    except OSError as error:
        raise UnsupportedError(f"{name} cannot be written: {error.strerror}") from error


def study_plot(study: Mapping[str, Any], ladder: Ladder) -> str:
    """A study as one SVG picture; see :func:`save_plot`."""
    parts = []
    for number, shape in enumerate(study["shapes"]):
        cells = [cell for cell in study["cells"] if cell["shape"] == number]
        sizes = ", ".join(f"{name} {size}" for name, size in shape.items())
        if pictures := list(_pictures(study, number, cells)):
            parts.append((sizes, pictures))
    title = f"{ladder.title}, on {study['machine']['name']}"
    return sheet(title, parts, _ACROSS)


def _pictures(study: Mapping[str, Any], number: int, cells: list[Any]) -> list[tuple[str, str]]:
    known = [cell for cell in cells if "predicted_seconds" in cell and "failed" not in cell]
    libraries = study["libraries"][number] if "libraries" in study else {}
    pictures: list[tuple[str, str]] = []
    if best := best_cells(cells) or best_cells(known, "predicted_seconds"):
        rates = ladder_rates(best, libraries.get("algorithms", []), study["machine"])
        pictures.append(("The ladder", bar_picture(*rates)))
    if measured := [cell for cell in cells if "measured_seconds" in cell]:
        charts: list[Chart | None] = [prediction(measured)]
        charts += [graph_chart(graph, measured, study["machine"]) for graph in GRAPHS]
        pictures += [(chart.title, chart_picture(chart)) for chart in charts if chart is not None]
    return pictures


def _drawn(text: str) -> bytes:
    """Renders an SVG picture as PNG."""
    try:
        drawer = import_module("resvg_py")
    except ImportError as error:
        raise UnsupportedError(
            "a PNG needs resvg-py: pip install 'minidnn[plots]'; a name that ends with .svg needs "
            "nothing"
        ) from error
    if bytes(drawer.svg_to_bytes(svg_string=_PROBE.format("a"))) == bytes(
        drawer.svg_to_bytes(svg_string=_PROBE.format(""))
    ):
        raise UnsupportedError(
            f"a PNG needs a font, and there is none of {SHEET_FONTS}: install one, such as "
            "Debian's fonts-dejavu-core; a name that ends with .svg needs none"
        )
    return bytes(drawer.svg_to_bytes(svg_string=text, zoom=_TWICE))
