"""Generated operands of every operator that is lowered in ``minidnn.kernels.ops``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from minidnn.graph.expression import Expression, argument, linearize
from minidnn.graph.operator import Operator
from minidnn.graph.operators import (
    Expand,
    Gather,
    Pad,
    RandomDrop,
    ScatterAdd,
    Slice,
    Take,
    TakeChannels,
    Transpose,
)
from minidnn.kernels.ops import elementwise, move
from minidnn.kernels.ops.pitched import Pitched

from .made import Made, drawn, lying, of_operator, type_of

Shape = tuple[int, ...]
Formula = Callable[..., Any]

_DTYPES = ("float32", "int64", "int8", "bool")
#: Axes with indices of their own, axes before the one picked from, its size, indices, axes behind.
_PICKED = (
    ((), (), 5, (3,), (7,)),
    ((), (), 1000, (2, 3), (65,)),
    ((), (4,), 6, (5,), ()),
    ((), (40, 3), 6, (1,), ()),
    ((3,), (), 4, (2, 2), (5,)),
    ((2, 2), (3,), 9, (13,), ()),
    ((2,), (2,), 9, (4,), (20,)),
    ((), (), 1, (1,), ()),
    ((), (2,), 3, (0,), (4,)),
    ((2,), (0,), 3, (2,), (4,)),
    ((), (2,), 3, (2,), (0,)),
    ((), (), 50, (9000,), ()),
)


def _indices(random: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Some of them count from the end, and some are beyond both."""
    dtype = random.choice(["int32", "int64"])
    return random.integers(-2 * size, 2 * size, shape).astype(dtype)


def _gathers(random: np.random.Generator) -> Iterator[Made]:
    for i, (own, outer, size, picks, behind) in enumerate(_PICKED):
        x = drawn(random, (*own, *outer, size, *behind), _DTYPES[i % len(_DTYPES)])
        indices = _indices(random, (*own, *picks), size)
        op = Gather(len(own) + len(outer), len(own))
        yield of_operator(f"gather-{i}", op, (x, indices), wide=i % 2 > 0)


def _scatters(random: np.random.Generator) -> Iterator[Made]:
    for i, (own, outer, size, picks, behind) in enumerate(_PICKED):
        x = drawn(random, (*own, *outer, *picks, *behind), "float32")
        indices = _indices(random, (*own, *picks), size)
        op = ScatterAdd(size, len(own) + len(outer), len(own))
        yield of_operator(f"scatter_add-{i}", op, (x, indices), wide=i % 3 == 0)


#: Batch, channels of each value, how many are picked, rows and columns.
_PLANES = (
    (2, (6,), 5, (7, 9)),
    (3, (4, 4), 6, (8, 8)),
    (1, (1, 3, 2), 24, (5, 5)),
    (2, (30, 21), 50, (1, 1)),
    (1, (2, 1), 3, (37, 41)),
    (2, (7, 9), 1, (5, 4)),
)


def _channels(random: np.random.Generator) -> Iterator[Made]:
    for i, (batch, channels, count, plane) in enumerate(_PLANES):
        dtype = _DTYPES[i % len(_DTYPES)]
        sources = [drawn(random, (batch, c, *plane), dtype) for c in channels]
        of = random.integers(0, len(channels), count)
        picks = tuple((int(k), int(random.integers(0, channels[k]))) for k in of)
        yield of_operator(f"take_channels-{i}", TakeChannels(picks), sources, wide=i % 2 > 0)


#: A shape, the axis along which it is copied into another one, from where on, and of which size.
_COPIED = (
    ((2, 3, 4), 2, 5, 9),
    ((2, 3, 40), 1, 0, 7),
    ((3, 8), 0, 2, 6),
    ((5, 1, 2), 1, 3, 4),
    ((700,), 0, 100, 800),
    ((2, 0, 3), 1, 1, 2),
    ((), 0, 0, 1),
)


def _copies(random: np.random.Generator) -> Iterator[Made]:
    for i, (shape, axis, first, size) in enumerate(_COPIED):
        x = drawn(random, shape, _DTYPES[i % len(_DTYPES)])
        whole = np.full((*shape[:axis], size, *shape[axis + 1 :])[: len(shape)], -77, x.dtype)
        whole[(slice(None),) * axis + (slice(first, first + shape[axis]),) if shape else ...] = x
        lies, memory = lying(x, wide=i % 2 == 0)
        given = lies, Pitched.dense(type_of(whole)), axis, first
        yield Made(f"copy-{i}", partial(move.lower_copy, *given), (memory,), whole)


#: A shape, how many are dropped, and whether channels are.
_DROPPED: tuple[tuple[Shape, float, bool], ...] = (
    ((3, 5, 31, 67), 0.3, False),
    ((7,), 0.5, False),
    ((2, 9), 0.0, False),
    ((40, 9, 5), 1.0, False),
    ((0, 3), 0.5, False),
    ((4, 9, 5, 7), 0.25, True),
    ((3, 10), 0.5, True),
    ((2, 3, 1, 4), 0.5, True),
    ((1, 1, 3), 0.5, True),
)


