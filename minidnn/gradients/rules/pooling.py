"""Gradient rules of pooling, of windows with formulas, and of unfolding.

An average is linear: each window divides its gradient by its divisor and gives it to every element
under it; the divisor is a product of one factor for rows and one for columns.  A maximum gives its
gradient to the first element that equals it.

Gradients of regular windows are windows again, over *covering* axes: the outputs are elements, and
the taps of an element are the windows that contain it (:class:`minidnn.graph.window.CoveringAxis`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.gradients.rules.movement import summed_at
from minidnn.gradients.scalar import derivative, renumbered
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, equal, floor, where
from minidnn.graph.ir import Value
from minidnn.graph.operator import Windowed
from minidnn.graph.trace import apply
from minidnn.graph.types import numpy_dtype
from minidnn.graph.window import Axis, Window, WindowAxis

Readers = list[list[int]]

_EXACT = 256
"""Every floating-point dtype, bfloat16 included, represents the integers up to that."""


@rule(Windowed)
def window(call: Backward) -> Sequence[Value | None]:
    """The rule of all windows: maxima, averages, and sums of any formula."""
    shape = call.op.window()
    if shape.chooses and shape.reduction == "max":
        return [_of_maximum(call, shape)]
    if shape.averages:
        return [_of_average(call, shape)]
    if shape.reduction == "sum" and shape.is_finished:
        return [
            _of_tapped_sum(call, shape, i) if wanted else None
            for i, wanted in enumerate(call.wanted)
        ]
    count = len(call.inputs)
    if all(derivative(shape.tap, i, argument(count + 1)) is None for i in range(count)):
        return [None] * count  # it changes by steps
    raise UnsupportedError(
        f"node {call.node.name!r} ({call.op}) has no gradient: valid are windows of maxima, "
        "averages and sums"
    )


@rule(ops.AdaptiveAvgPool2d)
def adaptive_average(call: Backward) -> Sequence[Value | None]:
    x = call.inputs[0]
    spans = call.op.spans(x.type)
    counts = [np.array([high - low for low, high in along_axis]) for along_axis in spans]
    gradient = _divided(call.gradient, counts)
    readers = [
        [
            [i for i, (low, high) in enumerate(along_axis) if low <= position < high]
            for position in range(size)
        ]
        for along_axis, size in zip(spans, x.shape[2:], strict=True)
    ]
    for axis, along_axis in enumerate(readers, 2):
        gradient = summed_at(gradient, axis, along_axis)
    return [gradient]


def _of_average(call: Backward, shape: Window) -> Value:
    """Each window gives its gradient, divided by its divisor, to all elements under it."""
    rows, columns = call.inputs[0].shape[2:]
    divided = _divided(call.gradient, shape.divisors((rows, columns)))
    back = Window(*covering(shape, (rows, columns)), "sum")
    return apply(ops.Pool2d(back, "AverageGradient"), divided)


def covering(shape: Window, sizes: Sequence[int]) -> tuple[Axis, Axis]:
    """The axes that lead back from windows to their input, whose rows and columns are ``sizes``."""
    return shape.rows.covering(sizes[0]), shape.columns.covering(sizes[1])


def _divided(gradient: Value, divisors: Sequence[np.ndarray]) -> Value:
    table = np.multiply.outer(*divisors)
    is_one_number = (table == table.flat[0]).all()
    divisor = float(table.flat[0]) if is_one_number else table.astype(numpy_dtype(gradient.dtype))
    quotient: Value = gradient / divisor
    return quotient


def _of_tapped_sum(call: Backward, shape: Window, index: int) -> Value | None:
    """The gradient of a windowed sum by operand ``index``.

    For an operand under the window it is a sum over the windows that contain an element, each by
    the derivative of the tap.  For an operand at the output's position it is a sum over the taps of
    the same window.
    """
    count, under = len(call.inputs), shape.under
    changed = derivative(shape.tap, index, argument(count + 1))
    if changed is None:
        return None
    operands = [*call.inputs, call.gradient]
    if index < under:
        sizes = call.inputs[index].shape[2:]
        rows, columns = covering(shape, sizes)
        order = [*range(under, count), count, *range(under)]
        under = count - under + 1
    else:
        rows, columns = shape.axes
        order = [*range(count), count]
    # In the derivative, the tap's number is argument `count`, and the gradient is `count + 1`; in
    # the formula of a window, the tap's number is the last argument.
    body = renumbered(changed, [count + 1 if i == count else i for i in order] + [count])
    back = Window(rows, columns, "sum", body, under=under, here=count + 1 - under)
    return apply(ops.Pool2d(back, f"{call.op.name}Gradient"), *(operands[i] for i in order))


@rule(ops.Unfold2d)
def unfold(call: Backward) -> Sequence[Value | None]:
    op = call.op
    axes = [
        WindowAxis(kernel, stride, (0, 0), dilation)
        for kernel, stride, dilation in zip(op.kernel_size, op.stride, op.dilation, strict=True)
    ]
    return [_folded(call.gradient, axes, call.inputs[0].shape)]


def _folded(taps: Value, axes: Sequence[WindowAxis], shape: tuple[int, ...]) -> Value:
    """Sums taps (N, C, KH, KW, rows, columns) into an image of ``shape``, at their positions."""
    batch, channels, kernel_rows, kernel_columns, rows, columns = taps.shape
    by_rows = apply(ops.Transpose((0, 1, 2, 4, 3, 5)), taps)
    image = apply(
        ops.View((batch, channels, kernel_rows * rows, kernel_columns * columns)), by_rows
    )
    for d, (axis, outputs) in enumerate(zip(axes, (rows, columns), strict=True), 2):
        readers: Readers = [[] for _ in range(shape[d])]
        for tap in range(axis.kernel):
            for output in range(outputs):
                if 0 <= axis.tap(output, tap) < shape[d]:
                    readers[axis.tap(output, tap)].append(tap * outputs + output)
        image = summed_at(image, d, readers)
    return image


def _of_maximum(call: Backward, shape: Window) -> Value:
    """Each window gives its gradient to the first element that equals its maximum."""
    x, y = call.inputs[0], call.output
    if shape.taps <= _EXACT:
        indices = [apply(place_of_maximum(shape), x, y)]
    else:
        indices = _row_and_column_indices(x, y, shape)
    return apply(maximum_gradient(shape, x.shape[2:], len(indices)), *indices, call.gradient)


def maximum_gradient(shape: Window, sizes: Sequence[int], places: int = 1) -> ops.Pool2d:
    """The operator from the indices of maxima, and the gradients of the windows, to the gradients
    of input elements, whose rows and columns are ``sizes``.

    ``places`` is the number of index operands: one, or one for rows and one for columns.
    """
    gradient, number = argument(places), argument(places + 1)
    place = argument(0)
    if places > 1:
        place = argument(0) * float(shape.columns.numbers) + argument(1)
    # Where a tap's number is a constant, the number that the index is compared with is, too.
    chosen = where(equal(place, shape.taps - 1.0 - number), gradient, 0.0)
    back = Window(*covering(shape, sizes), "sum", chosen, under=places + 1)
    return ops.Pool2d(back, "MaximumGradient")


def place_of_maximum(shape: Window) -> ops.Pool2d:
    """The operator from elements, and the maxima of windows over them, to the index of each
    maximum: how many taps of the window follow the first tap that equals it."""
    return _most(shape, shape.taps - 1.0 - argument(2), 1)


def _most(shape: Window, fits: Expression, here: int) -> ops.Pool2d:
    """The window that gives the largest value of ``fits`` among the taps that equal the maximum;
    ``here`` is the number of operands at the output's position."""
    element, maximum = argument(0), argument(1)
    # If the maximum is NaN, the taps that are NaN count.
    chosen = where(element >= maximum, fits, where(element <= element, -1.0, fits))
    return ops.Pool2d(Window(*shape.axes, "max", chosen, here=here), "Place")


def _row_and_column_indices(x: Value, y: Value, shape: Window) -> list[Value]:
    """How many rows follow the first maximum of each window, and how many columns.

    Two small numbers stand for the index, since values may be converted to half precision, which
    has few integers.
    """
    rows, columns = (axis.numbers for axis in shape.axes)
    below = apply(_most(shape, rows - 1.0 - floor(argument(2) / float(columns)), 1), x, y)
    row = floor(argument(3) / float(columns))
    columns_after = columns - 1.0 - (argument(3) - row * float(columns))
    in_row = where(argument(2) + row < rows - 1.0, -1.0, columns_after)
    fits = where(argument(2) + row > rows - 1.0, -1.0, in_row)
    return [below, apply(_most(shape, fits, 2), x, y, below)]
