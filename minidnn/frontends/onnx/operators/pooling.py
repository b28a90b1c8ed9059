"""Pooling over one to three spatial axes, by windows over two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.operators.windows import steps, strides_within, window_pads
from minidnn.graph import operators as ops
from minidnn.graph.expression import maximum
from minidnn.graph.ir import Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import INT8_DTYPES
from minidnn.graph.window import Window, WindowAxis, average_window

_family = Family("pooling")
CONVERTERS = _family.converters

_WHOLE = WindowAxis(1)


def _axes(call: OnnxCall, x: Value) -> list[WindowAxis]:
    """Reads the window along each spatial axis from the node's attributes."""
    count = x.type.rank - 2
    if count not in (1, 2, 3):
        raise call.refuse(f"it is of {count} dimensions; valid are 1, 2 and 3")
    kernel = call.ints("kernel_shape")
    if kernel is None or len(kernel) != count or min(kernel) < 1:
        raise GraphError(f"kernel_shape={kernel}; valid are {count} of at least 1")
    strides, dilations = steps(call, count)
    pads = window_pads(call, x.shape[2:], kernel, strides, dilations)
    for k, pad, dilation in zip(kernel, pads, dilations, strict=True):
        extent = dilation * (k - 1) + 1
        if max(pad) >= extent:
            raise GraphError(
                f"pads={call.ints('pads')}, kernel_shape={kernel}, dilations={dilations}; valid "
                f"are pads below the {extent} positions of a window, so that no window is "
                "padding alone"
            )
    strides = strides_within(strides, x.shape[2:], kernel, dilations, pads)
    ceil = call.flag("ceil_mode")
    each = zip(kernel, strides, pads, dilations, strict=True)
    return [WindowAxis(k, s, p, d, ceil) for k, s, p, d in each]


def _pooled(
    call: OnnxCall,
    x: Value,
    axes: list[WindowAxis],
    pool: Callable[[WindowAxis, WindowAxis], Window],
) -> Value:
    """Pools over one, two or three spatial axes; in three dimensions the first axis comes last.

    ``pool`` makes a two-dimensional window of two axes.
    """
    build = call.build
    batch, channels, *sizes = x.shape

    def window(value: Value, rows: WindowAxis, columns: WindowAxis) -> Value:
        return build.apply(_operator(pool(rows, columns)), value)

    if len(axes) == 1:
        out = window(build.view(x, (batch, channels, 1, *sizes)), _WHOLE, axes[0])
        return build.view(out, (batch, channels, out.shape[3]))
    if len(axes) == 2:
        return window(x, *axes)
    flat = build.view(x, (batch, channels * sizes[0], *sizes[1:]))
    flat = window(flat, *axes[1:])
    rest = flat.shape[2:]
    deep = build.view(flat, (batch, channels, sizes[0], prod(rest)))
    deep = window(deep, axes[0], _WHOLE)
    return build.view(deep, (batch, channels, deep.shape[2], *rest))


def _operator(window: Window) -> Operator:
    """The operator of a window: MaxPool2d or AvgPool2d where these can say it, else Pool2d."""
    axes = window.whole
    kernel, stride = _pair(axes, "kernel"), _pair(axes, "stride")
    even = all(a.padding[0] == a.padding[1] and 2 * a.padding[0] <= a.kernel for a in axes)
    same_ceil = axes[0].ceil_mode == axes[1].ceil_mode
    padding, dilation = (axes[0].padding[0], axes[1].padding[0]), _pair(axes, "dilation")
    if even and same_ceil and window.reduction == "max":
        return ops.MaxPool2d(kernel, stride, padding, dilation, axes[0].ceil_mode)
    if even and same_ceil and dilation == (1, 1):
        counted = window.count_padding
        return ops.AvgPool2d(kernel, stride, padding, axes[0].ceil_mode, counted)
    return ops.Pool2d(window)


def _pair(axes: tuple[WindowAxis, WindowAxis], name: str) -> tuple[int, int]:
    return (getattr(axes[0], name), getattr(axes[1], name))


@_family("MaxPool")
def _max_pool(call: OnnxCall) -> tuple[Value, ...]:
    """Of one to three dimensions; the places of the maxima of one and two."""
    x = call.operand(0)
    axes = _axes(call, x)
    by_columns = call.flag("storage_order")
    out = _pooled(call, x, axes, partial(Window, reduction="max"))
    if call.wants(1) and x.dtype in INT8_DTYPES:
        raise call.refuse(f"its output of places is of {x.dtype}; valid is float32")
    return (out, _places(call, x, axes, by_columns)) if call.wants(1) else (out,)