def _drops(random: np.random.Generator) -> Iterator[Made]:
    for i, (shape, p, channels) in enumerate(_DROPPED):
        x = random.standard_normal(shape).astype(np.float32)
        x.flat[:2] = np.nan, np.inf
        numbers = [np.array(number) for number in random.integers(-(1 << 62), 1 << 62, 2)]
        op = RandomDrop(p, (0, 7, (1 << 32) - 1)[i % 3], channels)
        yield of_operator(f"random_drop-{i}", op, (x, *numbers), wide=i % 2 > 0)


_A, _B = argument(0), argument(1)
#: An expression, its operands' shapes and dtypes, the result's, NumPy's formula in float64.
_COMPUTED: tuple[tuple[Expression, Sequence[tuple[Shape, str]], str, Formula], ...] = (
    (_A + _B, (((4, 33), "float32"), ((33,), "float32")), "float32", np.add),
    (_A * _B, (((2, 3, 4, 5), "float32"), ((3, 1, 1), "float32")), "float32", np.multiply),
    (_A - _B, (((7, 3), "float32"), ((7, 1), "float32")), "float32", np.subtract),
    (_A * _B, (((2, 1, 4), "int64"), ((5, 1), "int32")), "int64", np.multiply),
    (_A > _B, (((50,), "float32"), ((), "float32")), "bool", np.greater),
    (_A - 50, (((9000,), "float32"),), "uint8", lambda a: np.maximum(a - 50, 0)),
    (_A * _B, (((3, 40), "uint8"), ((3, 1), "bool")), "float32", np.multiply),
    (_A + _B, (((1, 1), "float32"), ((1,), "int8")), "float32", np.add),
    (_A + _B, (((0, 3), "float32"), ((3,), "float32")), "float32", np.add),
)


def _elements(random: np.random.Generator) -> Iterator[Made]:
    for i, (expression, given, dtype, formula) in enumerate(_COMPUTED):
        arrays = [drawn(random, *each) for each in given]
        expected = np.asarray(formula(*(x.astype(float) for x in arrays))).astype(dtype)
        lies = [lying(x, wide=i % 2 == 0) for x in arrays]
        number = "int64" if dtype == "int64" else "float32"
        operands, target = [lies for lies, _ in lies], Pitched.dense(type_of(expected))
        lower = partial(elementwise.lower, linearize(expression), operands, target, number)
        yield Made(f"elementwise-{i}", lower, [memory for _, memory in lies], expected)


_MOVED: tuple[tuple[Operator, Shape], ...] = (
    (Transpose((0, 2, 3, 1)), (2, 3, 5, 7)),
    (Transpose((1, 0)), (33, 200)),
    (Transpose((0, 2, 1)), (1, 2, 4099)),
    (Transpose((0, 2, 1, 3, 4)), (2, 3, 4, 5, 7)),
    (Slice((0, 1, 4, 1), (2, 2, 3, 3), (1, 1, -2, 2)), (2, 3, 5, 7)),
    (Slice((0, 1, 0), (2, 3, 20), (1, 1, 1)), (2, 5, 21)),
    (Expand((2, 3, 40, 5)), (2, 1, 40, 1)),
    (Expand((3, 9000)), (1,)),
    (Pad((0, 0, 2, 1), (0, 1, 1, 3), value=-1.5), (2, 3, 5, 70)),
    (Pad((0, 1), (0, 2)), (3, 5)),
    (Pad((1, 1), (1, 1), "edge"), (3, 50)),
    (Pad((3,), (9000,)), (0,)),
    (Take((None, (-1, 0, -1, 1, -1)), 2.0), (3, 2)),
    (Take((None, (2, 0, 2), None)), (2, 3, 35)),
    # Rows of the value that are columns of the output, some by some.
    (Transpose((1, 0)), (150, 71)),
    (Transpose((2, 1, 0)), (1024, 3, 9)),
    (Transpose((1, 2, 3, 0)), (40, 2, 3, 66)),
    (Pad((2, 1), (0, 3), value=7.0), (3, 5)),
    (Take((tuple(range(19, -1, -1)), None)), (20, 70)),
)


def _moves(random: np.random.Generator) -> Iterator[Made]:
    for i, (op, shape) in enumerate(_MOVED):
        x = drawn(random, shape, "float32" if i in (9, 13) else _DTYPES[i % len(_DTYPES)])
        yield of_operator(f"move-{i}", op, (x,), wide=i % 2 > 0)


def _all() -> Iterator[Made]:
    random = np.random.default_rng(0)
    yield from _gathers(random)
    yield from _scatters(random)
    yield from _channels(random)
    yield from _copies(random)
    yield from _drops(random)
    yield from _elements(random)
    yield from _moves(random)


def _halves(random: np.random.Generator) -> Iterator[Made]:
    x = random.standard_normal((3, 4, 50)).astype(np.float16)
    numbers = [np.array(number) for number in (5, -3)]
    for channels in (False, True):
        op = RandomDrop(0.25, 1, channels)
        yield of_operator(f"halves-{channels}", op, (x, *numbers), wide=channels)
    (lies, _) = lying(x, wide=False)
    lower = partial(elementwise.lower, linearize(_A + _B), (lies, lies), lies, "float32")
    yield Made("halves-sum", lower, (x, x), x + x)


MADE = tuple(_all())
#: What GPUs alone compute.
HALF_DTYPES = tuple(_halves(np.random.default_rng(1)))
#: What is launched: an engine leaves out what has no elements.
FULL = tuple(made for made in MADE if prod(made.expected.shape))
