"""compose_gradients: gradients of convolutions are put together from convolutions.

Handles: both gradients, where the target has no kernel of its own for them.  That for the input is
a transposed convolution.  That for the weight is a convolution with batch and channels in each
other's place, and stride and dilation, too: the tap ``k`` of the weight meets the input
``y * stride + k * dilation`` for every output ``y``.
Refuses: nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Operator
from minidnn.graph.transposed import transposed_convolution
from minidnn.passes.infrastructure import Context, Pass

Apply = Callable[..., Value]
_GRADIENTS = (ops.Conv2dInputGradient, ops.Conv2dWeightGradient)


def compose_gradients(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        reason = None
        if isinstance(node.op, _GRADIENTS):
            reason = context.target.refuse_convolution_gradient(node)
        if reason is None or not context.allow(f"compose {node.name}: {reason}"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in node.inputs]
        composed = _by_input if isinstance(node.op, ops.Conv2dInputGradient) else _by_weight
        rewriter.replace(node.output, composed(node, _adding(rewriter, node), *operands))
    return rewriter.finish()


def _adding(rewriter: Rewriter, node: Node) -> Apply:
    def apply(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    return apply


def _by_input(node: Node, apply: Apply, gradient: Value, weight: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.Conv2dInputGradient)
    convolution = op.convolution
    axes = convolution.axes((weight.shape[2], weight.shape[3]))
    cut = []
    for axis, size, outputs in zip(axes, op.size, gradient.shape[2:], strict=True):
        total = (outputs - 1) * axis.stride + axis.reach
        cut.append((axis.padding[0], total - size - axis.padding[0]))
    return transposed_convolution(
        gradient,
        weight,
        stride=convolution.stride,
        cut=tuple(cut),
        dilation=convolution.dilation,
        groups=convolution.groups,
        apply=apply,
    )


def _by_weight(node: Node, apply: Apply, x: Value, gradient: Value) -> Value:
    op = node.op
    assert isinstance(op, ops.Conv2dWeightGradient)
    convolution, groups = op.convolution, op.convolution.groups
    batch, channels, *size = x.shape
    grouped = apply(ops.View((batch, groups, channels // groups, *size)), x)
    images = apply(ops.Transpose((2, 1, 0, 3, 4)), grouped)
    images = apply(ops.View((channels // groups, groups * batch, *size)), images)
    taps = apply(ops.Transpose((1, 0, 2, 3)), gradient)
    turned = ops.Conv2d(
        convolution.dilation, convolution.padding, convolution.stride, convolution.groups
    )
    found = apply(turned, images, taps)
    whole = (channels // groups, gradient.shape[1], *op.kernel)
    if found.shape != whole:  # the stride passed over the input's end
        found = apply(ops.Slice((0, 0, 0, 0), whole, (1, 1, 1, 1)), found)
    return apply(ops.Transpose((1, 0, 2, 3)), found)


COMPOSE_GRADIENTS = Pass("compose_gradients", compose_gradients)
