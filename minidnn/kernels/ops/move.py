"""Lowers moves of elements by an index map, and copies of a value to a range of an axis of another
one.

The params of a move are the value, the map's offsets along axes, and the output; of a copy the two
values.

Where the innermost axis is one run of neighbours it has no offsets, and only its ends may be
outside.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import gcd, prod

import numpy as np

from ...graph.index_map import OUTSIDE, IndexMap
from ...graph.types import ITEMSIZE
from ...runtime.arrays import to_bits
from ..ir import Expr, For, If, Kernel, Let, Param, Statement, Write, constant, select, variable
from ..schedule import AxisSchedule
from .pitched import Pitched

#: Where the value is contiguous along another axis than the output, a task moves a tile: so many
#: rows along the value's axis, and lanes along the output's between these bounds.  The elements
#: that it reads stay in the first-level cache until all of them are used.
_TILE_ROWS, _FEWEST_LANES, _MOST_LANES = 64, 16, 128
_LEAST_TRANSPOSED = 8
#: Bytes after which addresses share a set of that cache, and lines of a set that likely stay.
_SETS_BYTES, _WAYS = 4096, 8

#: Rows that are merged with the axis before them are shorter than this, if their elements are
#: contiguous and if they are not; and the most elements of a merged row.
_SHORT_RUN, _SHORT, _LONGEST = 16, 64, 4096


def lower(index: IndexMap, given: Pitched, target: Pitched, schedule: AxisSchedule) -> Kernel:
    """Returns the kernel that moves elements by an index map."""
    small = index.collapsed()
    offsets = small.offsets or (np.zeros(1, np.int64),)
    if schedule.lanes:
        offsets = _widened(offsets)
        if (contiguous := _contiguous_axis(offsets)) is not None:
            return _transposed(small.base, offsets, contiguous, given, target, schedule)
    run, inner = _run(offsets[-1]), len(offsets[-1])
    x, y = Param("x", given.bits()), Param("y", given.bits(), is_written=True)
    table, tables = Param("offsets", "int64"), offsets[:-1] if run else offsets
    moved: list[Statement]
    nest = schedule.nest(**{f"i{axis}": len(each) for axis, each in enumerate(offsets)})
    places = [*nest.axes.values()]

    lead, length = run or (0, inner)
    lets: list[Statement] = []
    inside: list[Expr] = []
    base, begin = small.base + (int(offsets[-1][lead]) if run and length else 0), 0
    at = schedule.size("base", base)
    for axis, each in enumerate(tables):
        offset = variable(f"offset{axis}")
        lets.append(Let(offset, table[places[axis] + schedule.size(f"begin{axis}", begin)]))
        at, begin = at + offset, begin + len(each)
        if (each == OUTSIDE).any():
            inside.append(offset >= 0)
    place, first = places[-1], schedule.size("lead", lead) if lead else constant(0)
    at = at - first + place if run else at
    value, fill = x[given.place(at)], _fill(small, given)
    to, end = target.place(nest.flat), schedule.size("end", lead + length)
    if not given.type.size or not (inside or length < inner):
        moved = [Write(y, to, value if given.type.size else fill)]
    elif run and schedule.lanes:  # each branch is a loop over lanes of its own
        stop = variable("stop")
        lets.append(Let(stop, select(_all(inside), end, first) if inside else end))
        moved = [If(place < first, (Write(y, to, fill),))] if lead else []
        moved.append(If((place >= first) & (place < stop), (Write(y, to, value),)))
        moved.append(If(place >= stop, (Write(y, to, fill),)))
    else:
        inside += [place >= first, place < end] if length < inner else []
        moved = [Write(y, to, select(_all(inside), value, fill))]
    body = (*nest.before, *lets, *moved)
    numbers = np.concatenate(tables or [np.zeros(1, np.int64)]).astype(np.int64)
    params = (x, table, y)
    return Kernel("move", params, nest.tasks, nest.lanes, body, nest.width, (numbers,))


def _contiguous_axis(offsets: Sequence[np.ndarray]) -> int | None:
    """The axis along which the value is contiguous, if the innermost is not that one; None if none
    suits."""
    inner = offsets[-1]
    if _run(inner) is not None or len(inner) < _LEAST_TRANSPOSED or inner[0] == inner[1]:
        return None  # elements that repeat along it stay in the cache
    if any((each == OUTSIDE).any() or not each.size for each in offsets):
        return None
    lengths = enumerate(map(len, offsets[:-1]))
    axes = [axis for axis, n in lengths if n >= _LEAST_TRANSPOSED and _run(offsets[axis]) == (0, n)]
    return axes[-1] if axes else None


def _transposed(
    base: int,
    offsets: Sequence[np.ndarray],
    contiguous: int,
    given: Pitched,
    target: Pitched,
    schedule: AxisSchedule,
) -> Kernel:
    """The kernel whose tasks move tiles of several of the value's neighbours."""
    x, y = Param("x", given.bits()), Param("y", given.bits(), is_written=True)
    table = Param("offsets", "int64")
    length, lengths = len(offsets[contiguous]), [len(each) for each in offsets]
    lengths[contiguous] = -(-length // _TILE_ROWS)
    step = ITEMSIZE[given.type.dtype] * int(offsets[-1][1] - offsets[-1][0])
    lanes = _WAYS * _SETS_BYTES // gcd(step, _SETS_BYTES)
    few = replace(schedule, chunk=min(max(lanes, _FEWEST_LANES), _MOST_LANES))
    nest = few.nest(**{f"i{axis}": count for axis, count in enumerate(lengths)})
    places, rows, row = [*nest.axes.values()], schedule.size("rows", length), variable("r")
    first = places[contiguous] * _TILE_ROWS
    places[contiguous] = first + row
    at = schedule.size("base", base + int(offsets[contiguous][0])) + places[contiguous]
    flat, begin = constant(0), 0
    lets: list[Statement] = []
    for axis, (place, each) in enumerate(zip(places, offsets, strict=True)):
        flat = flat * (rows if axis == contiguous else nest.sizes[f"i{axis}"]) + place
        if axis == contiguous:
            continue
        offset = variable(f"offset{axis}")
        lets.append(Let(offset, table[place + schedule.size(f"begin{axis}", begin)]))
        at, begin = at + offset, begin + len(each)
    remaining = rows - first
    end = select(remaining < _TILE_ROWS, remaining, _TILE_ROWS)
    write = Write(y, target.place(flat), x[given.place(at)])
    body = (*nest.before, *lets, For(row, constant(0), end, (write,)))
    numbers = np.concatenate([each for axis, each in enumerate(offsets) if axis != contiguous])
    work = nest.width * min(length, _TILE_ROWS)
    return Kernel("move", (x, table, y), nest.tasks, nest.lanes, body, work, (numbers,))


def _all(conditions: Sequence[Expr]) -> Expr:
    """The conjunction of conditions."""
    return reduce(operator.and_, conditions)


def _fill(index: IndexMap, given: Pitched) -> Expr:
    """The bits that positions outside of the value become."""
    dtype = given.type.dtype
    bits = to_bits(np.array([index.fill]), dtype).view(f"u{ITEMSIZE[dtype]}")
    return constant(int(bits[0]), given.bits())


def _widened(axes: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The axes, the innermost merged with the axis before it, or a part of that, while it is so
    short that finding where a row begins takes longer than moving it."""
    *outer, inner = axes
    while outer and len(inner) < (_SHORT_RUN if _run(inner) else _SHORT):
        size = len(outer[-1])
        most = min(size, _LONGEST // len(inner))
        shares = [n for n in range(2, most + 1) if size % n == 0]
        share = next((n for n in reversed(shares) if _is_split(outer[-1], n)), 1)
        if share == 1:
            break
        rows = outer.pop().reshape(-1, share)
        contiguous = np.where(
            rows[0] == OUTSIDE, OUTSIDE, rows[0] - (rows[0, 0] if len(rows) > 1 else 0)
        )
        outside = (contiguous[:, None] == OUTSIDE) | (inner == OUTSIDE)
        inner = np.where(outside, OUTSIDE, contiguous[:, None] + inner).ravel()
        outer += [rows[:, 0]] if len(rows) > 1 else []
    return (*outer, inner)


def _is_split(axis: np.ndarray, share: int) -> bool:
    """Whether an axis is the same offsets of that many elements, from several first ones on."""
    if share == len(axis):
        return True
    rows = axis.reshape(-1, share)
    return not (axis == OUTSIDE).any() and bool((rows - rows[:, :1] == rows[0] - rows[0, 0]).all())


def _run(inner: np.ndarray) -> tuple[int, int] | None:
    """Where a run of neighbours begins and its length, if all other positions are outside; else
    None."""
    (inside,) = np.nonzero(inner != OUTSIDE)
    if not inside.size:
        return (0, 0)
    lead, length = int(inside[0]), int(inside[-1] - inside[0]) + 1
    run = inner[lead : lead + length]
    ordered = np.array_equal(run, run[0] + np.arange(length)) and length == inside.size
    return (lead, length) if ordered else None


def lower_copy(
    part: Pitched, whole: Pitched, axis: int, first: int, schedule: AxisSchedule
) -> Kernel:
    """Returns the kernel that copies a value to positions ``first`` and on of the axis."""
    shape, begin = part.type.shape, first * prod(part.type.shape[axis + 1 :])
    run, step = prod(shape[axis:]), prod(whole.type.shape[axis:])
    pack = gcd(run, step, begin, *(each.pack(schedule.widest) for each in (part, whole)))
    x, y = Param("x", part.bits(pack)), Param("y", part.bits(pack), is_written=True)
    nest = schedule.nest(row=prod(shape[:axis]), run=run // pack)
    to = nest.axes["row"] * schedule.size("step", step // pack) + nest.axes["run"]
    to = to + schedule.size("begin", begin // pack)
    moved = Write(y, whole.place(to, pack), x[part.place(nest.flat, pack)])
    return Kernel("copy", (x, y), nest.tasks, nest.lanes, (*nest.before, moved), nest.width)
