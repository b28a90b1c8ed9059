"""How a contraction is computed by products of pairs: packing, tiles and blocks of pixels.

The block of inputs that a task reads is packed so that the pixels of several rows of results lie
evenly: rows are as wide as those of the input with its padding, and rows that a stride leaves out
lie apart.  So a tile is a run of pixels across rows; those between two rows are computed and
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .....graph.types import ITEMSIZE
from ...isa import Isa
from ..problem import Problem
from ..tiling import Tile, split_vectors
from .products import BLOCK, Products

Packing = Literal["blocks", "features", "unrolled"]

_VECTORS = 2
_MOST_PIXELS = 14
"""Of a tile of vectors: two sums a pixel leave room for weights."""
_TILE_PIXELS = 32

_BLOCK_BYTES = 256 << 10
"""About so many packed bytes of a task: they stay in a second-level cache beside weights."""

MOST_UNROLLED = 16
"""Input channels at most of which a pixel's taps are packed side by side."""

# Cycles, about those of current processors.
_STEP = {"vectors": 16 * 0.5, "tiles": 16.0}
"""Of 32 channels times a vector, for a pixel by vectors, for 16 by tiles."""
_CALL = 30.0
_FINISH = 5.0
_PACK = 2.0
_UNROLL = 4.0
_TASK = 200.0
_WEIGHT_BYTES = 32.0


