"""Which kernels compute a product."""

from __future__ import annotations

from ....fusion.product_shape import shape_of
from ....graph.ir import Node, Value
from ..kernels import Launch
from ..machine import Machine
from .exact import print_exactly
from .tensor_cores import candidates, print_on_tensor_cores, why_not_tensor_cores


def print_product(node: Node, machine: Machine) -> tuple[list[Launch], tuple[Value, Value]]:
    """The kernels that may be the fastest for a MatMul, or for a region of one: the one first that
    is taken to be, and the others give the same bits.

    Pointers are the two operands that are told, and the result.
    """
    shape, (a, b) = shape_of(node)
    if why_not_tensor_cores(shape) is not None:
        return [print_exactly(shape, a.dtype, b.dtype)], (a, b)
    tiles = candidates(shape, machine)
    return [print_on_tensor_cores(shape, tile) for tile in tiles], (a, b)
