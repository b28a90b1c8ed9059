"""Lowers scalar expressions over operands that broadcast; the params are these, and the output."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.expression import Instruction
from ..ir import Kernel, Let, Param, Statement, Write, compute, constant, variable
from ..schedule import AxisSchedule
from .pitched import Pitched


def lower(
    code: Sequence[Instruction],
    operands: Sequence[Pitched],
    target: Pitched,
    number: str,
    schedule: AxisSchedule,
) -> Kernel:
    """Returns the kernel of a linearized expression that is computed in ``number``, float32 or
    int64."""
    shape = target.type.shape
    sizes, strides = collapse(shape, [_strides(x, len(shape)) for x in operands])
    nest = schedule.nest(**{f"i{axis}": size for axis, size in enumerate(sizes)})
    params = [Param(f"x{k}", x.type.dtype) for k, x in enumerate(operands)]
    lets: list[Statement] = []
    for k, (x, param, steps) in enumerate(zip(operands, params, strides, strict=True)):
        at = constant(x.offset)
        for (axis, place), step in zip(nest.axes.items(), steps, strict=True):
            at = at + place * (step if step < 2 else schedule.size(f"x{k}_{axis}", step))
        lets.append(Let(variable(f"a{k}", number), param[at].cast(number)))
    values = [variable(f"a{k}", number) for k in range(len(operands))]
    result, y = variable("result", number), Param("y", target.type.dtype, is_written=True)
    lets.append(Let(result, compute(code, values, number)))
    write = Write(y, target.place(nest.flat), result.cast(y.dtype))
    body = (*nest.before, *lets, write)
    return Kernel("elementwise", (*params, y), nest.tasks, nest.lanes, body, nest.width)


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Returns the sizes and strides of the same loops with as few axes as possible, but one at
    least: axes of size 1 are dropped, and neighbouring axes merged that every operand passes with
    one stride."""
    sizes: list[int] = []
    merged_strides: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        walks = [
            (kept, operand[axis]) for kept, operand in zip(merged_strides, strides, strict=True)
        ]
        if not sizes or any(kept[-1] != step * size for kept, step in walks):
            sizes.append(1)
            for kept, _ in walks:
                kept.append(0)
        sizes[-1] *= size
        for kept, step in walks:
            kept[-1] = step
    return sizes or [1], merged_strides if sizes else [[0] for _ in strides]


def _strides(x: Pitched, rank: int) -> list[int]:
    """The strides of an operand along each axis of the output, 0 where it is broadcast."""
    shape = x.type.shape
    steps = [x.pitch, *(prod(shape[axis + 1 :]) for axis in range(1, len(shape)))][: len(shape)]
    known = [0 if size == 1 else step for size, step in zip(shape, steps, strict=True)]
    return [0] * (rank - len(shape)) + known
