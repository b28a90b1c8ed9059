"""The cost model of the direct algorithm, which chooses its scheme from shapes alone, and the
interface of all algorithms for contractions.

A scheme says how pixels are cut into blocks, and how many tasks share a packed block.  A task
computes one group of channels of one block of pixels.  Small blocks fit the caches and keep all
threads busy; large ones read the weights less often and pack less input twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ....fusion.region import Parts
from ..isa import Isa
from ..stage import PrintedContraction
from .problem import Problem, gathered
from .scheme import Packing, Scheme, Tile, choose_tile, cycles_of, tiles_for

CACHE_BYTES = {8: 384 << 10, 16: 768 << 10}
"""By lanes: bytes of a core's second-level cache for inputs and weights; other data needs the rest.

Processors without AVX-512 have 512 KiB or more, those with it 1 MiB or more."""

INPUT_BYTES = 16.0
"""Bytes a cycle at which inputs arrive from beyond the second-level cache."""

LINE_CYCLES = 1.0
"""Cycles for each additional cache line that inputs take because strided pixels leave parts of
lines unused."""

WEIGHT_BYTES = 64.0
"""Bytes a cycle of weights from there, as far as tiles wait for them: they are prefetched."""

PACK_CYCLES = 2.5
"""Cycles to pack one vector: to copy it into scratch."""

TASK_CYCLES = 150.0
"""Cycles to begin a task."""

UNEVEN = 0.15
"""Load imbalance: share of a call's time for which threads wait for the slowest one."""


def block_cycles(scheme: Scheme, threads: int, grain: int = 0) -> float:
    """Predicted cycles of one thread with ``grain`` tasks in a call, by default the best number."""
    return _cycles(scheme, threads, grain or grain_of(scheme, threads))


