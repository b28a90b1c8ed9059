"""Kernels of element-wise operators that no sequence computes: operands of any rank and dtype.

A kernel knows the expression, the dtypes and how many axes there are, but no sizes: those are
operands, so that one kernel serves all shapes.

Small regions are computed as one loop over elements: patches are of use where windows read them or
caches overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.expression import Expression, argument, linearize
from ....graph.ir import Graph, Node, Value
from ....graph.operator import Elementwise
from ....graph.scalar_functions import substituted
from ....graph.types import BYTES, TensorType
from ....kernels.ops import elementwise
from ....kernels.ops.pitched import Pitched
from ..element import ELEMENTS
from .kernels import SCHEDULE, Shaped, shaped

MOST_BYTES = 256 << 10
"""Of a region's output: with more, sequences write past the caches."""


def is_flat(body: Graph, any_size: bool = False) -> bool:
    """Whether a region is element-wise, with one output, which is small or of ``any_size``.

    In bfloat16 each result is rounded, and so are bytes that are made: one expression of all does
    not do that, but for the output.
    """
    made = [value for node in body.nodes for value in node.outputs if value not in body.outputs]
    return (
        all(isinstance(node.op, Elementwise) for node in body.nodes)
        and not any(value.dtype == "bfloat16" for value in body.values)
        and not any(value.dtype in BYTES for value in made)
        and len(body.outputs) == 1
        and (any_size or body.outputs[0].type.bytes <= MOST_BYTES)
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
        found[node.output] = substituted(op.expression(), dict(enumerate(given)))
    out = body.outputs[0]
    types = [_of_rank(value.type, vector, out.type.rank) for value, vector in operands]
    values = [value for value, _ in operands]
    computed = "float32" if out.dtype in BYTES else out.dtype
    return print_elementwise(found[out], types, out.type, computed), values


def _of_rank(type: TensorType, vector: bool, rank: int) -> TensorType:
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type


#: ISPC's names of how elements lie in memory; a bool is a byte of 0 or 1.
STORED = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "unsigned int8"}
STORED |= {"uint8": "unsigned int8", "int8": "int8"}
STORED |= {"bfloat16": ELEMENTS["bfloat16"].type}


def print_broadcast(node: Node) -> Shaped:
    """The kernel of an element-wise node over NCHW values."""
    assert isinstance(node.op, Elementwise)
    operands = [_aligned(node, i) for i in range(len(node.inputs))]
    computed = node.op.computed_in([x.dtype for x in operands])
    return print_elementwise(node.op.expression(), operands, node.output.type, computed)


def print_elementwise(
    expression: Expression, operands: Sequence[TensorType], out: TensorType, computed: str | None
) -> Shaped:
    """The kernel of an expression over dense operands that broadcast."""
    number = "int64" if (computed or "").startswith("int") else "float32"
    given, made = list(map(Pitched.dense, operands)), Pitched.dense(out)
    return shaped(elementwise.lower(linearize(expression), given, made, number, SCHEDULE))


def _aligned(node: Node, index: int) -> TensorType:
    """An operand's type, a vector over channels being along axis 1."""
    assert isinstance(node.op, Elementwise)
    type = node.inputs[index].type
    if index < len(node.inputs) - node.op.channel_count:
        return type
    return type.with_shape(type.shape + (1,) * (node.output.type.rank - 2))
