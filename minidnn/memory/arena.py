"""plan_memory: offsets of all storage in one arena.

Offsets are found greedily (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", arXiv 2001.03288): storage is placed in some order, each in the tightest gap among
those that live at the same time.  Several orders are tried and the smallest arena is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.graph.ir import Graph, Value
from minidnn.memory.annotations import Annotations
from minidnn.memory.liveness import Lifetime, group_lifetimes, lifetimes, peak_bytes

_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (-life.bytes, life.first),
    lambda life: (life.first, -life.bytes),
    lambda life: (life.first - life.last, -life.bytes, life.first),
    lambda life: (-life.bytes * (life.last - life.first + 1), life.first),
)


@dataclass(frozen=True)
class Arena:
    """One block of memory for all that lives between a graph's inputs and outputs."""

    bytes: int
    #: Where the storage of each value that has its own begins.
    offsets: dict[Value, int]
    #: The most bytes in use at once: no arena for this order of nodes can be smaller.
    lower_bound: int


def plan_memory(graph: Graph, annotations: Annotations) -> Arena:
    """The smallest arena found for the graph's nodes in their order."""
    return _smallest(lifetimes(graph, annotations))


def plan_groups(graph: Graph, annotations: Annotations) -> Arena:
    """What each thread needs for the groups of nodes that are computed image after image.

    One group runs after the other, so that they share the memory.
    """
    groups = annotations.groups
    arenas = [_smallest(group_lifetimes(graph, annotations, group)) for group in groups]
    return Arena(
        max((arena.bytes for arena in arenas), default=0),
        {value: offset for arena in arenas for value, offset in arena.offsets.items()},
        max((arena.lower_bound for arena in arenas), default=0),
    )


def _smallest(found: Sequence[Lifetime]) -> Arena:
    bound = peak_bytes(found)
    best: Arena | None = None
    for key in _ORDERS:
        offsets = _place(sorted(found, key=key))
        size = max((offsets[life.value] + life.bytes for life in found), default=0)
        if best is None or size < best.bytes:
            best = Arena(size, offsets, bound)
        if best.bytes == bound:
            break
    assert best is not None
    return best


def _place(order: Sequence[Lifetime]) -> dict[Value, int]:
    """Offsets, one after another, each in the tightest gap that is large enough."""
    placed = Placed(len(order))
    return {life.value: placed.place(life) for life in order}


class Placed:
    """Storage that has its place in one block.

    Args:
        most: of how many values, at most.
        alignment: what offsets of those that are placed here are multiples of, in bytes.
    """

    def __init__(self, most: int, alignment: int = 1) -> None:
        # In the order of where it begins: its begin and end, first and last node.
        self._placed = np.zeros((4, most), np.int64)
        self._count, self._alignment = 0, alignment

    def place(self, life: Lifetime) -> int:
        """Finds one more its place, in the tightest gap beside what lives at the same time, else
        behind that: its offset."""
        begins, ends, first, last = self._placed[:, : self._count]
        beside = np.flatnonzero((first <= life.last) & (last >= life.first))
        reach = np.zeros(len(beside) + 1, np.int64)
        np.maximum.accumulate(ends[beside], out=reach[1:])
        gaps = begins[beside] - reach[:-1]
        wide = np.flatnonzero(gaps >= life.bytes)
        offset = int(reach[wide[gaps[wide].argmin()]] if len(wide) else reach[-1])
        self.add(life, offset)
        return offset

    def add(self, life: Lifetime, offset: int) -> None:
        """Takes one that lies at an offset."""
        placed, count = self._placed, self._count
        at = int(np.searchsorted(placed[0, :count], offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count].copy()
        end = -(-(offset + life.bytes) // self._alignment) * self._alignment
        placed[:, at] = offset, end, life.first, life.last
        self._count += 1
