"""Results as a picture: every peer's time over minidnn's, with its interval, case by case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from minidnn.bench.engines import NAMES, OWN
from minidnn.bench.results import Record, failed

LEFT, TOP, ROW, WIDTH, GAP = 310.0, 66.0, 15.0, 560.0, 10.0
COLOURS = (
    "#3465b0", "#8fb0e0", "#c77712", "#3c8a3f", "#b3394c", "#e08a98", "#7d4aa8", "#00808a",
    "#777777",
)  # fmt: skip
TEXT, FAINT, GRID = "#20242b", "#5c6470", "#d9dce1"


def to_svg(cases: Sequence[tuple[str, Mapping[str, Record]]], title: str) -> str:
    """An SVG file.  ``cases``: a name and the records of its engines; failed ones are left out."""
    shown = [(name, _ratios(engines)) for name, engines in cases]
    shown = [(name, ratios) for name, ratios in shown if ratios]
    values = [e[key] for _, ratios in shown for e in ratios.values() for key in ("low", "high")]
    ticks = _ticks(min([1.0, *values]), max([1.0, *values]))
    names = [n for n in NAMES if any(n in ratios for _, ratios in shown)]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    height = TOP + sum(len(ratios) * ROW + GAP for _, ratios in shown) + 24

    def x(value: float) -> float:
        low, high = math.log(ticks[0]), math.log(ticks[-1])
        return LEFT + WIDTH * (math.log(value) - low) / (high - low)

    body = [_text(12, 20, title, TEXT, "start", bold=True)]
    body.append(_text(12, 38, f"time of a peer over {OWN}'s; right of 1: {OWN} is faster", FAINT))
    for tick in ticks:
        body.append(
            f'<path d="M{x(tick):.1f},{TOP - 6:.0f} V{height - 18:.0f}" '
            f'stroke="{TEXT if tick == 1 else GRID}"/>'
        )
        body.append(_text(x(tick), height - 5, f"{tick:g}", FAINT, "middle"))
    y = TOP
    for name, ratios in shown:
        body.append(_text(12, y + ROW * 0.7, name, TEXT, bold=True))
        for engine, estimate in ratios.items():
            body += _mark(x, y + ROW / 2, engine, estimate, colours[engine])
            y += ROW
        y += GAP
    size = f'width="{LEFT + WIDTH + 130:.0f}" height="{height:.0f}"'
    style = 'font-family="sans-serif" font-size="11"'
    lines = "\n".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{lines}\n</svg>\n'
    )


def _ratios(engines: Mapping[str, Record]) -> dict[str, Mapping[str, float]]:
    return {
        name: engines[name]["ratio"]
        for name in NAMES
        if name in engines and not failed(engines[name]) and "ratio" in engines[name]
    }


def _mark(
    x: Callable[[float], float], y: float, engine: str, estimate: Mapping[str, float], colour: str
) -> list[str]:
    low, value, high = (x(estimate[key]) for key in ("low", "value", "high"))
    label = f"{engine} {estimate['value']:.2f}"
    return [
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
        'stroke-width="2.5" stroke-opacity="0.5"/>',
        f'<circle cx="{value:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>',
        _text(high + 7, y + 4, label, colour),
    ]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose a range, on a logarithmic scale; 1 is one of them."""
    steps = sorted(d * 10.0**e for e in range(-3, 4) for d in (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7.5))
    below = max(s for s in steps if s <= low or s == steps[0])
    above = min(s for s in steps if s >= high * 1.001 or s == steps[-1])
    inside = [s for s in steps if below <= s <= above]
    # No more than a dozen: round ones first.
    while len(inside) > 12:
        inside = [inside[0], *inside[2:-1:2], inside[-1]]
    return sorted({*inside, 1.0})


def _text(
    x: float, y: float, text: str, colour: str, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )
