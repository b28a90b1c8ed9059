"""Rules of what moves elements: their gradients move back, and are added where several meet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from minidnn.gradients.places import readers_of, summed_at, summed_to, viewed
from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.index_map import OUTSIDE, strides_of
from minidnn.graph.ir import Value
from minidnn.graph.operator import Reshaping
from minidnn.graph.trace import apply


@rule(Reshaping)
def reshaping(call: Backward) -> Sequence[Value | None]:
    return [viewed(call.gradient, call.inputs[0].shape)]


@rule(ops.Reorder)
def reorder(call: Backward) -> Sequence[Value | None]:
    return [call.gradient]


@rule(ops.Transpose)
def transpose(call: Backward) -> Sequence[Value | None]:
    dims = call.op.dims
    return [apply(ops.Transpose(tuple(dims.index(d) for d in range(len(dims)))), call.gradient)]


@rule(ops.Expand)
def expand(call: Backward) -> Sequence[Value | None]:
    return [summed_to(call.gradient, call.inputs[0].shape)]


@rule(ops.Slice, ops.Pad, ops.Take)
def by_axes(call: Backward) -> Sequence[Value | None]:
    """Moves in which each axis of the output picks from the same axis of the input."""
    shape, found = call.inputs[0].shape, call.gradient
    offsets = call.op.index_map(shape).offsets
    for axis, (offset, stride) in enumerate(zip(offsets, strides_of(shape), strict=True)):
        places = np.where(offset == OUTSIDE, -1, offset // max(stride, 1))
        found = summed_at(found, axis, readers_of(places.tolist(), shape[axis]))
    return [found]


@rule(ops.Concat)
def concat(call: Backward) -> Sequence[Value | None]:
    axis = call.op.axis % call.output.type.rank
    ends = accumulate((value.shape[axis] for value in call.inputs), initial=0)
    found: list[Value | None] = []
    for value, wanted, begin in zip(call.inputs, call.wanted, ends, strict=False):
        starts = tuple(begin if d == axis else 0 for d in range(value.type.rank))
        part = ops.Slice(starts, value.shape, (1,) * value.type.rank)
        found.append(apply(part, call.gradient) if wanted else None)
    return found


@rule(ops.TakeChannels)
def take_channels(call: Backward) -> Sequence[Value | None]:
    found: list[Value | None] = []
    for number, (value, wanted) in enumerate(zip(call.inputs, call.wanted, strict=True)):
        places = [channel if source == number else -1 for source, channel in call.op.picks]
        readers = readers_of(places, value.shape[1])
        found.append(summed_at(call.gradient, 1, readers) if wanted else None)
    return found


@rule(ops.Gather)
def gather(call: Backward) -> Sequence[Value | None]:
    x, indices = call.inputs
    axis = call.op.axis % x.type.rank
    back = ops.ScatterAdd(x.shape[axis], axis, call.op.batch)
    return [apply(back, call.gradient, indices), None]


@rule(ops.ScatterAdd)
def scatter_add(call: Backward) -> Sequence[Value | None]:
    back = ops.Gather(call.op.axis, call.op.batch)
    return [apply(back, call.gradient, call.inputs[1]), None]
