"""The scheme of a contraction by dot products: packing, register tile, blocks of pixels.

The block of inputs that a task reads is packed so that the pixels of several rows of results are
evenly spaced: packed rows are as wide as the padded input, and each phase of a row stride has rows
of its own.  So a tile is a run of pixels across rows; those between two rows are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, Self, TypeVar

from minidnn.graph.types import ITEMSIZE

from ...isa import Isa
from ..problem import Problem
from ..scheme import ResultScheme, Tile, round_up, split_vectors
from .products import BF16_PAIR, LINE, PackedElement, Products

Packing = Literal["blocks", "features", "rows", "unrolled"]

_VECTORS = 2
_MOST_PIXELS = 14
"""Pixels, at most, of a register tile in vectors: two sums a pixel leave room for weights."""
_TILE_PIXELS = 32

_BLOCK_BYTES = 384 << 10
"""Packed bytes of a task, about: they stay in a second-level cache, together with weights."""

FEATURE_BYTES = 768 << 10
"""The same for rows of features, which share weights that no cache keeps."""

MOST_UNROLLED = 16
"""Input channels, at most, for which the inputs of each result's window are packed contiguously."""

MOST_PLANES = 4
"""Input channels in NCHW, at most, that are packed as contiguous channels of each pixel."""

# Cycles, about those of current processors.
_STEP = {"vectors": 8.0, "tiles": 16.0}
"""Of a block of terms times a vector of weights: for one pixel by vectors, for 16 by AMX tiles."""
_CALL, _FINISH, _TASK = 30.0, 5.0, 200.0
_PACK, _UNROLL, _INTERLEAVE = 8.0, 4.0, 16.0
_UNEVEN = 0.25
"""Load imbalance: the share of a task for which threads wait for the last one."""
_WEIGHT_BYTES, _FAR_WEIGHT_BYTES, _NEAR = 32.0, 8.0, 1 << 20
"""Bytes of weights a cycle, near and far, and bytes that stay near from one block to the next."""


