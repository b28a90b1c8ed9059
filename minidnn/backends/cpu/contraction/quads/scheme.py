"""How a contraction is computed by products of four bytes.

Packed inputs, tiles and blocks of pixels are those of :mod:`..dots.scheme`: both take lines of 64
bytes, of which one holds 64 bytes or 32 values in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from ...isa import Isa
from ..dots.scheme import FEATURE_BYTES, DotScheme, packing_of
from ..problem import Problem
from ..tiling import Tile, split_vectors
from .products import BLOCK, QuadProducts

_VECTORS = 2
_MOST_PIXELS = 13
_TILE_PIXELS = 32

_BLOCK_BYTES = 256 << 10
"""About so many packed bytes of a task: they stay in a second-level cache beside weights."""


@dataclass(frozen=True)
class QuadScheme(DotScheme):
    """Everything that a printed kernel follows."""

    @property
    def line_inputs(self) -> int:
        """Channels of a pixel that lie side by side in rows: three fill a word."""
        planar = self.problem.source.block == 1
        return 4 if planar and self.problem.inputs == 3 else self.problem.inputs

    @property
    def by_rows(self) -> bool:
        """Whether a line of rows as they are packed has all that a row of a kernel reads: what
        follows in it has no weight."""
        problem = self.problem
        few = problem.kernel[1] * self.line_inputs <= BLOCK and problem.dilation[1] == 1
        return self.packing == "unrolled" and few

    @property
    def reads_all(self) -> bool:
        return super().reads_all and not self.by_rows

    @property
    def terms(self) -> int:
        if self.packing != "unrolled":
            return self.problem.inputs
        rows, columns = self.problem.kernel
        return self.line_inputs * columns * (1 if self.by_rows else rows)

    @property
    def taps(self) -> int:
        return self.problem.kernel[0] if self.by_rows else super().taps

    @property
    def offsets(self) -> list[int]:
        every = super().offsets
        return every[:: self.problem.kernel[1]] if self.by_rows else every

    @property
    def blocks_of_terms(self) -> int:
        return -(-self.terms // BLOCK)

    @property
    def pixel_bytes(self) -> int:
        return self.line_inputs if self.by_rows else super().pixel_bytes

    @property
    def block_bytes(self) -> int:
        if not self.by_rows:
            return super().block_bytes
        return self.pixel_bytes * self.row_stride * self.phase

    @property
    def packed_bytes(self) -> int:
        if not self.by_rows:
            return super().packed_bytes
        return -(-(self.block_bytes + self.pixels * self.step + BLOCK) // 64) * 64

    @property
    def line_bytes(self) -> int:
        if self.packing != "unrolled" or self.by_rows:
            return 0
        rows, down = self.problem.kernel[0], self.problem.dilation[0]
        high = (self.shape[0] - 1) * self.problem.stride[0] + (rows - 1) * down + 1
        size = high * self.line_width * self.line_inputs + BLOCK
        return -(-size // 64) * 64

    def products(  # type: ignore[override]
        self, vectors: int, pixels: int | None = None
    ) -> QuadProducts:
        return QuadProducts(pixels or self.pixels, vectors, self.step, self.tiles)


@lru_cache(4096)
def choose_quads(problem: Problem, isa: Isa, threads: int) -> QuadScheme:
    """The scheme with the least predicted time."""

    def time(scheme: QuadScheme) -> tuple[float, int]:
        calls = problem.batch * scheme.blocks * scheme.groups
        uneven = -(-calls // threads) * threads / calls if calls >= threads else 1.0
        return scheme.cycles * uneven, -scheme.block

    return min(quad_schemes(problem, isa), key=time)


def quad_schemes(problem: Problem, isa: Isa) -> Iterator[QuadScheme]:
    """Schemes with blocks of all sizes that fit, or one of the smallest."""
    packing = packing_of(problem, isa.lanes)
    assert packing is not None
    wide, narrow = split_vectors(-(-problem.outputs // isa.lanes), _VECTORS)
    vectors = _VECTORS if wide else 1
    if not wide:
        wide, narrow = narrow, 0
    tile = Tile(1, 1, vectors, wide, narrow)
    tiles = isa.quads == "tiles"
    size = problem.out[1] if problem.out[0] == 1 else problem.out[0]
    sizes = dict.fromkeys(-(-size // count) for count in range(1, size + 1))
    most = FEATURE_BYTES if packing == "features" else _BLOCK_BYTES
    first = True
    for block in sorted(sizes):
        scheme = QuadScheme(problem, isa.lanes, packing, tiles, _TILE_PIXELS, tile, block)
        if not first and scheme.block_bytes + scheme.line_bytes > most:
            break
        first = False
        yield scheme if tiles else _by_vectors(scheme)


def _by_vectors(scheme: QuadScheme) -> QuadScheme:
    """With the pixels of a tile that leave the fewest over."""
    count = scheme.flat_pixels
    pixels = min(range(1, _MOST_PIXELS + 1), key=lambda n: (-(-count // n) * (max(n, 5) + 1), -n))
    return QuadScheme(
        scheme.problem, scheme.lanes, scheme.packing, False, pixels, scheme.tile, scheme.block
    )
