"""Rules of normalizations; instance normalization by an image's own statistics is one group a
channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from minidnn.gradients.places import viewed
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, sqrt
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


@rule(ops.BatchNorm)
def batch_norm(call: Backward) -> Sequence[Value | None]:
    """Two sums over each channel, of the gradient and of it times the normalized values, from which
    the gradients of all four vectors are computed channel by channel."""
    x, weight, _, mean, var = call.inputs
    gradient, wanted = call.gradient, call.wanted
    others = tuple(d for d in range(x.type.rank) if d != 1)

    def deviation(variance: Expression) -> Expression:
        return sqrt(variance + call.op.eps)

    def formula(body: Expression, tensors: Sequence[Value], *vectors: Value) -> Value:
        op = ops.Formula(body, len(tensors), len(vectors), "BatchNormGradient")
        return apply(op, *tensors, *vectors)

    a, b, c, d = map(argument, range(4))
    found: list[Value | None] = [None] * 5
    if wanted[0]:
        found[0] = formula(a / deviation(c) * b, [gradient], weight, var)
    if wanted[1] or wanted[4]:
        weighted = formula(b * ((a - c) / deviation(d)), [x, gradient], mean, var)
        total = apply(ops.Reduce("sum", others), weighted)
        if wanted[1]:
            found[1] = total
        if wanted[4]:
            half = -0.5 * (a * b) / (c + call.op.eps)
            found[4] = formula(half, [total, weight, var])
    if wanted[2] or wanted[3]:
        total = apply(ops.Reduce("sum", others), gradient)
        if wanted[2]:
            found[2] = total
        if wanted[3]:
            found[3] = formula(-(a * b) / deviation(c), [total, weight, var])
    return found


@rule(ops.LayerNorm)
def layer_norm(call: Backward) -> Sequence[Value | None]:
    x = call.inputs[0]
    split = x.type.rank - call.op.axes
    return _normalization(call, x.shape[:split], x.shape[split:], tuple(range(split)))


@rule(ops.GroupNorm)
def group_norm(call: Backward) -> Sequence[Value | None]:
    x = call.inputs[0]
    batch, channels, *others = x.shape
    vector = (channels, *(1 for _ in others))
    repeated = tuple(d for d in range(x.type.rank) if d != 1)
    return _normalization(call, (batch, call.op.groups), vector, repeated)


def _normalization(
    call: Backward, kept: tuple[int, ...], affine: tuple[int, ...], repeated: tuple[int, ...]
) -> Sequence[Value | None]:
    """Of rows, one for each place of the sizes that are ``kept``.

    Weight and bias, seen as ``affine``, are repeated along the axes ``repeated``.  The normalized
    rows are computed again: what the output is made of them by need not have an inverse.
    """
    x, *parameters = call.inputs
    gradient = call.gradient
    rows = (prod(kept), prod(x.shape) // max(prod(kept), 1))
    apart = viewed(x, rows)
    for _ in range(2):  # the second mean is what rounding the first one left
        apart = apart - _mean(apart)
    deviation = np.sqrt(_mean(apart * apart) + call.op.eps)
    normal = apart / deviation
    found: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        wide = gradient * viewed(parameters[0], affine) if parameters else gradient
        pulled = viewed(wide, rows)
        pulled = pulled - _mean(pulled) - normal * _mean(pulled * normal)
        found[0] = viewed(pulled / deviation, x.shape)
    if call.wanted[1:2] == (True,):
        by_weight = gradient * viewed(normal, x.shape)
        found[1] = viewed(apply(ops.Reduce("sum", repeated), by_weight), parameters[0].shape)
    if call.wanted[2:] == (True,):
        found[2] = viewed(apply(ops.Reduce("sum", repeated), gradient), parameters[1].shape)
    return found


def _mean(rows: Value) -> Value:
    return apply(ops.Reduce("mean", (1,), keepdim=True), rows)
