"""Tensors of the special points of a dtype: infinities, the largest and smallest, both zeros, kinks
and the numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch

INF, NAN = math.inf, math.nan
#: Makes a tensor of a dtype.
Make = Callable[[torch.dtype], torch.Tensor]

PLAIN = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 7.5, -7.5, 19.5, -19.5, 40.0, -40.0]
FAR = [
    88.0,
    -88.0,
    90.0,
    -90.0,
    103.5,
    -103.5,
    120.0,
    -120.0,
    720.0,
    -720.0,
    760.0,
    -760.0,
    1e4,
    -1e4,
]


def extremes(dtype: torch.dtype) -> list[float]:
    """NaN, infinities, and the smallest and largest numbers of a dtype."""
    info = torch.finfo(dtype)
    subnormal = info.tiny * info.eps
    ends = [subnormal, 3 * subnormal, info.tiny, info.eps, math.sqrt(info.max) / 2, info.max, INF]
    return [NAN, *ends, *(-x for x in ends)]


def huge(dtype: torch.dtype) -> float:
    """A number of which several squares still have a finite sum."""
    return math.sqrt(torch.finfo(dtype).max) / 8


def beside(numbers: Sequence[float], dtype: torch.dtype) -> list[float]:
    """Numbers of a dtype, their opposites, and those next to them."""
    kind = np.dtype(str(dtype).removeprefix("torch.")).type
    found: list[float] = []
    with np.errstate(all="ignore"):
        for number in {abs(n) for n in numbers}:
            each = kind(number)
            for x in (each, np.nextafter(each, kind(INF)), np.nextafter(each, kind(-INF))):
                found += [float(x), -float(x)]
    return sorted(found)


def points(count: int, kinks: Sequence[float] = ()) -> list[Make]:
    """Operands of an element-wise operation: all pairs, or triples, of special numbers."""

    def numbers(dtype: torch.dtype) -> list[float]:
        if count == 1:
            return [*PLAIN, *FAR, *extremes(dtype), *beside(kinks, dtype)]
        if count == 2:
            return [*PLAIN[:8], *FAR[:2], *extremes(dtype)]
        return [0.0, -0.0, 0.25, 0.5, 1.0, -1.0, 3.0, INF, -INF, NAN, huge(dtype)]

    def one(place: int) -> Make:
        def make(dtype: torch.dtype) -> torch.Tensor:
            grid = list(product(numbers(dtype), repeat=count))
            return torch.tensor([each[place] for each in grid], dtype=dtype)

        return make

    return [one(i) for i in range(count)]


def rows(width: int, finite: bool = False) -> Make:
    """All rows of that width of some numbers: rows of zeros and of ties are among them."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        info = torch.finfo(dtype)
        numbers = [0.0, -0.0, 1.0, -1.0, 2.5]
        if not finite:
            numbers += [INF, -INF, NAN, info.tiny * info.eps, huge(dtype)]
        return torch.tensor(list(product(numbers, repeat=width)), dtype=dtype)

    return make


def plain(*shape: int, scale: float = 1.0) -> Make:
    def make(dtype: torch.dtype) -> torch.Tensor:
        random = torch.Generator().manual_seed(0)
        return scale * torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)

    return make


def whole(*shape: int, special: bool = True) -> Make:
    """Small integers, with many ties, and a NaN and infinities among them."""

    def make(dtype: torch.dtype) -> torch.Tensor:
        random = torch.Generator().manual_seed(0)
        found = torch.randint(-1, 2, shape, generator=random).to(dtype)
        if special:
            flat = found.view(-1)
            for place, number in ((3, NAN), (len(flat) // 2, INF), (len(flat) - 5, -INF)):
                flat[place] = number
        return found

    return make


def vector(*numbers: float) -> Make:
    return lambda dtype: torch.tensor(numbers, dtype=dtype)


def bools(*shape: int) -> Make:
    def make(dtype: torch.dtype) -> torch.Tensor:
        return torch.arange(math.prod(shape)).view(shape) % 2 == 0

    return make


def mask_of(x: Make) -> Make:
    return lambda dtype: bools(*x(dtype).shape)(dtype)


def indices(*numbers: int) -> Make:
    return lambda dtype: torch.tensor(numbers)
