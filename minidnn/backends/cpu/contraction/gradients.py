"""The gradients of convolutions: which kernels compute them, and why none does."""

from __future__ import annotations

from collections.abc import Callable

from ....graph.ir import Node, Value
from ....graph.operators import Conv2dInputGradient, Conv2dWeightGradient
from ..isa import Isa
from ..stage import Staged
from ..tensor import Tensor
from .depthwise_gradient import print_depthwise_gradient, print_depthwise_input_gradient
from .dot_product.weight_gradient import print_pixel_products
from .problem import FEW_CHANNELS
from .weight_gradient import print_weight_gradient

_DTYPES = ({"float32"}, {"bfloat16"})


def why_not(node: Node, lanes: int) -> str | None:
    """Why there is no kernel for a gradient; None if there is one.

    That for the input is put together from convolutions, unless it is a depthwise convolution's
    with strides, which would take one for each of a few pixels.
    """
    op, dtypes = node.op, {value.dtype for value in (*node.inputs, *node.outputs)}
    assert isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient))
    groups = op.convolution.groups
    if dtypes not in _DTYPES:
        return f"it is {', '.join(sorted(dtypes))}"
    if isinstance(op, Conv2dInputGradient):
        if not _is_depthwise(node):
            return "it is no depthwise convolution's"
        return "its stride is 1" if op.convolution.stride == (1, 1) else None
    if _is_depthwise(node):
        # Few channels lie in planes, as those of pictures do.
        return f"it has {groups} channels" if groups <= FEW_CHANNELS else None
    if groups > 1 and any(v.shape[1] // groups % lanes for v in node.inputs):
        return f"the channels of its {groups} groups are no multiples of {lanes} lanes"
    return None


def _is_depthwise(node: Node) -> bool:
    """Whether each channel has a kernel of its own, and gives one."""
    op = node.op
    assert isinstance(op, (Conv2dInputGradient, Conv2dWeightGradient))
    given = node.output if isinstance(op, Conv2dInputGradient) else node.inputs[0]
    gradient = node.inputs[0 if isinstance(op, Conv2dInputGradient) else 1]
    return op.convolution.groups == given.shape[1] == gradient.shape[1]


def print_gradient(node: Node, tensor: Callable[[Value], Tensor], isa: Isa) -> Staged:
    """The kernels of a gradient of which :func:`why_not` says nothing; the pointers are the
    operands and the result.

    Args:
        tensor: how a value lies.
    """
    op, first, batch = node.op, node.inputs[0], node.inputs[0].shape[0]
    if isinstance(op, Conv2dInputGradient):
        rows, columns = node.inputs[1].shape[2:]
        ends = tensor(first), tensor(node.output)
        return print_depthwise_input_gradient(op, batch, *ends, (rows, columns), isa)
    assert isinstance(op, Conv2dWeightGradient)
    operands = tensor(first), tensor(node.inputs[1])
    if _is_depthwise(node):
        return print_depthwise_gradient(op, batch, *operands, isa)
    if first.dtype == "bfloat16":
        return print_pixel_products(op, batch, *operands, isa)
    return print_weight_gradient(op, batch, *operands, isa)
