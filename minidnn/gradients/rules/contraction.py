"""Rules of products: linear layers, matrices, and convolutions.

The gradients of a convolution are convolutions.  For its input it is the transposed one; for its
weight it is one with batch and channels in each other's place, and stride and dilation, too: the
tap ``k`` of the weight meets the input ``y * stride + k * dilation`` for every output ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from minidnn.gradients.places import summed_to, viewed
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply
from minidnn.graph.transposed import transposed_convolution


@rule(ops.MatMul)
def matmul(call: Backward) -> Sequence[Value | None]:
    a, b = call.inputs
    gradient = call.gradient
    by_a, by_b = call.wanted
    return [
        summed_to(gradient @ _turned(b), a.shape) if by_a else None,
        summed_to(_turned(a) @ gradient, b.shape) if by_b else None,
    ]


def _turned(value: Value) -> Value:
    rank = value.type.rank
    return apply(ops.Transpose((*range(rank - 2), rank - 1, rank - 2)), value)


@rule(ops.Linear)
def linear(call: Backward) -> Sequence[Value | None]:
    x, weight = call.inputs[:2]
    outputs, features = weight.shape
    rows = prod(x.shape[:-1])
    gradient = viewed(call.gradient, (rows, outputs))
    found: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        found[0] = viewed(gradient @ weight, x.shape)
    if call.wanted[1]:
        found[1] = _turned(gradient) @ viewed(x, (rows, features))
    if call.wanted[2:] == (True,):
        found[2] = apply(ops.Reduce("sum", (0,)), gradient)
    return found


@rule(ops.Conv2d)
def convolution(call: Backward) -> Sequence[Value | None]:
    found: list[Value | None] = [None] * len(call.inputs)
    if call.wanted[0]:
        found[0] = _by_input(call)
    if call.wanted[1]:
        found[1] = _by_weight(call)
    if call.wanted[2:] == (True,):
        found[2] = apply(ops.Reduce("sum", (0, 2, 3)), call.gradient)
    return found


def _by_input(call: Backward) -> Value:
    op, x, weight = call.op, *call.inputs[:2]
    cut = []
    for axis, size, outputs in zip(
        op.axes(weight.shape[2:]), x.shape[2:], call.output.shape[2:], strict=True
    ):
        total = (outputs - 1) * axis.stride + axis.reach
        cut.append((axis.padding[0], total - size - axis.padding[0]))
    return transposed_convolution(
        call.gradient,
        weight,
        stride=op.stride,
        cut=tuple(cut),
        dilation=op.dilation,
        groups=op.groups,
        apply=apply,
    )


def _by_weight(call: Backward) -> Value:
    op, x, weight = call.op, *call.inputs[:2]
    batch, _, *size = x.shape
    outputs, per_group, *kernel = weight.shape
    groups = op.groups
    grouped = viewed(x, (batch, groups, per_group, *size))
    images = apply(ops.Transpose((2, 1, 0, 3, 4)), grouped)
    images = viewed(images, (per_group, groups * batch, *size))
    taps = apply(ops.Transpose((1, 0, 2, 3)), call.gradient)
    turned = ops.Conv2d(op.dilation, op.padding, op.stride, groups)
    found = apply(turned, images, taps)
    whole = (per_group, outputs, *kernel)
    if found.shape != whole:  # the stride passed over the input's end
        found = apply(ops.Slice((0, 0, 0, 0), whole, (1, 1, 1, 1)), found)
    return apply(ops.Transpose((1, 0, 2, 3)), found)
