"""One rule for all element-wise operators, users' own included: it differentiates their formula."""

from __future__ import annotations

from collections.abc import Sequence

from minidnn.gradients.rules.movement import summed_to
from minidnn.gradients.scalar import arguments_of, derivative, renumbered, with_result
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument
from minidnn.graph.ir import Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.trace import apply


@rule(Elementwise)
def elementwise(call: Backward) -> Sequence[Value | None]:
    """The formula's derivative times the gradient, summed over the axes that an operand was
    broadcast along."""
    return [
        _by_operand(call, index) if wanted else None for index, wanted in enumerate(call.wanted)
    ]


def _by_operand(call: Backward, index: int) -> Value | None:
    """The gradient of operand ``index``; None if the formula has derivative 0 in it."""
    op, inputs, operand = call.op, call.inputs, call.inputs[index]
    count, split = len(inputs), len(inputs) - op.channel_count
    gradient = call.gradient
    compute = getattr(op, "compute", None)
    if gradient.dtype != operand.dtype and compute is None:
        gradient = apply(ops.Formula(argument(0), title="Cast", dtype=operand.dtype), gradient)
    slope = derivative(op.expression(), index, argument(count + 1))
    if slope is None:
        return None
    if call.output.dtype == operand.dtype:
        slope = _shorter(slope, with_result(slope, op.expression(), argument(count)))
    used = arguments_of(slope)
    order = [i for i in used if not split <= i < count]
    vectors = [i for i in used if split <= i < count]
    body = renumbered(slope, order + vectors)
    everything = (*inputs, call.output, gradient)
    result = gradient
    if body.op != "argument" or result.dtype != operand.dtype:
        title, dtype = f"{op.name}Gradient", None if compute is None else operand.dtype
        formula = ops.Formula(body, len(order), len(vectors), title, dtype, compute)
        result = apply(formula, *(everything[i] for i in order + vectors))
    if index < split:
        return summed_to(result, operand.shape)
    other_axes = tuple(d for d in range(result.type.rank) if d != 1)
    return apply(ops.Reduce("sum", other_axes), result)


def _shorter(by_operands: Expression, by_result: Expression) -> Expression:
    """The derivative that reads fewer tensors; if both read equally many, that over the node's
    result, which takes fewer operations."""
    reads_more = len(arguments_of(by_result)) > len(arguments_of(by_operands))
    return by_operands if reads_more else by_result
