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
    sizes = np.array([life.bytes for life in order], np.int64)
    first = np.array([life.first for life in order], np.int64)
    last = np.array([life.last for life in order], np.int64)
    begins = np.zeros(len(order), np.int64)
    for i, life in enumerate(order):
        beside = np.flatnonzero((first[:i] <= life.last) & (last[:i] >= life.first))
        beside = beside[np.lexsort((sizes[beside], begins[beside]))]
        best, tightest, end = -1, -1, 0
        for begin, size in zip(begins[beside].tolist(), sizes[beside].tolist(), strict=True):
            gap = begin - end
            if gap >= life.bytes and (tightest < 0 or gap < tightest):
                best, tightest = end, gap
            end = max(end, begin + size)
        begins[i] = end if best < 0 else best
    return dict(zip((life.value for life in order), begins.tolist(), strict=True))
