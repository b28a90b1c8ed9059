"""Windows over the rows and columns of a plane: geometry and meaning.

Everything that pools, and every analysis of patches, asks this module which input positions
an output position reads, and which of them are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

WindowReduce = Literal["max", "average"]


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

    The taps of each row are joined from left to right, then the rows from top to bottom, which
    fixes the rounding of an average and keeps it small.  Padding
    counts as minus infinity for "max".  For "average" it adds nothing, and the sum is divided
    by ``divisor``, or by the number of taps inside the padded plane
    (``count_padding=True``), or by the number inside the plane itself.
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
    padded = _pad(window, x, size)
    compute = np.result_type(x.dtype, np.float32)
    out = np.full((*x.shape[:2], *size), window.identity, compute)
    join = np.maximum if window.reduce == "max" else np.add
    with np.errstate(all="ignore"):
        for y in range(rows.kernel):
            row = np.full_like(out, window.identity)
            for z in range(columns.kernel):
                top, left = y * rows.dilation, z * columns.dilation
                taken = padded[
                    :,
                    :,
                    top : top + (size[0] - 1) * rows.stride + 1 : rows.stride,
                    left : left + (size[1] - 1) * columns.stride + 1 : columns.stride,
                ]
                join(row, taken, out=row)
            join(out, row, out=out)
        if window.reduce == "average":
            down, across = window.divisors(extent)
            out /= np.multiply.outer(down, across).astype(compute)
    return out.astype(x.dtype, copy=False)


def _pad(window: Window, x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """``x`` with the padding that ``size`` outputs reach into, filled with the identity."""
    widths = [(0, 0), (0, 0)]
    for axis, extent, outputs in zip(window.axes, x.shape[2:], size, strict=True):
        end = axis.tap(outputs - 1, axis.kernel - 1) + 1
        widths.append((axis.padding[0], max(0, end - extent)))
    return np.pad(x, widths, constant_values=window.identity)
