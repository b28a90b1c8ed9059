"""Lowers dropping of elements or channels by random numbers; the params are the operand, seed,
step, and the output.

A point draws four words: for as many elements or, to drop channels, for its own element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...graph.operators import RandomDrop
from ...graph.types import numpy_dtype
from ..ir import Expr, If, Kernel, Let, Param, Statement, Write, constant, select, variable
from ..schedule import AxisSchedule
from .pitched import Pitched

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def lower(op: RandomDrop, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel:
    """Returns the kernel that drops elements or channels."""
    given, _, _, target = operands
    type = given.type
    x, y = Param("x", type.dtype), Param("y", type.dtype, is_written=True)
    seed, step = Param("seed", "int64"), Param("step", "int64")
    scale = float(numpy_dtype(type.dtype).type(op.scale))
    key, turn = (param[constant(0)].cast("uint64") for param in (seed, step))
    stream = schedule.size("stream", op.stream).cast("uint32")

    def dropped(element: Expr, word: Expr) -> Write:
        value = x[given.place(element)].cast("float32") * scale
        kept = select(word.cast("int64") < op.threshold, constant(0.0, "float32"), value)
        return Write(y, target.place(element), kept.cast(type.dtype))

    moved: list[Statement]
    if op.channels:
        channels = prod(type.shape[:2])
        nest = schedule.nest(channel=channels, pixel=prod(type.shape[2:]))
        channel = nest.axes["channel"]
        lets, words = _philox(channel // 4, stream, turn, key)
        word = words[3]
        for j in range(3):
            word = select((channel % 4).equals(j), words[j], word)
        moved, work = [dropped(nest.flat, word)], nest.width
    else:
        fewer = replace(schedule, chunk=-(-schedule.chunk // 4))
        nest = fewer.nest(block=-(-type.size // 4))
        lets, words = _philox(nest.flat, stream, turn, key)
        elements = [nest.flat * 4 + j for j in range(4)]
        moved, work = list(map(dropped, elements, words)), 4 * nest.width
        if type.size % 4:
            size = schedule.size("size", type.size)
            pairs = zip(elements, moved, strict=True)
            moved = [If(element < size, (each,)) for element, each in pairs]
    body = (*nest.before, *lets, *moved)
    return Kernel("random_drop", (x, seed, step, y), nest.tasks, nest.lanes, body, work)


def _philox(
    block: Expr, stream: Expr, step: Expr, seed: Expr
) -> tuple[list[Statement], Sequence[Expr]]:
    """The statements that compute the four words of ``graph.philox`` for a block, and these
    words."""
    lets: list[Statement] = []

    def named(name: str, value: Expr) -> Expr:
        lets.append(Let(variable(name, value.dtype), value))
        return variable(name, value.dtype)

    def halves(name: str, value: Expr) -> tuple[Expr, Expr]:
        whole = named(name, value)
        return whole.cast("uint32"), (whole >> 32).cast("uint32")

    keys = halves("key", seed)
    c, d = halves("turn", step)
    a, b = named("block", block.cast("uint32")), stream
    for i in range(_ROUNDS):
        (low_x, high_x), (low_y, high_y) = (
            halves(f"{name}{i}", word.cast("uint64") * number)
            for name, word, number in zip("xy", (a, c), _MULTIPLIERS, strict=True)
        )
        first, second = (k + (i * step & 0xFFFFFFFF) for k, step in zip(keys, _STEPS, strict=True))
        a, b, c, d = high_y ^ b ^ first, low_y, high_x ^ d ^ second, low_x
        a, c = named(f"a{i}", a), named(f"c{i}", c)
    return lets, (a, b, c, d)
