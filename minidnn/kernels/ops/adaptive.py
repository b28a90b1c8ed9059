"""Averages of windows so that the result has a given size; the params are the operand and the
output.

Each row is added as the reference does it, then the rows.
"""

from __future__ import annotations

from ...graph.expression import linearize
from ...graph.window import JOINS, MEAN
from ..ir import FoldRange, Kernel, Let, Param, Statement, Write, compute, index_of, variable
from ..schedule import AxisSchedule
from .planes import PlaneGrid, Planes


def lower(batch: int, given: Planes, made: Planes, schedule: AxisSchedule) -> Kernel:
    grid = PlaneGrid(batch, made, schedule)
    x, y = Param("x", given.dtype), Param("y", made.dtype, is_written=True)
    top, left, high, wide = map(variable, ("top", "left", "high", "wide"))
    total, line, result = (variable(name, "float32") for name in ("total", "line", "result"))
    body: list[Statement] = []
    for first, count, at, size, axis in (
        (top, high, grid.y, grid.size("x_rows", given.rows), "row"),
        (left, wide, grid.x, grid.size("x_columns", given.columns), "column"),
    ):
        parts = grid.sizes[axis]
        body.append(Let(first, at * size // parts))
        body.append(Let(count, ((at + 1) * size + (parts - 1)) // parts - first))
    place = grid.place(x, given, top + index_of(total), left + index_of(line))
    row = FoldRange(line, JOINS["sum"], wide, None, (), x[place].cast("float32"))
    count = (high * wide).cast("float32")
    body += [
        FoldRange(total, JOINS["sum"], high, None, (row,), line),
        Let(result, compute(linearize(MEAN), (total, count), "float32")),
        Write(y, grid.place(y, made), result.cast(made.dtype)),
    ]
    return grid.kernel("adaptive", (x, y), body)
