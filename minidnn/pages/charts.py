"""Charts as HTML and SVG: bars, strips, and points on two axes, in the colours of the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, isfinite, log10
from textwrap import shorten
from zlib import crc32

from .page import explained

PALETTE = ("#2b7bba", "#d55e00", "#1b9e77", "#a6599b", "#8c6d1f", "#6b7787")
"""Colours that are distinct on light and dark pages, also with colour blindness."""


@dataclass(frozen=True)
class Bar:
    """A bar of a bar chart, with its label and the text beside it (``told``).

    ``parts``: the summands of the value, in the order of the chart's parts; empty for no parts.
    """

    label: str
    value: float
    told: str
    parts: Sequence[float] = ()


def bars(
    rows: Sequence[Bar], marks: Mapping[str, float] | None = None, parts: Sequence[str] = ()
) -> str:
    """Horizontal bars from 0 on, with vertical lines at ``marks``, which are named below.
    ``parts``: the names of the parts that bars are divided into."""
    marks = {name: value for name, value in (marks or {}).items() if isfinite(value)}
    most = max([bar.value for bar in rows] + list(marks.values()), default=0.0) or 1.0
    lines = "".join(
        f'<b style="left:{100 * value / most:.2f}%" title="{escape(name)}"></b>'
        for name, value in marks.items()
    )
    shades = {name: color(number, len(parts)) for number, name in enumerate(parts)}
    text = [_legend(shades)] if shades else []
    text.append('<div class="bars">')
    for bar in rows:
        at, pieces = 0.0, []
        named = zip(shades.items(), bar.parts, strict=True) if bar.parts else ()
        for (name, shade), value in named or ((("", "var(--accent)"), bar.value),):
            if not value:
                continue
            title = f' title="{escape(name)}"' if name else ""
            width = 100 * value / most
            pieces.append(
                f'<i style="left:{at:.2f}%;width:{width:.2f}%;background:{shade}"{title}></i>'
            )
            at += width
        text.append(
            f'<div class="label">{escape(bar.label)}</div><div class="bar">{"".join(pieces)}'
            f"{lines}</div><div>{escape(bar.told)}</div>"
        )
    text.append("</div>")
    if marks:
        named_marks = "; ".join(marks)
        told = f"Dashed lines, from left to right: {named_marks}."
        text.append(f'<p class="soft">{escape(told)}</p>')
    return "\n".join(text)


def strip(pieces: Sequence[tuple[str, float, str]]) -> str:
    """One bar divided into pieces, each a kind, a number (its width) and its text on hover."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in pieces))
    shades = {kind: color(number, len(kinds)) for number, kind in enumerate(kinds)}
    told = "".join(
        f'<i style="flex-grow:{number:.4g};background:{shades[kind]}" title="{escape(text)}"></i>'
        for kind, number, text in pieces
    )
    return f'{_legend(shades)}<div class="strip">{told}</div>'


@dataclass(frozen=True)
class Dot:
    """A point; ``x`` is a number, or a category of an axis of names; ``told`` shows on hover.

    ``hollow``: drawn as a ring, for the second of two quantities in one chart.
    """

    x: float | str
    y: float
    told: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class Scale:
    """An axis: its label, and whether it is logarithmic."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Chart:
    """Points of several series on two axes.

    Attributes:
        title: the chart's title.
        see: a sentence about what to look for.
        series: the points of each series, by its name.
        x, y: the axes.
        lines: lines over the points, by name.
        is_line: whether a line connects the points of each series.
    """

    title: str
    see: str
    series: Mapping[str, Sequence[Dot]]
    x: Scale
    y: Scale
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    is_line: bool = False


@dataclass(frozen=True)
class _Frame:
    """The size of a picture, and the margins around its axes, in SVG units."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    named: bool = True
    """Whether the picture has the axes' labels."""

    @property
    def end(self) -> int:
        return self.width - self.right

    @property
    def base(self) -> int:
        return self.height - self.bottom


_SHEET_FRAME = _Frame(420, 260, 58, 12, 10, 42)
_WHOLE = _Frame(380, 240, 58, 12, 10, 42)
_PANEL = _Frame(190, 132, 36, 8, 8, 22, named=False)
_EACH = 3
"""The most series in one picture of a page, so that their colours are distinct at a glance."""
_LEGEND = 15
_LETTER = 6.4
"""An upper estimate of a letter's width."""


