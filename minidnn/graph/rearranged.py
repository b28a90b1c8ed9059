"""Functions composed of moves: shuffles of pixels and channels, unfold, fold and embedding; and
adaptive max pooling.

All behave as PyTorch's.  Callers check the operands beforehand.
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
    divided: Value = apply(ops.View(tuple(split)), x)
    moved = apply(ops.Transpose(tuple(order)), divided)
    reshaped: Value = apply(ops.View(tuple(shape)), moved)
    return reshaped


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
    """(N, C, ...) with its channels viewed as (groups, C / groups) and transposed."""
    batch, channels, *plane = x.shape
    order = (0, 2, 1, *range(3, 3 + len(plane)))
    return _viewed(x, (batch, groups, channels // groups, *plane), order, x.shape)


def adaptive_max(x: Value, sizes: tuple[int, int]) -> Value:
    """Adaptive max pooling to ``sizes``: the windows are those of :class:`AdaptiveAvgPool2d`.

    Windows of unequal size are made equal by repeating the last element of the shorter ones, which
    does not change a maximum.
    """
    kernel, axis_indices = [], []
    for size, outputs in zip(x.shape[2:], sizes, strict=True):
        bounds = [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
        longest = max(end - start for start, end in bounds)
        indices = tuple(min(start + k, end - 1) for start, end in bounds for k in range(longest))
        kernel.append(longest)
        axis_indices.append(None if indices == tuple(range(size)) else indices)
    if axis_indices != [None, None]:
        x = apply(ops.Take((None, None, *axis_indices)), x)
    window = (kernel[0], kernel[1])
    pooled: Value = apply(ops.MaxPool2d(window, window), x)
    return pooled


@dataclass(frozen=True)
class SlidingBlocks:
    """Sliding blocks of images: the arguments of PyTorch's ``Unfold`` and ``Fold``."""

    kernel: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]

    def counts(self, sizes: Sequence[int]) -> tuple[int, int]:
        """The number of blocks along the rows and columns of an image of these ``sizes``."""
        arguments = (self.kernel, self.dilation, self.padding, self.stride)
        rows, columns = (
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, dilation, pad, stride in zip(sizes, *arguments, strict=True)
        )
        return rows, columns

    def places(self, size: Sequence[int]) -> np.ndarray:
        """The flat index, in the padded image, of each element of each block."""
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
        margins = (0, 0, *blocks.padding)
        x = apply(ops.Pad(margins, margins), x)
    windows = apply(ops.Unfold2d(blocks.kernel, blocks.stride, blocks.dilation), x)
    shape = (x.shape[0], x.shape[1] * prod(blocks.kernel), prod(counts))
    columns: Value = apply(ops.View(shape), windows)
    return columns


def fold(
    x: Value,
    size: tuple[int, int],
    blocks: SlidingBlocks,
    constant: Callable[[TensorType, Callable[[], np.ndarray]], Value],
) -> Value:
    """Images from their blocks (N, C * KH * KW, blocks), which are summed where they overlap.

    ``constant`` makes a constant from a type and a function that returns its array.
    """
    batch, depth, _ = x.shape
    counts, block = blocks.counts(size), prod(blocks.kernel)
    channels = depth // block
    is_tiling = (
        blocks.kernel == blocks.stride and blocks.padding == (0, 0) and blocks.dilation == (1, 1)
    )
    covered = tuple(n * k for n, k in zip(counts, blocks.kernel, strict=True))
    if is_tiling:
        split = (batch, channels, *blocks.kernel, *counts)
        image = _viewed(x, split, (0, 1, 4, 2, 5, 3), (batch, channels, *covered))
        missing = (size[0] - covered[0], size[1] - covered[1])
        padded: Value = (
            apply(ops.Pad((0, 0, 0, 0), (0, 0, *missing)), image) if any(missing) else image
        )
        return padded
    rows: Value = apply(ops.View((batch * channels, block * prod(counts))), x)
    indices = constant(TensorType((block * prod(counts),), "int64"), lambda: blocks.places(size))
    top, left = blocks.padding
    padded_size = (size[0] + 2 * top, size[1] + 2 * left)
    added = apply(ops.ScatterAdd(prod(padded_size), 1), rows, indices)
    image = apply(ops.View((batch, channels, *padded_size)), added)
    if any(blocks.padding):
        cut = ops.Slice((0, 0, top, left), (batch, channels, *size), (1, 1, 1, 1))
        image = apply(cut, image)
    result: Value = image
    return result


def rows_of(table: Value, numbers: Any, without_slope: int | None = None) -> Any:
    """The embedding lookup: (..., features) from a table (rows, features) and integers (...).

    A number outside of the table gives NaN.  The row ``without_slope`` has no gradient.
    """
    rows = apply(ops.Gather(0), table, numbers)
    numbers_column = numbers.reshape(*numbers.shape, 1)
    inside = np.logical_and(numbers_column >= 0, numbers_column < table.shape[0])

    def body(value: Any, inside: Any, *fixed: Any) -> Any:
        if fixed:
            value = scalar.where(fixed[0] > 0.0, _without_slope(value), value)
        return scalar.where(inside > 0.0, value, float("nan"))

    fixed_rows = [] if without_slope is None else [np.equal(numbers_column, without_slope)]
    return pointwise("Embedding", body, rows, inside, *fixed_rows)


def _without_slope(x: Any) -> Any:
    """The same float32 as an expression whose derivative is 0: a floor that changes nothing.

    Scaled by a power of two, which is exact, a number of each range is an integer.
    """
    tiny, small = 2.0**100, 2.0**49  # together: the least float32 becomes 1
    of_tiny = scalar.floor(x * tiny * small) / small / tiny
    of_others = scalar.where(abs(x) < 2.0**24, scalar.floor(x * 2.0**88) / 2.0**88, scalar.floor(x))
    return scalar.where(abs(x) < 2.0**-64, of_tiny, of_others)