@dataclass(frozen=True)
class DotScheme:
    """Everything that a printed kernel follows.

    Attributes:
        packing: "blocks" of 32 channels for each pixel; "features" of a row side by side;
            "unrolled": all that one result reads, side by side.
        pixels: of a tile.
        block: rows of results of one task (columns if there is one row).
    """

    problem: Problem
    lanes: int
    packing: Packing
    tiles: bool
    pixels: int
    tile: Tile
    block: int

    @property
    def streams(self) -> bool:
        """Whether results go past the caches: half a line at a time would not gain."""
        return False

    @property
    def tiles_ahead(self) -> int:
        """How far ahead results are asked for."""
        return 0

    @property
    def groups(self) -> int:
        return self.problem.groups

    @property
    def outputs(self) -> int:
        """Output channels of a group."""
        return self.problem.outputs

    @property
    def slots(self) -> int:
        """Output channels of a group, filled up to whole vectors."""
        return -(-self.outputs // self.lanes) * self.lanes

    @property
    def vectors_of_parts(self) -> list[int]:
        """Vectors of each group of them."""
        tile = self.tile
        return [tile.vectors] * tile.wide + [tile.vectors - 1] * tile.narrow

    @property
    def by_columns(self) -> bool:
        return self.problem.out[0] == 1

    @property
    def blocks(self) -> int:
        """Blocks of pixels of an image."""
        return -(-self.problem.out[1 if self.by_columns else 0] // self.block)

    @property
    def tasks(self) -> int:
        return self.problem.batch * self.blocks * self.groups * self.tile.groups

    # What is packed

    @property
    def reads_all(self) -> bool:
        """Whether inputs are packed pixel by pixel of the results, with no taps of their own."""
        return self.packing != "blocks" or self.problem.kernel == (1, 1)

    @property
    def terms(self) -> int:
        """Numbers of a packed pixel."""
        return self.problem.depth if self.packing == "unrolled" else self.problem.inputs

    @property
    def blocks_of_terms(self) -> int:
        return -(-self.terms // BLOCK)

    @property
    def taps(self) -> int:
        return 1 if self.reads_all else self.problem.kernel[0] * self.problem.kernel[1]

    @property
    def row_stride(self) -> int:
        """From a row of results to the next in rows that are packed."""
        return 1 if self.reads_all else self.problem.stride[0]

    @property
    def column_stride(self) -> int:
        return 1 if self.reads_all else self.problem.stride[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of results of one block."""
        return (1, self.block) if self.by_columns else (self.block, self.problem.out[1])

    @property
    def flat_width(self) -> int:
        """Pixels from a row of results to the next one."""
        if self.reads_all:
            return self.shape[1]
        _, taps = self.problem.kernel
        reach = (self.shape[1] - 1) * self.column_stride + (taps - 1) * self.problem.dilation[1] + 1
        return -(-reach // self.column_stride)

    @property
    def packed_width(self) -> int:
        """Columns of a packed row."""
        return self.flat_width * self.column_stride

    @property
    def packed_rows(self) -> int:
        """Packed rows of one phase: of those that lie ``row_stride`` apart."""
        if self.reads_all:
            return self.shape[0]
        reach = (self.problem.kernel[0] - 1) * self.problem.dilation[0]
        return self.shape[0] + reach // self.row_stride

    @property
    def phase(self) -> int:
        """Pixels of one phase."""
        return self.packed_rows * self.packed_width

    @property
    def pixel_bytes(self) -> int:
        """From a packed pixel to its neighbour."""
        return 2 * (BLOCK if self.packing == "blocks" else self.blocks_of_terms * BLOCK)

    @property
    def step(self) -> int:
        """Bytes from a pixel of the results to the next."""
        return self.pixel_bytes * self.column_stride

    @property
    def plane_bytes(self) -> int:
        """Bytes of a block of 32 channels of all packed pixels."""
        return 2 * BLOCK * self.row_stride * self.phase

    @property
    def next(self) -> int:
        """Bytes from a block of terms to the next."""
        return self.plane_bytes if self.packing == "blocks" else 2 * BLOCK

    @property
    def offsets(self) -> list[int]:
        """Where each tap begins behind a pixel, in bytes."""
        if self.reads_all:
            return [0]
        (rows, columns), (down, across) = self.problem.kernel, self.problem.dilation
        found = []
        for row in range(rows):
            place, phase = divmod(row * down, self.row_stride)
            start = phase * self.phase + place * self.packed_width
            found += [self.pixel_bytes * (start + column * across) for column in range(columns)]
        return found

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed block, with what the last tile reads behind it."""
        if self.packing == "blocks":
            size = self.blocks_of_terms * self.plane_bytes
        else:
            size = self.shape[0] * self.shape[1] * self.pixel_bytes
        return _up(size + self.pixels * self.step, 64)

    @property
    def line_bytes(self) -> int:
        """Bytes of the rows of inputs from which a block is unrolled."""
        if self.packing != "unrolled":
            return 0
        rows, down = self.problem.kernel[0], self.problem.dilation[0]
        high = (self.shape[0] - 1) * self.problem.stride[0] + (rows - 1) * down + 1
        return _up(2 * (high * self.line_width * self.problem.inputs + BLOCK), 64)

    @property
    def line_width(self) -> int:
        """Columns of such a row."""
        columns, across = self.problem.kernel[1], self.problem.dilation[1]
        return (self.shape[1] - 1) * self.problem.stride[1] + (columns - 1) * across + 1

    @property
    def sums_floats(self) -> int:
        return self.pixels * self.tile.vectors * self.lanes

    @property
    def scratch_bytes(self) -> int:
        return self.packed_bytes + self.line_bytes + 4 * self.sums_floats

    # Products

    def products(self, vectors: int, pixels: int | None = None) -> Products:
        return Products(pixels or self.pixels, vectors, self.step, self.tiles)

    @property
    def flat_pixels(self) -> int:
        """Pixels of a block that are computed, those between rows included."""
        return (self.shape[0] - 1) * self.flat_width + self.shape[1]

    @property
    def cycles(self) -> float:
        """Of one thread for everything, about."""
        problem = self.problem
        count = -(-self.flat_pixels // self.pixels) * self.pixels
        steps = self.taps * self.blocks_of_terms
        each = _STEP["tiles"] / 16 if self.tiles else _STEP["vectors"]
        vectors = self.slots // self.lanes
        sums = count * vectors * steps * each
        calls = count / self.pixels * self.tile.groups * _CALL
        finish = self.shape[0] * self.shape[1] * vectors * _FINISH
        weights = 64 * 16 * vectors * steps / _WEIGHT_BYTES
        one = max(sums, weights) + calls + finish + self.tile.groups * _TASK + self.pack_cycles
        return problem.batch * self.blocks * self.groups * one

    @property
    def pack_cycles(self) -> float:
        """Of one block."""
        lines = (self.packed_bytes + self.line_bytes) / 64
        return lines * (_UNROLL if self.packing == "unrolled" else _PACK)

    @property
    def weight_bytes(self) -> int:
        return 2 * self.groups * self.slots * self.taps * self.blocks_of_terms * BLOCK

    @property
    def moved_bytes(self) -> int:
        """Bytes of inputs and results."""
        problem = self.problem
        size = problem.size[0] * problem.size[1] * problem.inputs
        made = problem.out[0] * problem.out[1] * problem.outputs
        item = ITEMSIZE[problem.source.dtype]
        return problem.batch * problem.groups * item * (size + made)


def packing_of(problem: Problem, lanes: int) -> Packing | None:
    """How inputs are packed; None if they lie otherwise than is packed here."""
    source = problem.source
    spread = problem.groups > 1 and (problem.outputs < lanes or problem.inputs % lanes)
    if spread or problem.width:
        return None
    if source.contiguous and problem.kernel == (1, 1) and problem.groups == 1:
        return "features" if source.plane == 0 else None
    if source.block == lanes:
        exact = problem.groups == 1 and problem.inputs == lanes
        return "unrolled" if exact and problem.kernel != (1, 1) else "blocks"
    if source.block == 1 and problem.inputs <= MOST_UNROLLED and problem.groups == 1:
        return "unrolled"
    return None


@lru_cache(4096)
def choose_dots(problem: Problem, isa: Isa, threads: int) -> DotScheme:
    """The scheme with the least predicted time."""
    found = list(dot_schemes(problem, isa))

    def time(scheme: DotScheme) -> tuple[float, int]:
        calls = problem.batch * scheme.blocks * scheme.groups
        uneven = -(-calls // threads) * threads / calls if calls >= threads else 1.0
        return scheme.cycles * uneven, -scheme.block

    return min(found, key=time)


def dot_schemes(problem: Problem, isa: Isa) -> Iterator[DotScheme]:
    """Schemes with blocks of all sizes that fit, or one of the smallest."""
    packing = packing_of(problem, isa.lanes)
    assert packing is not None
    wide, narrow = split_vectors(-(-problem.outputs // isa.lanes), _VECTORS)
    vectors = _VECTORS if wide else 1
    if not wide:
        wide, narrow = narrow, 0
    tiles = isa.products == "tiles"
    size = problem.out[1] if problem.out[0] == 1 else problem.out[0]
    counts = [n for n in range(1, size + 1)]
    sizes = dict.fromkeys(-(-size // count) for count in counts)
    first = True
    for block in sorted(sizes):
        scheme = _scheme(
            problem, isa.lanes, packing, tiles, Tile(1, 1, vectors, wide, narrow), block
        )
        if not first and scheme.packed_bytes + scheme.line_bytes > _BLOCK_BYTES:
            break
        first = False
        yield scheme


def _scheme(
    problem: Problem, lanes: int, packing: Packing, tiles: bool, tile: Tile, block: int
) -> DotScheme:
    scheme = DotScheme(problem, lanes, packing, tiles, _TILE_PIXELS, tile, block)
    if tiles:
        return scheme
    count = scheme.flat_pixels
    pixels = min(range(1, _MOST_PIXELS + 1), key=lambda n: (-(-count // n) * (max(n, 5) + 1), -n))
    return DotScheme(problem, lanes, packing, tiles, pixels, tile, block)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