class _Places:
    """A scale: maps numbers, or names, to coordinates between two ends of the picture."""

    def __init__(self, values: Sequence[float | str], log: bool, begin: float, end: float) -> None:
        self._begin, self._end, self._log = begin, end, log
        self.names = [*dict.fromkeys(v for v in values if isinstance(v, str))]
        numbers = [float(v) for v in values if not isinstance(v, str)]
        if log:
            low, high = log10(min(numbers)), log10(max(numbers))
            room = max(0.05, (high - low) * 0.06)
            self._low, self._high = low - room, high + room
        elif numbers:
            self._low, self._high = min(0.0, *numbers), max(numbers) * 1.05 or 1.0
        else:
            self._low, self._high = -0.5, len(self.names) - 0.5

    def __call__(self, value: float | str) -> float:
        at = self.names.index(value) if isinstance(value, str) else value
        number = log10(at) if self._log else at
        part = (number - self._low) / (self._high - self._low)
        return self._begin + (self._end - self._begin) * part

    def ticks(self) -> list[tuple[float | str, str]]:
        """The values of tick marks, and their labels."""
        if self.names:
            return [(name, name) for name in self.names]
        if self._log:
            powers = range(floor(self._low), ceil(self._high) + 1)
            digits = (1, 2, 5) if self._high - self._low < 2 else (1,)
            candidates = [digit * 10.0**power for power in powers for digit in digits]
            shown = [v for v in candidates if self._low <= log10(v) <= self._high]
            # A narrow range may contain none of these.
            ends = [10.0**self._low, 10.0**self._high]
            return [(v, _number(v)) for v in shown or ends]
        raw = (self._high - self._low) / (5 if abs(self._end - self._begin) > 150 else 3)
        power = 10.0 ** floor(log10(raw))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * 0.999)
        count = floor(self._high / step)
        return [(i * step, _number(i * step)) for i in range(ceil(self._low / step), count + 1)]


