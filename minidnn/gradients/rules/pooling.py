"""Rules of pooling, and of windows side by side.

An average is linear: an element gets, from each window that it lies in, what the window got divided
by its divisor, along rows and along columns by themselves.  A maximum is its first element's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.gradients.places import summed_at
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, maximum, where
from minidnn.graph.ir import Value
from minidnn.graph.operator import Windowed
from minidnn.graph.trace import apply
from minidnn.graph.types import numpy_dtype
from minidnn.graph.window import WindowAxis

Readers = list[list[int]]


@rule(Windowed)
def window(call: Backward) -> Sequence[Value | None]:
    shape = call.op.window()
    if shape.chooses and shape.join == "max":
        return [_by_maximum(call, shape.whole)]
    if not shape.averages:
        raise UnsupportedError(
            f"node {call.node.name!r} ({call.op}) has no gradient: valid are windows of maxima and "
            "averages"
        )
    size = call.inputs[0].shape[2:]
    by_row, by_column = shape.divisors((size[0], size[1]))
    readers = [_windows_over(axis, n) for axis, n in zip(shape.whole, size, strict=True)]
    return [_by_average(call.gradient, np.multiply.outer(by_row, by_column), readers)]


@rule(ops.AdaptiveAvgPool2d)
def adaptive_average(call: Backward) -> Sequence[Value | None]:
    x = call.inputs[0]
    spans = call.op.spans(x.type)
    counts = [np.array([high - low for low, high in each]) for each in spans]
    readers = [
        [[i for i, (low, high) in enumerate(each) if low <= place < high] for place in range(size)]
        for each, size in zip(spans, x.shape[2:], strict=True)
    ]
    return [_by_average(call.gradient, np.multiply.outer(*counts), readers)]


def _by_average(gradient: Value, divisors: np.ndarray, readers: Sequence[Readers]) -> Value:
    first = divisors.flat[0]
    if (divisors == first).all():
        found = gradient / float(first)
    else:
        found = gradient / divisors.astype(numpy_dtype(gradient.dtype))
    for axis, each in enumerate(readers, 2):
        found = summed_at(found, axis, each)
    return found


def _windows_over(axis: WindowAxis, size: int) -> Readers:
    """For each position the windows that it lies in."""
    found: Readers = [[] for _ in range(size)]
    for output in range(axis.output_size(size)):
        for tap in range(axis.kernel):
            if 0 <= axis.tap(output, tap) < size:
                found[axis.tap(output, tap)].append(output)
    return found


@rule(ops.Unfold2d)
def unfold(call: Backward) -> Sequence[Value | None]:
    op = call.op
    axes = [
        WindowAxis(kernel, stride, (0, 0), dilation)
        for kernel, stride, dilation in zip(op.kernel_size, op.stride, op.dilation, strict=True)
    ]
    return [_folded(call.gradient, axes, call.inputs[0].shape)]


def _folded(taps: Value, axes: Sequence[WindowAxis], shape: tuple[int, ...]) -> Value:
    """The sums of (N, C, KH, KW, rows, columns) at the places of ``shape`` that the taps lie at."""
    batch, channels, high, wide, rows, columns = taps.shape
    turned = apply(ops.Transpose((0, 1, 2, 4, 3, 5)), taps)
    found = apply(ops.View((batch, channels, high * rows, wide * columns)), turned)
    for d, (axis, outputs) in enumerate(zip(axes, (rows, columns), strict=True), 2):
        readers: Readers = [[] for _ in range(shape[d])]
        for tap in range(axis.kernel):
            for output in range(outputs):
                if 0 <= axis.tap(output, tap) < shape[d]:
                    readers[axis.tap(output, tap)].append(tap * outputs + output)
        found = summed_at(found, d, readers)
    return found


def _by_maximum(call: Backward, axes: Sequence[WindowAxis]) -> Value:
    """Every tap of every window gets the window's gradient or nothing; then taps are added."""
    x, gradient = call.inputs[0], call.gradient
    batch, channels, *size = x.shape
    outputs = gradient.shape[2:]
    before = tuple(axis.padding[0] for axis in axes)
    behind = tuple(
        max(0, axis.tap(count - 1, axis.kernel - 1) + 1 - n)
        for axis, count, n in zip(axes, outputs, size, strict=True)
    )
    # Padding is less than all numbers, and minus infinity one of them.
    least = float(np.finfo(numpy_dtype(x.dtype)).min)
    finite = apply(ops.Formula(maximum(argument(0), least), title="Finite"), x)
    padded = apply(ops.Pad((0, 0, *before), (0, 0, *behind), value=-np.inf), finite)
    rows, columns = axes
    kernel = (rows.kernel, columns.kernel)
    unfold = ops.Unfold2d(kernel, (rows.stride, columns.stride), (rows.dilation, columns.dilation))
    taps = apply(unfold, padded)
    count = kernel[0] * kernel[1]
    flat = apply(ops.View((batch, channels, count, *outputs)), taps)
    first = apply(ops.ArgMax(2, keepdim=True), flat)
    numbers = x._constant(np.arange(count).reshape(count, 1, 1), "int64")
    a, b = argument(0), argument(1)
    same = where(a < b, 0.0, where(a > b, 0.0, 1.0))
    met = apply(ops.Formula(same, 2, title="Equal", dtype="bool"), first, numbers)
    choice = ops.Formula(where(a > 0, b, 0.0), 2, title="Where")
    each = apply(choice, met, apply(ops.View((batch, channels, 1, *outputs)), gradient))
    return _folded(apply(ops.View(taps.shape), each), axes, x.shape)
