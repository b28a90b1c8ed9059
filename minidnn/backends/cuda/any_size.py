"""Kernels for planes of any size: rows, columns and strides are arguments.

A thread computes one position of one channel; each result has the bits that :mod:`.sequence` and
:mod:`.pointwise` give it, a zero's sign aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...fusion.operations import Operation, copy_operation, operation_of
from ...fusion.stacks import is_tensor_operand
from ...graph.ir import Node, Value
from ...graph.types import HALVES, TensorType
from ...kernels.ops import region
from ...kernels.ops.planes import Planes
from .expressions import narrowed
from .kernels import ANY_SIZE, Launch
from .pointwise import PointStep
from .prelude import TYPES
from .tensor import Tensor

_MOST_RANK = 4


def has_any_size(nodes: Sequence[Node]) -> bool:
    """Whether :func:`print_for_any_size` prints nodes."""
    given = [v for node in nodes for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)]
    made = [value for node in nodes for value in node.outputs]
    # Axes of values of several ranks are others than those of planes.
    ranks = {value.type.rank for value in (*given, *made) if value.type.size > 1}
    fits = len(ranks) <= 1 and max(ranks, default=0) <= _MOST_RANK
    return fits and region.why_not(nodes, TYPES) is None


def print_for_any_size(
    nodes: Sequence[Node], outputs: Sequence[Value], tensors: Callable[[Value], Tensor]
) -> tuple[Launch, tuple[Value, ...]]:
    """The kernel of nodes of which :func:`has_any_size` is true, and the values that its pointers
    point to.

    Args:
        tensors: how the values that they read and the outputs lie.
    """
    operations = [_narrowed(operation_of(node, 0)) for node in nodes]
    kernel, values = region.lower(operations, outputs, tensors, ANY_SIZE)
    return Launch.of(kernel), values


def print_chain_for_any_size(
    batch: int,
    inputs: Sequence[Tensor],
    output: Tensor,
    vectors: Sequence[str] = (),
    steps: Sequence[PointStep] = (),
    round_steps: bool = False,
) -> Launch:
    """The kernel of a chain of steps, see :func:`.pointwise.print_pointwise`."""

    def value(tensor: Tensor, dtype: str) -> Value:
        return Value(TensorType((batch, tensor.channels, tensor.rows, tensor.columns), dtype), "")

    tensors = [value(tensor, tensor.dtype) for tensor in inputs]
    weights = [Value(TensorType((output.channels,), dtype), "") for dtype in vectors]
    chain, made = tensors[0], value(output, output.dtype)
    operations: list[Operation] = [] if steps else [copy_operation(chain, made)]
    for i, step in enumerate(steps, 1):
        read = {"chain": [chain], "tensor": tensors, "vector": weights}
        operands = tuple(read[each.kind][each.index] for each in step.arguments)
        passed = value(output, output.dtype if round_steps else "float32")
        chain = made if i == len(steps) else passed
        code = narrowed(step.code) if output.dtype in HALVES else step.code
        operations.append(Operation(chain, operands, code=code))
    lie: dict[Value, Planes] = dict(zip((*tensors, made), (*inputs, output), strict=True))
    lie |= {each: Planes.over_channels(each.dtype, output.channels) for each in weights}
    operands = *tensors, *weights
    return Launch.of(region.lower(operations, (made,), lie.__getitem__, ANY_SIZE, operands)[0])


def _narrowed(operation: Operation) -> Operation:
    """An operation as code whose result is rounded to its output's dtype needs."""
    narrow = operation.output.dtype in HALVES and operation.code
    return replace(operation, code=narrowed(operation.code)) if narrow else operation
