"""The tile shapes of ``tile.cu``, and a cost model that says which are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ..machine import Machine
from .problem import ContractionProblem
from .split_k import Divisions, filter_blocks, pixels_of


@dataclass(frozen=True)
class Tile:
    """The tile shape of a block.

    Attributes:
        pixels, filters: M and N of a block.
        products: K of a slab; int8 has twice as many in the same bytes.
        warp_pixels, warp_filters: M and N of a warp.
        stages: slabs in flight.
        blocks: blocks of a multiprocessor.
        early: for how many groups of sixteen rows a warp loads the other tensors before it
            transposes results: of matrix products, and of convolutions with windows.
    """

    pixels: int
    filters: int
    products: int
    warp_pixels: int
    warp_filters: int
    stages: int
    blocks: int
    early: tuple[int, int]

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.pixels // self.warp_pixels * (self.filters // self.warp_filters) * 32

    @property
    def slab_bytes(self) -> int:
        """Shared memory of a slab, in bytes."""
        return (self.pixels + self.filters) * self.products * 2

    def shared_bytes(self, parts: int) -> int:
        """Shared memory of a block, in bytes, where ``parts`` blocks make a tile: the slabs, and
        the rows that warps transpose, or all sums of the tile."""
        transposed = self.threads // 32 * 16 * (self.warp_filters + 8) * 4
        sums = self.pixels * (self.filters + 8) * 4
        return self.stages * self.slab_bytes + (transposed if parts == 1 else sums)

    def divides(self, parts: int) -> bool:
        """Whether ``parts`` blocks may make a tile: each thread then adds up at most so many chunks
        of eight sums as its registers hold beside the epilogue."""
        return parts == 1 or self.pixels * self.filters // (8 * parts * self.threads) <= 4

    def side_by_side(self, parts: int, machine: Machine) -> int:
        """Blocks that a multiprocessor runs at once; with split-K shared memory limits them."""
        room = machine.shared_bytes // self.shared_bytes(parts)
        return self.blocks if parts == 1 else min(self.blocks, room)

    def spare_registers(self, parts: int, machine: Machine) -> int:
        """Registers of a thread beside its sums."""
        registers = 65536 // (self.threads * self.side_by_side(parts, machine))
        return min(registers, 255) - self.warp_pixels * self.warp_filters // 32

    def __str__(self) -> str:
        return f"{self.pixels}x{self.filters}x{self.products}"


# A residual that is loaded early is there when it is needed: 64 -> 256 filters on 56 x 56 at batch
# 128 take 142 us on an H200 with three groups of rows of 128 x 128 x 64, 158 with two, 172 with one
# and 205 with none.  But each group takes WN / 4 registers of those that sums leave, and spills are
# dearer (160 us with four), as is a crowded loop of windows.
TILES = (
    Tile(128, 32, 64, 32, 32, 3, 3, (2, 2)),
    Tile(256, 64, 32, 64, 32, 3, 2, (1, 0)),
    Tile(64, 64, 64, 32, 32, 3, 3, (2, 2)),
    Tile(128, 128, 64, 64, 32, 2, 2, (3, 1)),
    Tile(128, 128, 32, 64, 64, 4, 2, (4, 1)),
    Tile(128, 64, 32, 64, 32, 4, 3, (4, 4)),
    Tile(64, 32, 64, 32, 16, 4, 3, (2, 2)),
)
PARTS = (1, 2, 4, 8)
"""Split-K factors, which are sizes of a cluster: every device with clusters allows them, unless it
has fewer than 8 multiprocessors."""
DIVISIONS = Divisions(TILES)
"""The choices: a tile shape and a split-K factor each."""


# What a multiprocessor of an H200 does in a cycle: multiply-adds, bytes into shared memory, bytes
# of partial sums that are added up, bytes of results that are read and written; and cycles until a
# slab has arrived, and for each part of a split-K sum.  They are fitted to what 599 contractions of
# eight networks took at batches 1, 32 and 128: of the first choices 85 % are within 3 % of the
# fastest tile.
_PRODUCTS, _LOADED, _ADDED, _PASSED = 822, 30, 28, 11
_SLAB, _PART = 832, 356
_MEASURED = 3
"""Of so many tiles the fastest took 0.4 % more time in the mean than the fastest of four."""


def candidates(problem: ContractionProblem, machine: Machine) -> list[int]:
    """The choices of :data:`DIVISIONS` that are worth measuring, the most promising first."""
    return DIVISIONS.promising(_priced(problem, machine))[:_MEASURED]


def has_few_tiles(problem: ContractionProblem, machine: Machine) -> bool:
    """Whether large tiles would leave multiprocessors without work."""
    return pixels_of(problem) / 128 * problem.w.shape[0] / 64 < machine.multiprocessors


def _priced(problem: ContractionProblem, machine: Machine) -> Iterator[tuple[float, int]]:
    """Estimates the cycles of each choice; split-K is considered where tiles are few."""
    divided = machine.has_clusters and has_few_tiles(problem, machine)
    for i, tile in enumerate(TILES):
        slabs, tiles = slabs_of(problem, tile), tiles_of(problem, tile)
        sums = tile.pixels * tile.filters
        slab_cycles = max(sums * tile.products / _PRODUCTS, tile.slab_bytes / _LOADED)
        for parts in PARTS if divided else PARTS[:1]:
            fits = tile.shared_bytes(parts) <= machine.shared_bytes
            if parts > slabs or not tile.divides(parts) or not fits:
                continue
            # Blocks of the busiest multiprocessor.
            blocks = -(-tiles * parts // machine.multiprocessors)
            cycles = -(-slabs // parts) * max(blocks * slab_cycles, _SLAB)
            cycles += blocks * sums * 2 * (1 + len(problem.others)) / _PASSED
            if parts > 1:
                cycles += parts * _PART + blocks * sums * 4 / _ADDED
            yield cycles, DIVISIONS.number(i, parts)


def tiles_of(problem: ContractionProblem, tile: Tile) -> int:
    """How many tiles a result has."""
    return -(-pixels_of(problem) // tile.pixels) * filter_blocks(problem, tile.filters)


def slabs_of(problem: ContractionProblem, tile: Tile) -> int:
    """How many slabs the K dimension of a tile has."""
    return -(-prod(problem.w.shape[1:]) * problem.x.itemsize // (2 * tile.products))
