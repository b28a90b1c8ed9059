"""Kernels that :mod:`minidnn.kernels` lowers for all backends, rendered as ISPC.

Kernels of element-wise operators outside of sequences have operands of any rank and dtype.  Such a
kernel depends on the expression, the dtypes and the number of axes, but on no sizes: those are
operands, so that one kernel serves all shapes.  Small regions are computed as one loop over
elements: patches are of use where windows read them or caches overflow.

Kernels of regions of one step for any spatial size depend on the channels and the layouts of
tensors, not on rows and columns.  Each result has the bits that :mod:`..sequences.sequence` gives
it, a zero's sign aside.
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
from ....graph.types import INT8_DTYPES, TensorType
from ....kernels.ir import Kernel
from ....kernels.ops import elementwise, region
from ....kernels.ops.pitched import Pitched
from ....kernels.ops.planes import PlaneStrides
from ....kernels.render.ispc import render
from ....kernels.schedule import AxisSchedule
from ...codegen.kernel import KernelSource
from ..tensor import Tensor

#: How the axes of these kernels become tasks and lanes; a task computes a chunk of a row.
SCHEDULE = AxisSchedule(lanes=2, chunk=1 << 13, keeps_sizes=True)
#: So many elements are worth a call.
_WORTH = 1 << 12


@dataclass(frozen=True)
class Shaped:
    """A kernel whose sizes are an operand, with the arguments of one launch.

    Attributes:
        sizes: its last operand, an array of integers.
        tasks: how many tasks there are; ``grain`` of them are computed in one call.
        tables: arrays that it reads: operands before the output.
        scratch_bytes: scratch memory of a thread.
    """

    source: KernelSource
    sizes: np.ndarray
    tasks: int
    grain: int = 1
    tables: tuple[np.ndarray, ...] = ()
    scratch_bytes: int = 0


def shaped(kernel: Kernel) -> Shaped:
    """Renders a kernel; ``grain`` makes a call worth its cost."""
    grain = max(1, min(_WORTH // max(kernel.work, 1), kernel.tasks // 8))
    sizes = np.array([*kernel.sizes.values()] or [0], np.int64)
    return Shaped(render(kernel), sizes, kernel.tasks, grain, kernel.tables)


_MOST_BYTES = 256 << 10
"""The largest output of a flat region: sequences write larger ones past the caches."""


def is_flat(body: Graph, any_size: bool = False) -> bool:
    """Whether a region is element-wise, with one output, which is small or of ``any_size``.

    One expression for all nodes rounds the output alone.  So no value may be bfloat16, and no
    intermediate value int8 or uint8, each of which would have to be rounded.
    """
    intermediate = [
        value for node in body.nodes for value in node.outputs if value not in body.outputs
    ]
    return (
        all(isinstance(node.op, Elementwise) for node in body.nodes)
        and not any(value.dtype == "bfloat16" for value in body.values)
        and not any(value.dtype in INT8_DTYPES for value in intermediate)
        and len(body.outputs) == 1
        and (any_size or body.outputs[0].type.bytes <= _MOST_BYTES)
    )


def print_flat(body: Graph) -> tuple[Shaped, list[Value]]:
    """The kernel of a flat region whose values are dense, and the values that it reads, in order.

    Its pointers are these values, the output and the sizes.
    """
    operands: dict[tuple[Value, bool], int] = {}
    expressions: dict[Value, Expression] = {}
    for node in body.nodes:
        op = node.op
        assert isinstance(op, Elementwise)
        split = len(node.inputs) - op.channel_count
        arguments = []
        for i, value in enumerate(node.inputs):
            if value in expressions:
                arguments.append(expressions[value])
            else:
                arguments.append(argument(operands.setdefault((value, i >= split), len(operands))))
        expressions[node.output] = substituted(op.expression(), dict(enumerate(arguments)))
    out = body.outputs[0]
    types = [_of_rank(value.type, vector, out.type.rank) for value, vector in operands]
    values = [value for value, _ in operands]
    computed = "float32" if out.dtype in INT8_DTYPES else out.dtype
    return print_elementwise(expressions[out], types, out.type, computed), values


def _of_rank(type: TensorType, vector: bool, rank: int) -> TensorType:
    """The type of an operand of rank ``rank``: a vector over channels is along axis 1."""
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type


def print_broadcast(node: Node) -> Shaped:
    """The kernel of an element-wise node over dense values."""
    assert isinstance(node.op, Elementwise)
    rank, split = node.output.type.rank, len(node.inputs) - node.op.channel_count
    operands = [_of_rank(v.type, i >= split, rank) for i, v in enumerate(node.inputs)]
    computed = node.op.computed_in([x.dtype for x in operands])
    return print_elementwise(node.op.expression(), operands, node.output.type, computed)


def print_elementwise(
    expression: Expression, operands: Sequence[TensorType], out: TensorType, computed: str | None
) -> Shaped:
    """The kernel of an expression over dense operands, which are broadcast."""
    number = "int64" if (computed or "").startswith("int") else "float32"
    sources, result = list(map(Pitched.dense, operands)), Pitched.dense(out)
    return shaped(elementwise.lower(linearize(expression), sources, result, number, SCHEDULE))


def print_for_any_size(
    body: Graph, tensors: Callable[[Value], Tensor], lanes: int, channel: int = 0
) -> tuple[Shaped, tuple[Value, ...]]:
    """The kernel, for any spatial size, of a region that :func:`kernels.ops.region.why_not` does
    not refuse, and the values that its pointers point to, before the sizes.

    Args:
        tensors: the layouts of the values that it reads and of its outputs.
        lanes: of a vector register.
        channel: the first channel that it writes in the tensors of its outputs.
    """
    schedule = replace(SCHEDULE, lanes=lanes, keeps_unit_sizes=True)

    def lie(value: Value) -> PlaneStrides:
        planes = _planes(tensors(value))
        is_output = value in body.outputs
        return _part(planes, channel, value.type.plane[1]) if is_output else planes

    operations = [operation_of(node, 0) for node in body.nodes]
    kernel, values = region.lower(operations, body.outputs, lie, schedule)
    return shaped(kernel), values


def _planes(x: Tensor) -> PlaneStrides:
    row = x.columns * x.block
    strides = x.image, x.plane, row, x.block
    return PlaneStrides(x.dtype, x.channels, x.rows, x.columns, *strides, block=x.block)


def _part(whole: PlaneStrides, channel: int, channels: int) -> PlaneStrides:
    """The view of ``channels`` channels from ``channel`` on; it includes the padding lanes if it
    ends with the last channel."""
    block, first_lane = divmod(channel, whole.block)
    end = channel + channels
    return replace(
        whole,
        channels=channels,
        offset=block * whole.channel,
        first=first_lane,
        padding=-end % whole.block if end == whole.channels else 0,
    )
