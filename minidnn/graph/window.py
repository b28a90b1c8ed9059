"""Windows over the rows and columns of a plane: one description, and what it means.

A :class:`Window` says which elements an output position reads, what each of them gives (the tap),
how these are joined, and what becomes of the joined number (the finish).  Reference, interpreter
and printers, and every analysis of patches, ask this module and nothing else.  What a window
gives is computed with NumPy for the reference and for the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, argument, maximum
from minidnn.graph.types import saturated

LONG = 16
"""More taps along an axis are not added one after another, but as
:func:`join_taps` does it."""

JoinName = Literal["max", "sum"]


@dataclass(frozen=True)
class Join:
    """How two numbers become one."""

    expression: Expression
    #: What leaves the other number as it is: what stands for taps outside of the plane.
    identity: float
    #: Whether it gives one of both, so that no order of many changes a bit.
    chooses: bool

    def __call__(self, a: Any, b: Any) -> Any:
        """Two arrays joined."""
        return scalar.evaluate(self.expression, (a, b))


JOINS: dict[JoinName, Join] = {
    "max": Join(maximum(argument(0), argument(1)), -np.inf, True),  # NaN wins
    "sum": Join(argument(0) + argument(1), 0.0, False),
}

ITSELF = argument(0)
MEAN = argument(0) / argument(1)
"""The finish of an average: the sum divided by how many taps count."""


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

    @property
    def numbers(self) -> int:
        """How many numbers taps have."""
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
        """The position behind the last tap of the output before this one."""
        return self.first(output - 1) + self.reach

    def tap(self, output: int, index: int) -> int:
        """Input position of a tap of an output position; may be padding."""
        return self.first(output) + index * self.dilation

    def taps(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The input positions of each output's taps, and the taps' numbers."""
        index = np.arange(self.kernel)
        first = outputs * self.stride - self.padding[0]
        positions = first[:, None] + index * self.dilation
        return positions, np.broadcast_to(index, positions.shape)

    def covering(self, size: int) -> CoveringAxis:
        """The axis that leads back from outputs to ``size`` positions."""
        return CoveringAxis(self, size)


@dataclass(frozen=True, slots=True)
class CoveringAxis:
    """An axis whose outputs are the ``size`` positions under another axis's windows, and whose taps
    are the windows that cover a position: it moves by a fraction, one over the other's stride.

    The number of a tap is that of the other window's tap that lies at the position.
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
        """The first window that may cover a position; may be before all windows."""
        return -((self.of.reach - 1 - output - self.of.padding[0]) // self.of.stride)

    def past(self, output: int) -> int:
        """The window behind the last that covers the position before this one."""
        return (output - 1 + self.of.padding[0]) // self.of.stride + 1

    def taps(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The windows that may cover each position, and the numbers of their taps there; negative
        if they have none."""
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
    """A window over rows and columns, and what is computed of the elements under it.

    Its operands are ``under``, of which elements under the window are read, then ``here``, which
    are read at the output's own position.  ``tap`` is the number that one tap gives, over these
    operands and, as last argument, the tap's own number (row by row from 0).  Taps outside of the
    plane give the join's identity.  The taps of each row are joined, then the rows, which fixes the
    rounding of a sum and keeps it small: :func:`join_taps` says in which order.
    ``finish`` is the result, over the joined number and how many taps count: ``divisor``, or those
    inside the padded plane (``count_padding=True``), or those inside the plane itself.
    """

    rows: Axis
    columns: Axis
    join: JoinName
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
        """Its axes, of a window that moves by whole steps."""
        rows, columns = self.axes
        assert isinstance(rows, WindowAxis) and isinstance(columns, WindowAxis)
        return rows, columns

    @property
    def taps(self) -> int:
        return self.rows.kernel * self.columns.kernel

    @property
    def joins(self) -> Join:
        """How its taps are joined."""
        return JOINS[self.join]

    @property
    def is_long(self) -> bool:
        """Whether the taps of an axis are not simply joined one after another."""
        return not self.joins.chooses and max(self.rows.kernel, self.columns.kernel) > LONG

    @property
    def is_plain(self) -> bool:
        """Whether it joins the elements of one operand as they are, and moves by whole steps: then
        neighbouring outputs share what they join."""
        whole = all(isinstance(axis, WindowAxis) for axis in self.axes)
        return whole and self.under == 1 and not self.here and self.tap.op == "argument"

    @property
    def is_finished(self) -> bool:
        """Whether the joined number is the result."""
        return self.finish.op == "argument" and self.finish.value == 0

    @property
    def chooses(self) -> bool:
        """Whether it gives one of the elements under it."""
        return self.is_plain and self.is_finished and self.joins.chooses

    @property
    def averages(self) -> bool:
        """Whether it gives the sum of the elements under it divided by how many taps count."""
        return self.is_plain and self.join == "sum" and self.finish == MEAN

    @property
    def separable(self) -> bool:
        """Whether rows after columns give the same bits: not of rounded sums."""
        return self.chooses and self.rows.kernel > 1 and self.columns.kernel > 1

    @property
    def operations(self) -> int:
        """Scalar operations for one output."""
        return self.taps * (1 + scalar.operations(self.tap))

    def numbered(self, row: Any, column: Any) -> Any:
        """The number of a tap, of its numbers along rows and columns."""
        return row * self.columns.numbers + column

    def divisors(self, extent: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Taps counted per output row and per output column; their product is what ``finish``
        is given."""
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
