"""Values whose elements change places in blocks, and maxima of windows of any sizes; as PyTorch's.

Operands fit: who calls says what does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


def _viewed(x: Value, split: Sequence[int], order: Sequence[int], shape: Sequence[int]) -> Value:
    parts: Value = apply(ops.View(tuple(split)), x)
    moved = apply(ops.Transpose(tuple(order)), parts)
    found: Value = apply(ops.View(tuple(shape)), moved)
    return found


def pixel_shuffle(x: Value, factor: int) -> Value:
    """(..., C * f * f, H, W) as (..., C, H * f, W * f)."""
    *front, channels, rows, columns = x.shape
    n, depth = len(front), channels // factor**2
    return _viewed(
        x,
        (*front, depth, factor, factor, rows, columns),
        (*range(n), n, n + 3, n + 1, n + 4, n + 2),
        (*front, depth, rows * factor, columns * factor),
    )


def pixel_unshuffle(x: Value, factor: int) -> Value:
    """(..., C, H * f, W * f) as (..., C * f * f, H, W)."""
    *front, channels, rows, columns = x.shape
    n, down, across = len(front), rows // factor, columns // factor
    return _viewed(
        x,
        (*front, channels, down, factor, across, factor),
        (*range(n), n, n + 2, n + 4, n + 1, n + 3),
        (*front, channels * factor**2, down, across),
    )


def channel_shuffle(x: Value, groups: int) -> Value:
    """(N, C, ...) whose channels, seen as rows of a table, are read by columns."""
    batch, channels, *plane = x.shape
    order = (0, 2, 1, *range(3, 3 + len(plane)))
    return _viewed(x, (batch, groups, channels // groups, *plane), order, x.shape)


def adaptive_max(x: Value, sizes: tuple[int, int]) -> Value:
    """The largest of windows that begin and end where those of adaptive averages do.

    Where they are not all alike, the last elements of the shorter ones are taken twice, which the
    largest does not notice.
    """
    kernel, chosen = [], []
    for size, outputs in zip(x.shape[2:], sizes, strict=True):
        bounds = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
        most = max(end - start for start, end in bounds)
        places = tuple(min(start + k, end - 1) for start, end in bounds for k in range(most))
        kernel.append(most)
        chosen.append(None if places == tuple(range(size)) else places)
    if chosen != [None, None]:
        x = apply(ops.Take((None, None, *chosen)), x)
    window = (kernel[0], kernel[1])
    found: Value = apply(ops.MaxPool2d(window, window), x)
    return found
