"""Sweeps of which CI runs a part and ``make test-full`` all.

A sweep says which part is enough to notice a mistake in each mechanism.  Which members are taken
depends on their order alone, so that each run tests the same.

Tests marked ``sampled(n)`` have many cases of one mechanism: ``make test`` draws an n-th of them by
the commit, and of each file in the folders of ``COSTLY`` a part of the tests, so that each has its
turn within some commits.  pytest by itself runs all of them; ``MINIDNN_TEST_SAMPLE``, a text, draws
as the commit of that name does.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")

#: Whether this is the full run, in which a test looks at all it might look at.
IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"

#: Folders whose tests compile, trace PyTorch or start processes: of the tests of each of their
#: files one of so many is drawn by a commit.
COSTLY = {
    "batch": 6,
    "bench": 4,
    "chains": 4,
    "cli": 4,
    "compile": 4,
    "cpu": 5,
    "cuda": 4,
    "distributed": 4,
    "dynamic": 3,
    "fusion": 3,
    "lab": 4,
    "layers": 2,
    "models": 3,
    "onnx": 4,
    "packaging": 2,
    "quantization": 2,
    "serving": 4,
    "torch": 5,
    "training": 3,
    "weights": 3,
}

#: Of the cases of instruction sets one of so many is drawn by a commit.
ISA_CASES = 3


def turn(items: Iterable[T], step: int, name_of: Callable[[T], str] = str) -> list[T]:
    """Of what one test goes through, or a fixture makes ready, about one of ``step``, drawn by the
    commit; all where none draws."""
    by = seed()
    return [each for each in items if by is None or not _number(f"{by} {name_of(each)}") % step]


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
    """Whether CI runs a case of that name with an instruction set: one of them by the name, and of
    the cases those that the commit draws."""
    names = list(isas)
    return bool(turn([name], ISA_CASES)) and names[crc32(name.encode()) % len(names)] == isa


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


def seed() -> str | None:
    """What the cases of tests marked ``sampled`` are drawn by; None if all of them run."""
    return None if IS_FULL else os.environ.get("MINIDNN_TEST_SAMPLE") or None


def drawn(items: Sequence[pytest.Item], by: str) -> list[pytest.Item]:
    """The tests that run: of the cases of each one with the mark an n-th, and of the tests of each
    costly file a part."""
    cases: dict[tuple[str, int], set[str]] = defaultdict(set)
    tests: dict[str, set[str]] = defaultdict(set)
    for item in items:
        name = _test_of(item)
        tests[name.split("::", 1)[0]].add(name)
        if (mark := item.get_closest_marker("sampled")) is not None:
            cases[name, mark.args[0]].add(item.nodeid)
    left_out = set().union(*(_left_out(of, step, by) for (_, step), of in cases.items()))
    steps = {file: COSTLY.get(file.removeprefix("tests/").split("/", 1)[0], 1) for file in tests}
    idle = set().union(*(_left_out(tests[file], step, by) for file, step in steps.items()))
    return [each for each in items if each.nodeid not in left_out and _test_of(each) not in idle]


def _test_of(item: pytest.Item) -> str:
    return item.nodeid.split("[", 1)[0]


def _left_out(names: Collection[str], step: int, by: str) -> set[str]:
    """All but one of ``step``; of so few that this is none, one with as many of the seeds as it
    should."""
    order = sorted(names, key=lambda name: _number(f"{by} {name}"))
    return set(order[(len(order) + _number(f"{by} {min(order)}") % step) // step :])


def _number(text: str) -> int:
    """One that differs in all bits where texts differ in one; a CRC's order would not."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")
