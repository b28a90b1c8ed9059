"""Rules of pooling, and of windows side by side.

An average is linear: an element gets, from each window that it lies in, what the window got divided
by its divisor, along rows and along columns by themselves.  A maximum is its first element's.
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
"""Whole numbers up to that are exact in every dtype."""


@rule(Windowed)
def window(call: Backward) -> Sequence[Value | None]:
    shape = call.op.window()
    if shape.chooses and shape.join == "max":
        return [_by_maximum(call, shape)]
    if shape.averages:
        return [_by_average(call, shape)]
    if shape.join == "sum" and shape.is_finished:
        return [_by_tap(call, shape, i) if wanted else None for i, wanted in enumerate(call.wanted)]
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
    counts = [np.array([high - low for low, high in each]) for each in spans]
    found = _divided(call.gradient, counts)
    readers = [
        [[i for i, (low, high) in enumerate(each) if low <= place < high] for place in range(size)]
        for each, size in zip(spans, x.shape[2:], strict=True)
    ]
    for axis, each in enumerate(readers, 2):
        found = summed_at(found, axis, each)
    return [found]


def _by_average(call: Backward, shape: Window) -> Value:
    """Each window gives what it got, divided, to all elements under it."""
    rows, columns = call.inputs[0].shape[2:]
    divided = _divided(call.gradient, shape.divisors((rows, columns)))
    back = Window(*covering(shape, (rows, columns)), "sum")
    return apply(ops.Pool2d(back, "AverageGradient"), divided)


def covering(shape: Window, sizes: Sequence[int]) -> tuple[Axis, Axis]:
    """The axes that lead back from windows to planes of such sizes."""
    return shape.rows.covering(sizes[0]), shape.columns.covering(sizes[1])


def _divided(gradient: Value, divisors: Sequence[np.ndarray]) -> Value:
    table = np.multiply.outer(*divisors)
    if (table == table.flat[0]).all():
        found: Value = gradient / float(table.flat[0])
        return found
    found = gradient / table.astype(numpy_dtype(gradient.dtype))
    return found


def _by_tap(call: Backward, shape: Window, index: int) -> Value | None:
    """A sum's gradient by one operand: the sum, over the windows that an element lies in, of what
    the element changed each of them by; or, of an operand at the window's own place, over the
    taps again."""
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
    # Behind the operands stand the tap's number and, in the derivative, the gradient.
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


def _by_maximum(call: Backward, shape: Window) -> Value:
    """Each window gives what it got to the first element that is its maximum."""
    x, y = call.inputs[0], call.output
    if shape.taps <= _EXACT:
        places = [apply(place_of_maximum(shape), x, y)]
    else:
        places = _two_places(x, y, shape)
    return apply(maximum_gradient(shape, x.shape[2:], len(places)), *places, call.gradient)


def maximum_gradient(shape: Window, sizes: Sequence[int], places: int = 1) -> ops.Pool2d:
    """Of places of maxima and what the windows got: what the elements of planes of such sizes
    get."""
    gradient, number = argument(places), argument(places + 1)
    place = argument(0)
    if places > 1:
        place = argument(0) * float(shape.columns.numbers) + argument(1)
    # Where the number is known, so is what a place is compared with.
    chosen = where(equal(place, shape.taps - 1.0 - number), gradient, 0.0)
    back = Window(*covering(shape, sizes), "sum", chosen, under=places + 1)
    return ops.Pool2d(back, "MaximumGradient")


def place_of_maximum(shape: Window) -> ops.Pool2d:
    """Of elements and the maxima of windows over them: how many taps of each window follow its
    first maximum."""
    return _most(shape, shape.taps - 1.0 - argument(2), 1)


def _most(shape: Window, fits: Expression, here: int) -> ops.Pool2d:
    """The largest number that a maximum has."""
    taken, held = argument(0), argument(1)
    # Of a maximum that is NaN it is the first NaN.
    chosen = where(taken >= held, fits, where(taken <= taken, -1.0, fits))
    return ops.Pool2d(Window(*shape.axes, "max", chosen, here=here), "Place")


def _two_places(x: Value, y: Value, shape: Window) -> list[Value]:
    """How many rows follow the first maximum of each window, and how many columns, since values may
    come to be in half precision, with few whole numbers."""
    rows, columns = (axis.numbers for axis in shape.axes)
    below = apply(_most(shape, rows - 1.0 - floor(argument(2) / float(columns)), 1), x, y)
    row = floor(argument(3) / float(columns))
    behind = columns - 1.0 - (argument(3) - row * float(columns))
    in_row = where(argument(2) + row < rows - 1.0, -1.0, behind)
    fits = where(argument(2) + row > rows - 1.0, -1.0, in_row)
    return [below, apply(_most(shape, fits, 2), x, y, below)]