def _cycles(scheme: Scheme, threads: int, grain: int) -> float:
    """:func:`block_cycles` with ``grain`` tasks in a call."""
    problem = scheme.problem
    blocks = problem.batch * scheme.blocks * scheme.groups
    inputs = scheme.touched_bytes
    cache = CACHE_BYTES[scheme.lanes]
    weights = 4 * scheme.slots * problem.depth
    chunk = 8 * scheme.chunk_terms * scheme.tile.vectors * scheme.lanes
    groups = scheme.tile.groups
    total = blocks * inputs * (1 if inputs + chunk <= cache else groups) / INPUT_BYTES
    if inputs + weights > cache:
        total += blocks * weights / WEIGHT_BYTES
    calls = -(-scheme.tasks // grain)
    total += calls * pack_cycles(scheme) + scheme.tasks * TASK_CYCLES
    total += scheme.tasks * (task_cycles(scheme) + scheme.unused_lines * LINE_CYCLES)
    # The last calls do not keep all threads busy, and threads are not equally fast.
    return total / calls * (-(-calls // threads) + UNEVEN)


def task_cycles(scheme: Scheme) -> float:
    """Cycles of the sums of one task, averaged over all tasks."""
    total = cycles_of(scheme.tile, scheme.problem.out_size, scheme.problem.depth)
    return total * scheme.taken_rows / (scheme.blocks * scheme.tile.groups)


def pack_cycles(scheme: Scheme) -> float:
    """Cycles to pack one block of inputs."""
    return scheme.packed_floats / scheme.lanes * PACK_CYCLES


def grain_of(scheme: Scheme, threads: int) -> int:
    """Tasks of one call: enough to share a packed block, few enough to keep threads balanced."""
    groups = scheme.tile.groups
    sizes = [size for size in range(1, groups + 1) if groups % size == 0]
    if scheme.packing == "none" or scheme.spread:
        return 1
    return min(sizes, key=lambda size: _cycles(scheme, threads, size))


HIDDEN = 0.5
"""Overlap: share of the shorter of computing and memory traffic that the longer one hides;
measured with weights that came from memory."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The rates that a machine reaches with ``threads`` threads together.

    Attributes:
        flops: fp32 operations a second by multiply-adds.
        bandwidth: bytes a second to and from memory.
        cache: bytes of its last-level cache; 0 if unknown.
    """

    threads: int
    flops: float
    bandwidth: float
    cache: int


NOMINAL_THREADS = 2


def nominal_speed(isa: Isa, threads: int = NOMINAL_THREADS) -> Speed:
    """The rates of the machine for which choices are made: some cores of a current processor.

    Choices must not change from machine to machine or with its load, so nothing is measured.
    """
    return Speed(threads, 16e9 * isa.lanes * threads, 25e9 * min(threads, 4), 32 << 20)


def predict_seconds(scheme: Scheme, speed: Speed) -> float:
    """Predicted seconds, from arithmetic with its cache misses and from memory traffic.

    Values that fit the last-level cache are assumed to be there; weights are not, since a
    network's weights are read once a run.
    """
    cycles = block_cycles(scheme, speed.threads)
    return seconds_of_work(cycles, memory_bytes(scheme, speed.cache), scheme.lanes, speed)


def seconds_of_work(cycles: float, moved: int, lanes: int, speed: Speed) -> float:
    """Predicted seconds of cycles of each thread beside bytes that go to and from memory."""
    clock = speed.flops / speed.threads / (4 * lanes)
    return overlapped(cycles / clock, moved / speed.bandwidth)


def overlapped(compute: float, memory: float) -> float:
    """Seconds of computing and memory traffic together: the longer hides a part of the shorter."""
    return max(compute, memory) + (1 - HIDDEN) * min(compute, memory)


def memory_bytes(scheme: Scheme, cache: int) -> int:
    """Bytes that a run moves to and from memory."""
    problem = scheme.problem
    pixels = problem.batch * problem.out_size[0] * problem.out_size[1]
    size = problem.in_size[0] * problem.in_size[1]
    inputs = 4 * problem.batch * problem.groups * problem.in_channels * size
    result = 4 * pixels * problem.groups * problem.out_channels
    moved = 4 * scheme.groups * scheme.slots * problem.depth
    if inputs > cache // 2:
        moved += inputs
    if result > cache // 2:
        moved += result * len(problem.others)
        # A line is read before a part of it is written, unless results are streamed.
        moved += result if scheme.streams else 2 * result
    return moved


CHUNK_TERMS = {8: 256, 16: 768}
"""By lanes: about so many terms make a chunk (K tile) of a longer sum, which all pixels of a block
take before the next one, so that its weights stay in a cache.  With AVX-512 the second-level cache
suffices; AVX2's tiles are smaller and read weights twice as often for the same arithmetic, so there
they should fit the first level.
"""

PART_TERMS = 128
"""About so many terms (at least those of one step) make a partial sum.  Rounding errors grow with
the square root of a partial sum's length and of the number of partial sums, and adding a partial
sum to those before takes a tile about as long as one term."""

SHORT_TERMS = 32
"""Terms of a partial sum with compensation.  The rounding errors of adding partial sums are added
at the end, so that the error is that of one partial sum, however long the sum is (0.8e-7 of the
root of the mean square of sums of 4096 and 9216 products; 1.8 and 2.1 where as many partial sums as
they have terms are just added up).  Adding a partial sum takes a tile about as long as seven
terms."""

MOST_UNROLLED_PLANES = 8
"""Channels of one step, at most, where inputs are read channel by channel (NCHW)."""

_ENDLESS = 1 << 20
"""Pixels of a row so long that its remainder after whole tiles does not count."""

TILE_MARGIN = 1.4
"""Register tiles whose sums take more than so many times as long as the best one's are left out."""


@lru_cache(4096)
def choose_scheme(
    problem: Problem, has_prologue: bool, isa: Isa, threads: int, compensated: bool = False
) -> Scheme:
    """The scheme for a problem; only the size of its blocks depends on ``threads``.

    ``compensated``: short partial sums, and their rounding errors are added at the end.
    """
    schemes: list[Scheme] = []
    for geometry in _seen(problem, isa.lanes):
        shape = _shape(geometry, has_prologue, isa, compensated)
        tile = choose_tile(
            geometry.out_size, shape.vectors, geometry.depth, isa, shape.most_vectors
        )
        schemes += _blocked(geometry, shape, tile)
    return min(schemes, key=lambda scheme: block_cycles(scheme, threads))


@lru_cache(4096)
def scheme_for_any_size(
    problem: Problem, has_prologue: bool, isa: Isa, threads: int, compensated: bool = False
) -> Scheme:
    """The scheme whose kernel serves all problems that differ from this one in their numbers of
    pixels alone."""
    geometry = _seen(problem, isa.lanes)[-1]
    shape = _shape(geometry, has_prologue, isa, compensated)
    tile = choose_tile((1, _ENDLESS), shape.vectors, geometry.depth, isa, shape.most_vectors)
    schemes = _blocked(geometry, shape, tile, any_size=True)
    return min(schemes, key=lambda scheme: block_cycles(scheme, threads, scheme.tile.groups))


def schemes_for(
    problem: Problem, has_prologue: bool, isa: Isa, compensated: bool = False
) -> Iterator[Scheme]:
    """Yields the schemes with all sizes of blocks and register tiles, but for tiles that are far
    slower than the best.  All compute equal bits."""
    for geometry in _seen(problem, isa.lanes):
        shape = _shape(geometry, has_prologue, isa, compensated)
        tiles = {
            tile: cycles_of(tile, geometry.out_size, geometry.depth)
            for tile in tiles_for(geometry.out_size, shape.vectors, isa, shape.most_vectors)
        }
        longest = TILE_MARGIN * min(tiles.values())
        for tile, cycles in tiles.items():
            if cycles <= longest:
                yield from _blocked(geometry, shape, tile)


def _seen(problem: Problem, lanes: int) -> list[Problem]:
    """The problem itself, and for a strided 1x1 convolution also the one with gathered pixels."""
    row = gathered(problem) if _is_blocked(problem, lanes) else None
    return [problem] if row is None else [problem, row]


@dataclass(frozen=True)
class _Shape:
    """The decisions that do not depend on the register tile; see :class:`.scheme.Scheme`.

    ``vectors`` is the number of vectors of output channels that a group has.
    """

    lanes: int
    packing: Packing
    unit: int
    chunk: int
    part: int
    compensated: bool
    vectors: int

    @property
    def most_vectors(self) -> int:
        return 1 if self.packing in ("own", "lanes") else 4


def _shape(problem: Problem, has_prologue: bool, isa: Isa, compensated: bool) -> _Shape:
    """The decisions for a problem that do not depend on the register tile."""
    lanes = isa.lanes
    spread = problem.groups > 1 and problem.out_channels < lanes
    packing = _spread(problem, lanes) if spread else _packing(problem, has_prologue, lanes)
    terms, planes = PART_TERMS, MOST_UNROLLED_PLANES
    if compensated:
        terms = SHORT_TERMS
        planes = max(1, min(planes, terms // (problem.kernel[0] * problem.kernel[1])))
    unit = _unit(problem, packing, lanes, planes)
    outputs = problem.out_channels * (problem.groups if spread else 1)
    chunk = _chunk(problem, unit, CHUNK_TERMS[lanes])
    part = _part(problem, unit, chunk, terms)
    return _Shape(lanes, packing, unit, chunk, part, compensated and part > 0, -(-outputs // lanes))


def _blocked(problem: Problem, shape: _Shape, tile: Tile, any_size: bool = False) -> list[Scheme]:
    """The schemes with blocks of all different sizes, or with ``any_size`` of a few."""
    decisions = (shape.packing, shape.unit, shape.chunk, shape.part, shape.compensated)
    smallest = Scheme(problem, shape.lanes, tile, 1, *decisions, any_size=any_size)
    step = tile.columns if smallest.by_columns else tile.rows
    steps = -(-problem.out_size[1 if smallest.by_columns else 0] // step)
    counts: Sequence[int] = range(1, steps + 1)
    if any_size:  # chosen in a call that waits for it
        counts = [1 << i for i in range(steps.bit_length())]
    sizes = dict.fromkeys(-(-steps // count) * step for count in counts)
    return [replace(smallest, block=size) for size in sizes]


def _chunk(problem: Problem, unit: int, terms: int) -> int:
    """Steps of a chunk; 0 for sums in one chunk.  Of 1x1 convolutions a sum in one chunk has all
    steps in it instead: networks have short and long ones, which then share a kernel's text."""
    chunks = max(1, round(problem.depth / terms))
    steps = -(-problem.in_channels // unit)
    return 0 if chunks == 1 and problem.kernel != (1, 1) else -(-steps // chunks)


def _part(problem: Problem, unit: int, chunk: int, terms: int) -> int:
    """Steps of a partial sum; 0 for sums that are neither split nor have chunks."""
    steps = -(-problem.in_channels // unit)
    part = max(1, round(terms / (unit * problem.kernel[0] * problem.kernel[1])))
    return 0 if part >= steps and not chunk else part


def _packing(problem: Problem, has_prologue: bool, lanes: int) -> Packing:
    """How inputs are packed whose channels are the same for all lanes."""
    source = problem.source
    blocked = _is_blocked(problem, lanes)
    pointwise = problem.kernel == (1, 1)
    if problem.width:
        return "gathered"
    if not problem.pads and not has_prologue and source.dtype == "float32":
        if blocked:
            return "none"
        if source.contiguous and pointwise:
            return "none"
        if source.block == 1:
            return "none"
    if problem.is_linear:
        return "features"
    return "blocks" if blocked else "pixels"


def _spread(problem: Problem, lanes: int) -> Packing:
    """How inputs are packed whose channels differ from lane to lane: "own", in their own layout,
    where one vector of them has all that a vector of outputs reads."""
    own = problem.in_channels == problem.out_channels and lanes % problem.out_channels == 0
    return "own" if own and problem.source.block == lanes else "lanes"


def _is_blocked(problem: Problem, lanes: int) -> bool:
    """Whether the layout of inputs is blocks of ``lanes`` channels, each of one group."""
    source = problem.source
    aligned = problem.groups == 1 or problem.in_channels % lanes == 0
    return source.block == lanes and not source.contiguous and aligned


def _unit(problem: Problem, packing: Packing, lanes: int, planes: int) -> int:
    """Channels that one step unrolls, at most ``planes`` where they are read as planes (NCHW).

    Taps are not unrolled: neighbouring pixels share inputs from tap to tap, which compilers would
    keep in registers, and spill sums for it.
    """
    source = problem.source
    if packing == "lanes":
        return 1
    if packing == "own":
        return problem.in_channels
    in_planes = packing == "none" and source.block == 1 < problem.in_channels
    if packing == "pixels" or in_planes:
        return min(planes, problem.in_channels)
    return min(lanes, problem.in_channels)


class Algorithm(ABC):
    """An algorithm for contractions: which problems it computes, by which schemes, and how fast.

    Attributes:
        name: for reports.
        error: its largest error in any layer, about, as a multiple of the direct algorithm's.
        accuracies: the settings of ``accuracy`` for which it is considered.
        factors: dtypes of the numbers that it multiplies.
    """

    name: str
    error: float
    accuracies: tuple[str, ...]
    factors: tuple[str, ...] = ("float32",)

    @abstractmethod
    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        """Why it does not compute this problem; None if it does."""

    @abstractmethod
    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> Any:
        """The scheme with the least predicted time on ``threads`` threads."""

    @abstractmethod
    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[Any]:
        """All schemes that are worth measuring; the bits of the result are the same."""

    @abstractmethod
    def describe(self, scheme: Any) -> dict[str, int]:
        """The figures that distinguish a scheme from others of its problem, by name."""

    @abstractmethod
    def seconds(self, scheme: Any, speed: Speed) -> float:
        """The predicted time of a scheme, in seconds."""

    @abstractmethod
    def operations(self, scheme: Any) -> int:
        """Arithmetic operations of all sums, two for a multiply-add; transforms do not count."""

    @abstractmethod
    def weight_bytes(self, scheme: Any) -> int:
        """Size of the packed weights."""

    @abstractmethod
    def print(self, parts: Parts, scheme: Any, threads: int) -> PrintedContraction:
        """The kernels that compute a contraction by a scheme."""
