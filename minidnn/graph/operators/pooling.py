"""Pooling over regular windows, over windows with formulas, and PyTorch's adaptive pooling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minidnn.graph import expression as scalar
from minidnn.graph.operator import Reduction, Windowed
from minidnn.graph.types import TensorType
from minidnn.graph.window import (
    COMBINERS,
    LONG,
    CoveringAxis,
    Window,
    WindowAxis,
    average_window,
    sum_taps,
)

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d", "Pool2d"]

Pair = tuple[int, int]


def _window_axes(
    kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool
) -> tuple[WindowAxis, WindowAxis]:
    rows, columns = (
        WindowAxis(k, s, (p, p), d, ceil_mode)
        for k, s, p, d in zip(kernel, stride, padding, dilation, strict=True)
    )
    return rows, columns


@dataclass(frozen=True)
class MaxPool2d(Windowed):
    """The maximum over windows; NaN wins; padding counts as minus infinity."""

    kernel_size: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        self.require_pair("dilation", self.dilation, 1)
        _check_window(self)

    def window(self) -> Window:
        axes = _window_axes(
            self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )
        return Window(*axes, "max")

    def along(self, axis: int) -> MaxPool2d:
        """The window along rows (0) or columns (1) alone; both in succession give the maximum."""

        def only(pair: Pair, other: int) -> Pair:
            return (pair[0], other) if axis == 0 else (other, pair[1])

        return MaxPool2d(
            only(self.kernel_size, 1),
            only(self.stride, 1),
            only(self.padding, 0),
            only(self.dilation, 1),
            self.ceil_mode,
        )


@dataclass(frozen=True)
class AvgPool2d(Windowed):
    """The average over windows; rows are summed first, then their sums (see ``sum_taps``)."""

    kernel_size: Pair
    stride: Pair
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    def __post_init__(self) -> None:
        _check_window(self)
        divisor = self.divisor_override
        self.require(
            divisor is None or (type(divisor) is int and divisor != 0),
            f"divisor_override={divisor!r}; valid is a non-zero int or None",
        )

    def window(self) -> Window:
        axes = _window_axes(self.kernel_size, self.stride, self.padding, (1, 1), self.ceil_mode)
        return average_window(*axes, self.count_include_pad, self.divisor_override)

    def adaptive(self, x: TensorType) -> AdaptiveAvgPool2d | None:
        """The same average as an adaptive one, if windows are long, do not overlap, and cover the
        image; else None."""
        if not self.window().is_long or self.divisor_override is not None:
            return None
        is_tiling = self.kernel_size == self.stride and self.padding == (0, 0)
        sizes = tuple(zip(x.shape[2:], self.kernel_size, strict=True))
        if not is_tiling or any(size % kernel for size, kernel in sizes):
            return None
        rows, columns = (size // kernel for size, kernel in sizes)
        return AdaptiveAvgPool2d((rows, columns))


@dataclass(frozen=True)
class Pool2d(Windowed):
    """Any :class:`Window`: of several operands, with padding that differs from side to side, with
    dilation, or over the windows that cover a position, as gradients have it.

    Padding is less than the window, so that no window is in the padding alone.  Where all taps of a
    dilated window are on both sides of the image, the result is that of the reduction's identity:
    the maximum is minus infinity, and the average is 0, or NaN if the padding does not count.
    """

    shape: Window
    title: str = "Pool2d"

    def __post_init__(self) -> None:
        self.require(isinstance(self.shape, Window), f"shape={self.shape!r:.80}; valid is a Window")
        for axis in self.shape.axes:
            self._check_axis(axis.of if isinstance(axis, CoveringAxis) else axis)
        divisor, operands = self.shape.divisor, len(self.operand_names)
        self.require(
            divisor is None or (type(divisor) is int and divisor != 0),
            f"divisor={divisor!r}; valid is a non-zero int or None",
        )
        self.require(
            self.shape.reduction in COMBINERS,
            f"reduction={self.shape.reduction!r}; valid is one of {', '.join(COMBINERS)}",
        )
        for name, formula, arity in (
            ("tap", self.shape.tap, operands + 1),
            ("finish", self.shape.finish, 2),
        ):
            self.require(
                scalar.arguments(formula) <= arity,
                f"{name}={formula} takes {scalar.arguments(formula)} arguments; valid are {arity}",
            )

        integer_strides = all(isinstance(axis, WindowAxis) for axis in self.shape.axes)
        self.require(
            integer_strides or self.shape.is_finished,
            f"finish={self.shape.finish} of windows that cover a position; valid is x0",
        )

    def _check_axis(self, axis: WindowAxis) -> None:
        numbers = (axis.kernel, axis.stride, axis.dilation)
        self.require(
            all(type(v) is int and v >= 1 for v in numbers)
            and len(axis.padding) == 2
            and all(type(v) is int and v >= 0 for v in axis.padding),
            f"{axis}; valid are a kernel, a stride and a dilation of at least 1 and two "
            "paddings of at least 0",
        )
        self.require(
            max(axis.padding) < axis.reach,
            f"padding={axis.padding} of kernel={axis.kernel}, dilation={axis.dilation}; valid "
            f"is less than the {axis.reach} positions of the window, so that no window is "
            "padding alone",
        )

    @property
    def name(self) -> str:
        return self.title

    @property
    def operand_names(self) -> tuple[str, ...]:  # type: ignore[override]
        others = (f"operand {i}" for i in range(1, self.shape.under + self.shape.here))
        return ("input", *others)

    def window(self) -> Window:
        return self.shape


def _check_window(op: MaxPool2d | AvgPool2d) -> None:
    op.require_pair("kernel_size", op.kernel_size, 1)
    op.require_pair("stride", op.stride, 1)
    op.require_pair("padding", op.padding, 0)
    for pad, kernel in zip(op.padding, op.kernel_size, strict=True):
        op.require(
            2 * pad <= kernel,
            f"padding={op.padding} is more than half of kernel_size={op.kernel_size}; "
            "valid is at most half, so that no window is padding alone",
        )


@dataclass(frozen=True)
class AdaptiveAvgPool2d(Reduction):
    """The average over windows that are chosen so that the output has ``output_size``.

    Output ``i`` of ``n`` over ``size`` positions averages ``floor(i * size / n)`` up to
    ``ceil((i + 1) * size / n)``, as PyTorch does.  ``None`` keeps the input's size.
    """

    output_size: tuple[int | None, int | None]

    def __post_init__(self) -> None:
        self.require(
            isinstance(self.output_size, tuple)
            and len(self.output_size) == 2
            and all(s is None or (type(s) is int and s >= 1) for s in self.output_size),
            f"output_size={self.output_size!r}; valid is a pair of ints of at least 1 or None",
        )

    def sizes(self, x: TensorType) -> Pair:
        rows, columns = self.output_size
        return (
            x.shape[2] if rows is None else rows,
            x.shape[3] if columns is None else columns,
        )

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        self.require_float(x)
        self.require_rank("input", x, 4)
        self.require(
            x.shape[2] > 0 and x.shape[3] > 0,
            f"input has shape {x.shape}; valid is at least one row and one column",
        )
        return (x.with_shape((*x.shape[:2], *self.sizes(x))),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = inputs
        rows, columns = self.sizes(TensorType(x.shape, "float32"))
        out = np.empty((*x.shape[:2], rows, columns), x.dtype)
        compute = np.result_type(x.dtype, np.float32)
        with np.errstate(all="ignore"):
            for i, (top, bottom) in enumerate(_adaptive_spans(rows, x.shape[2])):
                for j, (left, right) in enumerate(_adaptive_spans(columns, x.shape[3])):
                    window = x[:, :, top:bottom, left:right].astype(compute, copy=False)
                    total = sum_taps(sum_taps(window))  # as a regular window adds them
                    out[:, :, i, j] = total / compute.type(window.shape[2] * window.shape[3])
        return (out,)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return max(inputs[0].size, outputs[0].size)

    def regular(self, x: TensorType) -> AvgPool2d | None:
        """The same average over regular windows, if sizes divide and windows are short; else None.

        Long windows stay adaptive, since the kernels for those need no patch as large as a window.
        """
        sizes = self.sizes(x)
        if any(size % out for size, out in zip(x.shape[2:], sizes, strict=True)):
            return None
        kernel = (x.shape[2] // sizes[0], x.shape[3] // sizes[1])
        return AvgPool2d(kernel, kernel) if max(kernel) <= LONG else None

    def is_long(self, x: TensorType) -> bool:
        """Whether some window has more than :data:`LONG` (16) rows or columns."""
        return any(high - low > LONG for spans in self.spans(x) for low, high in spans)

    def spans(self, x: TensorType) -> tuple[list[Pair], list[Pair]]:
        """The begin and end of each window, along rows and along columns."""
        down, across = self.sizes(x)
        return _adaptive_spans(down, x.shape[2]), _adaptive_spans(across, x.shape[3])


def _adaptive_spans(outputs: int, size: int) -> list[Pair]:
    return [(i * size // outputs, -(-(i + 1) * size // outputs)) for i in range(outputs)]
