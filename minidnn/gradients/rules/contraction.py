"""Gradient rules of contractions: matrix products, attention, linear layers and convolutions.

The input gradient and the weight gradient of a convolution are operators of their own.  The
gradients of each are the convolution and the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minidnn.errors import UnsupportedError
from minidnn.gradients.rules.movement import summed_to, viewed
from minidnn.gradients.table import REASONS, Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply, current_trace

REASONS[ops.AttentionGradient] = (
    "attention is differentiated twice as products and a softmax, which md.gradient makes of it"
)


@rule(ops.MatMul)
def matmul(call: Backward) -> Sequence[Value | None]:
    a, b = call.inputs
    gradient = call.gradient
    by_a, by_b = call.wanted
    return [
        summed_to(gradient @ _transposed(b), a.shape) if by_a else None,
        summed_to(_transposed(a) @ gradient, b.shape) if by_b else None,
    ]


def _transposed(value: Value) -> Value:
    rank = value.type.rank
    return apply(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


@rule(ops.Attention)
def attention(call: Backward) -> Sequence[Value | None]:
    gradient, of_logarithms = call.gradients
    if of_logarithms is not None:
        raise UnsupportedError(
            f"node {call.node.name!r} ({call.op}): its logarithms have no gradient"
        )
    if gradient is None:
        return [None] * 3
    back = ops.AttentionGradient(call.op.scale)
    return current_trace().apply(back, *call.inputs, *call.node.outputs, gradient)


@rule(ops.Linear)
def linear(call: Backward) -> Sequence[Value | None]:
    x, weight = call.inputs[:2]
    outputs, features = weight.shape
    rows = prod(x.shape[:-1])
    gradient = viewed(call.gradient, (rows, outputs))
    gradients: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        gradients[0] = viewed(gradient @ weight, x.shape)
    if call.wanted[1]:
        gradients[1] = _transposed(gradient) @ viewed(x, (rows, features))
    if call.wanted[2:] == (True,):
        gradients[2] = apply(ops.Reduce("sum", (0,)), gradient)
    return gradients


@rule(ops.Conv2d)
def convolution(call: Backward) -> Sequence[Value | None]:
    x, weight = call.inputs[:2]
    op, gradient = call.op, call.gradient
    gradients: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        gradients[0] = apply(ops.Conv2dInputGradient(op, _plane(x)), gradient, weight)
    if call.wanted[1]:
        gradients[1] = apply(ops.Conv2dWeightGradient(op, _plane(weight)), x, gradient)
    if call.wanted[2:] == (True,):
        gradients[2] = apply(ops.Reduce("sum", (0, 2, 3)), gradient)
    return gradients


@rule(ops.Conv2dInputGradient)
def input_gradient(call: Backward) -> Sequence[Value | None]:
    """The convolution and its two gradients are the derivatives of one trilinear form,
    ``<g, conv(x, w)>``, so the gradients of one are the other two."""
    op, (gradient, weight), x = call.op.convolution, call.inputs, call.gradient
    by_gradient, by_weight = call.wanted
    return [
        apply(op, x, weight) if by_gradient else None,
        apply(ops.Conv2dWeightGradient(op, _plane(weight)), x, gradient) if by_weight else None,
    ]


@rule(ops.Conv2dWeightGradient)
def weight_gradient(call: Backward) -> Sequence[Value | None]:
    op, (x, gradient), weight = call.op.convolution, call.inputs, call.gradient
    by_input, by_gradient = call.wanted
    return [
        apply(ops.Conv2dInputGradient(op, _plane(x)), gradient, weight) if by_input else None,
        apply(op, x, weight) if by_gradient else None,
    ]


def _plane(value: Value) -> tuple[int, int]:
    """The spatial size: rows and columns."""
    return (value.shape[2], value.shape[3])