def _number(value: float) -> str:
    """A number in at most six characters."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.4g}" if value >= 1000 else f"{value:.3g}"


def color(number: int, count: int) -> str:
    """The colour of a number of ``count``, distinct from the others on light and dark pages."""
    if count <= len(PALETTE):
        return PALETTE[number]
    return f"hsl({round(360 * number / count)} 65% {(48, 58)[number % 2]}%)"


def chart_figure(chart: Chart) -> str:
    """Returns a chart as a figure of a page.

    Many series become small multiples: one picture for each few of them, all on the same axes, with
    the other series in grey behind.
    """
    names = list(chart.series)
    groups = [names[first : first + _EACH] for first in range(0, len(names), _EACH)]
    alone = len(groups) <= 1
    frame = _WHOLE if alone else _PANEL
    across, down = _places(chart, frame)
    body, behind = [], ""
    if not alone:
        grey = "".join(
            f"M{across(dot.x):.0f} {down(dot.y):.0f}h0"
            for dots in chart.series.values()
            for dot in dots
        )
        key = f"behind-{crc32(f'{chart.title}{grey}'.encode()):08x}"
        behind = f'<use href="#{key}"/>'
        axes = [
            f"Across: {chart.x.label}{', logarithmic' * chart.x.log}.",
            f"Up: {chart.y.label}{', logarithmic' * chart.y.log}.",
            *(f"Dashed: {name}." for name in chart.lines),
        ]
        body.append(f'<p class="legend soft">{escape(" ".join(axes))}</p><div class="panels">')
    for number, group in enumerate(groups):
        shades = {name: color(at, _EACH) for at, name in enumerate(group)}
        size = f"{frame.width} {frame.height}"
        text = [f'<svg viewBox="0 0 {size}" role="img" aria-label="{escape(", ".join(group))}">']
        if behind:
            path = f'<path id="{key}" class="behind" d="{grey}"/>'
            text.append(behind if number else path)
        text += _axes(frame, across, down, chart.x, chart.y)
        text += _lines(chart, across, down)
        for name, shade in shades.items():
            text += _dots(chart, name, shade, across, down)
        text.append("</svg>")
        known = _legend(shades if len(names) > 1 else {}, chart.lines if alone else ())
        body.append(f"<div>{known}{''.join(text)}</div>")
    if not alone:
        body.append("</div>")
    return figure(chart.title, "\n".join(body), chart.see, broad=not alone)


def chart_picture(chart: Chart) -> str:
    """Returns a chart as one SVG picture with its legend, for use without a page."""
    frame = _SHEET_FRAME
    across, down = _places(chart, frame)
    rows = -(-len(chart.series) // 3)
    height = frame.height + _LEGEND * rows
    text = [f'<svg viewBox="0 0 {frame.width} {height}" role="img">']
    text += _axes(frame, across, down, chart.x, chart.y)
    text += _lines(chart, across, down)
    for number, name in enumerate(chart.series):
        shade = color(number, len(chart.series))
        text += _dots(chart, name, shade, across, down)
        at = frame.left + number % 3 * 120
        line_at = frame.height + number // 3 * _LEGEND + 8
        text.append(f'<circle cx="{at}" cy="{line_at - 4}" r="4" fill="{shade}"/>')
        text.append(f'<text x="{at + 8}" y="{line_at}">{escape(name)}</text>')
    return "\n".join([*text, "</svg>"])


def _legend(shades: Mapping[str, str], lines: Iterable[str] = ()) -> str:
    told = [f'<i style="background:{shade}"></i>{escape(name)}' for name, shade in shades.items()]
    told += [f'<i class="line"></i>{escape(name)}' for name in lines]
    return f'<div class="legend">{"".join(f"<span>{one}</span>" for one in told)}</div>'


def _places(chart: Chart, frame: _Frame) -> tuple[_Places, _Places]:
    """The scales of both axes: across and down."""
    dots = [dot for series in chart.series.values() for dot in series]
    line_points = [place for line in chart.lines.values() for place in line]
    xs = [dot.x for dot in dots] + [place[0] for place in line_points]
    ys = [dot.y for dot in dots] + [place[1] for place in line_points]
    return (
        _Places(xs, chart.x.log, frame.left, frame.end),
        _Places(ys, chart.y.log, frame.base, frame.top),
    )


def _lines(chart: Chart, across: _Places, down: _Places) -> Iterator[str]:
    for name, line in chart.lines.items():
        path = "L".join(f"{across(a):.1f} {down(b):.1f}" for a, b in line)
        yield f'<path class="roof" d="M{path}"><title>{escape(name)}</title></path>'


def _dots(chart: Chart, name: str, shade: str, across: _Places, down: _Places) -> Iterator[str]:
    """The points of a series, and the line through them."""
    for hollow in (False, True):
        points = [dot for dot in chart.series[name] if dot.hollow == hollow]
        if chart.is_line and len(points) > 1:
            path = "L".join(f"{across(dot.x):.1f} {down(dot.y):.1f}" for dot in points)
            yield f'<path d="M{path}" fill="none" stroke="{shade}"/>'
        ink = f'fill="none" stroke="{shade}"' if hollow else f'fill="{shade}"'
        for dot in points:
            told = escape(f"{name} {dot.told}".strip())
            place = f'cx="{across(dot.x):.1f}" cy="{down(dot.y):.1f}" r="3"'
            yield f"<circle {place} {ink}><title>{told}</title></circle>"


def _axes(frame: _Frame, across: _Places, down: _Places, x: Scale, y: Scale) -> Iterator[str]:
    """The axes with their tick marks and labels."""
    above = float("inf")
    for value, told in down.ticks():
        at = down(value)
        yield f'<path class="rule" d="M{frame.left} {at:.1f}H{frame.end}"/>'
        if above - at > 13:
            yield f'<text x="{frame.left - 5}" y="{at + 4:.1f}" text-anchor="end">{told}</text>'
            above = at
    free = 0.0
    for value, told in across.ticks():
        half = len(told) * _LETTER / 2
        at = min(max(across(value), half), frame.width - half)
        if at - half < free:
            continue
        place = f'x="{at:.1f}" y="{frame.base + 17}"'
        yield f'<text {place} text-anchor="middle">{escape(told)}</text>'
        free = at + half + _LETTER
    yield f'<path class="axis" d="M{frame.left} {frame.top}V{frame.base}H{frame.end}"/>'
    if not frame.named:
        return
    center, middle = (frame.left + frame.end) / 2, (frame.top + frame.base) / 2
    yield f'<text x="{center}" y="{frame.base + 33}" text-anchor="middle">{escape(x.label)}</text>'
    yield (
        f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )


def bar_picture(rows: Sequence[Bar], marks: Mapping[str, float]) -> str:
    """Returns bars as one SVG picture, for use without a page."""
    most = max([bar.value for bar in rows] + list(marks.values()), default=0.0) or 1.0
    left, step = 90, 18
    right, base = _SHEET_FRAME.end, _SHEET_FRAME.top + step * len(rows)
    height = base + _LEGEND * len(marks) + 10
    text = [f'<svg viewBox="0 0 {_SHEET_FRAME.width} {height}">']
    for number, bar in enumerate(rows):
        top = _SHEET_FRAME.top + step * number
        width = (right - left) * bar.value / most
        text.append(
            f'<text x="{left - 5}" y="{top + 12}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{step - 3}" fill="{_BAR}"/>'
            f'<text x="{left + 4}" y="{top + 12}">{escape(bar.told)}</text>'
        )
    for number, (name, value) in enumerate(marks.items()):
        at = left + (right - left) * value / most
        text.append(
            f'<path class="roof" stroke-dasharray="4" d="M{at:.1f} {_SHEET_FRAME.top}V{base}"/>'
        )
        said = escape(f"line {number + 1} from the left: {name}")
        place = f'x="{_SHEET_FRAME.left}" y="{base + _LEGEND * (number + 1)}"'
        text.append(f"<text {place}>{said}</text>")
    return "\n".join([*text, "</svg>"])


def sheet(title: str, parts: Sequence[tuple[str, Sequence[tuple[str, str]]]], across: int) -> str:
    """Returns pictures with titles, in rows under the head of each part, as one SVG picture."""
    text, top = [], _SHEET_FRAME.top + 24
    for head, pictures in parts:
        text.append(f'<text x="{_GAP}" y="{top + 14}" font-size="13">{escape(head)}</text>')
        top += 30
        for first in range(0, len(pictures), across):
            row = pictures[first : first + across]
            heights = []
            for number, (name, picture) in enumerate(row):
                x = _GAP + number * (_SHEET_FRAME.width + _GAP)
                heights.append(int(picture.split('"')[1].split()[3]))
                told = escape(shorten(name, _LONGEST, placeholder=" ..."))
                text.append(f'<text x="{x}" y="{top + 12}" font-weight="600">{told}</text>')
                # Nested svg elements would be clipped, which takes seconds to draw as PNG.
                inside = picture.partition(">")[2].removesuffix("</svg>")
                text.append(f'<g transform="translate({x} {top + 18})">{inside}</g>')
            top += max(heights) + 40
    size = f'width="{_GAP + across * (_SHEET_FRAME.width + _GAP)}" height="{top}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11" '
        f'font-family="{SHEET_FONTS}">'
    )
    paper = f'<style>{_SHEET}</style><rect width="100%" height="100%" fill="#fff"/>'
    name = f'<text x="{_GAP}" y="{_SHEET_FRAME.top + 14}" font-size="17">{escape(title)}</text>'
    return "\n".join([head, paper, name, *text, "</svg>", ""])


SHEET_FONTS = "DejaVu Sans, Liberation Sans, Noto Sans, Open Sans, Roboto, Arial, sans-serif"
_GAP, _LONGEST = 24, 62
_BAR = "#8fc1de"
_SHEET = (
    "text { fill: #1b1d21; } .axis { stroke: #667; fill: none; } "
    ".rule { stroke: #d9dce2; fill: none; } "
    ".roof { stroke: #d55e00; fill: none; stroke-width: 1.5; }"
)


def figure(title: str, picture: str, see: str, broad: bool = False) -> str:
    """A figure: a title, a sentence about it, and a picture; ``broad``: as wide as the page."""
    mark = ' class="broad"' if broad else ""
    caption = f"<b>{escape(title)}</b> {explained(see)}"
    return f"<figure{mark}><figcaption>{caption}</figcaption>{picture}</figure>"
