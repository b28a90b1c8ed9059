"""Charts: bars, and points on two axes, in colours of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10
from textwrap import shorten

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 260, 58, 12, 10, 42
_LEGEND = 15


@dataclass(frozen=True)
class Bar:
    """A bar with what is told on it."""

    label: str
    value: float
    told: str


def bars(rows: Sequence[Bar], marks: Mapping[str, float] | None = None) -> str:
    """Bars from 0 on, each with the same lines at ``marks``, which are named above."""
    marks = {name: value for name, value in (marks or {}).items() if isfinite(value)}
    most = max([bar.value for bar in rows] + list(marks.values()), default=0.0) or 1.0
    lines = "".join(
        f'<b style="left:{100 * value / most:.2f}%" title="{escape(name)}"></b>'
        for name, value in marks.items()
    )
    text = ['<div class="bars">']
    for bar in rows:
        width = 100 * bar.value / most
        text.append(
            f'<div>{escape(bar.label)}</div><div class="bar"><i style="width:{width:.2f}%"></i>'
            f"{lines}<span>{escape(bar.told)}</span></div>"
        )
    text.append("</div>")
    if marks:
        named = "; ".join(marks)
        text.append(f'<p class="soft">Dashed lines, from left to right: {escape(named)}.</p>')
    return "\n".join(text)


@dataclass(frozen=True)
class Dot:
    """A point; ``x`` is a number, or the name of a place on an axis of names."""

    x: float | str
    y: float
    told: str = ""


@dataclass(frozen=True)
class Scale:
    """An axis: what it is, and whether it is logarithmic."""

    label: str
    log: bool = False


class _Places:
    """Where numbers, or names, lie between two ends of the picture."""

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
        if self.names:
            return [(name, name) for name in self.names]
        if self._log:
            powers = range(floor(self._low), ceil(self._high) + 1)
            digits = (1, 2, 5) if self._high - self._low < 2 else (1,)
            found = [digit * 10.0**power for power in powers for digit in digits]
            shown = [v for v in found if self._low <= log10(v) <= self._high]
            # Between two numbers that are close there may be none of these.
            ends = [10.0**self._low, 10.0**self._high]
            return [(v, f"{v:.3g}") for v in shown or ends]
        raw = (self._high - self._low) / 5
        power = 10.0 ** floor(log10(raw))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * 0.999)
        count = floor(self._high / step)
        return [(i * step, f"{i * step:.6g}") for i in range(ceil(self._low / step), count + 1)]


def color(number: int, count: int) -> str:
    """One of so many colours, which are told apart on light and on dark paper."""
    return f"hsl({round(360 * number / max(1, count))} 65% {(48, 58)[number % 2]}%)"


def points(
    series: Mapping[str, Sequence[Dot]],
    x: Scale,
    y: Scale,
    lines: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    joined: bool = False,
) -> str:
    """Points of several series, and lines over them; ``joined``: one goes through each series."""
    dots = [dot for found in series.values() for dot in found]
    over = [place for line in (lines or {}).values() for place in line]
    right, base = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    across = _Places([dot.x for dot in dots] + [place[0] for place in over], x.log, _LEFT, right)
    down = _Places([dot.y for dot in dots] + [place[1] for place in over], y.log, base, _TOP)
    rows = -(-len(series) // 3)
    height = _HEIGHT + _LEGEND * rows
    text = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(y.label)}">']
    text += _axes(across, down, x, y)
    for name, line in (lines or {}).items():
        path = "L".join(f"{across(a):.1f} {down(b):.1f}" for a, b in line)
        text.append(f'<path class="roof" d="M{path}"><title>{escape(name)}</title></path>')
    for number, (name, found) in enumerate(series.items()):
        shade = color(number, len(series))
        if joined and len(found) > 1:
            path = "L".join(f"{across(dot.x):.1f} {down(dot.y):.1f}" for dot in found)
            text.append(f'<path d="M{path}" fill="none" stroke="{shade}"/>')
        for dot in found:
            told = escape(f"{name} {dot.told}".strip())
            text.append(
                f'<circle cx="{across(dot.x):.1f}" cy="{down(dot.y):.1f}" r="3.5" '
                f'fill="{shade}"><title>{told}</title></circle>'
            )
        at = _LEFT + number % 3 * 120
        line_at = _HEIGHT + number // 3 * _LEGEND + 8
        text.append(f'<circle cx="{at}" cy="{line_at - 4}" r="4" fill="{shade}"/>')
        text.append(f'<text x="{at + 8}" y="{line_at}">{escape(name)}</text>')
    return "\n".join([*text, "</svg>"])


def _axes(across: _Places, down: _Places, x: Scale, y: Scale) -> Iterator[str]:
    right, base = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value, told in down.ticks():
        yield f'<path class="rule" d="M{_LEFT} {down(value):.1f}H{right}"/>'
        yield f'<text x="{_LEFT - 5}" y="{down(value) + 4:.1f}" text-anchor="end">{told}</text>'
    ticks = across.ticks()
    longest = max((len(told) for _, told in ticks), default=1)
    every = -(-len(ticks) * (longest + 1) * 6 // (right - _LEFT))
    for value, told in ticks[::every]:
        place = f'x="{across(value):.1f}" y="{base + 14}"'
        yield f'<text {place} text-anchor="middle">{escape(told)}</text>'
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{base}H{right}"/>'
    center = (_LEFT + right) / 2
    yield f'<text x="{center}" y="{base + 30}" text-anchor="middle">{escape(x.label)}</text>'
    yield (
        f'<text transform="translate(11 {(_TOP + base) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )


def bar_picture(rows: Sequence[Bar], marks: Mapping[str, float]) -> str:
    """Bars as a picture of its own, where there is no page to lay them out."""
    most = max([bar.value for bar in rows] + list(marks.values()), default=0.0) or 1.0
    left, step = 90, 18
    right, base = _WIDTH - _RIGHT, _TOP + step * len(rows)
    height = base + _LEGEND * len(marks) + 10
    text = [f'<svg viewBox="0 0 {_WIDTH} {height}">']
    for number, bar in enumerate(rows):
        top = _TOP + step * number
        width = (right - left) * bar.value / most
        text.append(
            f'<text x="{left - 5}" y="{top + 12}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect x="{left}" y="{top}" width="{width:.1f}" height="{step - 3}" fill="{_BAR}"/>'
            f'<text x="{left + 4}" y="{top + 12}">{escape(bar.told)}</text>'
        )
    for number, (name, value) in enumerate(marks.items()):
        at = left + (right - left) * value / most
        text.append(f'<path class="roof" stroke-dasharray="4" d="M{at:.1f} {_TOP}V{base}"/>')
        said = f"line {number + 1} from the left: {name}"
        text.append(f'<text x="{_LEFT}" y="{base + _LEGEND * (number + 1)}">{escape(said)}</text>')
    return "\n".join([*text, "</svg>"])


def sheet(title: str, parts: Sequence[tuple[str, Sequence[tuple[str, str]]]], across: int) -> str:
    """Pictures with their titles, in rows under the head of each part, as one picture."""
    text, top = [], _TOP + 24
    for head, pictures in parts:
        text.append(f'<text x="{_GAP}" y="{top + 14}" font-size="13">{escape(head)}</text>')
        top += 30
        for first in range(0, len(pictures), across):
            row = pictures[first : first + across]
            heights = []
            for number, (name, picture) in enumerate(row):
                x = _GAP + number * (_WIDTH + _GAP)
                heights.append(int(picture.split('"')[1].split()[3]))
                told = escape(shorten(name, _LONGEST, placeholder=" ..."))
                text.append(f'<text x="{x}" y="{top + 12}" font-weight="600">{told}</text>')
                # A picture in a picture is clipped, which takes seconds to draw as PNG.
                inside = picture.partition(">")[2].removesuffix("</svg>")
                text.append(f'<g transform="translate({x} {top + 18})">{inside}</g>')
            top += max(heights) + 40
    size = f'width="{_GAP + across * (_WIDTH + _GAP)}" height="{top}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="11" '
        f'font-family="{SHEET_FONTS}">'
    )
    paper = f'<style>{_SHEET}</style><rect width="100%" height="100%" fill="#fff"/>'
    name = f'<text x="{_GAP}" y="{_TOP + 14}" font-size="17">{escape(title)}</text>'
    return "\n".join([head, paper, name, *text, "</svg>", ""])


SHEET_FONTS = "DejaVu Sans, Liberation Sans, Noto Sans, Open Sans, Roboto, Arial, sans-serif"
_GAP, _LONGEST = 24, 62
_BAR = "#8fc1de"
_SHEET = (
    "text { fill: #1b1d21; } .axis { stroke: #667; fill: none; } "
    ".rule { stroke: #d9dce2; fill: none; } "
    ".roof { stroke: #d55e00; fill: none; stroke-width: 1.5; }"
)


def figure(title: str, picture: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>{picture}</figure>"
