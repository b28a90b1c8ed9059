"""Gradient rules of sums, means, variances, extremes and products over axes, of softmax, of sums
over ranks, and of dropout.
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

REASONS[ops.ArgMax] = "it returns indices, which are piecewise constant"


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
        return [_to_first_extreme(x, gradient, dims[0], smallest=call.op.how == "min")]
    return [_shared(x, viewed(output, kept), gradient, dims)]


@rule(ops.Variance)
def variance(call: Backward) -> Sequence[Value | None]:
    """Distances from the mean add up to zero, so the mean has no gradient here."""
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


def _to_first_extreme(x: Value, gradient: Value, axis: int, smallest: bool) -> Value:
    """The gradient of an extreme that goes to its first element alone.

    The extreme is the maximum, or the minimum if ``smallest``; NaN counts as either.
    """
    oriented = apply(ops.Formula(-argument(0), title="Turned"), x) if smallest else x
    index = apply(ops.ArgMax(axis, keepdim=True), oriented)
    shape = tuple(x.shape[axis] if d == axis else 1 for d in range(x.type.rank))
    is_first = np.equal(index, np.arange(x.shape[axis]).reshape(shape))
    return pointwise("Where", lambda c, g: where(c > 0.0, g, 0.0), is_first, gradient)


def _shared(x: Value, extreme: Value, gradient: Value, dims: tuple[int, ...]) -> Value:
    """The gradient of an extreme, shared evenly by the elements that equal it; NaN among the
    elements makes all of it NaN."""
    a, b = argument(0), argument(1)
    equal = where(a < b, 0.0, where(a > b, 0.0, where(a >= b, 1.0, a + b)))
    is_extreme = apply(ops.Formula(equal, 2, title="Equal"), x, extreme)
    share = gradient / apply(ops.Reduce("sum", dims, keepdim=True), is_extreme)
    choice = where(a < b, 0.0, where(a > b, 0.0, argument(2)))
    return apply(ops.Formula(choice, 3, title="Where"), x, extreme, share)


def _products_of_others(x: Value, dims: tuple[int, ...]) -> Value:
    """For each element, the product of all others along ``dims``.

    It is an exclusive prefix product times an exclusive suffix product, and never divides, so zeros
    are right.  Each scan takes steps of 1, 2, 4, ... elements.
    """
    order = tuple(d for d in range(x.type.rank) if d not in dims) + dims
    moved = apply(ops.Transpose(order), x)
    count = prod(x.shape[d] for d in dims)
    rows = viewed(moved, (x.type.size // max(count, 1), count))
    reverse = ops.Slice((0, max(count - 1, 0)), rows.shape, (1, -1))
    suffix_products = apply(reverse, _prefix_products(apply(reverse, rows)))
    products = viewed(_prefix_products(rows) * suffix_products, moved.shape)
    return apply(ops.Transpose(tuple(order.index(d) for d in range(len(order)))), products)


def _prefix_products(rows: Value) -> Value:
    """The exclusive prefix product of each row: for each element, the product of all before it."""
    count = rows.shape[1]
    products, step = _shifted_right(rows, 1), 1
    while step < count:
        products = products * _shifted_right(products, step)
        step *= 2
    return products


def _shifted_right(rows: Value, steps: int) -> Value:
    """The rows shifted to the right by ``steps``, with ones shifted in."""
    sources = np.arange(rows.shape[1]) - steps
    return apply(ops.Take((None, tuple(np.maximum(sources, -1).tolist())), 1.0), rows)


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
    """The gradient of the sum of all ranks' losses: it is summed over the ranks, too."""
    present = [each for each in call.gradients if each is not None]
    sums = iter(current_recorder().apply(replace(call.op, beside=False), *present))
    return [None if each is None else next(sums) for each in call.gradients]
