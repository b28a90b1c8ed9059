"""A batch in parts: which programs compute which of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Rows that are shared out exactly; of more, the cheapest program computes those in front.
_EXACT = 1024


@dataclass(frozen=True)
class BatchPart:
    """Rows ``begin`` to ``begin + rows - 1``, computed by the program for so many."""

    begin: int
    rows: int

    @property
    def end(self) -> int:
        return self.begin + self.rows


@dataclass(frozen=True)
class RowWise:
    """A network whose rows are independent: which inputs and outputs have rows."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]


def parts_of(total: int, seconds: Mapping[int, float]) -> tuple[BatchPart, ...] | None:
    """The parts of a batch that take the least time together; None if all programs are too large.

    Programs compute as many rows as they were made for, in ``seconds``.  Where these do not add up,
    the last part begins earlier, and its first rows are computed twice, with one result.
    """
    costs = {rows: cost for rows, cost in seconds.items() if rows <= total}
    if not costs:
        return None
    best = min(costs, key=lambda rows: (costs[rows] / rows, -rows))
    ahead = max(0, total - _EXACT) // best
    counts = [best] * ahead + _least(total - ahead * best, costs)
    found, begin = [], 0
    for rows in sorted(counts, reverse=True):
        found.append(BatchPart(min(begin, total - rows), rows))
        begin += rows
    return tuple(found)


def _least(total: int, costs: Mapping[int, float]) -> list[int]:
    """The programs that compute at least so many rows in the least time."""
    #: For each number of rows the seconds, and the rows of one program, of several the largest.
    cheapest: list[tuple[float, int]] = [(0.0, 0)]
    for rows in range(1, total + 1):
        ways = ((cheapest[max(0, rows - one)][0] + cost, -one) for one, cost in costs.items())
        cheapest.append(min(ways))
    found, left = [], total
    while left > 0:
        found.append(-cheapest[left][1])
        left -= found[-1]
    return found
