"""Gradient rules of moves: the gradient moves back, and is summed where an element was read often.

:func:`summed_to` and :func:`summed_at` do so along axes; rules of other families use them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, zip_longest

import numpy as np

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
    """The rule of moves in which each axis of the output picks from the same axis of the input."""
    shape, gradient = call.inputs[0].shape, call.gradient
    offsets = call.op.index_map(shape).offsets
    for axis, (offset, stride) in enumerate(zip(offsets, strides_of(shape), strict=True)):
        positions = np.where(offset == OUTSIDE, -1, offset // max(stride, 1))
        gradient = summed_at(gradient, axis, readers_of(positions.tolist(), shape[axis]))
    return [gradient]


@rule(ops.Concat)
def concat(call: Backward) -> Sequence[Value | None]:
    axis = call.op.axis % call.output.type.rank
    ends = accumulate((value.shape[axis] for value in call.inputs), initial=0)
    gradients: list[Value | None] = []
    for value, wanted, begin in zip(call.inputs, call.wanted, ends, strict=False):
        starts = tuple(begin if d == axis else 0 for d in range(value.type.rank))
        slice_op = ops.Slice(starts, value.shape, (1,) * value.type.rank)
        gradients.append(apply(slice_op, call.gradient) if wanted else None)
    return gradients


@rule(ops.TakeChannels)
def take_channels(call: Backward) -> Sequence[Value | None]:
    gradients: list[Value | None] = []
    for number, (value, wanted) in enumerate(zip(call.inputs, call.wanted, strict=True)):
        channels = [channel if source == number else -1 for source, channel in call.op.picks]
        readers = readers_of(channels, value.shape[1])
        gradients.append(summed_at(call.gradient, 1, readers) if wanted else None)
    return gradients


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


def summed_to(value: Value, shape: tuple[int, ...]) -> Value:
    """The value summed over the axes along which a value of ``shape`` was broadcast to it."""
    padded = (1,) * (value.type.rank - len(shape)) + shape
    dims = [d for d, (a, b) in enumerate(zip(value.shape, padded, strict=True)) if a != b]
    leading = [d for d in range(value.type.rank - len(shape)) if d not in dims]
    if dims or leading:
        value = apply(ops.Reduce("sum", tuple(sorted((*dims, *leading)))), value)
    return viewed(value, shape)


def viewed(value: Value, shape: tuple[int, ...]) -> Value:
    """The value reshaped to ``shape``."""
    return value if value.shape == shape else apply(ops.View(shape), value)


def readers_of(places: Sequence[int], size: int) -> list[list[int]]:
    """For each of ``size`` positions, the outputs that read it: output ``i`` reads ``places[i]``,
    or nothing if that is negative."""
    readers: list[list[int]] = [[] for _ in range(size)]
    for reader, place in enumerate(places):
        if place >= 0:
            readers[place].append(reader)
    return readers


def summed_at(value: Value, axis: int, readers: Sequence[Sequence[int]]) -> Value:
    """The value with ``axis`` replaced: element ``i`` of the new axis is the sum of the elements
    ``readers[i]`` of the old one."""
    shape = value.shape
    size, max_readers = len(readers), max(map(len, readers), default=0)
    if shape[axis] == 1 and all(list(each) == [0] for each in readers):
        expanded = (*shape[:axis], size, *shape[axis + 1 :])
        return value if size == 1 else apply(ops.Expand(expanded), value)
    if [list(each) for each in readers] == [[i] for i in range(shape[axis])]:
        return value
    columns = list(zip_longest(*readers, fillvalue=-1)) or [(-1,) * size]
    flat_indices = tuple(column[i] for i in range(size) for column in columns)
    indices = tuple(flat_indices if d == axis else None for d in range(len(shape)))
    terms = apply(ops.Take(indices), value)
    if max_readers <= 1:
        return terms
    split = apply(ops.View((*shape[:axis], size, max_readers, *shape[axis + 1 :])), terms)
    return apply(ops.Reduce("sum", (axis + 1,)), split)
