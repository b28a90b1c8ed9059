"""Picking by computed indices; the params are the value, the indices, and the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from ...graph.operators import Gather
from ...graph.operators.indexing import split_axes
from ..ir import Expr, Kernel, Let, Param, Write, select, variable
from ..schedule import AxisSchedule
from .pitched import Pitched


def lower(op: Gather, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel:
    given, indices, target = operands
    images, outer, size, inner = split_axes(given.type.shape, op.axis % given.type.rank, op.batch)
    count = prod(indices.type.shape[op.batch :])
    pack = gcd(inner, given.pack(schedule.widest), target.pack(schedule.widest))
    x, y = Param("x", given.bits(pack)), Param("y", given.bits(pack), is_written=True)
    picks = Param("indices", indices.type.dtype)
    nest = schedule.nest(image=images, outer=outer, pick=count, inner=inner // pack)
    axes, sizes, extent = nest.axes, nest.sizes, schedule.size("axis", size)
    pick = indices.place(axes["image"] * sizes["pick"] + axes["pick"])
    *before, at = inside(picks[pick], extent)
    row = axes["image"] * sizes["outer"] + axes["outer"]
    source = row * extent * sizes["inner"] + (at.name * sizes["inner"] + axes["inner"])
    body = (
        *nest.before,
        *before,
        at,
        Write(y, target.place(nest.flat, pack), x[given.place(source, pack)]),
    )
    return Kernel("gather", (x, picks, y), nest.tasks, nest.lanes, body, nest.width)


def inside(index: Expr, extent: Expr) -> tuple[Let, ...]:
    """Names an index, counts it from the beginning, and moves it inside an axis, as ``at``."""
    given, place = variable("given"), variable("place")
    last = select(place >= extent, extent - 1, place)
    return (
        Let(given, index.cast("int64")),
        Let(place, select(given < 0, given + extent, given)),
        Let(variable("at"), select(place < 0, 0, last)),
    )
