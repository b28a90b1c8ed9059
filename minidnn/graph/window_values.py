"""What a window gives, computed with NumPy: for the reference, and for plans by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph.types import saturated
from minidnn.graph.window import JOINS, LONG, Axis, Join, Window

#: Elements of an operand under the window at the crossings of rows and columns inside the plane.
Read = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """What evaluates a window with NumPy: the extent of the planes under it, how their elements are
    read, and images, channels and dtype of what is computed."""

    window: Window
    extent: tuple[int, int]
    read: Read
    planes: tuple[int, int]
    dtype: Any

    def at(self, rows: np.ndarray, columns: np.ndarray, here: Sequence[np.ndarray]) -> np.ndarray:
        """The window at the crossings of output rows and columns, where ``here`` was read."""
        window = self.window
        down, across = (
            self._inside(axis, positions, size)
            for axis, positions, size in zip(window.axes, (rows, columns), self.extent, strict=True)
        )
        with np.errstate(all="ignore"):
            lines = [self._row(tap, down, across, here) for tap in range(window.rows.kernel)]
            total = join_taps(window.joins, np.stack(lines, -1))
            if window.is_finished:
                return total
            by_row, by_column = window.divisors(self.extent)
            counts = np.multiply.outer(by_row[rows], by_column[columns]).astype(total.dtype)
            return scalar.evaluate(window.finish, (total, counts))

    @staticmethod
    def _inside(
        axis: Axis, outputs: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions and numbers of taps, and which of them are there."""
        taps, numbers = axis.taps(outputs)
        return taps, numbers, (taps >= 0) & (taps < size) & (numbers >= 0)

    def _row(self, tap: int, down: Any, across: Any, here: Sequence[np.ndarray]) -> np.ndarray:
        """What one row of taps gives, joined."""
        window = self.window
        (at_row, row_number, row_ok), (at_column, column_number, column_ok) = down, across
        rows, columns = np.flatnonzero(row_ok[:, tap]), np.flatnonzero(column_ok)
        shape = (*self.planes, len(row_ok), column_ok.size)
        taken = np.full(shape, window.joins.identity, self.dtype)
        if rows.size and columns.size:
            where = at_row[rows, tap], at_column.ravel()[columns]
            given = [self.read(i, *where) for i in range(window.under)]
            own = columns // column_ok.shape[1]
            given += [each[:, :, rows[:, None], own] for each in here]
            given = [each.astype(self.dtype, copy=False) for each in given]
            numbers = window.numbered(
                row_number[rows, tap][:, None], column_number.ravel()[columns]
            )
            found = scalar.evaluate(window.tap, (*given, numbers.astype(self.dtype)))
            taken[:, :, rows[:, None], columns] = found
        return join_taps(window.joins, taken.reshape(*shape[:3], *column_ok.shape))


def pool(window: Window, *operands: np.ndarray) -> np.ndarray:
    """The window over operands of shape (N, C, H, W), in their dtype (float16 in float32)."""
    x = operands[0]
    extent = (x.shape[2], x.shape[3])
    rows, columns = (
        np.arange(axis.output_size(size)) for axis, size in zip(window.axes, extent, strict=True)
    )

    def read(operand: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return operands[operand][:, :, rows[:, None], columns]

    dtype = np.result_type(x.dtype, np.float32)
    evaluation = Evaluation(window, extent, read, (x.shape[0], x.shape[1]), dtype)
    found = evaluation.at(rows, columns, operands[window.under :])
    if x.dtype.itemsize == 1:
        return saturated(str(x.dtype), found)
    return found.astype(x.dtype, copy=False)


def join_taps(join: Join, taps: np.ndarray) -> np.ndarray:
    """The taps along the last axis, joined in the order in which a window joins them.

    Up to 16 are joined from left to right.  Of more, each block of 256 is joined in 16 lines of
    every sixteenth tap, of which the second half is joined to the first until one is left.  The
    blocks are joined from left to right, 16 at a time, and what they give again.  So errors of sums
    stay small however long an axis is, and registers of 4, 8 or 16 numbers add the same bits.
    """
    count = taps.shape[-1]
    if count > LONG and not join.chooses:
        steps = min(LONG, -(-count // LONG))
        padded = _padded_to(join, taps, steps * LONG)
        lanes = padded.reshape(*taps.shape[:-1], -1, steps, LONG)
        sums = _one_by_one(join, np.swapaxes(lanes, -1, -2))
        while sums.shape[-1] > 1:
            half = sums.shape[-1] // 2
            sums = join(sums[..., :half], sums[..., half:])
        taps = sums[..., 0]
    while taps.shape[-1] > LONG and not join.chooses:
        grouped = _padded_to(join, taps, LONG).reshape(*taps.shape[:-1], -1, LONG)
        taps = _one_by_one(join, grouped)
    return _one_by_one(join, taps)


def sum_taps(taps: np.ndarray) -> np.ndarray:
    """The sums along the last axis, as :func:`join_taps` adds them."""
    return join_taps(JOINS["sum"], taps)


def _one_by_one(join: Join, taps: np.ndarray) -> np.ndarray:
    total = np.full(taps.shape[:-1], join.identity, taps.dtype)
    for tap in range(taps.shape[-1]):
        total = join(total, taps[..., tap])
    return total


def _padded_to(join: Join, taps: np.ndarray, multiple: int) -> np.ndarray:
    """With identities at the end of the last axis."""
    missing = -taps.shape[-1] % multiple
    if not missing:
        return taps
    widths = [(0, 0)] * (taps.ndim - 1) + [(0, missing)]
    return np.pad(taps, widths, constant_values=join.identity)
