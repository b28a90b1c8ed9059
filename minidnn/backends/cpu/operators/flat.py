"""Small regions of element-wise operators as one loop over elements.

Patches are of use where windows read them or caches overflow.  What is neither is computed by a
kernel without sizes, which one compilation serves in every shape.
"""

from __future__ import annotations

from ....graph.expression import Expression, argument
from ....graph.ir import Graph, Value
from ....graph.operator import Elementwise
from ....graph.substitution import substituted
from ....graph.types import BYTES, TensorType
from .broadcast import Shaped, print_elementwise

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
    types = [_aligned(value.type, vector, out.type.rank) for value, vector in operands]
    values = [value for value, _ in operands]
    computed = "float32" if out.dtype in BYTES else out.dtype
    return print_elementwise(found[out], types, out.type, computed), values


def _aligned(type: TensorType, vector: bool, rank: int) -> TensorType:
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type
