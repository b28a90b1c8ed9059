"""Tiles of row kernels: how a row is distributed over the threads whose registers hold it.

:func:`choose_tile` chooses one by a cost model; :mod:`.row_region` prints kernels for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from ...fusion.rows import RowShape

_THREADS = 128
_ACCESS = 16  # bytes
_WIDEST = 32
"""The most bytes of a pack, which are two accesses: of float32 beside half precision."""
_PACKS = (8, 4, 2, 1)
_MOST_LANES = 1024
_WARP = 32
_MOST_KEPT = 160
"""The most elements that a thread keeps: more would leave no registers for anything else."""
_KEPT_FREELY = 32
"""Elements that a thread may keep while enough threads are resident to hide memory latency."""
_SECTOR = 32  # bytes
_BUSY = 8192
"""Threads that keep memory busy.  If a warp for each row gives fewer, rows are spread over as many
threads as possible."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """A row is distributed over ``lanes`` neighbouring threads: of a warp, or of a whole block.

    A thread has ``iterations`` packs of ``pack`` contiguous elements.  The packs that the threads
    have in one iteration are contiguous in the row, too.
    """

    length: int
    pack: int
    lanes: int
    iterations: int

    @property
    def packs(self) -> int:
        """Packs of a row."""
        return self.length // self.pack

    @property
    def elements(self) -> int:
        """Elements of a row that a thread keeps."""
        return self.iterations * self.pack

    @property
    def is_full(self) -> bool:
        """Whether every thread has a pack in every iteration."""
        return self.iterations * self.lanes == self.packs

    @property
    def threads(self) -> int:
        """Threads of a block: of a single row, if that takes more than a warp."""
        return self.lanes if self.lanes > _WARP else _THREADS

    @property
    def beside(self) -> int:
        """Rows that a block computes at once."""
        return self.threads // self.lanes


def choose_tile(rows: RowShape, itemsizes: tuple[int, ...], kept: int, reductions: int) -> RowTile:
    """The tile under which rows are predicted to be computed fastest.

    Args:
        itemsizes: bytes of an element, for each value of rows that is read or written.
        kept: values of rows that are in registers at once (:func:`.row_region.kept_of`).
        reductions: how many nodes reduce along a row.
    """
    candidates = tiles(rows.length, itemsizes, kept)
    if rows.count * _WARP < _BUSY:
        return min(candidates, key=lambda tile: (tile.elements, tile.lanes, -tile.pack))
    return min(candidates, key=lambda tile: _cost(tile, itemsizes, kept, reductions))


def longest_row(kept: int) -> int:
    """The length of the longest row that fits in the registers of a block; 0 if none does."""
    return _MOST_LANES * (_MOST_KEPT // (2 * kept))


def tiles(length: int, itemsizes: tuple[int, ...], kept: int) -> list[RowTile]:
    """The tiles under which rows fit in registers; if some take at most one warp and half of the
    registers, these alone."""
    fitting = [t for t in _all(length, itemsizes) if kept * t.elements <= _MOST_KEPT]
    free = [t for t in fitting if t.lanes <= _WARP and kept * t.elements <= _MOST_KEPT // 2]
    return free or fitting


def _all(length: int, itemsizes: tuple[int, ...]) -> Iterator[RowTile]:
    """The tiles of each pack that divides a row and suits accesses, over each power of two of
    threads."""
    for pack in _PACKS:
        wide = pack * max(itemsizes)
        if length % pack or wide > _WIDEST or (pack > 1 and pack * min(itemsizes) > _ACCESS):
            continue
        lanes = 1
        while lanes <= _MOST_LANES:
            packs = length // pack
            if lanes < 2 * packs:
                yield RowTile(length, pack, lanes, -(-packs // lanes))
            lanes *= 2


def _cost(tile: RowTile, itemsizes: tuple[int, ...], kept: int, reductions: int) -> float:
    """The predicted time of one element, in multiples of that of its arithmetic."""
    wasted = tile.lanes * tile.iterations * tile.pack / tile.length
    reducing = reductions * 3.0 * log2(tile.lanes) / (tile.elements * 12.0)
    if tile.lanes > _WARP:
        reducing += reductions * 40.0 / (tile.elements * 12.0)
    narrow = min(itemsizes)
    accesses = 0.15 * _ACCESS / (tile.pack * narrow)
    sectors = max(1.0, _SECTOR / (tile.lanes * tile.pack * narrow))
    occupancy_loss = max(1.0, kept * tile.elements / _KEPT_FREELY) ** 0.5
    return (wasted * (1.0 + reducing) + accesses) * sectors * occupancy_loss
