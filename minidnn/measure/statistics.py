"""Medians with confidence intervals that assume nothing about how times are distributed.

Contestants run in turn, so that whatever else the machine does strikes all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import comb, exp, lgamma, log
from typing import Any, TypeVar

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


@dataclass(frozen=True)
class Estimate:
    """A median, and an interval that holds the true one with a given confidence or more."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def median(samples: Sequence[float], confidence: float = 0.95) -> Estimate:
    """The median of independent samples, with an interval between two of them.

    The number of samples below the true median is binomial with one half, whatever their
    distribution, so the k-th smallest and k-th largest enclose it with a known probability: 7
    samples reach 98.4 % by their extremes.  With fewer than 6 samples even the extremes do not
    reach 95 %; they are given nevertheless.
    """
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("samples is empty: an estimate needs at least one")
    count = len(ordered)
    outside, cut = 0.0, 0
    while 2 * (outside + _chance(count, cut)) <= 1 - confidence:
        outside += _chance(count, cut)
        cut += 1
    cut = max(0, cut - 1)
    return Estimate(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def _chance(count: int, below: int) -> float:
    """How probable it is that just so many of ``count`` samples lie below the true median."""
    if count <= 1000:
        return comb(count, below) / 2**count
    ways = lgamma(count + 1) - lgamma(below + 1) - lgamma(count - below + 1)
    return exp(ways - count * log(2))  # the whole numbers would have thousands of digits


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The median of ``above[i] / below[i]``: samples of one round, taken under one clock."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def compared(times: Mapping[str, Sequence[float]], to: str) -> dict[str, Any]:
    """What is kept of engines' times round by round: medians, and for all but ``to`` the ratio to
    it, each with its interval as an :class:`Estimate` has it."""
    others = {name: found for name, found in times.items() if name != to}
    return {
        "rounds": max(map(len, times.values())),
        "seconds": {name: vars(median(found)) for name, found in times.items()},
        "ratio": {name: vars(ratio(found, times[to])) for name, found in others.items()},
    }
