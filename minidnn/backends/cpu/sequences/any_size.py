"""Regions of one step for planes of any size: sizes and strides are operands.

What is printed depends on how many channels there are and how tensors lie, not on rows and columns.
Each result has the bits that :mod:`.sequence` gives it, a zero's sign aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....fusion.operations import operation_of
from ....graph.ir import Graph, Value
from ....kernels.ops import region
from ....kernels.ops.planes import Planes
from ..operators.kernels import SCHEDULE, Shaped, shaped
from ..tensor import Tensor


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
