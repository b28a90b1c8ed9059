"""Contestants in turn, so that whatever else the machine does strikes all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeVar

T = TypeVar("T")


def orders(contestants: Sequence[T], first: int = 0) -> Iterator[list[T]]:
    """The order of each round from number ``first`` on, without end: that of the round before,
    turned by one."""
    for number in count(first):
        turn = number % len(contestants)
        yield [*contestants[turn:], *contestants[:turn]]


def interleaved(takes: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each gives in each of so many rounds."""
    found: dict[str, list[T]] = {name: [] for name in takes}
    for _, order in zip(range(rounds), orders(list(takes)), strict=False):
        for name in order:
            found[name].append(takes[name]())
    return found
