"""Rules of normalizations; instance normalization by an image's own statistics is one group a
channel."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from minidnn.gradients.rules.movement import viewed
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, sqrt
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply

_G, _X, _V = map(argument, range(3))
_INPUT = ops.Formula(_G * _X, 1, 1, "BatchNormGradient")
_WEIGHT = ops.Formula(_G * (_X - _V), 2, 1, "BatchNormGradient")
_MEAN = ops.Formula(-_G * _X, 2, title="BatchNormGradient")
_VARIANCE = ops.Formula(-0.5 * _G * _X * _V, 3, title="BatchNormGradient")


@rule(ops.BatchNorm)
def batch_norm(call: Backward) -> Sequence[Value | None]:
    """By two sums for each channel: those of the gradient, and of its products with distances from
    the mean.  The rest is arithmetic on vectors."""
    x, weight, _, mean, var = call.inputs
    gradient = call.gradient
    others = tuple(d for d in range(x.type.rank) if d != 1)
    inverse = apply(ops.Formula(1.0 / sqrt(_G + call.op.eps), title="Inverse"), var)
    scale = weight * inverse
    by_input, by_weight, by_bias, by_mean, by_var = call.wanted
    found: list[Value | None] = [None] * 5
    if by_input:
        found[0] = apply(_INPUT, gradient, scale)
    if by_weight or by_var:
        total = apply(ops.Reduce("sum", others), apply(_WEIGHT, gradient, x, mean))
        found[1] = normal = total * inverse
        if by_var:
            found[4] = apply(_VARIANCE, normal, scale, inverse)
    if by_bias or by_mean:
        found[2] = total = apply(ops.Reduce("sum", others), gradient)
        if by_mean:
            found[3] = apply(_MEAN, total, scale)
    return [each if wanted else None for each, wanted in zip(found, call.wanted, strict=True)]


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
