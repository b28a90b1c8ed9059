"""Splits batches of a network with named sizes into parts for which there are programs.

:class:`BatchSplitter` finds the named size that is the batch, checks that rows are independent, and
chooses the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minidnn._forks import ForkLock
from minidnn.dynamic.dim import Dim, Template
from minidnn.dynamic.kept import CachedProgram, Key
from minidnn.dynamic.rows import row_wise
from minidnn.dynamic.split import BatchPart, RowWise, parts_of
from minidnn.graph.ir import Graph

_CACHED_BATCHES = 4096
"""Sizes of batches for which results are cached."""

_CACHED_SIZES = 16
"""Combinations of the other named sizes for which the analysis of rows is cached."""


@dataclass(frozen=True)
class BatchSplit:
    """The parts of a batch, the program of each part, and which inputs and outputs have rows."""

    parts: tuple[BatchPart, ...]
    programs: tuple[CachedProgram, ...]
    wise: RowWise


class BatchSplitter:
    """Splits batches of a network.

    Args:
        dims: the named sizes.
        templates: the shapes of its inputs, with the named sizes.
        is_code: whether graphs come from code that may branch on a size.
        trace: returns the graph for the sizes of a key.

    Attributes:
        index: the position of the batch among the named sizes.
        why_not: why batches cannot be computed in parts; None if they can.
    """

    def __init__(
        self,
        dims: Sequence[Dim],
        templates: Sequence[Template],
        is_code: bool,
        trace: Callable[[Key], Graph],
    ) -> None:
        self._is_code = is_code
        self._trace = trace
        self._lock = ForkLock()  # of the caches
        self._row_wise: dict[Key, tuple[RowWise | str, Graph | None]] = {}
        #: Whether the network's code makes the same graph for a size as for others.
        self._same_code: dict[Key, bool] = {}
        self._parts: dict[Key, tuple[BatchPart, ...]] = {}
        found = _batch_of(templates)
        self.index = 0 if isinstance(found, str) else dims.index(found)
        self.why_not: str | None = found if isinstance(found, str) else None
        self._dim = dims[self.index]
        self._inputs = {i for i, template in enumerate(templates) if self._dim in template}
        if self.why_not is None:
            wise, _ = self._rows(tuple(dim.least for dim in dims))
            self.why_not = wise if isinstance(wise, str) else None

    def of(self, key: Key, rows: int) -> Key:
        """The key with another number of rows."""
        return (*key[: self.index], rows, *key[self.index + 1 :])

    def row_wise(self, key: Key) -> RowWise | str:
        """Which inputs and outputs have rows in batches with this key's other sizes, or why rows
        depend on each other."""
        return self._rows(key)[0]

    def has_no_rows(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether arrays of these shapes are a batch of no rows, which can be computed."""
        if self.why_not is not None or len(shapes) <= max(self._inputs):
            return False
        return all(shapes[place][:1] == (0,) for place in self._inputs)

    def half(self, key: Key) -> Key:
        """The key of a batch with at least half as many rows: the least number times a power of 2,
        so that few sizes are compiled."""
        rows = self._dim.least
        while 2 * rows <= key[self.index]:
            rows *= 2
        return self.of(key, rows)

    def rung(self, key: Key) -> Key:
        """The key of the largest batch of no more rows whose program is made for parts of larger
        batches: their rows are the least number, 4 times, 16 times that, and so on."""
        rows = self._dim.least
        while 4 * rows <= key[self.index]:
            rows *= 4
        return self.of(key, rows)

    def split(self, key: Key, kept: Mapping[Key, CachedProgram]) -> BatchSplit | None:
        """The split of a batch into parts for these programs; None if there is none."""
        if self.why_not is not None:
            return None
        wise, large = self._rows(key)
        if isinstance(wise, str) or not self._has_same_code(key, wise, large):
            return None
        programs = {
            each[self.index]: program
            for each, program in kept.items()
            if self.of(each, 0) == self.of(key, 0) and self._has_same_code(each, wise, large)
        }
        with self._lock:
            parts = self._parts.get(key)
        if parts is None:
            costs = {rows: program.seconds for rows, program in programs.items()}
            parts = parts_of(key[self.index], costs)
            if parts is None:
                return None
            with self._lock:
                _remember(self._parts, key, parts, _CACHED_BATCHES)
        if any(part.rows not in programs for part in parts):  # programs were evicted meanwhile
            return None
        return BatchSplit(parts, tuple(programs[part.rows] for part in parts), wise)

    def forget_parts(self) -> None:
        """Clears the cached parts, as there are other programs now."""
        with self._lock:
            self._parts.clear()

    def _rows(self, key: Key) -> tuple[RowWise | str, Graph | None]:
        """The result of :meth:`row_wise`, from the cache; and the graph of the largest batch, if
        graphs come from code."""
        others = self.of(key, 0)
        with self._lock:
            analysis = self._row_wise.get(others)
        if analysis is None:
            ends = self._dim.least, self._dim.most
            small, large = (self._trace(self.of(key, rows)) for rows in ends)
            # The graph is kept only if it is needed: it has the weights, perhaps as copies.
            analysis = row_wise(small, large, self._inputs), large if self._is_code else None
            with self._lock:
                _remember(self._row_wise, others, analysis, _CACHED_SIZES)
        return analysis

    def _has_same_code(self, key: Key, wise: RowWise, large: Graph | None) -> bool:
        """Whether the network's code, if there is any, makes the same graph for these sizes as for
        others."""
        if large is None or key[self.index] in (self._dim.least, self._dim.most):
            return True
        with self._lock:
            same = self._same_code.get(key)
        if same is None:
            same = row_wise(self._trace(key), large, self._inputs) == wise
            with self._lock:
                _remember(self._same_code, key, same, _CACHED_BATCHES)
        return same


def _batch_of(templates: Sequence[Template]) -> Dim | str:
    """The only named size of first axes, if no other axis has it; or why there is none."""
    first: dict[Dim, None] = {}
    other_axes: set[Dim] = set()
    for template in templates:
        first.update((each, None) for each in template[:1] if isinstance(each, Dim))
        other_axes.update(each for each in template[1:] if isinstance(each, Dim))
    if len(first) != 1:
        return f"{'several' if first else 'none'} of the named sizes are those of first axes"
    (dim,) = first
    if dim in other_axes:
        return f"{dim.name!r} is the size of a first axis and of another"
    return f"{dim.name!r} has one size" if dim.least == dim.most else dim


def _remember(known: dict[Key, Any], key: Key, value: Any, most: int) -> None:
    """Caches a value; a cache with ``most`` entries is cleared before."""
    if len(known) >= most:
        known.clear()
    known[key] = value
