"""From products of batches, and from what is made of them, to tasks."""

from __future__ import annotations

from collections.abc import Sequence

from ....fusion.attention import FusedAttention, FusedAttentionGradient
from ....fusion.product import FusedProduct, shape_of
from ....graph.ir import Node, Value
from ....graph.operators import MatMul
from ..attention.lower import attention_tasks
from ..kernels import Launch
from ..machine import Machine
from ..task import Task, at_offset
from .exact import print_exactly
from .tensor_cores import candidates, print_on_tensor_cores, why_not_tensor_cores

BATCHED = (MatMul, FusedProduct, FusedAttention, FusedAttentionGradient)


def tasks_of_batches(node: Node, machine: Machine, others: bool) -> Sequence[Task]:
    """The tasks of such a node, with ``others`` to be measured if they are wanted."""
    if isinstance(node.op, (FusedAttention, FusedAttentionGradient)):
        return attention_tasks(node)
    (launch, *more), operands = print_product(node, machine)
    shape, _ = shape_of(node)
    a, b = operands
    pointers = at_offset(a, shape.a.offset), at_offset(b, shape.b.offset), node.output
    return (Task(node, launch, pointers, tuple(more) if others else ()),)


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
