"""Plots of a training run as SVG files: curves over epochs, and a confusion matrix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, isfinite, log10
from pathlib import Path

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.svg import clean

__all__ = ["confusions", "draw_confusions", "draw_curves"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _LEGEND = 420, 280, 60, 14, 34, 40, 26
#: Okabe and Ito's colours, which colour-blind readers can tell apart.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999")
#: The most classes for which a matrix shows names, and for which it shows counts.
_NAMED, _COUNTED = 60, 20


def draw_curves(
    path: str | os.PathLike[str],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    x_label: str = "epoch",
) -> None:
    """Writes panels side by side: ``{"loss": {"training": [2.3, 1.1], "validation": [...]}, ...}``.

    Values are those of epoch 1, 2, and so on; lines of one name have one colour.  What is not
    finite leaves a gap.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    if not names or len(names) > len(_COLORS):
        raise GraphError(f"panels have {len(names)} lines; valid are 1 to {len(_COLORS)} names")
    colors = dict(zip(names, _COLORS, strict=False))
    body = []
    for i, (title, lines) in enumerate(panels.items()):
        body.append(f'<g transform="translate({i * _WIDTH} 0)">')
        body.extend(_panel(title, lines, colors, x_label))
        body.append("</g>")
    x = _LEFT
    for name, color in colors.items():
        y = _HEIGHT + _LEGEND / 2
        body.append(f'<path d="M{x} {y - 4}h22" stroke="{color}" stroke-width="2"/>')
        body.append(_text(x + 27, y, name))
        x += 45 + round(6.5 * len(name))
    _write(path, max(x, _WIDTH * len(panels)), _HEIGHT + _LEGEND, body)


def confusions(target: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """How often each class (row) was taken for each (column): (classes, classes), int64."""
    cells = np.asarray(target, np.int64) * classes + np.asarray(predicted, np.int64)
    for name, values in (("target", target), ("predicted", predicted)):
        if np.size(values) and not 0 <= np.min(values) <= np.max(values) < classes:
            raise GraphError(
                f"{name} goes from {np.min(values)} to {np.max(values)}; valid are classes from 0 "
                f"to {classes - 1}"
            )
    return np.bincount(cells.ravel(), minlength=classes**2).reshape(classes, classes)


def draw_confusions(
    path: str | os.PathLike[str], counts: np.ndarray, classes: Sequence[str] = ()
) -> None:
    """Writes a matrix of :func:`confusions`: the darker a cell, the larger its share of the row."""
    counts = np.asarray(counts)
    size = len(counts) if counts.ndim else 0
    if counts.shape != (size, size) or not size or (counts < 0).any():
        raise GraphError(f"counts have shape {counts.shape}; valid are counts (classes, classes)")
    names = list(classes) or [str(i) for i in range(size)]
    if len(names) != size:
        raise GraphError(f"classes has {len(names)} names for {size} classes; valid are equal")
    cell = 36 if size <= _COUNTED else 14 if size <= _NAMED else 3
    margin = 30 + (round(6.5 * max(map(len, names))) if size <= _NAMED else 0)
    total, right = int(counts.sum()), int(np.trace(counts))
    share = f", {100 * right / total:.1f} % right" if total else ""
    side, top = size * cell, 30
    bottom = top + side
    body = [
        _text(8, 18, f"{total:,} samples{share}", ' font-weight="bold"'),
        _text(margin + side / 2, bottom + margin - 8, "predicted", ' text-anchor="middle"'),
        _rotated_text(14, top + side / 2, "true", "middle"),
        f'<rect x="{margin}" y="{top}" width="{side}" height="{side}" '
        'fill="none" stroke="#999999"/>',
    ]
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    for row, column in np.argwhere(counts).tolist():
        part = shares[row, column]
        # Right is blue and wrong is orange; what is rare can still be seen.
        color = _COLORS[0] if row == column else _COLORS[3]
        x, y = margin + column * cell, top + row * cell
        body.append(
            f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" '
            f'fill="{color}" fill-opacity="{0.15 + 0.85 * part:.2f}"><title>{clean(names[row])} as '
            f"{clean(names[column])}: {counts[row, column]}</title></rect>"
        )
        if size <= _COUNTED:
            fill = ' fill="white"' if part > 0.5 else ""
            text = f"{counts[row, column]}"
            body.append(_text(x + cell / 2, y + cell / 2 + 4, text, f' text-anchor="middle"{fill}'))
    for i, name in enumerate(names if size <= _NAMED else ()):
        offset = (i + 0.5) * cell + 4
        body.append(_text(margin - 5, top + offset, name, ' text-anchor="end"'))
        body.append(_rotated_text(margin + offset, bottom + 5, name, "end"))
    _write(path, margin + side + 12, bottom + margin, body)


def _panel(
    title: str, lines: Mapping[str, Sequence[float]], colors: Mapping[str, str], x_label: str
) -> Iterator[str]:
    """Yields the SVG elements of one panel: axes, ticks and lines."""
    values = [float(y) for line in lines.values() for y in line if isfinite(y)] or [0.0]
    ticks = _ticks(min(values), max(values))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)
    epochs = max((len(line) for line in lines.values()), default=1)

    def across(epoch: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (epoch - 1) / max(epochs - 1, 1)

    def down(y: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - y) / (high - low)

    right, base = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    yield _text(_LEFT, 20, title, ' font-weight="bold"')
    for y in ticks:
        yield f'<path d="M{_LEFT} {down(y):.1f}H{right}" stroke="#dddddd"/>'
        yield _text(_LEFT - 6, down(y) + 4, f"{y:.6g}", ' text-anchor="end"')
    for x in _ticks(1, epochs):
        if x == round(x) and 1 <= x <= epochs:
            yield f'<path d="M{across(x):.1f} {base}v4" stroke="black"/>'
            yield _text(across(x), base + 16, f"{x:g}", ' text-anchor="middle"')
    yield f'<path d="M{_LEFT} {_TOP}V{base}H{right}" fill="none" stroke="black"/>'
    yield _text((_LEFT + right) / 2, base + 32, x_label, ' text-anchor="middle"')
    for name, line in lines.items():
        pen, path = "M", ""
        for epoch, y in enumerate(line, 1):
            if not isfinite(y):
                pen = "M"
                continue
            # A line of length 0 shows an isolated point.
            path += f"{pen}{across(epoch):.1f} {down(y):.1f}" + ("h0" if pen == "M" else "")
            pen = "L"
        yield (
            f'<path d="{path}" fill="none" stroke="{colors[name]}" stroke-width="2" '
            'stroke-linecap="round" stroke-linejoin="round"/>'
        )


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover ``low`` to ``high``."""
    if high <= low:
        low, high = low - abs(low or 1) / 2, low + abs(low or 1) / 2
    raw = (high - low) / 5
    power = 10.0 ** floor(log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw * 0.999)
    return [i * step for i in range(floor(low / step), ceil(high / step) + 1)]


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{clean(words)}</text>'


def _rotated_text(x: float, y: float, words: str, anchor: str) -> str:
    """A text rotated to read upwards."""
    return (
        f'<text transform="translate({x:.1f} {y:.1f}) rotate(-90)" text-anchor="{anchor}">'
        f"{clean(words)}</text>"
    )


def _write(path: str | os.PathLike[str], width: float, height: float, body: list[str]) -> None:
    """Writes an SVG file of these elements."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="11">'
    )
    paper = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    Path(path).write_text("\n".join([head, paper, *body, "</svg>", ""]), encoding="utf-8")