@dataclass(frozen=True)
class DotScheme(ResultScheme):
    """All decisions about a kernel of dot products; its text follows from them.

    Attributes:
        word: the packed element that is multiplied.
        packing: the layout of packed inputs: "blocks": of channels, one of which fills a line, for
            each pixel; "features": rows of features; "rows": the few channels of each pixel, so
            that the taps of a kernel row are one contiguous run of terms, whose padding is whatever
            comes next, times weights of zero; "unrolled": all inputs of each result's window.
        tiles: whether AMX tiles compute the products, or vectors.
        pixels: pixels of a register tile.
        merged: groups of the contraction that are one group of ``problem``, with weights of zero
            between them.
        images: images whose blocks one task computes, if a block is all of an image: weights that
            do not stay in a second-level cache are read less often.
    """

    word: ClassVar[PackedElement] = BF16_PAIR

    packing: Packing
    tiles: bool
    pixels: int
    merged: int = 1
    images: int = 1

    @property
    def vectors_of_parts(self) -> list[int]:
        """The number of vectors of output channels of each task's part of a group."""
        tile = self.tile
        return [tile.vectors] * tile.wide + [tile.vectors - 1] * tile.narrow

    @property
    def tasks(self) -> int:
        return self.blocks_of_images * self.groups * self.tile.groups

    @property
    def blocks_of_images(self) -> int:
        """Blocks of pixels of all images, or of some of them together."""
        return self.problem.batch // self.images * self.blocks

    def of_weights(self) -> Self:
        """The scheme for one pixel: all that the layout of packed weights depends on.  Programs for
        several sizes share the weights that are packed for it."""
        problem = self.problem
        source = replace(problem.source, image=0, plane=0, row=0, column=0)
        sizes: dict[str, Any] = {"batch": 1, "in_size": (1, 1), "out_size": (1, 1), "others": ()}
        pixel = replace(problem, source=source, result=source, padding=((0, 0), (0, 0)), **sizes)
        return replace(self, problem=pixel, block=1, images=1, pixels=1)

    # What is packed

    @cached_property
    def reads_all(self) -> bool:
        """Whether each pixel of the results has packed inputs of its own, which no tap offsets."""
        if self.packing == "rows":  # all pixels are packed, whatever the stride
            return self.problem.kernel == self.problem.stride == (1, 1)
        return self.packing in ("features", "unrolled") or self.problem.kernel == (1, 1)

    @property
    def runs(self) -> tuple[int, int]:
        """Rows and columns of taps that make one run of contiguous terms."""
        return (1, self.problem.kernel[1]) if self.packing == "rows" else (1, 1)

    @property
    def row_terms(self) -> int:
        """Terms of a pixel whose few channels are contiguous: the channels, padded."""
        return next(n for n in (1, 2, 4, self.lanes) if n >= self.problem.in_channels)

    @property
    def terms(self) -> int:
        """Terms of a tap, or of a run of taps."""
        if self.packing == "unrolled":
            return self.problem.depth
        return self.runs[1] * self.row_terms if self.packing == "rows" else self.problem.in_channels

    @property
    def blocks_of_terms(self) -> int:
        return -(-self.terms // self.word.block)

    @property
    def taps(self) -> int:
        rows, columns = self.problem.kernel
        return 1 if self.reads_all else rows * columns // self.runs[1]

    @property
    def row_stride(self) -> int:
        """Packed rows, in all phases, from a row of results to the next."""
        return 1 if self.reads_all else self.problem.stride[0]

    @property
    def column_stride(self) -> int:
        return 1 if self.reads_all else self.problem.stride[1]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of results of one block."""
        return (1, self.block) if self.by_columns else (self.block, self.problem.out_size[1])

    @cached_property
    def flat_width(self) -> int:
        """Pixels that are computed from a row of results to the next one."""
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
        """Packed rows of one phase, that is, of those that are ``row_stride`` input rows apart."""
        if self.reads_all:
            return self.shape[0]
        reach = (self.problem.kernel[0] - 1) * self.problem.dilation[0]
        return self.shape[0] + reach // self.row_stride

    @property
    def phase(self) -> int:
        """Packed pixels of one phase."""
        return self.packed_rows * self.packed_width

    @property
    def pixel_bytes(self) -> int:
        """Bytes from a packed pixel to the next one in its row."""
        if self.packing == "rows":
            return self.word.item_bytes * self.row_terms
        return LINE * (1 if self.packing == "blocks" else self.blocks_of_terms)

    @property
    def step(self) -> int:
        """Bytes of packed inputs from a pixel of the results to the next."""
        return self.pixel_bytes * self.column_stride

    @property
    def plane_bytes(self) -> int:
        """Bytes of all packed pixels, of one block of channels or of all of few channels."""
        return self.pixel_bytes * self.row_stride * self.phase

    @property
    def next(self) -> int:
        """Bytes from a block of terms to the next."""
        return self.plane_bytes if self.packing == "blocks" else LINE

    @property
    def offsets(self) -> list[int]:
        """The offset of each tap (or run of taps) from a pixel, in bytes."""
        if self.reads_all:
            return [0]
        (rows, columns), (down, across) = self.problem.kernel, self.problem.dilation
        offsets = []
        for row in range(rows):
            index, phase = divmod(row * down, self.row_stride)
            start = phase * self.phase + index * self.packed_width
            columns_of_runs = range(0, columns, self.runs[1])
            offsets += [self.pixel_bytes * (start + column * across) for column in columns_of_runs]
        return offsets

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed blocks of a task, and of what the last tile reads past their end."""
        return round_up(self.images * self.image_bytes + self.pixels * self.step, 64)

    @property
    def image_bytes(self) -> int:
        """Bytes from an image's packed block to the next one's."""
        return round_up(self.block_bytes, 64)

    @property
    def block_bytes(self) -> int:
        """Bytes of a packed block."""
        if self.packing == "blocks":
            return self.blocks_of_terms * self.plane_bytes
        if self.packing == "rows":
            return self.plane_bytes + self.run_bytes
        return self.shape[0] * self.shape[1] * self.pixel_bytes

    @property
    def line_bytes(self) -> int:
        """Bytes of lines: of rows of inputs from which the windows of results are copied."""
        return 0

    @property
    def run_bytes(self) -> int:
        """Bytes of the terms of a tap, or of a run of taps, padded to whole lines."""
        return LINE * self.blocks_of_terms

    @property
    def reads_padding(self) -> bool:
        """Whether results multiply inputs that they do not depend on by zero, where NaN or infinity
        would give NaN: if there are any, a fallback packs terms again, with zeros for others."""
        return self.packing == "rows" or self.merged > 1

    @property
    def fallback_terms(self) -> int:
        """Terms of a tap that belong to one of the merged groups."""
        return self.terms // self.merged

    @property
    def fallback_step(self) -> int:
        """Bytes of all terms of a result in the fallback's layout."""
        return self.taps * self.run_bytes

    @property
    def fallback_bytes(self) -> int:
        """Bytes of scratch for the fallback's terms of one tile."""
        return self.pixels * self.fallback_step if self.reads_padding else 0

    @property
    def sums_floats(self) -> int:
        return self.pixels * self.tile.vectors * self.lanes

    @property
    def scratch_bytes(self) -> int:
        copies = 2 if self.reads_padding else 1
        extra = self.line_bytes + self.fallback_bytes
        return self.packed_bytes + extra + copies * 4 * self.sums_floats

    # Products

    def products(self, vectors: int, pixels: int | None = None) -> Products:
        return Products(self.word, pixels or self.pixels, vectors, self.step, self.tiles)

    def fallback_products(self, vectors: int) -> Products:
        return Products(self.word, self.pixels, vectors, self.fallback_step, self.tiles)

    @property
    def flat_pixels(self) -> int:
        """Pixels of a block that are computed, those between rows included."""
        return (self.shape[0] - 1) * self.flat_width + self.shape[1]

    @property
    def cycles(self) -> float:
        """Predicted cycles of one thread that computes everything."""
        unit = 16 if self.tiles else self.pixels
        count = -(-self.flat_pixels // unit) * unit
        steps = self.taps * self.blocks_of_terms
        step_cycles = _STEP["tiles"] / 16 if self.tiles else _STEP["vectors"]
        vectors = self.slots // self.lanes
        sums = count * vectors * steps * step_cycles
        calls = count / self.pixels * self.tile.groups * _CALL
        finish = self.shape[0] * self.shape[1] * vectors * _FINISH
        fits_cache = self.weight_bytes <= _NEAR
        weights = 64 * 16 * vectors * steps / (_WEIGHT_BYTES if fits_cache else _FAR_WEIGHT_BYTES)
        total = self.images * (sums + calls + finish)
        total += max(0, weights - self.images * sums) + self.tile.groups * _TASK + self.pack_cycles
        return self.blocks_of_images * self.groups * total

    @property
    def pack_cycles(self) -> float:
        """Predicted cycles to pack one block."""
        planes = self.packing == "rows" and self.problem.source.block == 1
        lines = (self.packed_bytes + self.line_bytes) / 64
        if self.packing == "unrolled":
            return lines * _UNROLL
        return lines * (_INTERLEAVE if planes else _PACK)

    @property
    def weight_bytes(self) -> int:
        return self.groups * self.slots * self.taps * self.blocks_of_terms * LINE

    @property
    def moved_bytes(self) -> int:
        """Bytes of inputs and results that a run reads and writes."""
        problem = self.problem
        size = problem.in_size[0] * problem.in_size[1] * problem.in_channels
        results = problem.out_size[0] * problem.out_size[1] * problem.out_channels
        item = ITEMSIZE[problem.source.dtype]
        return problem.batch * problem.groups * item * (size + results)


def packing_of(problem: Problem, lanes: int) -> Packing | None:
    """How inputs are packed; None if no packing here supports their layout."""
    source = problem.source
    if _spreads(problem, lanes) or problem.width:
        return None
    in_rows = source.contiguous and source.plane == 0
    same_size = problem.in_size == problem.out_size and not problem.pads
    if in_rows and problem.kernel == (1, 1) and same_size and problem.groups == 1:
        return "features"
    if source.block == lanes:
        one_block = problem.groups == 1 and problem.in_channels == lanes
        return "unrolled" if one_block and problem.kernel != (1, 1) else "blocks"
    if source.block == 1 and problem.in_channels <= MOST_UNROLLED and problem.groups == 1:
        return "unrolled"
    return None


def bf16_packing(problem: Problem, lanes: int) -> Packing | None:
    """Like :func:`packing_of`, with "rows" for few channels; None also where that is impossible."""
    packing = packing_of(problem, lanes)
    if packing != "unrolled":
        return packing
    few = problem.source.block == lanes or problem.in_channels <= MOST_PLANES
    return "rows" if few and problem.dilation[1] == 1 else None


def _spreads(problem: Problem, lanes: int) -> bool:
    """Whether vectors would have channels of several groups."""
    return problem.groups > 1 and (problem.out_channels < lanes or problem.in_channels % lanes != 0)


def merged_groups(problem: Problem, lanes: int) -> int:
    """How many groups are computed as one, so that vectors have channels of one group; 1 if they
    have anyway, or if no number of groups achieves it."""
    if not _spreads(problem, lanes):
        return 1
    for wanted in (BF16_PAIR.block, lanes):
        for count in range(2, problem.groups + 1):
            fits = count * problem.in_channels % wanted == count * problem.out_channels % lanes == 0
            if fits and problem.groups % count == 0:
                return count
    return 1


def merge(problem: Problem, lanes: int) -> Problem:
    """The contraction with :func:`merged_groups` groups computed as one."""
    count = merged_groups(problem, lanes)
    return replace(
        problem,
        groups=problem.groups // count,
        in_channels=problem.in_channels * count,
        out_channels=problem.out_channels * count,
    )


S = TypeVar("S", bound=DotScheme)


@lru_cache(4096)
def choose_dot_product(
    problem: Problem, isa: Isa, threads: int, any_size: bool = False
) -> DotScheme:
    """The scheme with the least predicted time; ``any_size``: see :class:`DotScheme`."""
    return cheapest(dot_schemes(problem, isa, any_size), threads)


def cheapest(schemes: Iterable[S], threads: int) -> S:
    """The scheme with the least predicted time.  Threads compute whole blocks; if there are too few
    of them, several calls share a block, and each packs it again."""

    def time(scheme: S) -> tuple[float, int]:
        work_items = calls = scheme.blocks_of_images * scheme.groups
        cycles = scheme.cycles
        if calls < threads:
            work_items = scheme.tasks
            repacks = min(scheme.tile.groups, -(-2 * threads // calls)) - 1
            cycles += calls * repacks * scheme.pack_cycles
        rounds = -(-work_items // threads) + (_UNEVEN if threads > 1 else 0)
        return cycles * rounds * threads / work_items, -scheme.block

    return min(schemes, key=time)


def dot_schemes(problem: Problem, isa: Isa, any_size: bool = False) -> Iterator[DotScheme]:
    """Yields schemes with blocks of all sizes that fit the cache, or with one of the smallest."""
    merged = merged_groups(problem, isa.lanes)
    problem = merge(problem, isa.lanes)
    packing = bf16_packing(problem, isa.lanes)
    assert packing is not None
    tiles = isa.bfloat16_products == "tiles"
    yield from schemes_of(DotScheme, problem, isa, packing, tiles, merged, any_size)


def schemes_of(
    kind: type[S],
    problem: Problem,
    isa: Isa,
    packing: Packing,
    tiles: bool,
    merged: int = 1,
    any_size: bool = False,
) -> Iterator[S]:
    """Yields schemes of a class with blocks of all sizes that fit the cache, or with one of the
    smallest; with ``any_size`` of a few."""
    wide, narrow = split_vectors(-(-problem.out_channels // isa.lanes), _VECTORS)
    vectors = _VECTORS if wide else 1
    if not wide:
        wide, narrow = narrow, 0
    tile = Tile(1, 1, vectors, wide, narrow)
    decisions = (packing, tiles, _TILE_PIXELS if tiles else _MOST_PIXELS, merged)
    smallest = kind(problem, isa.lanes, tile, 1, *decisions, any_size=any_size)
    size = problem.out_size[1 if smallest.by_columns else 0]
    counts: Iterable[int] = range(1, size + 1)
    if any_size:  # chosen in a call that waits for it
        counts = [1 << i for i in range(size.bit_length())]
    sizes = dict.fromkeys(-(-size // count) for count in counts)
    images = [n for n in range(2, problem.batch + 1) if problem.batch % n == 0]
    blocks = [(block, 1) for block in sorted(sizes)] + [(size, count) for count in images]
    most_bytes = FEATURE_BYTES if packing == "features" else _BLOCK_BYTES
    for i, (block, count) in enumerate(blocks):
        scheme = replace(smallest, block=block, images=count)
        if i and scheme.images * scheme.block_bytes + scheme.line_bytes > most_bytes:
            break
        fixed = tiles or any_size
        yield scheme if fixed else replace(scheme, pixels=_pixels(scheme.flat_pixels))


def _pixels(count: int) -> int:
    """Pixels of a register tile in vectors, for a block of ``count`` pixels."""
    return min(range(1, _MOST_PIXELS + 1), key=lambda n: (-(-count // n) * (max(n, 5) + 1), -n))
