"""How rows are spread over threads: each row stays in the registers of a few neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from ...fusion.rows import RowShape

_THREADS = 128
_ACCESS = 16  # bytes
_WIDEST = 32
"""Bytes that a thread moves at once, in two accesses: of float32 beside halves."""
_PACKS = (8, 4, 2, 1)
_MOST_LANES = 1024
_WARP = 32
_MOST_KEPT = 160
"""Numbers of rows that a thread keeps at most: more would leave no registers for anything else."""
_KEPT_FREELY = 32
"""Numbers that leave enough threads side by side to wait for memory."""
_SECTOR = 32  # bytes
_BUSY = 8192
"""Threads without which memory has less to do than it could: fewer rows, of a warp each, are spread
over as many threads as they can be."""


@dataclass(frozen=True, slots=True)
class RowTile:
    """Each row is spread over ``lanes`` neighbouring threads: of a warp, or of a whole block.

    A thread has ``turns`` packs of ``pack`` neighbours; those of a turn lie side by side.
    """

    length: int
    pack: int
    lanes: int
    turns: int

    @property
    def packs(self) -> int:
        """Of a row."""
        return self.length // self.pack

    @property
    def elements(self) -> int:
        """That a thread keeps of a row."""
        return self.turns * self.pack

    @property
    def is_full(self) -> bool:
        """Whether no thread is without an element at any turn."""
        return self.turns * self.lanes == self.packs

    @property
    def threads(self) -> int:
        """Of a block: it has one row, if that is longer than a warp has room for."""
        return self.lanes if self.lanes > _WARP else _THREADS

    @property
    def beside(self) -> int:
        """Rows that a block has at once."""
        return self.threads // self.lanes


def choose_tile(rows: RowShape, itemsizes: tuple[int, ...], kept: int, reductions: int) -> RowTile:
    """The tile under which rows are predicted to be computed fastest.

    Args:
        itemsizes: of the elements of rows that are read or written.
        kept: values with an element for each of a row that are in registers at once.
        reductions: along a row.
    """
    found = tiles(rows.length, itemsizes, kept)
    if rows.count * _WARP < _BUSY:
        return min(found, key=lambda tile: (tile.elements, tile.lanes, -tile.pack))
    return min(found, key=lambda tile: _cost(tile, itemsizes, kept, reductions))


def longest_row(kept: int) -> int:
    """The most elements of a row that fit the registers of a block; 0: not even one."""
    return _MOST_LANES * (_MOST_KEPT // (2 * kept))


def tiles(length: int, itemsizes: tuple[int, ...], kept: int) -> list[RowTile]:
    """The tiles of rows that fit a thread's registers; those of one warp alone, if there are any
    that leave enough threads side by side."""
    fitting = [t for t in _all(length, itemsizes) if kept * t.elements <= _MOST_KEPT]
    free = [t for t in fitting if t.lanes <= _WARP and kept * t.elements <= _MOST_KEPT // 2]
    return free or fitting


def _all(length: int, itemsizes: tuple[int, ...]) -> Iterator[RowTile]:
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
    """Of one element, in multiples of what its arithmetic takes."""
    wasted = tile.lanes * tile.turns * tile.pack / tile.length
    joins = reductions * 3.0 * log2(tile.lanes) / (tile.elements * 12.0)
    if tile.lanes > _WARP:
        joins += reductions * 40.0 / (tile.elements * 12.0)
    narrow = min(itemsizes)
    accesses = 0.15 * _ACCESS / (tile.pack * narrow)
    sectors = max(1.0, _SECTOR / (tile.lanes * tile.pack * narrow))
    crowded = max(1.0, kept * tile.elements / _KEPT_FREELY) ** 0.5
    return (wasted * (1.0 + joins) + accesses) * sectors * crowded
