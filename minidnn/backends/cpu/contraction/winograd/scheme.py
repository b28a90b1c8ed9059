"""How a Winograd convolution is computed: tiles, chunks of them, where their products lie."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn._cached_property import cached_property

from ..problem import BlockedView, Pair, Problem
from ..scheme import LINE_FLOATS, Scheme
from ..tiling import Tile
from .transform import Transform

PARTS = 4
LEAST_TERMS = 16
MOST_TERMS = {2: 32, 4: 64}
"""Sums of products are added up in that many parts, of no less and no more terms (by results of a
tile).  What rounding makes of these sums is enlarged on the way back, and is most of a result's
error.  A part costs the same share of the time in all layers, and shorter ones save most in the
first layers, whose errors all others magnify, and which have few channels: see
docs/explanation/numerics-and-determinism.md.  F(2x2) is also there for those who want no more than
the direct algorithm's error."""


@dataclass(frozen=True)
class WinogradScheme:
    """Everything that the printed kernels follow.

    The n x n products of a tile are n * n matrix products: inputs x tiles times outputs x inputs.

    Attributes:
        tile: the register tile of these products; its pixels are Winograd tiles.
        chunk: tiles that are transformed together, a multiple of ``tile.columns``.
        local: a task transforms a chunk, multiplies and transforms back, all in its thread's
            scratch.  Else these are three kernels over all tiles, with workspace in between:
            weights are then read once.
        parts: tasks in which the groups of output channels of one product are computed (where
            not local).
    """

    problem: Problem
    lanes: int
    transform: Transform
    tile: Tile
    chunk: int
    local: bool
    parts: int = 1

    @property
    def tiles(self) -> Pair:
        """Tiles of an image, down and across."""
        rows, columns = (-(-size // self.transform.outputs) for size in self.problem.out)
        return rows, columns

    @property
    def count(self) -> int:
        """Tiles of all images."""
        return self.problem.batch * self.tiles[0] * self.tiles[1]

    @property
    def chunks(self) -> int:
        return -(-self.count // self.chunk)

    @property
    def input_blocks(self) -> int:
        return -(-self.problem.inputs // self.lanes)

    @property
    def output_blocks(self) -> int:
        return -(-self.problem.outputs // self.lanes)

    @property
    def matrices(self) -> int:
        """Matrix products."""
        return self.transform.inputs**2

    @property
    def plane(self) -> int:
        """Floats from one block of channels to the next, of inputs and of products."""
        return self.chunk * self.lanes

    @property
    def source_matrix(self) -> int:
        """Floats from one matrix of transformed inputs to the next."""
        return _odd_lines(self.input_blocks * self.plane)

    @property
    def product_matrix(self) -> int:
        """Floats from one matrix of products to the next; a group of channels if local."""
        blocks = self.tile.vectors if self.local else self.output_blocks
        return _odd_lines(blocks * self.plane)

    @property
    def source_bytes(self) -> int:
        return 4 * self.matrices * self.source_matrix

    @property
    def product_bytes(self) -> int:
        return 4 * self.matrices * self.product_matrix

    @property
    def operations(self) -> int:
        """Of the matrix products, two for a multiply-add."""
        return 2 * self.matrices * self.count * self.problem.inputs * self.problem.outputs

    @property
    def weight_bytes(self) -> int:
        return 4 * self.matrices * self.problem.inputs * self.output_blocks * self.lanes

    @property
    def zeros_bytes(self) -> int:
        """A row of a tile of inputs, of zeros."""
        return 4 * self.transform.inputs * self.lanes

    @property
    def kept_bytes(self) -> int:
        """Unfinished sums of a register tile."""
        tile = self.tile
        return 4 * tile.columns * tile.vectors * self.lanes if self.product.part else 0

    @property
    def scratch_bytes(self) -> int:
        """Scratch of the local kernel."""
        places = 3 * 4 * self.chunk
        return self.source_bytes + self.product_bytes + self.zeros_bytes + self.kept_bytes + places

    @property
    def workspace_bytes(self) -> int:
        return 0 if self.local else self.source_bytes + self.product_bytes

    @cached_property
    def product(self) -> Scheme:
        """The matrix products as contractions of a row of pixels."""
        problem, lanes = self.problem, self.lanes
        view = BlockedView(problem.inputs, 0, self.plane, lanes, 0, lanes)
        product = Problem(
            batch=1,
            groups=1,
            inputs=problem.inputs,
            outputs=problem.outputs,
            size=(1, self.chunk),
            out=(1, self.chunk),
            kernel=(1, 1),
            stride=(1, 1),
            dilation=(1, 1),
            padding=((0, 0), (0, 0)),
            source=view,
            result=BlockedView(problem.outputs, 0, self.plane, lanes, 0, lanes),
            others=(),
        )
        unit = min(lanes, problem.inputs)
        part = max(1, round(part_terms(problem.inputs, self.transform.outputs) / unit))
        return Scheme(product, lanes, self.tile, "none", unit, self.chunk, 0, part, near=True)

    @cached_property
    def result(self) -> Scheme:
        """The results: tiles of pixels, one vector of channels each."""
        m, lanes = self.transform.outputs, self.lanes
        tile = Tile(m, m, 1, self.output_blocks, 0)
        return Scheme(self.problem, lanes, tile, "none", lanes, self.problem.out[0], 0)


def part_terms(terms: int, outputs: int) -> int:
    """Terms of a part of a sum, for tiles of that many results down and across."""
    return min(MOST_TERMS[outputs], max(LEAST_TERMS, terms // PARTS))


def _odd_lines(floats: int) -> int:
    """At least as many floats, an odd number of cache lines.

    Transforms touch the same place of every matrix: at an even distance these would share few
    sets of a cache.
    """
    lines = -(-floats // LINE_FLOATS)
    return (lines | 1) * LINE_FLOATS
