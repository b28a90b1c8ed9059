"""Sweeps of which CI runs a part and ``make test-full`` all.

A sweep says which part is enough to notice a mistake in each mechanism.  Which members are taken
depends on their order alone, so that each run of CI tests the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

#: Whether this is the full run, in which a test looks at all it might look at.
IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"


def some(items: Iterable[T], step: int) -> list[T]:
    """Every ``step``-th item of what one test goes through; in the full run all."""
    return list(items)[:: 1 if IS_FULL else step]


def every(step: int, items: Iterable[T], always: Collection[T] = ()) -> list[Any]:
    """Parameters of a test: each ``step``-th and those of ``always`` run in CI, the others are
    marked ``full``."""
    return [
        pytest.param(item, marks=[] if i % step == 0 or item in always else [pytest.mark.full])
        for i, item in enumerate(items)
    ]


def only(chosen: Collection[T], items: Iterable[T]) -> list[Any]:
    """Parameters of a test: those of ``chosen`` run in CI, the others are marked ``full``."""
    return [pytest.param(x, marks=[] if x in chosen else [pytest.mark.full]) for x in items]


def mixed(step: int, first: Iterable[T], second: Iterable[Any]) -> list[Any]:
    """Pairs as two parameters of a test: with each of ``first`` CI runs each ``step``-th of
    ``second``, beginning at another one each time, the other pairs are marked ``full``."""
    rest = list(second)
    return [
        pytest.param(one, other, marks=[] if (i + j) % step == 0 else [pytest.mark.full])
        for i, one in enumerate(first)
        for j, other in enumerate(rest)
    ]


def is_on(name: str, isas: Iterable[str], isa: str) -> bool:
    """Whether CI runs a case of that name with an instruction set: one of them by the name."""
    names = list(isas)
    return names[crc32(name.encode()) % len(names)] == isa


def on(
    cases: Iterable[T], isas: Iterable[str], isa: str, name_of: Callable[[T], str] = str
) -> list[T]:
    """The cases that run with an instruction set: in the full run all."""
    names = list(isas)
    return [case for case in cases if IS_FULL or is_on(name_of(case), names, isa)]


def each_on_one(
    items: Iterable[T], isas: Iterable[str], name_of: Callable[[T], str] = str
) -> pytest.MarkDecorator:
    """Gives a test each item as ``case``, with each of the instruction sets as ``isa``; in CI with
    one of them (:func:`is_on`)."""
    cases, names = list(items), list(isas)
    pairs = [
        pytest.param(
            case,
            isa,
            id=f"{name_of(case)}-{isa}",
            marks=[] if is_on(name_of(case), names, isa) else [pytest.mark.full],
        )
        for case in cases
        for isa in names
    ]
    return pytest.mark.parametrize(("case", "isa"), pairs, indirect=["isa"])
