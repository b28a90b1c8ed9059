"""Kernels that are described once for all engines, as this one runs them.

Those of element-wise operators that no sequence computes have operands of any rank and dtype.  A
kernel knows the expression, the dtypes and how many axes there are, but no sizes: those are
operands, so that one kernel serves all shapes.  Small regions are computed as one loop over
elements: patches are of use where windows read them or caches overflow.

Those of regions of one step for planes of any size depend on how many channels there are and how
tensors lie, not on rows and columns.  Each result has the bits that :mod:`..sequences.sequence`
gives it, a zero's sign aside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....fusion.operations import operation_of
from ....graph.expression import Expression, argument, linearize
from ....graph.ir import Graph, Node, Value
from ....graph.operator import Elementwise
from ....graph.scalar_functions import substituted
from ....graph.types import BYTES, TensorType
from ....kernels.ir import Kernel
from ....kernels.ops import elementwise, region
from ....kernels.ops.pitched import Pitched
from ....kernels.ops.planes import Planes
from ....kernels.render.ispc import render
from ....kernels.schedule import AxisSchedule
from ...codegen.kernel import KernelSource
from ..tensor import Tensor

#: A task computes so many elements of a row.
SCHEDULE = AxisSchedule(lanes=2, chunk=1 << 13, keeps_sizes=True)
#: Elements that are worth a call.
_WORTH = 1 << 12


@dataclass(frozen=True)
class Shaped:
    """A kernel without sizes, the sizes for it (its last operand, whole numbers), its tasks, the
    tables that it reads, which are operands before the output, and a thread's scratch memory."""

    source: KernelSource
    sizes: np.ndarray
    tasks: int
    grain: int = 1
    tables: tuple[np.ndarray, ...] = ()
    scratch_bytes: int = 0


def shaped(kernel: Kernel) -> Shaped:
    """The kernel as text, with its sizes, and as many tasks a call as are worth one."""
    grain = max(1, min(_WORTH // max(kernel.work, 1), kernel.tasks // 8))
    sizes = np.array([*kernel.sizes.values()] or [0], np.int64)
    return Shaped(render(kernel), sizes, kernel.tasks, grain, kernel.tables)


_MOST_BYTES = 256 << 10
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
        and (any_size or body.outputs[0].type.bytes <= _MOST_BYTES)
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
    """An operand's type, a vector over channels being along axis 1."""
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type


def print_broadcast(node: Node) -> Shaped:
    """The kernel of an element-wise node over NCHW values."""
    assert isinstance(node.op, Elementwise)
    rank, split = node.output.type.rank, len(node.inputs) - node.op.channel_count
    operands = [_of_rank(v.type, i >= split, rank) for i, v in enumerate(node.inputs)]
    computed = node.op.computed_in([x.dtype for x in operands])
    return print_elementwise(node.op.expression(), operands, node.output.type, computed)


def print_elementwise(
    expression: Expression, operands: Sequence[TensorType], out: TensorType, computed: str | None
) -> Shaped:
    """The kernel of an expression over dense operands that broadcast."""
    number = "int64" if (computed or "").startswith("int") else "float32"
    given, made = list(map(Pitched.dense, operands)), Pitched.dense(out)
    return shaped(elementwise.lower(linearize(expression), given, made, number, SCHEDULE))


def print_for_any_size(
    body: Graph, tensors: Callable[[Value], Tensor], lanes: int, channel: int = 0
) -> tuple[Shaped, tuple[Value, ...]]:
    """The kernel of a region of which :func:`kernels.ops.region.why_not` says nothing, and the
    values that its pointers point to, before the sizes.

    Args:
        tensors: how the values that it reads and its outputs lie.
        lanes: of a vector register.
        channel: where the channels of its outputs begin in these.
    """
    schedule = replace(SCHEDULE, lanes=lanes, keeps_ones=True)

    def lie(value: Value) -> Planes:
        planes = _planes(tensors(value))
        made = value in body.outputs
        return _part(planes, channel, value.type.plane[1]) if made else planes

    operations = [operation_of(node, 0) for node in body.nodes]
    kernel, values = region.lower(operations, body.outputs, lie, schedule)
    return shaped(kernel), values


def _planes(x: Tensor) -> Planes:
    row = x.columns * x.block
    strides = x.image, x.plane, row, x.block
    return Planes(x.dtype, x.channels, x.rows, x.columns, *strides, block=x.block)


def _part(whole: Planes, channel: int, channels: int) -> Planes:
    """So many channels from one on, with the padding behind the last ones of the whole."""
    before, first = divmod(channel, whole.block)
    end = channel + channels
    return replace(
        whole,
        channels=channels,
        offset=before * whole.channel,
        first=first,
        padding=-end % whole.block if end == whole.channels else 0,
    )
