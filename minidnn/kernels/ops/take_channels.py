"""Picking channels that are planes of one or several values.

The params are the values, a table (the value and the channel for each channel of the output), and
the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import numpy as np

from ...graph.operators import TakeChannels
from ..ir import If, Kernel, Let, Param, Statement, Write, variable
from ..schedule import AxisSchedule
from .pitched import Pitched


def lower(op: TakeChannels, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel:
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
