"""Windows over the rows and columns of a plane: geometry and meaning.

Everything that pools, and every analysis of patches, asks this module which input positions
an output position reads, and which of them are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

WindowReduce = Literal["max", "average"]

LONG = 16
"""More taps along an axis are not added one after another, but as :func:`sum_taps` does it."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """A window along one axis."""

    kernel: int
    stride: int = 1
    #: Padding before the first and after the last position.
    padding: tuple[int, int] = (0, 0)
    dilation: int = 1
    #: Keep a last window that starts inside the input or its leading padding, but ends
    #: beyond the trailing padding.
    ceil_mode: bool = False

    @property
    def reach(self) -> int:
        """Positions from the first to the last tap, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def output_size(self, size: int) -> int:
        """Outputs over ``size`` positions: PyTorch's ``pooling_output_shape``.  May be < 1."""
        span = size + sum(self.padding) - self.reach
        if not self.ceil_mode:
            return span // self.stride + 1
        count = -(-span // self.stride) + 1
        # The last window must start inside the input or its leading padding.
        if (count - 1) * self.stride >= size + self.padding[0]:
            count -= 1
        return count

    def first(self, output: int) -> int:
        """Input position of the first tap of an output position; may be padding."""
        return output * self.stride - self.padding[0]

    def tap(self, output: int, index: int) -> int:
        """Input position of a tap of an output position; may be padding."""
        return self.first(output) + index * self.dilation


@dataclass(frozen=True, slots=True)
class Window:
    """A window over rows and columns, and how its elements are joined.

    The taps of each row are joined, then the rows, which fixes the rounding of an average and keeps
    it small: :func:`sum_taps` says in which order.  Padding counts as minus infinity for "max".
    For "average" it adds nothing, and the sum is divided by ``divisor``, or by the number of taps
    inside the padded plane (``count_padding=True``), or by the number inside the plane itself.
    """

    rows: WindowAxis
    columns: WindowAxis
    reduce: WindowReduce
    count_padding: bool = True
    divisor: int | None = None

    @property
    def axes(self) -> tuple[WindowAxis, WindowAxis]:
        return (self.rows, self.columns)

    @property
    def taps(self) -> int:
        return self.rows.kernel * self.columns.kernel

    @property
    def is_long(self) -> bool:
        """Whether the taps of an axis are not simply added one after another."""
        longest = max(self.rows.kernel, self.columns.kernel)
        return self.reduce == "average" and longest > LONG

    @property
    def separable(self) -> bool:
        """Whether rows after columns give the same bits: true for max, not for rounded sums."""
        return self.reduce == "max" and self.rows.kernel > 1 and self.columns.kernel > 1

    @property
    def identity(self) -> float:
        return -np.inf if self.reduce == "max" else 0.0

    def divisors(self, extent: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Taps counted per output row and per output column; their product divides the sum."""
        if self.divisor is not None:
            sizes = [a.output_size(s) for a, s in zip(self.axes, extent, strict=True)]
            return np.full(sizes[0], self.divisor), np.ones(sizes[1], int)
        return self._counted(0, extent[0]), self._counted(1, extent[1])

    def _counted(self, axis: int, size: int) -> Any:
        window = self.axes[axis]
        start = np.arange(window.output_size(size)) * window.stride - window.padding[0]
        taps = start[:, None] + np.arange(window.kernel) * window.dilation
        before, after = window.padding if self.count_padding else (0, 0)
        return ((taps >= -before) & (taps < size + after)).sum(axis=1)


def pool(window: Window, x: np.ndarray) -> np.ndarray:
    """The window over ``x`` of shape (N, C, H, W), in its dtype (float16 sums in float32)."""
    rows, columns = window.axes
    extent = (x.shape[2], x.shape[3])
    size = (rows.output_size(extent[0]), columns.output_size(extent[1]))
    padded = _pad(window, x, size).astype(np.result_type(x.dtype, np.float32), copy=False)
    with np.errstate(all="ignore"):
        across = join_taps(window, _taps(columns, padded, 3, size[1]))
        out = join_taps(window, _taps(rows, across, 2, size[0]))
        if window.reduce == "average":
            by_row, by_column = window.divisors(extent)
            out = out / np.multiply.outer(by_row, by_column).astype(out.dtype)
    return out.astype(x.dtype, copy=False)


def join_taps(window: Window, taps: np.ndarray) -> np.ndarray:
    """The maxima or sums along the last axis."""
    if window.reduce == "average":
        return sum_taps(taps)
    most = taps[..., 0].copy()
    for tap in range(1, taps.shape[-1]):
        np.maximum(most, taps[..., tap], out=most)
    return most


def sum_taps(taps: np.ndarray) -> np.ndarray:
    """The sums along the last axis, in the order in which a window adds its taps.

    Up to 16 are added from left to right.  Of more, each block of 256 is added in 16 sums of every
    sixteenth tap, of which the second half is added to the first until one is left.  The blocks'
    sums are added from left to right, 16 at a time, and those sums again.  So errors stay small
    however long an axis is, and registers of 4, 8 or 16 numbers add the same bits.
    """
    count = taps.shape[-1]
    if count > LONG:
        steps = min(LONG, -(-count // LONG))
        lanes = _padded_to(taps, steps * LONG).reshape(*taps.shape[:-1], -1, steps, LONG)
        sums = _one_by_one(np.swapaxes(lanes, -1, -2))
        while sums.shape[-1] > 1:
            half = sums.shape[-1] // 2
            sums = sums[..., :half] + sums[..., half:]
        taps = sums[..., 0]
    while taps.shape[-1] > LONG:
        grouped = _padded_to(taps, LONG).reshape(*taps.shape[:-1], -1, LONG)
        taps = _one_by_one(grouped)
    return _one_by_one(taps)


def _one_by_one(taps: np.ndarray) -> np.ndarray:
    total = np.zeros(taps.shape[:-1], taps.dtype)
    for tap in range(taps.shape[-1]):
        total += taps[..., tap]
    return total


def _padded_to(taps: np.ndarray, multiple: int) -> np.ndarray:
    """With zeros at the end of the last axis."""
    missing = -taps.shape[-1] % multiple
    return np.pad(taps, [(0, 0)] * (taps.ndim - 1) + [(0, missing)]) if missing else taps


def _taps(axis: WindowAxis, padded: np.ndarray, along: int, outputs: int) -> np.ndarray:
    """The taps of each output along an axis, as a last axis."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, axis.reach, along)
    chosen = [slice(None)] * padded.ndim
    chosen[along] = slice(0, (outputs - 1) * axis.stride + 1, axis.stride)
    return windows[(*chosen, slice(None, None, axis.dilation))]


def _pad(window: Window, x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``x`` with the padding that ``size`` outputs reach into, filled with the identity."""
    widths = [(0, 0), (0, 0)]
    for axis, extent, outputs in zip(window.axes, x.shape[2:], size, strict=True):
        end = axis.tap(outputs - 1, axis.kernel - 1) + 1
        widths.append((axis.padding[0], max(0, end - extent)))
    return np.pad(x, widths, constant_values=window.identity)
