"""The scheme of the direct algorithm: packing, register tile, blocks of pixels, chunks of sums.

A scheme is plain data: it holds every decision, and the printers only write it down.  A sum takes
its terms in the order of steps of channels, kernel rows, kernel columns, channels of a step.  The
number of threads and the size of blocks don't change this order, so they change no bit of a result.

A register tile is M pixels times N vectors of output channels.  Each step of the sum loads one
input for each pixel and one vector of weights for each vector of channels, and multiplies each
with each.  The figures of the cost model are those of current x86 cores: two multiply-adds and two
vector loads a cycle, and a latency of four cycles (a little more, since no schedule is perfect).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from ...._cached_property import cached_property
from ..isa import Isa
from .problem import Pair, Problem

LATENCY = 4.7
LOAD = 0.6
"""Cycles of a load in a tile that is bound by loads; no core sustains its peak of two a cycle."""

OVERHEAD = 24.0
"""Cycles to begin and end a tile, in addition to those of its sums."""

WEIGHTS = 0.05
"""Additional cycles to load a vector of weights, which comes from the second-level cache."""

VARIANT_PENALTY = 0.004
"""Share of the predicted time that a further variant of the code must save to be worth its size."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: rows x columns of pixels, times vectors of output channels.

    All output channels are ``wide`` groups of ``vectors`` vectors, then ``narrow`` groups of one
    vector less.  A task computes one of these groups.
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
    """How many groups of ``vectors`` and of ``vectors - 1`` vectors make up ``blocks`` vectors."""
    count = -(-blocks // vectors)
    narrow = count * vectors - blocks
    return count - narrow, narrow


def step_cycles(pixels: int, vectors: int) -> float:
    """Cycles of one step of a tile's sums, bound by arithmetic, loads or latency."""
    return max(pixels * vectors / 2, (pixels + vectors) * LOAD, LATENCY) + WEIGHTS * vectors


@lru_cache(4096)
def choose_tile(
    out: tuple[int, int], blocks: int, depth: int, isa: Isa, most_vectors: int = 4
) -> Tile:
    """The tile with the least predicted time for ``out`` (rows, columns) of pixels, ``blocks``
    vectors of output channels, and sums of ``depth`` terms."""
    tiles = tiles_for(out, blocks, isa, most_vectors)
    return min(tiles, key=lambda tile: _cost(tile, out, depth))


def tiles_for(out: tuple[int, int], blocks: int, isa: Isa, most_vectors: int = 4) -> Iterator[Tile]:
    """Yields every tile whose sums and operands fit the registers."""
    for vectors in range(1, min(blocks, most_vectors) + 1):
        most_pixels = min((isa.registers - 1 - vectors) // vectors, 28)
        if vectors > 2 and isa.registers == 32:
            most_pixels = min(most_pixels, 4)
        wide, narrow = split_vectors(blocks, vectors)
        if wide <= 0:
            continue
        for rows, columns in _shapes(out, most_pixels):
            yield Tile(rows, columns, vectors, wide, narrow)


def cycles_of(tile: Tile, out: tuple[int, int], depth: int) -> float:
    """Cycles of all sums of ``out`` pixels and all channels, remainder tiles included."""
    return sum(_parts(tile, out, depth))


def _shapes(out: tuple[int, int], most_pixels: int) -> list[tuple[int, int]]:
    """Rows and columns of tiles: parts of a row, or several whole rows if these are short."""
    shapes = [(1, columns) for columns in range(1, min(most_pixels, out[1]) + 1)]
    if out[1] <= most_pixels // 2:
        shapes += [(rows, out[1]) for rows in range(2, min(most_pixels // out[1], out[0]) + 1)]
    return shapes


def _cost(tile: Tile, out: tuple[int, int], depth: int) -> float:
    """:func:`cycles_of` with a penalty for each variant of the code."""
    parts = _parts(tile, out, depth)
    return sum(parts) * (1 + VARIANT_PENALTY * (len(parts) - 1))


def _parts(tile: Tile, out: tuple[int, int], depth: int) -> list[float]:
    """Cycles of each variant of the code: full and remainder tiles, wide and narrow groups."""
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


Packing = Literal["none", "blocks", "gathered", "pixels", "features", "own", "lanes"]

LINE_FLOATS = 16
LINE_BYTES = 4 * LINE_FLOATS
AHEAD_CYCLES = 2000
INPUT_GROUPS = 8
STREAMED_BYTES = 16 << 20
"""Results of this size do not stay in the last-level cache until they are read."""

OFTEN = 2
"""Channels between two prefetches of weights that few tiles share; see ``prefetches_often``."""

AHEAD_FLOATS = 2048
"""Prefetch distance, in floats, of weights that are read only once."""


@dataclass(frozen=True)
class ResultScheme:
    """How the results of a kernel are divided into the blocks that its tasks compute.

    Attributes:
        tile: how vectors of output channels are grouped into register tiles.
        block: rows of output of one task (columns if there is one row).
        any_size: whether the text serves every spatial size, even where another one is better for
            this size.
    """

    problem: Problem
    lanes: int
    tile: Tile
    block: int
    any_size: bool = field(default=False, kw_only=True)

    @property
    def groups(self) -> int:
        """Groups of channels that separate tasks compute."""
        return self.problem.groups

    @property
    def outputs(self) -> int:
        """Output channels of one of these groups."""
        return self.problem.out_channels

    @property
    def slots(self) -> int:
        """Output channels of a group, padded to whole vectors."""
        return -(-self.outputs // self.lanes) * self.lanes

    @cached_property
    def by_columns(self) -> bool:
        """Whether all pixels are one row, of which a block is a range of columns."""
        return self.problem.out_size[0] == 1 and (not self.any_size or self.problem.is_pointwise)

    @property
    def blocks(self) -> int:
        """Blocks of pixels of an image."""
        return -(-self.problem.out_size[1 if self.by_columns else 0] // self.block)

    @property
    def streams(self) -> bool:
        """Whether stores are streaming."""
        return False

    @property
    def tiles_ahead(self) -> int:
        """Prefetch distance of results, in tiles."""
        return 0


@dataclass(frozen=True, slots=True)
class Strides:
    """Strides of the inputs that tiles read, in floats: from one step of the sum's outer loop to
    the next (``block``), and to the next channel, row and column of the input."""

    block: int
    channel: int
    row: int
    column: int


@dataclass(frozen=True)
class Scheme(ResultScheme):
    """All decisions about a kernel of the direct algorithm; its text follows from them.

    Attributes:
        packing: how a block of inputs is copied into scratch before tiles read it: "none": it is
            not copied; "blocks": in its own layout, blocks of channels; "gathered": likewise, but
            only the pixels that are read, as one row (see :class:`.problem.Problem`); "pixels":
            channel by channel (NCHW); "features": rows of features; "own": the vector of channels
            that holds the groups of a vector of outputs, each lane of which selects its group's;
            "lanes": for each output lane its own input channels.
        unit: channels of one step of the sum's outer loop; the code for them is unrolled.
        chunk: K tile: steps of the outer loop that all tiles of a block take before the next chunk
            begins; 0: each tile computes its whole sums at once.
        part: steps (of a chunk) of one partial sum, which is added to the sum of those before it;
            0: all of them, and there are no chunks.
        compensated: whether the rounding errors of adding partial sums are summed up, too, and
            added at the end.
        near: whether inputs in blocks of channels are in the second-level cache anyway.

    With ``any_size`` tiles have one row, and narrower tiles compute the remainder of a row.
    """

    packing: Packing
    unit: int
    chunk: int
    part: int = 0
    compensated: bool = False
    near: bool = False

    @property
    def spread(self) -> bool:
        """Whether each lane reads input channels of its own."""
        return self.packing in ("own", "lanes")

    @property
    def groups(self) -> int:
        """1 if lanes hold several groups."""
        return 1 if self.spread else self.problem.groups

    @property
    def outputs(self) -> int:
        return self.problem.out_channels * (self.problem.groups if self.spread else 1)

    @property
    def steps(self) -> int:
        """Iterations of the sum's outer loop, the last perhaps with fewer channels."""
        return -(-self.problem.in_channels // self.unit)

    @property
    def narrower(self) -> list[int]:
        """Columns of the tiles that compute the remainder of a row, in order."""
        columns = self.tile.columns
        if not self.any_size:
            rest = self.problem.out_size[1] % columns
            return [rest] if rest else []
        return [columns >> halved for halved in range(1, columns.bit_length())]

    @property
    def tasks(self) -> int:
        return self.problem.batch * self.blocks * self.groups * self.tile.groups

    @property
    def chunk_terms(self) -> int:
        """Terms of a chunk, or of a whole sum if there are no chunks."""
        taps = self.problem.kernel[0] * self.problem.kernel[1]
        return min(self.problem.depth, (self.chunk or self.steps) * self.unit * taps)

    @property
    def skips(self) -> bool:
        """Whether some tiles leave out kernel rows that read only padding.

        Zeros times weights change no sum (the sign of a zero aside) as long as weights are
        finite; whether they are, a kernel reads when it runs.
        """
        if self.any_size:
            return self.problem.kernel[0] > 1 and not self.by_columns
        return self.taken_rows < 1

    @cached_property
    def taken_rows(self) -> float:
        """The share of kernel rows that tiles do not leave out, on average over pixels."""
        if self.problem.kernel[0] == 1 or self.by_columns:
            return 1.0
        return _taken_rows(self.problem, self.tile.rows)

    @property
    def pixels(self) -> Pair:
        """Rows and columns of output of one block."""
        return (1, self.block) if self.by_columns else (self.block, self.problem.out_size[1])

    @property
    def touched(self) -> Pair:
        """Rows and columns of input that one block reads, those between taps not counted."""
        rows, columns = (
            min(size, n * k)
            for size, n, k in zip(self.window, self.pixels, self.problem.kernel, strict=True)
        )
        return rows, columns

    @property
    def touched_bytes(self) -> int:
        """Bytes of the cache lines of inputs that one block reads."""
        source, problem = self.problem.source, self.problem
        channels = {"own": self.lanes, "lanes": problem.in_channels * self.lanes}.get(
            self.packing, problem.in_channels
        )
        block_channels = min(source.block, channels)
        span = (self.window[1] - 1) * source.column + block_channels
        tap_span = (problem.kernel[1] - 1) * source.column + block_channels
        row = min(4 * span, self.pixels[1] * round_up(4 * tap_span, LINE_BYTES))
        return self.touched[0] * row * -(-channels // source.block)

    @property
    def unused_lines(self) -> float:
        """Cache lines that one block of a strided 1x1 convolution fetches in addition to those
        that its inputs fill: processors fetch the adjacent line of a pair, too."""
        problem = self.problem
        if self.packing != "none" or problem.kernel != (1, 1) or problem.stride[1] == 1:
            return 0.0
        used = 4 * min(problem.source.block, problem.in_channels)
        pixel_pitch = 4 * problem.stride[1] * problem.source.column
        unused = min(pixel_pitch, 2 * LINE_BYTES) - used
        blocks = -(-problem.in_channels // problem.source.block)
        return max(0, unused) * blocks * self.pixels[0] * self.pixels[1] / LINE_BYTES

    @property
    def window(self) -> Pair:
        """Rows and columns of input from the first to the last that one block reads."""
        rows, columns = (
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip(
                self.pixels,
                self.problem.stride,
                self.problem.kernel,
                self.problem.dilation,
                strict=True,
            )
        )
        return rows, columns

    @cached_property
    def packed(self) -> Strides:
        """Strides of the packed block."""
        rows, columns = self.window
        if self.packing == "features":
            return Strides(self.unit, 1, 0, round_up(self.problem.in_channels, self.lanes))
        if self.packing == "pixels":
            columns = round_up(columns, self.lanes)
            return Strides(self.unit * rows * columns, rows * columns, columns, 1)
        return Strides(rows * columns * self.lanes, 1, columns * self.lanes, self.lanes)

    @property
    def packed_floats(self) -> int:
        """Floats of scratch for the packed block."""
        packed, steps = self.packed, self.steps
        match self.packing:
            case "none":
                return 0
            case "features":
                return self.block * packed.column
            case "pixels":
                return self.problem.in_channels * packed.channel
        return steps * packed.block

    @property
    def read(self) -> Strides:
        """Strides of what the tiles read: the packed block or the source itself."""
        if self.packing != "none":
            return self.packed
        source = self.problem.source
        if source.block == self.lanes and not source.contiguous:
            return Strides(source.plane, 1, source.row, source.column)
        if source.contiguous:
            return Strides(self.unit, 1, source.row, source.column)
        return Strides(self.unit * source.plane, source.plane, source.row, source.column)

    @property
    def tiles(self) -> int:
        """Tiles of one block."""
        if self.by_columns:
            return -(-self.block // self.tile.columns)
        return -(-self.block // self.tile.rows) * -(-self.problem.out_size[1] // self.tile.columns)

    @property
    def prefetches_often(self) -> bool:
        """Whether a tile prefetches later weights several times per iteration of its inner loop.

        Where few tiles share weights, these must arrive nearly at the bandwidth of memory.  Then
        prefetches must be spread evenly, and reach into the first-level cache: one burst per
        iteration leaves the memory idle between bursts.
        """
        if self.any_size or self.read.channel > 1 or self.spread or self.unit % OFTEN:
            return False
        return self._lines_used * OFTEN >= self.unit * self.tiles

    @property
    def uses_hardware_prefetch(self) -> bool:
        """Whether a tile that shares its weights with no other leaves them to hardware prefetch.

        A tile of one pixel does little but read weights in order.  Then Zen 3 reads 1.12 times as
        fast without software prefetch (Intel's processors with AVX2 0.89 times); with more pixels
        software prefetch is faster, with AVX-512 it hardly matters.
        """
        return self.lanes == 8 and self.tile.rows * self.tile.columns == 1

    @property
    def lines_ahead(self) -> int:
        """Cache lines of later weights that a tile prefetches at a time.

        Together the first tiles of a block prefetch the weights of the next chunk of the sum, or
        of the next group of channels.
        """
        return max(1, -(-self._lines_used // (self.tiles * self._prefetches_of_turn)))

    @property
    def lines_per_iteration(self) -> int:
        """Cache lines that a tile prefetches in each iteration of its inner loop."""
        return self.lines_ahead * self._prefetches_of_turn

    @property
    def _lines_used(self) -> int:
        """Cache lines of weights that a tile uses in each iteration of its inner loop."""
        return self.unit * self.tile.vectors * self.lanes // LINE_FLOATS

    @property
    def _prefetches_of_turn(self) -> int:
        """How often a tile prefetches in each iteration of its inner loop."""
        return self.unit // OFTEN if self.prefetches_often else 1

    @property
    def prefetches_inputs(self) -> bool:
        """Whether a tile prefetches the inputs of the next one.

        Packed inputs are in a cache already, and where many groups of channels read a block, one
        cache miss per block hardly matters.
        """
        blocked = self.problem.source.block == self.lanes
        few = self.tile.groups <= INPUT_GROUPS
        return self.packing == "none" and blocked and few and not self.near

    @property
    def tiles_ahead(self) -> int:
        """Prefetch distance of results and further operands, in tiles: ``AHEAD_CYCLES``."""
        size = self.tile.rows * self.tile.columns
        return int(AHEAD_CYCLES / (step_cycles(size, self.tile.vectors) * self.problem.depth))

    @property
    def streams(self) -> bool:
        """Whether results are written with streaming stores, past caches they would only flush."""
        pixels = self.problem.batch * self.problem.out_size[0] * self.problem.out_size[1]
        wide = self.problem.result.dtype == "float32" and not self.any_size
        return wide and 4 * pixels * self.outputs * self.groups >= STREAMED_BYTES

    def kept_floats(self, rows: int, columns: int, vectors: int) -> int:
        """Floats that hold the unfinished sums of a tile, and the rounding errors of these."""
        return rows * columns * vectors * self.lanes * (2 if self.compensated else 1)

    @property
    def several_chunks(self) -> bool:
        """Whether there are several chunks, between which the sums of a block are unfinished."""
        return 0 < self.chunk < self.steps

    @property
    def sums_floats(self) -> int:
        """Floats that hold unfinished sums: of a block between chunks, of a tile between parts."""
        if not self.part:
            return 0
        floats = self.kept_floats(self.tile.rows, self.tile.columns, self.tile.vectors)
        return floats * (self.tiles if self.several_chunks else 1)

    @property
    def scratch_bytes(self) -> int:
        return 4 * (self.packed_floats + self.sums_floats)


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is not below ``number``."""
    return -(-number // multiple) * multiple


@lru_cache(4096)
def _taken_rows(problem: Problem, step: int) -> float:
    """:attr:`Scheme.taken_rows` of tiles of ``step`` rows, whatever else the scheme is."""
    rows, taps = problem.out_size[0], problem.kernel[0]
    computed = 0
    for first in range(0, rows, step):
        count = min(step, rows - first)
        begin, end = problem.tap_rows(first, count)
        computed += count * (end - begin)
    return computed / (rows * taps)