def _places(call: OnnxCall, x: Value, axes: list[WindowAxis], by_columns: bool) -> Value:
    """The index of each maximum in the flattened input: ArgMax over the unfolded windows.

    ``by_columns``: whether indices count a plane column by column (``storage_order``).
    """
    build = call.build
    if len(axes) == 3:
        raise call.refuse("its output of places is of 3 dimensions")
    shape = x.shape if len(axes) == 2 else (*x.shape[:2], 1, x.shape[2])
    rows, columns = axes if len(axes) == 2 else (_WHOLE, axes[0])
    height, width = shape[2:]
    sizes = (rows.output_size(height), columns.output_size(width))
    ends = [
        max(0, axis.tap(out - 1, axis.kernel - 1) + 1 - size)
        for axis, out, size in zip((rows, columns), sizes, (height, width), strict=True)
    ]
    before = (0, 0, rows.padding[0], columns.padding[0])
    if any((*before, *ends)):  # padding, minus infinity, must lose to elements of minus infinity
        lowest = float(np.finfo(np.dtype(x.dtype)).min)
        x = build.pointwise("Lowest", lambda a: maximum(a, lowest), x)
    padded = build.apply(ops.Pad(before, (0, 0, *ends), value=-inf), build.view(x, shape))
    windows = build.apply(
        ops.Unfold2d(
            (rows.kernel, columns.kernel),
            (rows.stride, columns.stride),
            (rows.dilation, columns.dilation),
        ),
        padded,
    )
    if windows.shape[4:] != sizes:  # padding may make more windows than there are outputs
        windows = build.slice(build.slice(windows, 4, 0, sizes[0]), 5, 0, sizes[1])
    taps = rows.kernel * columns.kernel
    tap = build.apply(ops.ArgMax(2), build.view(windows, (*shape[:2], taps, *sizes)))
    down, across = (1, height) if by_columns else (width, 1)
    tap_offsets = np.add.outer(
        np.arange(rows.kernel) * rows.dilation * down,
        np.arange(columns.kernel) * columns.dilation * across,
    )
    offset = build.apply(ops.Gather(0), build.constant(tap_offsets.reshape(-1)), tap)
    window_offsets = np.add.outer(
        rows.first(0) * down + np.arange(sizes[0]) * rows.stride * down,
        columns.first(0) * across + np.arange(sizes[1]) * columns.stride * across,
    )
    plane_offsets = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1, 1) * (height * width)
    window_start = build.constant(np.asarray(plane_offsets + window_offsets, np.int64))
    indices = build.pointwise("Add", lambda a, b: a + b, offset, window_start, op=ops.Add())
    return build.view(indices, (*shape[:2], *sizes[2 - len(axes) :]))


@_family("AveragePool")
def _average_pool(call: OnnxCall) -> Value:
    """Of one to three dimensions."""
    return average_pool(call, call.operand(0))


def average_pool(call: OnnxCall, x: Value) -> Value:
    """The average pooling of a value, with the node's attributes."""
    pool = partial(average_window, count_padding=call.flag("count_include_pad"))
    return _pooled(call, x, _axes(call, x), pool)


@_family("GlobalAveragePool")
def _global_average_pool(call: OnnxCall) -> Value:
    return global_average_pool(call, call.operand(0))


def global_average_pool(call: OnnxCall, x: Value) -> Value:
    """The average of each channel over the spatial axes, which are kept with size 1."""
    if x.type.rank == 4:
        return call.build.apply(ops.AdaptiveAvgPool2d((1, 1)), x)
    return call.build.apply(ops.Reduce("mean", _spatial(x), True), x)


@_family("GlobalMaxPool")
def _global_max_pool(call: OnnxCall) -> Value:
    x = call.operand(0)
    return call.build.apply(ops.Reduce("max", _spatial(x), True), x)


def _spatial(x: Value) -> tuple[int, ...]:
    """The axes after batch and channels."""
    if x.type.rank < 2:
        raise GraphError(f"input has shape {x.shape}; valid is (N, C, ...)")
    return tuple(range(2, x.type.rank))
