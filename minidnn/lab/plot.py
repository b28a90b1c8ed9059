"""A study as one picture: SVG, or PNG where it can be drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import UnsupportedError
from ..pages.charts import SHEET_FONTS, Chart, bar_picture, chart_picture, sheet
from .graphs import GRAPHS, graph_chart
from .page import fastest_predicted, ladder_rates, prediction
from .step import Ladder
from .table import best_cells

_ACROSS = 3
_TWICE = 2.0
"""Pixels for a unit of the picture, in PNG."""
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    f'<text y="15" font-family="{SHEET_FONTS}">{{}}</text></svg>'
)
"""A letter, which is not drawn where there is no font for it."""


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
    """The picture, as SVG."""
    parts = []
    for number, shape in enumerate(study["shapes"]):
        cells = [cell for cell in study["cells"] if cell["shape"] == number]
        told = ", ".join(f"{name} {size}" for name, size in shape.items())
        if pictures := list(_pictures(study, number, cells)):
            parts.append((told, pictures))
    title = f"{ladder.title}, on {study['machine']['name']}"
    return sheet(title, parts, _ACROSS)


def _pictures(study: Mapping[str, Any], number: int, cells: list[Any]) -> list[tuple[str, str]]:
    known = [cell for cell in cells if "predicted_seconds" in cell and "failed" not in cell]
    found = study["libraries"][number] if "libraries" in study else {}
    pictures: list[tuple[str, str]] = []
    if best := best_cells(cells) or fastest_predicted(known):
        rates = ladder_rates(best, found.get("algorithms", []), study["machine"])
        pictures.append(("The ladder", bar_picture(*rates)))
    if measured := [cell for cell in cells if "measured_seconds" in cell]:
        charts: list[Chart | None] = [prediction(measured)]
        charts += [graph_chart(graph, measured, study["machine"]) for graph in GRAPHS]
        pictures += [(chart.title, chart_picture(chart)) for chart in charts if chart is not None]
    return pictures


def _drawn(text: str) -> bytes:
    """The picture as PNG."""
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
