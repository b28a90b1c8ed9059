"""Rules of sums, means, variances, extremes and products over axes, of softmax, of sums over ranks,
and of what is dropped at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from minidnn.gradients.rules.movement import viewed
from minidnn.gradients.table import REASONS, Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Value
from minidnn.graph.recorder import current_recorder
from minidnn.graph.symbolic import pointwise
from minidnn.graph.trace import apply

REASONS[ops.ArgMax] = "it gives places, which are whole numbers and change by steps"


@rule(ops.Reduce)
def reduce(call: Backward) -> Sequence[Value | None]:
    (x,) = call.inputs
    dims = call.op.dims
    kept = tuple(1 if d in dims else size for d, size in enumerate(x.shape))
    gradient, output = call.gradient, call.output
    if call.op.how == "mean":  # before it is repeated
        gradient = gradient / float(prod(x.shape[d] for d in dims))
    gradient = viewed(gradient, kept)
    if call.op.dtype is not None:
        gradient, output = _cast(gradient, x.dtype), _cast(output, x.dtype)
    match call.op.how:
        case "sum" | "mean":
            return [apply(ops.Expand(x.shape), gradient)]
        case "prod":
            return [_products_of_others(x, dims) * gradient]
    if call.op.first:
        return [_of_first(x, gradient, dims[0], turned=call.op.how == "min")]
    return [_shared(x, viewed(output, kept), gradient, dims)]


@rule(ops.Variance)
def variance(call: Backward) -> Sequence[Value | None]:
    """Distances from the mean add up to zero, so that its own part is none."""
    x, mean = call.inputs
    gradient = call.gradient
    count = x.type.size // mean.type.size
    dtype = None if x.dtype == mean.dtype else x.dtype
    body = (argument(0) - argument(1)) * (argument(2) * (2.0 / count))
    compute = None if dtype is None else mean.dtype
    op = ops.Formula(body, 1, 2, "VarianceGradient", dtype, compute)
    return [apply(op, x, mean, gradient), None]


def _cast(x: Value, dtype: str) -> Value:
    if x.dtype == dtype:
        return x
    return apply(ops.Formula(argument(0), title="Cast", dtype=dtype), x)


def _of_first(x: Value, gradient: Value, axis: int, turned: bool) -> Value:
    """The first of the largest elements, or of the smallest, has all of the gradient; NaN counts as
    either."""
    given = apply(ops.Formula(-argument(0), title="Turned"), x) if turned else x
    place = apply(ops.ArgMax(axis, keepdim=True), given)
    shape = tuple(x.shape[axis] if d == axis else 1 for d in range(x.type.rank))
    is_first = np.equal(place, np.arange(x.shape[axis]).reshape(shape))
    return pointwise("Where", lambda c, g: where(c > 0.0, g, 0.0), is_first, gradient)


def _shared(x: Value, extreme: Value, gradient: Value, dims: tuple[int, ...]) -> Value:
    """Elements that equal the extreme share its gradient evenly.  NaN among them makes all NaN."""
    a, b = argument(0), argument(1)
    equal = where(a < b, 0.0, where(a > b, 0.0, where(a >= b, 1.0, a + b)))
    is_extreme = apply(ops.Formula(equal, 2, title="Equal"), x, extreme)
    each = gradient / apply(ops.Reduce("sum", dims, keepdim=True), is_extreme)
    choice = where(a < b, 0.0, where(a > b, 0.0, argument(2)))
    return apply(ops.Formula(choice, 3, title="Where"), x, extreme, each)


def _products_of_others(x: Value, dims: tuple[int, ...]) -> Value:
    """For each element the product of all others along ``dims``; it never divides, so zeros are
    right.  Products of what is before and behind are made in steps of 1, 2, 4, ... elements."""
    order = tuple(d for d in range(x.type.rank) if d not in dims) + dims
    moved = apply(ops.Transpose(order), x)
    count = prod(x.shape[d] for d in dims)
    rows = viewed(moved, (x.type.size // max(count, 1), count))
    turn = ops.Slice((0, max(count - 1, 0)), rows.shape, (1, -1))
    behind = apply(turn, _products_before(apply(turn, rows)))
    found = viewed(_products_before(rows) * behind, moved.shape)
    return apply(ops.Transpose(tuple(order.index(d) for d in range(len(order)))), found)


def _products_before(rows: Value) -> Value:
    """For each element the product of all before it in its row."""
    count = rows.shape[1]
    found, step = _delayed(rows, 1), 1
    while step < count:
        found = found * _delayed(found, step)
        step *= 2
    return found


def _delayed(rows: Value, steps: int) -> Value:
    """Rows that begin with ones and lose as many elements at their ends."""
    places = np.arange(rows.shape[1]) - steps
    return apply(ops.Take((None, tuple(np.maximum(places, -1).tolist())), 1.0), rows)


@rule(ops.Softmax)
def softmax(call: Backward) -> Sequence[Value | None]:
    y, gradient = call.output, call.gradient
    total = apply(ops.Reduce("sum", (call.op.dim % y.type.rank,), keepdim=True), gradient * y)
    return [(gradient - total) * y]


@rule(ops.LogSoftmax)
def log_softmax(call: Backward) -> Sequence[Value | None]:
    y, gradient = call.output, call.gradient
    total = apply(ops.Reduce("sum", (call.op.dim % y.type.rank,), keepdim=True), gradient)
    return [gradient - np.exp(y) * total]


@rule(ops.RandomDrop)
def random_drop(call: Backward) -> Sequence[Value | None]:
    """The same elements are dropped again."""
    return [apply(call.op, call.gradient, *call.inputs[1:]), None, None]


@rule(ops.SumOverRanks)
def sum_over_ranks(call: Backward) -> Sequence[Value | None]:
    """Of the loss that all ranks' losses add up to."""
    given = [each for each in call.gradients if each is not None]
    sums = iter(current_recorder().apply(replace(call.op, beside=False), *given))
    return [None if each is None else next(sums) for each in call.gradients]
