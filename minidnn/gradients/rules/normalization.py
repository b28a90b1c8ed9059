"""Gradient rules of batch, layer and group normalization.

Instance normalization is group normalization with one group for each channel.
"""

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
    """Takes two reductions for each channel: the sum of the gradient, and the sum of its products
    with the distances from the mean.  The rest is arithmetic on vectors."""
    x, weight, _, mean, var = call.inputs
    gradient = call.gradient
    other_axes = tuple(d for d in range(x.type.rank) if d != 1)
    inverse = apply(ops.Formula(1.0 / sqrt(_G + call.op.eps), title="Inverse"), var)
    scale = weight * inverse
    by_input, by_weight, by_bias, by_mean, by_var = call.wanted
    gradients: list[Value | None] = [None] * 5
    if by_input:
        gradients[0] = apply(_INPUT, gradient, scale)
    if by_weight or by_var:
        total = apply(ops.Reduce("sum", other_axes), apply(_WEIGHT, gradient, x, mean))
        gradients[1] = by_normal = total * inverse
        if by_var:
            gradients[4] = apply(_VARIANCE, by_normal, scale, inverse)
    if by_bias or by_mean:
        gradients[2] = total = apply(ops.Reduce("sum", other_axes), gradient)
        if by_mean:
            gradients[3] = apply(_MEAN, total, scale)
    return [each if wanted else None for each, wanted in zip(gradients, call.wanted, strict=True)]


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
    """The gradients of a normalization of rows, one row for each position of the sizes ``kept``.

    Weight and bias, viewed as ``affine``, are broadcast along the axes ``repeated``.  The
    normalized rows are computed again from the input: weight and bias need not be invertible.
    """
    x, *parameters = call.inputs
    gradient = call.gradient
    rows = (prod(kept), prod(x.shape) // max(prod(kept), 1))
    centred = viewed(x, rows)
    for _ in range(2):  # the second mean is what rounding the first one left
        centred = centred - _mean(centred)
    deviation = np.sqrt(_mean(centred * centred) + call.op.eps)
    normalized = centred / deviation
    gradients: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        by_normal = gradient * viewed(parameters[0], affine) if parameters else gradient
        projected = viewed(by_normal, rows)
        projected = projected - _mean(projected) - normalized * _mean(projected * normalized)
        gradients[0] = viewed(projected / deviation, x.shape)
    if call.wanted[1:2] == (True,):
        by_weight = gradient * viewed(normalized, x.shape)
        gradients[1] = viewed(apply(ops.Reduce("sum", repeated), by_weight), parameters[0].shape)
    if call.wanted[2:] == (True,):
        gradients[2] = viewed(apply(ops.Reduce("sum", repeated), gradient), parameters[1].shape)
    return gradients


def _mean(rows: Value) -> Value:
    return apply(ops.Reduce("mean", (1,), keepdim=True), rows)
