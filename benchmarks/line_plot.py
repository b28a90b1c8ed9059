"""Line plots as SVG, without any library: panels side by side over one legend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 34, 44
LEGEND = 26
#: Okabe and Ito's colours, which stay apart for colour-blind readers.
COLORS = ("#999999", "#0072b2", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#56b4e9")


@dataclass(frozen=True)
class Panel:
    """Points (x, y) of each line; ``y`` is on a logarithmic axis and must be positive."""

    title: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def line_plot(panels: Sequence[Panel], x_label: str, y_label: str) -> str:
    """The text of an SVG file; lines of one name have one colour in all panels."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colors = dict(zip(names, COLORS, strict=False))
    legend = LEFT + sum(45 + 6.5 * len(name) for name in names)
    width, height = max(WIDTH * len(panels), ceil(legend)), HEIGHT + LEGEND
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        text.append(f'<g transform="translate({i * WIDTH} 0)">')
        text.extend(_panel(panel, colors, x_label, y_label))
        text.append("</g>")
    x = float(LEFT)
    for name in names:
        y = HEIGHT + LEGEND / 2
        text.append(
            f'<path d="M{x:.0f} {y - 4}h22" stroke="{colors[name]}" stroke-width="2"/>'
            f'<text x="{x + 27:.0f}" y="{y}">{escape(name)}</text>'
        )
        x += 45 + 6.5 * len(name)
    return "\n".join([*text, "</svg>", ""])


def _panel(panel: Panel, colors: Mapping[str, str], x_label: str, y_label: str) -> Iterator[str]:
    points = [point for line in panel.lines.values() for point in line]
    most = max(x for x, _ in points)
    low = floor(log10(min(y for _, y in points)) * 3) / 3
    high = ceil(log10(max(y for _, y in points)) * 3) / 3

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / most

    def down(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - log10(y)) / (high - low)

    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    center, middle = (LEFT + right) / 2, (TOP + base) / 2
    yield f'<text x="{LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>'
    for y in _ticks(low, high):
        yield f'<path d="M{LEFT} {down(y):.1f}H{right}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 6}" y="{down(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
    for x in range(0, int(most) + 1, 8 if most >= 32 else 4):
        yield f'<path d="M{across(x):.1f} {base}v4" stroke="black"/>'
        yield f'<text x="{across(x):.1f}" y="{base + 16}" text-anchor="middle">{x}</text>'
    yield f'<path d="M{LEFT} {TOP}V{base}H{right}" fill="none" stroke="black"/>'
    yield f'<text x="{center}" y="{base + 32}" text-anchor="middle">{escape(x_label)}</text>'
    yield (
        f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    for name, line in panel.lines.items():
        path = "L".join(f"{across(x):.1f} {down(y):.1f}" for x, y in line)
        yield f'<path d="M{path}" fill="none" stroke="{colors[name]}" stroke-width="2"/>'


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two logarithms."""
    powers = range(floor(low), ceil(high) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [tick for tick in ticks if low - 1e-9 <= log10(tick) <= high + 1e-9]
