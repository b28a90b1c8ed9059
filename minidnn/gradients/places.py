"""Sums back along an axis: how the gradient comes home from where elements were taken to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


def summed_to(value: Value, shape: tuple[int, ...]) -> Value:
    """The sum over all axes along which a value of ``shape`` was repeated."""
    padded = (1,) * (value.type.rank - len(shape)) + shape
    dims = [d for d, (a, b) in enumerate(zip(value.shape, padded, strict=True)) if a != b]
    front = [d for d in range(value.type.rank - len(shape)) if d not in dims]
    if dims or front:
        value = apply(ops.Reduce("sum", tuple(sorted((*dims, *front)))), value)
    return viewed(value, shape)


def viewed(value: Value, shape: tuple[int, ...]) -> Value:
    """The value in another shape."""
    return value if value.shape == shape else apply(ops.View(shape), value)


def readers_of(places: Sequence[int], size: int) -> list[list[int]]:
    """For each of ``size`` places who reads it, if reader ``i`` reads ``places[i]``."""
    found: list[list[int]] = [[] for _ in range(size)]
    for reader, place in enumerate(places):
        if place >= 0:
            found[place].append(reader)
    return found


def summed_at(value: Value, axis: int, readers: Sequence[Sequence[int]]) -> Value:
    """The value with a new axis in place of ``axis``: element ``i`` is the sum of the elements
    ``readers[i]`` of the old one."""
    shape = value.shape
    size, most = len(readers), max(map(len, readers), default=0)
    if shape[axis] == 1 and all(list(each) == [0] for each in readers):
        wide = (*shape[:axis], size, *shape[axis + 1 :])
        return value if size == 1 else apply(ops.Expand(wide), value)
    if [list(each) for each in readers] == [[i] for i in range(shape[axis])]:
        return value
    columns = list(zip_longest(*readers, fillvalue=-1)) or [(-1,) * size]
    flat = tuple(column[i] for i in range(size) for column in columns)
    chosen = tuple(flat if d == axis else None for d in range(len(shape)))
    taken = apply(ops.Take(chosen), value)
    if most <= 1:
        return taken
    split = apply(ops.View((*shape[:axis], size, most, *shape[axis + 1 :])), taken)
    return apply(ops.Reduce("sum", (axis + 1,)), split)
