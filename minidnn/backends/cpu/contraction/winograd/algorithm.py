"""Winograd's algorithm: which problems it computes, the cost model of its schemes, and the choice.

"Spread" stands here for schemes over all tiles in three kernels, "local" for schemes of one kernel
whose tasks do everything for a chunk of tiles; see :class:`.scheme.WinogradScheme`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from .....fusion.region import Parts
from ....options import ACCURACIES
from ...isa import Isa
from ...stage import PrintedContraction
from ..choose import (
    INPUT_BYTES,
    TASK_CYCLES,
    UNEVEN,
    WEIGHT_BYTES,
    Algorithm,
    Speed,
    nominal_speed,
    seconds_of_work,
)
from ..problem import Problem
from ..scheme import Tile, split_vectors, step_cycles
from .kernel import print_winograd
from .scheme import Transform, WinogradScheme


@dataclass(frozen=True, slots=True)
class Core:
    """Figures of a processor's core.

    Attributes:
        cache: bytes of the second-level cache for inputs, products and weights.
        vector: cycles to transform a vector of a tile: loads, stores, and the arithmetic between.
        call: cycles to begin and end a register tile of the products.
        first: bytes a cycle of weights from the second-level cache, for the first register tile of
            a product: those after it find them in the first level.
        far: bytes a cycle of weights from beyond that cache; they are prefetched.
        again: bytes a cycle at which each group of channels reads a chunk's transformed inputs and
            products from beyond that cache.
        moved: bytes a cycle of data that one thread writes and perhaps another one reads.
    """

    cache: int
    vector: float
    call: float
    first: float
    far: float
    again: float
    moved: float


CORES = {
    8: Core(384 << 10, vector=4.0, call=48.0, first=64.0, far=46.0, again=190.0, moved=7.5),
    16: Core(768 << 10, vector=1.9, call=24.0, first=32.0, far=16.0, again=16.0, moved=16.0),
}
"""By lanes.  AVX2: least squares over chunks of 4 to 114 tiles of four layers on Zen 3, which the
result predicts to 13 % (most to 6 %); its registers hold a third of a tile, and the arithmetic on
the same weights and inputs takes twice the time, so that it stalls less on these.  AVX-512: Zen 5
and Sapphire Rapids."""

EDGE_CYCLES = 2.0
"""Additional cycles a vector where a tile contains padding, or only a part of it is stored."""

REGION_CYCLES = 2500.0
"""Cycles to begin and end a kernel on all threads."""

MOST_CHUNK = 112
"""Tiles of a chunk, at most; of more tiles only chunks of about the sizes ``CHUNKS`` are tried."""
CHUNKS = (4, 7, 8, 12, 14, 16, 21, 24, 28, 36, 42, 56, 70, 84, 112)


@lru_cache(4096)
def choose_winograd(
    problem: Problem, transform: Transform, isa: Isa, threads: int
) -> WinogradScheme:
    """The scheme with the least predicted time on ``threads`` threads."""
    speed = nominal_speed(isa, threads)
    schemes = candidates(problem, transform, isa, threads)
    return min(schemes, key=lambda scheme: seconds_of(scheme, speed))


def candidates(
    problem: Problem, transform: Transform, isa: Isa, threads: int
) -> Iterator[WinogradScheme]:
    """Yields local schemes with chunks of all sizes, and those over all tiles in three kernels."""
    blocks = -(-problem.out_channels // isa.lanes)
    rows, columns = (-(-size // transform.outputs) for size in problem.out_size)
    count = problem.batch * rows * columns
    for size in _chunk_sizes(count):
        tile = product_tile(size, blocks, problem.in_channels, isa)
        chunk = -(-size // tile.columns) * tile.columns
        yield WinogradScheme(problem, isa.lanes, transform, tile, chunk, True)
    tile = product_tile(count, blocks, problem.in_channels, isa)
    chunk = -(-count // tile.columns) * tile.columns
    for parts in range(1, min(tile.groups, threads) + 1):
        yield WinogradScheme(problem, isa.lanes, transform, tile, chunk, False, parts)


@lru_cache(4096)
def product_tile(count: int, blocks: int, depth: int, isa: Isa) -> Tile:
    """The register tile for products of ``count`` Winograd tiles, ``blocks`` vectors of outputs and
    ``depth`` inputs; there are no remainder tiles, since rows of products are padded."""
    best: tuple[float, Tile] | None = None
    for vectors in range(1, min(blocks, 4) + 1):
        widest = min((isa.registers - 1 - vectors) // vectors, 14 if isa.registers == 32 else 6)
        if vectors > 2 and isa.registers == 32:
            widest = min(widest, 4)
        wide, narrow = split_vectors(blocks, vectors)
        if wide <= 0:
            continue
        for columns in range(1, min(widest, count) + 1):
            calls = -(-count // columns)
            cycles = [
                groups * (step_cycles(columns, width) * depth + CORES[isa.lanes].call)
                for groups, width in ((wide, vectors), (narrow, vectors - 1))
                if groups
            ]
            cost = calls * sum(cycles)
            if best is None or cost < best[0]:
                best = cost, Tile(1, columns, vectors, wide, narrow)
    assert best is not None
    return best[1]


def _chunk_sizes(count: int) -> list[int]:
    """Sizes that cut ``count`` tiles into equal chunks; if there are many tiles, only sizes near
    multiples of register tiles."""
    sizes = range(1, MOST_CHUNK + 1) if count <= MOST_CHUNK else CHUNKS
    chunks = {-(-count // size) for size in sizes if size <= count}
    return sorted({-(-count // n) for n in chunks})


def cycles_of(scheme: WinogradScheme, threads: int) -> float:
    """Predicted cycles of a scheme, from beginning to end, on so many threads."""
    return _local_cycles(scheme, threads) if scheme.local else _spread_cycles(scheme, threads)


def _product_cycles(scheme: WinogradScheme, count: int) -> float:
    """Cycles of one of the matrix products, for ``count`` tiles and all outputs."""
    tile, depth, call = scheme.tile, scheme.problem.in_channels, CORES[scheme.lanes].call
    total = 0.0
    for groups, vectors in ((tile.wide, tile.vectors), (tile.narrow, tile.vectors - 1)):
        if groups:
            total += groups * (step_cycles(tile.columns, vectors) * depth + call)
    return total * -(-count // tile.columns)


def _transform_cycles(scheme: WinogradScheme) -> tuple[float, float]:
    """Cycles to transform the inputs of a tile and a block of channels, and to transform its
    products back, averaged over tiles inside and at the border."""
    transform, problem = scheme.transform, scheme.problem
    n, m = transform.inputs, transform.outputs
    interior = [
        max(0, (size - n + pads[0]) // m - (-(-pads[0] // m)) + 1)
        for size, pads in zip(problem.in_size, problem.padding, strict=True)
    ]
    tiles = scheme.tiles[0] * scheme.tiles[1]
    edges = 1 - min(1.0, interior[0] * interior[1] / tiles)
    full = (problem.out_size[0] // m) * (problem.out_size[1] // m) / tiles
    vector = CORES[scheme.lanes].vector
    into = n * n * (vector + EDGE_CYCLES * edges)
    out = n * n * vector + m * m * (1 + EDGE_CYCLES * (1 - full))
    return into, out


def _local_cycles(scheme: WinogradScheme, threads: int) -> float:
    problem, core = scheme.problem, CORES[scheme.lanes]
    into, out = _transform_cycles(scheme)
    count = min(scheme.chunk, scheme.count)
    task = TASK_CYCLES + count * (scheme.input_blocks * into + scheme.output_blocks * out)
    task += scheme.matrices * _product_cycles(scheme, count)
    working_set = (
        scheme.source_bytes + scheme.product_bytes + 8 * problem.in_channels * scheme.lanes * 2
    )
    if working_set > core.cache:
        task += scheme.source_bytes * scheme.tile.groups / core.again
        task += 2 * scheme.product_bytes * scheme.tile.groups / core.again
    # Each chunk reads its inputs and all weights.
    task += 4 * count * problem.in_channels * scheme.transform.outputs**2 / INPUT_BYTES
    far = working_set + scheme.weight_bytes > core.cache
    task += scheme.weight_bytes / (core.far if far else core.first)
    rounds = -(-scheme.chunks // threads)
    return task * (rounds + UNEVEN * (scheme.chunks > 1)) + REGION_CYCLES


def _spread_cycles(scheme: WinogradScheme, threads: int) -> float:
    core = CORES[scheme.lanes]
    into, out = _transform_cycles(scheme)
    transforms = scheme.count * (scheme.input_blocks * into + scheme.output_blocks * out)
    # One thread writes transformed inputs and products, another one may read them.
    moved = 2 * (scheme.source_bytes + scheme.product_bytes) / core.moved
    inputs = scheme.source_bytes / scheme.matrices
    product = _product_cycles(scheme, scheme.count)
    if inputs > core.cache / 2:
        product += inputs * scheme.tile.groups / INPUT_BYTES
    product += scheme.weight_bytes / scheme.matrices / WEIGHT_BYTES
    tasks = scheme.matrices * scheme.parts
    rounds = -(-tasks // threads)
    shared = (transforms + moved) / threads
    return shared + product / scheme.parts * (rounds + UNEVEN) + 3 * REGION_CYCLES


def seconds_of(scheme: WinogradScheme, speed: Speed) -> float:
    """Predicted seconds, from arithmetic with its cache misses and from memory traffic."""
    cycles = cycles_of(scheme, speed.threads)
    return seconds_of_work(cycles, memory_bytes(scheme, speed.cache), scheme.lanes, speed)


def memory_bytes(scheme: WinogradScheme, cache: int) -> int:
    """Bytes that a run moves to and from memory; see :func:`..choose.memory_bytes`."""
    problem = scheme.problem
    weights = scheme.weight_bytes
    inputs = 4 * problem.batch * problem.in_channels * problem.in_size[0] * problem.in_size[1]
    result = 4 * problem.batch * problem.out_channels * problem.out_size[0] * problem.out_size[1]
    moved = weights
    if inputs > cache // 2:
        moved += inputs
    if result > cache // 2:
        moved += result * (len(problem.others) + (1 if scheme.result.streams else 2))
    if not scheme.local and scheme.workspace_bytes > cache // 2:
        moved += 2 * scheme.workspace_bytes
    elif scheme.local and weights > cache // 2:
        moved += weights * (scheme.chunks - 1)
    return moved


class Winograd(Algorithm):
    """Winograd's minimal filtering: fewer multiplications, for 3x3 kernels of stride 1."""

    def __init__(self, transform: Transform, error: float) -> None:
        self.transform = transform
        self.name = transform.name
        self.error = error
        self.accuracies = ACCURACIES if error <= 1 else ("normal",)

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if problem.kernel != (3, 3):
            return f"the kernel is {problem.kernel[0]}x{problem.kernel[1]}, not 3x3"
        if problem.stride != (1, 1) or problem.dilation != (1, 1):
            return f"stride {problem.stride} and dilation {problem.dilation} are not 1"
        if problem.groups > 1:
            return f"it has {problem.groups} groups"
        if has_prologue:
            return "a prologue comes before it"
        source = problem.source
        if source.block != isa.lanes:
            return f"its input is not in blocks of {isa.lanes} channels"
        return None

    def scheme(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> WinogradScheme:
        return choose_winograd(problem, self.transform, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[WinogradScheme]:
        return candidates(problem, self.transform, isa, threads)

    def describe(self, scheme: WinogradScheme) -> dict[str, int]:
        tile = scheme.tile
        figures = {"columns": tile.columns, "vectors": tile.vectors, "chunk": scheme.chunk}
        return {**figures, "local": int(scheme.local), "parts": scheme.parts}

    def seconds(self, scheme: WinogradScheme, speed: Speed) -> float:
        return seconds_of(scheme, speed)

    def operations(self, scheme: WinogradScheme) -> int:
        return scheme.operations

    def weight_bytes(self, scheme: WinogradScheme) -> int:
        return scheme.weight_bytes

    def print(self, parts: Parts, scheme: WinogradScheme, threads: int) -> PrintedContraction:
        return print_winograd(parts, scheme)
