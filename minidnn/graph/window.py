"""Sliding windows over the rows and columns of an image: one description, and its semantics.

A :class:`Window` says which elements an output position reads, which number each of them
contributes (the *tap*), how these are reduced, and what is computed from the reduced number (the
*finish*).  The reference, the interpreter, the printers and every analysis of patches ask this
module and nothing else.  :class:`Evaluation` computes a window with NumPy, for the reference and
for the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, argument, maximum
from minidnn.graph.types import saturated

LONG = 16
"""The most taps along an axis that are added one after another; more are added in the order of
:func:`combine_taps`."""

CombinerName = Literal["max", "sum"]


@dataclass(frozen=True)
class Combiner:
    """The reduction operation of a window: how two taps are combined into one number."""

    expression: Expression
    #: The identity element, which taps outside of the image contribute.
    identity: float
    #: Whether the result is one of the two operands, so that no order of reduction changes a bit.
    chooses: bool

    def __call__(self, a: Any, b: Any) -> Any:
        """The element-wise combination of two arrays."""
        return scalar.evaluate(self.expression, (a, b))


COMBINERS: dict[CombinerName, Combiner] = {
    "max": Combiner(maximum(argument(0), argument(1)), -np.inf, True),  # NaN wins
    "sum": Combiner(argument(0) + argument(1), 0.0, False),
}

ITSELF = argument(0)
MEAN = argument(0) / argument(1)
"""The finish of an average: the sum divided by the number of taps that count."""


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """A sliding window along one axis of an image."""

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

    @property
    def numbers(self) -> int:
        """How many tap numbers there are: taps are numbered from 0."""
        return self.kernel

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

    def past(self, output: int) -> int:
        """The input position just past the last tap of output ``output - 1``."""
        return self.first(output - 1) + self.reach

    def tap(self, output: int, index: int) -> int:
        """Input position of a tap of an output position; may be padding."""
        return self.first(output) + index * self.dilation

    def taps(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The input positions of each output's taps, and the numbers of these taps; both have the
        shape (outputs, taps)."""
        index = np.arange(self.kernel)
        first = outputs * self.stride - self.padding[0]
        positions = first[:, None] + index * self.dilation
        return positions, np.broadcast_to(index, positions.shape)

    def covering(self, size: int) -> CoveringAxis:
        """The inverse axis, from ``size`` input positions to the windows that contain them."""
        return CoveringAxis(self, size)


