"""Small regions of element-wise operators as one loop over elements.

Patches are of use where windows read them or caches overflow.  What is neither is computed by a
kernel without sizes, which one compilation serves in every shape.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.expression import Expression, argument, linearize
from ...graph.ir import Graph, Value
from ...graph.operator import Elementwise
from ...graph.types import TensorType
from .broadcast import Shaped, print_elementwise

MOST_BYTES = 256 << 10
"""Of a region's output: with more, sequences write past the caches."""


def is_flat(body: Graph) -> bool:
    """Whether a region is element-wise, with one small output.

    In bfloat16 each result is rounded, which one expression of all does not do.
    """
    return (
        all(isinstance(node.op, Elementwise) for node in body.nodes)
        and not any(value.dtype == "bfloat16" for value in body.values)
        and len(body.outputs) == 1
        and body.outputs[0].type.bytes <= MOST_BYTES
    )


def print_flat(body: Graph) -> tuple[Shaped, list[Value]]:
    """The kernel of a region whose values are dense, and the values that it reads, in order.

    Its pointers are these values, the output and the sizes.
    """
    operands: dict[tuple[Value, bool], int] = {}
    found: dict[Value, Expression] = {}
    for node in body.nodes:
        op = node.op
        assert isinstance(op, Elementwise)
        split = len(node.inputs) - op.channel_count
        given = []
        for i, value in enumerate(node.inputs):
            if value in found:
                given.append(found[value])
            else:
                given.append(argument(operands.setdefault((value, i >= split), len(operands))))
        found[node.output] = _with_arguments(op.expression(), given)
    out = body.outputs[0]
    types = [_aligned(value.type, vector, out.type.rank) for value, vector in operands]
    values = [value for value, _ in operands]
    return print_elementwise(found[out], types, out.type, out.dtype), values


def _aligned(type: TensorType, vector: bool, rank: int) -> TensorType:
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type


def _with_arguments(expression: Expression, given: Sequence[Expression]) -> Expression:
    """The expression with others in the places of its arguments."""
    made: list[Expression] = []
    for line in linearize(expression):
        if line.op == "argument":
            made.append(given[int(line.value or 0)])
        else:
            made.append(Expression(line.op, tuple(made[i] for i in line.operands), line.value))
    return made[-1]
