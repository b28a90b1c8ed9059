"""Copying a value to a range of an axis of another one; the params are both."""

from __future__ import annotations

from math import gcd, prod

from ..ir import Kernel, Param, Write
from ..schedule import AxisSchedule
from .pitched import Pitched


def lower(part: Pitched, whole: Pitched, axis: int, first: int, schedule: AxisSchedule) -> Kernel:
    """Copies to positions ``first`` and on of the axis."""
    shape, begin = part.type.shape, first * prod(part.type.shape[axis + 1 :])
    run, step = prod(shape[axis:]), prod(whole.type.shape[axis:])
    pack = gcd(run, step, begin, *(each.pack(schedule.widest) for each in (part, whole)))
    x, y = Param("x", part.bits(pack)), Param("y", part.bits(pack), is_written=True)
    nest = schedule.nest(row=prod(shape[:axis]), run=run // pack)
    to = nest.axes["row"] * schedule.size("step", step // pack) + nest.axes["run"]
    to = to + schedule.size("begin", begin // pack)
    moved = Write(y, whole.place(to, pack), x[part.place(nest.flat, pack)])
    return Kernel("copy", (x, y), nest.tasks, nest.lanes, (*nest.before, moved), nest.width)
