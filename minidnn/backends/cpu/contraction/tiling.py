"""Choosing a register tile: pixels times vectors of output channels.

The figures are those of current x86 cores: two multiply-adds and two vector loads a cycle, and a
latency of four cycles (a little more, since no schedule is perfect).  A step of the sum loads one
number for each pixel and one vector of weights for each vector of channels, and multiplies each
with each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ..isa import Isa

LATENCY = 4.7
LOAD = 0.6
"""Cycles of a load where loads are what a tile waits for; two a cycle are reached by nobody."""

OVERHEAD = 24.0
"""Cycles to begin and end a tile, beside its sums."""

WEIGHTS = 0.05
"""Cycles for a vector of weights, which comes from the second-level cache."""

VARIANT_PENALTY = 0.004
"""Share of the time that another variant of the code must save to be worth its size."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows x columns of pixels and what is left over, vectors of channels and how they split.

    ``wide`` groups have ``vectors`` vectors, then ``narrow`` groups have one less.
    """

    rows: int
    columns: int
    vectors: int
    wide: int
    narrow: int

    @property
    def groups(self) -> int:
        return self.wide + self.narrow


def split_vectors(blocks: int, vectors: int) -> tuple[int, int]:
    """How many groups of ``vectors`` and of ``vectors - 1`` make up ``blocks``."""
    count = -(-blocks // vectors)
    narrow = count * vectors - blocks
    return count - narrow, narrow


def step_cycles(pixels: int, vectors: int) -> float:
    """Cycles of one step of the sums of a tile."""
    return max(pixels * vectors / 2, (pixels + vectors) * LOAD, LATENCY) + WEIGHTS * vectors


@lru_cache(4096)
def choose_tile(
    out: tuple[int, int], blocks: int, depth: int, isa: Isa, most_vectors: int = 4
) -> Tile:
    """The tile with the least predicted time for ``out`` pixels and ``blocks`` of channels."""
    tiles = tiles_for(out, blocks, isa, most_vectors)
    return min(tiles, key=lambda tile: _cost(tile, out, depth))


def tiles_for(out: tuple[int, int], blocks: int, isa: Isa, most_vectors: int = 4) -> Iterator[Tile]:
    """Every tile that the registers hold."""
    for vectors in range(1, min(blocks, most_vectors) + 1):
        most = min((isa.registers - 1 - vectors) // vectors, 28)
        if vectors > 2 and isa.registers == 32:
            most = min(most, 4)
        wide, narrow = split_vectors(blocks, vectors)
        if wide <= 0:
            continue
        for rows, columns in _shapes(out, most):
            yield Tile(rows, columns, vectors, wide, narrow)


def cycles_of(tile: Tile, out: tuple[int, int], depth: int) -> float:
    """Cycles of all sums of ``out`` pixels and all channels, with their rests."""
    return sum(_parts(tile, out, depth))


def _shapes(out: tuple[int, int], most: int) -> list[tuple[int, int]]:
    shapes = [(1, columns) for columns in range(1, min(most, out[1]) + 1)]
    if out[1] <= most // 2:
        shapes += [(rows, out[1]) for rows in range(2, min(most // out[1], out[0]) + 1)]
    return shapes


def _cost(tile: Tile, out: tuple[int, int], depth: int) -> float:
    parts = _parts(tile, out, depth)
    return sum(parts) * (1 + VARIANT_PENALTY * (len(parts) - 1))


def _parts(tile: Tile, out: tuple[int, int], depth: int) -> list[float]:
    """Cycles that each variant of the code takes."""
    full, rest = divmod(out[1], tile.columns)
    if tile.rows > 1:
        full, rest = divmod(out[0], tile.rows)
        sizes = [(full, tile.rows * tile.columns), (1 if rest else 0, rest * tile.columns)]
        repeats = 1
    else:
        sizes = [(full, tile.columns), (1 if rest else 0, rest)]
        repeats = out[0]
    groups = [(tile.wide, tile.vectors), (tile.narrow, tile.vectors - 1)]
    return [
        repeats * count * groups_of * (step_cycles(pixels, vectors) * depth + OVERHEAD)
        for count, pixels in sizes
        for groups_of, vectors in groups
        if count and groups_of
    ]
