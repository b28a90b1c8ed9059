"""Values whose elements are picked or change places, and maxima of windows of any sizes.

All are as PyTorch's.  Operands fit: who calls says what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType


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


@dataclass(frozen=True)
class SlidingBlocks:
    """Sliding blocks of images: the arguments of PyTorch's ``Unfold`` and ``Fold``."""

    kernel: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]

    def counts(self, sizes: Sequence[int]) -> tuple[int, int]:
        """How many blocks lie along the rows and columns of an image."""
        own = (self.kernel, self.dilation, self.padding, self.stride)
        rows, columns = (
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, dilation, pad, stride in zip(sizes, *own, strict=True)
        )
        return rows, columns

    def places(self, size: Sequence[int]) -> np.ndarray:
        """Where each element of each block lies in an image with its padding, by their numbers."""
        along = []
        for axis, count in enumerate(self.counts(size)):
            taps = np.arange(self.kernel[axis])[:, None] * self.dilation[axis]
            along.append(taps + np.arange(count) * self.stride[axis])
        width = size[1] + 2 * self.padding[1]
        rows, columns = along
        return (rows[:, None, :, None] * width + columns[None, :, None, :]).reshape(-1)


def unfold(x: Value, blocks: SlidingBlocks) -> Value:
    """The blocks of (N, C, H, W) as columns: (N, C * KH * KW, blocks)."""
    counts = blocks.counts(x.shape[2:])
    if any(blocks.padding):
        around = (0, 0, *blocks.padding)
        x = apply(ops.Pad(around, around), x)
    windows = apply(ops.Unfold2d(blocks.kernel, blocks.stride, blocks.dilation), x)
    shape = (x.shape[0], x.shape[1] * prod(blocks.kernel), prod(counts))
    found: Value = apply(ops.View(shape), windows)
    return found


def fold(
    x: Value,
    size: tuple[int, int],
    blocks: SlidingBlocks,
    constant: Callable[[TensorType, Callable[[], np.ndarray]], Value],
) -> Value:
    """Images of which (N, C * KH * KW, blocks) are the blocks, which are added up where they
    overlap.  ``constant`` makes a constant of a type and of what gives its numbers."""
    batch, depth, _ = x.shape
    counts, block = blocks.counts(size), prod(blocks.kernel)
    channels = depth // block
    apart = (
        blocks.kernel == blocks.stride and blocks.padding == (0, 0) and blocks.dilation == (1, 1)
    )
    whole = tuple(n * k for n, k in zip(counts, blocks.kernel, strict=True))
    if apart:
        split = (batch, channels, *blocks.kernel, *counts)
        image = _viewed(x, split, (0, 1, 4, 2, 5, 3), (batch, channels, *whole))
        rest = (size[0] - whole[0], size[1] - whole[1])
        padded: Value = apply(ops.Pad((0, 0, 0, 0), (0, 0, *rest)), image) if any(rest) else image
        return padded
    rows: Value = apply(ops.View((batch * channels, block * prod(counts))), x)
    places = constant(TensorType((block * prod(counts),), "int64"), lambda: blocks.places(size))
    top, left = blocks.padding
    wide = (size[0] + 2 * top, size[1] + 2 * left)
    added = apply(ops.ScatterAdd(prod(wide), 1), rows, places)
    image = apply(ops.View((batch, channels, *wide)), added)
    if any(blocks.padding):
        cut = ops.Slice((0, 0, top, left), (batch, channels, *size), (1, 1, 1, 1))
        image = apply(cut, image)
    found: Value = image
    return found


#: Steps of it are too small for any float32 of a size that training gives to a table.
_STEP = 2.0**-40


def rows_of(table: Value, numbers: Any, without_slope: int | None = None) -> Any:
    """(..., features) of a table (rows, features) and whole numbers (...).

    The row ``without_slope`` has no gradient.
    """
    found = apply(ops.Gather(0), table, numbers)
    wide = numbers.reshape(*numbers.shape, 1)
    inside = np.logical_and(wide >= 0, wide < table.shape[0])

    def body(value: Any, inside: Any, *fixed: Any) -> Any:
        if fixed:  # the same number, whose derivative is 0
            value = scalar.where(fixed[0] > 0.0, scalar.floor(value / _STEP) * _STEP, value)
        return scalar.where(inside > 0.0, value, float("nan"))

    more = [] if without_slope is None else [np.equal(wide, without_slope)]
    return pointwise("Embedding", body, found, inside, *more)