@dataclass(frozen=True, slots=True)
class CoveringAxis:
    """The inverse of a :class:`WindowAxis`, along which gradients go back.

    Its outputs are the ``size`` input positions of the other axis, and the taps of a position are
    the windows that cover it.  Its stride is a fraction, one over the other's stride.  A tap's
    number is that of the other window's tap at the position.
    """

    of: WindowAxis
    size: int

    @property
    def kernel(self) -> int:
        """The most windows that cover a position."""
        return -(-self.of.reach // self.of.stride)

    @property
    def stride(self) -> Fraction:
        return Fraction(1, self.of.stride)

    @property
    def padding(self) -> tuple[int, int]:
        return (0, 0)

    @property
    def dilation(self) -> int:
        return 1

    @property
    def reach(self) -> int:
        return self.kernel

    @property
    def numbers(self) -> int:
        return self.of.kernel

    def output_size(self, size: int) -> int:
        return self.size

    def first(self, output: int) -> int:
        """The first window that may cover a position; negative if it is before all windows."""
        return -((self.of.reach - 1 - output - self.of.padding[0]) // self.of.stride)

    def past(self, output: int) -> int:
        """The window just past the last one that covers position ``output - 1``."""
        return (output - 1 + self.of.padding[0]) // self.of.stride + 1

    def taps(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows that may cover each position, and the number of each window's tap there,
        which is negative if the window has none."""
        of = self.of
        first = -((of.reach - 1 - outputs - of.padding[0]) // of.stride)
        positions = first[:, None] + np.arange(self.kernel)
        offsets = outputs[:, None] + of.padding[0] - positions * of.stride
        return positions, np.where(offsets % of.dilation == 0, offsets // of.dilation, -1)

    def covering(self, size: int) -> WindowAxis:
        return self.of


Axis = WindowAxis | CoveringAxis


@dataclass(frozen=True, slots=True)
class Window:
    """A window over rows and columns, and what is computed from the elements under it.

    Of its operands, the first ``under`` are read at the window's elements, and the other ``here``
    are read at the output's own position.  ``tap`` is what one tap contributes, over these operands
    and, as last argument, the tap's number (row by row from 0).  Taps outside of the image
    contribute the identity of ``reduction``.  Each row of taps is reduced, then the results of the
    rows, in the order of :func:`combine_taps`, which fixes the rounding of a sum and keeps its
    error small.  ``finish`` is the result, over the reduced number and the number of taps that
    count: ``divisor``, or the taps inside the padded image (``count_padding=True``), or those
    inside the image itself.
    """

    rows: Axis
    columns: Axis
    reduction: CombinerName = field(metadata={"saved": "join"})
    tap: Expression = ITSELF
    finish: Expression = ITSELF
    under: int = 1
    here: int = 0
    count_padding: bool = True
    divisor: int | None = None

    @property
    def axes(self) -> tuple[Axis, Axis]:
        return (self.rows, self.columns)

    @property
    def whole(self) -> tuple[WindowAxis, WindowAxis]:
        """The axes of a window whose strides are integers."""
        rows, columns = self.axes
        assert isinstance(rows, WindowAxis) and isinstance(columns, WindowAxis)
        return rows, columns

    @property
    def taps(self) -> int:
        return self.rows.kernel * self.columns.kernel

    @property
    def combiner(self) -> Combiner:
        """The operation that reduces the taps."""
        return COMBINERS[self.reduction]

    @property
    def is_long(self) -> bool:
        """Whether the taps of some axis are reduced in another order than one after another."""
        return not self.combiner.chooses and max(self.rows.kernel, self.columns.kernel) > LONG

    @property
    def is_plain(self) -> bool:
        """Whether it reduces the elements of one operand as they are, with integer strides: then
        neighbouring outputs share partial results."""
        integer_strides = all(isinstance(axis, WindowAxis) for axis in self.axes)
        return integer_strides and self.under == 1 and not self.here and self.tap.op == "argument"

    @property
    def is_finished(self) -> bool:
        """Whether the reduced number is the result: the finish is the identity."""
        return self.finish.op == "argument" and self.finish.value == 0

    @property
    def chooses(self) -> bool:
        """Whether the result is one of the elements under the window, as in max pooling."""
        return self.is_plain and self.is_finished and self.combiner.chooses

    @property
    def averages(self) -> bool:
        """Whether the result is the sum of the elements under the window divided by the number of
        taps that count, as in average pooling."""
        return self.is_plain and self.reduction == "sum" and self.finish == MEAN

    @property
    def separable(self) -> bool:
        """Whether a window along columns followed by one along rows gives the same bits, which it
        does not for sums, as these are rounded."""
        return self.chooses and self.rows.kernel > 1 and self.columns.kernel > 1

    @property
    def operations(self) -> int:
        """The number of scalar operations for one output."""
        return self.taps * (1 + scalar.operations(self.tap))

    def numbered(self, row: Any, column: Any) -> Any:
        """The number of a tap, from its numbers along rows and columns."""
        return row * self.columns.numbers + column

    def divisors(self, extent: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """The taps that count for each output row, and for each output column; their product is the
        second argument of ``finish``.  ``extent`` is the input's number of rows and columns."""
        if self.divisor is not None:
            sizes = [a.output_size(s) for a, s in zip(self.axes, extent, strict=True)]
            return np.full(sizes[0], self.divisor), np.ones(sizes[1], int)
        return self._counted(0, extent[0]), self._counted(1, extent[1])

    def _counted(self, axis: int, size: int) -> Any:
        window = self.axes[axis]
        taps, numbers = window.taps(np.arange(window.output_size(size)))
        before, after = window.padding if self.count_padding else (0, 0)
        return ((taps >= -before) & (taps < size + after) & (numbers >= 0)).sum(axis=1)

    def reads_nothing(self, extent: tuple[int, int]) -> bool:
        """Whether some output has only padding under it."""
        for window, size in zip(self.axes, extent, strict=True):
            taps, numbers = window.taps(np.arange(window.output_size(size)))
            if not ((taps >= 0) & (taps < size) & (numbers >= 0)).any(axis=1).all():
                return True
        return False


def average_window(
    rows: WindowAxis, columns: WindowAxis, count_padding: bool = True, divisor: int | None = None
) -> Window:
    """The window of an average."""
    return Window(rows, columns, "sum", finish=MEAN, count_padding=count_padding, divisor=divisor)


#: Reads an operand at the crossings of rows and columns, all inside the image.
Read = Callable[[int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """Evaluates a window with NumPy.

    ``extent`` is the spatial size of the operands under the window, ``read`` reads their elements,
    ``planes`` is the number of images and channels, and ``dtype`` is the one to compute in.
    """

    window: Window
    extent: tuple[int, int]
    read: Read
    planes: tuple[int, int]
    dtype: Any

    def at(self, rows: np.ndarray, columns: np.ndarray, here: Sequence[np.ndarray]) -> np.ndarray:
        """The results at the crossings of output rows and columns; ``here`` holds the operands that
        are read at the outputs' own positions, at those crossings."""
        window = self.window
        down, across = (
            self._inside(axis, positions, size)
            for axis, positions, size in zip(window.axes, (rows, columns), self.extent, strict=True)
        )
        with np.errstate(all="ignore"):
            row_results = [self._row(tap, down, across, here) for tap in range(window.rows.kernel)]
            total = combine_taps(window.combiner, np.stack(row_results, -1))
            if window.is_finished:
                return total
            by_row, by_column = window.divisors(self.extent)
            counts = np.multiply.outer(by_row[rows], by_column[columns]).astype(total.dtype)
            return scalar.evaluate(window.finish, (total, counts))

    @staticmethod
    def _inside(
        axis: Axis, outputs: np.ndarray, size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Positions and numbers of the taps, and which taps are inside the image."""
        taps, numbers = axis.taps(outputs)
        return taps, numbers, (taps >= 0) & (taps < size) & (numbers >= 0)

    def _row(self, tap: int, down: Any, across: Any, here: Sequence[np.ndarray]) -> np.ndarray:
        """One row of taps, reduced."""
        window = self.window
        (at_row, row_number, row_ok), (at_column, column_number, column_ok) = down, across
        rows, columns = np.flatnonzero(row_ok[:, tap]), np.flatnonzero(column_ok)
        shape = (*self.planes, len(row_ok), column_ok.size)
        tap_values = np.full(shape, window.combiner.identity, self.dtype)
        if rows.size and columns.size:
            positions = at_row[rows, tap], at_column.ravel()[columns]
            operands = [self.read(i, *positions) for i in range(window.under)]
            output_columns = columns // column_ok.shape[1]
            operands += [each[:, :, rows[:, None], output_columns] for each in here]
            operands = [each.astype(self.dtype, copy=False) for each in operands]
            numbers = window.numbered(
                row_number[rows, tap][:, None], column_number.ravel()[columns]
            )
            results = scalar.evaluate(window.tap, (*operands, numbers.astype(self.dtype)))
            tap_values[:, :, rows[:, None], columns] = results
        return combine_taps(window.combiner, tap_values.reshape(*shape[:3], *column_ok.shape))


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
    result = evaluation.at(rows, columns, operands[window.under :])
    if x.dtype.itemsize == 1:
        return saturated(str(x.dtype), result)
    return result.astype(x.dtype, copy=False)


def combine_taps(combiner: Combiner, taps: np.ndarray) -> np.ndarray:
    """Reduces the taps along the last axis, in the order that every device follows.

    Up to 16 taps are reduced from left to right.  If there are more, each block of up to 256 taps
    is reduced in 16 lanes, each of which takes every sixteenth tap; then the upper half of the
    lanes is combined with the lower half until one is left.  The results of the blocks are reduced
    from left to right, 16 at a time, and so are the results of that.  So errors of sums stay small
    however long an axis is, and vectors of 4, 8 or 16 lanes give the same bits.
    """
    count = taps.shape[-1]
    if count > LONG and not combiner.chooses:
        steps = min(LONG, -(-count // LONG))
        padded = _padded_to(combiner, taps, steps * LONG)
        lanes = padded.reshape(*taps.shape[:-1], -1, steps, LONG)
        lane_results = _one_by_one(combiner, np.swapaxes(lanes, -1, -2))
        while lane_results.shape[-1] > 1:
            half = lane_results.shape[-1] // 2
            lane_results = combiner(lane_results[..., :half], lane_results[..., half:])
        taps = lane_results[..., 0]
    while taps.shape[-1] > LONG and not combiner.chooses:
        grouped = _padded_to(combiner, taps, LONG).reshape(*taps.shape[:-1], -1, LONG)
        taps = _one_by_one(combiner, grouped)
    return _one_by_one(combiner, taps)


def sum_taps(taps: np.ndarray) -> np.ndarray:
    """The sums along the last axis, as :func:`combine_taps` adds them."""
    return combine_taps(COMBINERS["sum"], taps)


def _one_by_one(combiner: Combiner, taps: np.ndarray) -> np.ndarray:
    total = np.full(taps.shape[:-1], combiner.identity, taps.dtype)
    for tap in range(taps.shape[-1]):
        total = combiner(total, taps[..., tap])
    return total


def _padded_to(combiner: Combiner, taps: np.ndarray, multiple: int) -> np.ndarray:
    """The taps with identity elements appended, up to a ``multiple`` of taps."""
    missing = -taps.shape[-1] % multiple
    if not missing:
        return taps
    widths = [(0, 0)] * (taps.ndim - 1) + [(0, missing)]
    return np.pad(taps, widths, constant_values=combiner.identity)
