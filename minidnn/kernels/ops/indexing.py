"""Lowers gathers of elements by computed indices, sums at such indices, and picks of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

from ...graph.operators import Gather, ScatterAdd, TakeChannels
from ...graph.operators.indexing import split_axes
from ..ir import Expr, For, If, Kernel, Let, Param, Statement, Write, constant, select, variable
from ..schedule import AxisSchedule
from .pitched import Pitched


def lower_gather(op: Gather, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel:
    """Returns the kernel that picks elements by computed indices; the params are the value, the
    indices, and the output."""
    given, indices, target = operands
    images, outer, size, inner = split_axes(given.type.shape, op.axis % given.type.rank, op.batch)
    count = prod(indices.type.shape[op.batch :])
    pack = gcd(inner, given.pack(schedule.widest), target.pack(schedule.widest))
    x, y = Param("x", given.bits(pack)), Param("y", given.bits(pack), is_written=True)
    picks = Param("indices", indices.type.dtype)
    nest = schedule.nest(image=images, outer=outer, pick=count, inner=inner // pack)
    axes, sizes, extent = nest.axes, nest.sizes, schedule.size("axis", size)
    pick = indices.place(axes["image"] * sizes["pick"] + axes["pick"])
    *before, at = _inside(picks[pick], extent)
    row = axes["image"] * sizes["outer"] + axes["outer"]
    source = row * extent * sizes["inner"] + (at.name * sizes["inner"] + axes["inner"])
    body = (
        *nest.before,
        *before,
        at,
        Write(y, target.place(nest.flat, pack), x[given.place(source, pack)]),
    )
    return Kernel("gather", (x, picks, y), nest.tasks, nest.lanes, body, nest.width)


def _inside(index: Expr, extent: Expr) -> tuple[Let, ...]:
    """Names an index as ``at``, counted from the beginning and clamped to an axis."""
    given, place = variable("given"), variable("place")
    last = select(place >= extent, extent - 1, place)
    return (
        Let(given, index.cast("int64")),
        Let(place, select(given < 0, given + extent, given)),
        Let(variable("at"), select(place < 0, 0, last)),
    )


#: The most lanes of a task of :func:`lower_scatter_add`.
_LANES = 64


def lower_scatter_add(
    op: ScatterAdd, operands: Sequence[Pitched], schedule: AxisSchedule
) -> Kernel:
    """Returns the kernel of sums at computed indices; the params are the values, the indices, and
    the output.

    A point computes the sums at a range of the axis's positions, for one element of all other axes:
    it reads all indices in their order, so that sums have the same bits in every run.
    """
    given, indices, result = operands
    count = prod(indices.type.shape[op.batch :])
    behind = given.type.shape[op.axis + indices.type.rank - op.batch :]
    shape = (*given.type.shape[: op.axis], op.size, *behind)
    images, outer, size, inner = split_axes(shape, op.axis, op.batch)
    length = -(-size // max(1, min(size, schedule.points // max(1, images * outer * inner))))
    ranges = -(-size // length)

    x, y = Param("x", "float32"), Param("y", "float32", is_written=True)
    picks = Param("indices", indices.type.dtype)
    narrow = replace(schedule, chunk=_LANES)
    nest = narrow.nest(apart=1, image=images, outer=outer, range=ranges, inner=inner)
    axes, sizes = nest.axes, nest.sizes
    extent, n_picks = schedule.size("axis", size), schedule.size("picks", count)
    first, end, k, i = map(variable, ("begin", "end", "k", "i"))
    before: list[Statement] = [*nest.before]
    if ranges == 1:
        first, end = constant(0), extent
    else:
        last = first + length
        before += Let(first, axes["range"] * length), Let(end, select(last < extent, last, extent))

    def element(count: Expr, place: Expr) -> Expr:
        """The element of this point at a position of an axis of ``count`` positions."""
        row = axes["image"] * sizes["outer"] + axes["outer"]
        return (row * count + place) * sizes["inner"] + axes["inner"]

    *counted, at = _inside(picks[indices.place(axes["image"] * n_picks + k)], extent)
    to = result.place(element(extent, at.name))
    add: Statement = Write(y, to, y[to] + x[given.place(element(n_picks, k))])
    if ranges > 1:
        add = If((at.name >= first) & (at.name < end), (add,))
    zero = Write(y, result.place(element(extent, i)), constant(0.0, "float32"))
    body = (*before, For(i, first, end, (zero,)), For(k, constant(0), n_picks, (*counted, at, add)))
    work = (count + length) * nest.width
    return Kernel("scatter_add", (x, picks, y), nest.tasks, nest.lanes, body, work)


def lower_take_channels(
    op: TakeChannels, operands: Sequence[Pitched], schedule: AxisSchedule
) -> Kernel:
    """Returns the kernel that picks channels, which are planes of one or several values.

    The params are the values, a table (the value and the channel for each channel of the output),
    and the output.
    """
    *sources, target = operands
    batch, channels, *plane = target.type.shape
    pack = gcd(prod(plane), *(each.pack(schedule.widest) for each in operands))
    xs = [Param(f"x{k}", target.bits(pack)) for k in range(len(sources))]
    y, picks = Param("y", target.bits(pack), is_written=True), Param("picks", "int64")
    nest = schedule.nest(image=batch, channel=channels, pixel=prod(plane) // pack)
    image, channel, pixel = nest.axes.values()
    source, taken = variable("source"), variable("taken")
    body: list[Statement] = [
        *nest.before,
        Let(source, picks[channel * 2]),
        Let(taken, picks[channel * 2 + 1]),
    ]
    to = target.place(nest.flat, pack)
    for k, (x, given) in enumerate(zip(xs, sources, strict=True)):
        pitch = schedule.size(f"image{k}", given.pitch // pack)
        read = image * pitch + taken * nest.sizes["pixel"] + (pixel + given.offset // pack)
        body.append(If(source.equals(k), (Write(y, to, x[read]),)))
    table, params = np.array(op.picks, np.int64).ravel(), (*xs, picks, y)
    return Kernel("channels", params, nest.tasks, nest.lanes, tuple(body), nest.width, (table,))
