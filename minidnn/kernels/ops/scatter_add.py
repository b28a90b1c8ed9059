"""Sums at computed indices; the params are the values, the indices, and the output.

A point makes the sums at a range of the axis's places, for one element of all other axes: it looks
at all indices in their order, so that sums have the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...graph.operators import ScatterAdd
from ...graph.operators.indexing import split_axes
from ..ir import Expr, For, If, Kernel, Let, Param, Statement, Write, constant, select, variable
from ..schedule import AxisSchedule
from .gather import inside
from .pitched import Pitched

#: Neighbours that a task makes sums of.
_LANES = 64


def lower(op: ScatterAdd, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel:
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
        """An element of this point in one of the two values that have so many places."""
        row = axes["image"] * sizes["outer"] + axes["outer"]
        return (row * count + place) * sizes["inner"] + axes["inner"]

    *counted, at = inside(picks[indices.place(axes["image"] * n_picks + k)], extent)
    to = result.place(element(extent, at.name))
    add: Statement = Write(y, to, y[to] + x[given.place(element(n_picks, k))])
    if ranges > 1:
        add = If((at.name >= first) & (at.name < end), (add,))
    zero = Write(y, result.place(element(extent, i)), constant(0.0, "float32"))
    body = (*before, For(i, first, end, (zero,)), For(k, constant(0), n_picks, (*counted, at, add)))
    work = (count + length) * nest.width
    return Kernel("scatter_add", (x, picks, y), nest.tasks, nest.lanes, body, work)
