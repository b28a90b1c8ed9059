"""Choosing how pixels are cut into blocks, and how many tasks share a packed one.

A task computes one group of channels of one block of pixels.  Small blocks fit the caches and
keep all threads busy; large ones read the weights less often and pack less input twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..isa import Isa
from .scheme import Scheme
from .tiling import cycles_of

CACHE_BYTES = {8: 384 << 10, 16: 768 << 10}
"""By lanes: what a core's second-level cache holds of inputs and weights; others need some.

Processors without AVX-512 have 512 KiB or more, those with it 1 MiB or more."""

INPUT_BYTES = 16.0
"""Bytes a cycle of inputs from beyond that cache."""

LINE_CYCLES = 1.0
"""Cycles of a tile for each further cache line that its inputs take because strided pixels leave
parts of lines unused."""

WEIGHT_BYTES = 64.0
"""Bytes a cycle of weights from there, as far as one waits for them: they are asked for ahead."""

PACK_CYCLES = 2.5
"""Cycles to copy a vector into scratch."""

TASK_CYCLES = 150.0
"""Cycles to begin a task."""

UNEVEN = 0.15
"""Part of a call for which threads wait for the slowest one."""


def block_cycles(scheme: Scheme, threads: int, grain: int = 0) -> float:
    """Predicted cycles of one thread with so many tasks in a call, by default the best number."""
    return _cycles(scheme, threads, grain or grain_of(scheme, threads))


def _cycles(scheme: Scheme, threads: int, grain: int) -> float:
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
    """Cycles of the sums of one task, on average."""
    whole = cycles_of(scheme.tile, scheme.problem.out, scheme.problem.depth)
    return whole * scheme.taken_rows / (scheme.blocks * scheme.tile.groups)


def pack_cycles(scheme: Scheme) -> float:
    """Cycles to pack a block."""
    return scheme.packed_floats / scheme.lanes * PACK_CYCLES


def grain_of(scheme: Scheme, threads: int) -> int:
    """Tasks of one call: enough to share a packed block, but no thread gets too much at once."""
    groups = scheme.tile.groups
    sizes = [size for size in range(1, groups + 1) if groups % size == 0]
    if scheme.packing == "none" or scheme.spread:
        return 1
    return min(sizes, key=lambda size: _cycles(scheme, threads, size))


HIDDEN = 0.5
"""Part of the smaller of computing and moving that the larger one hides; measured with weights
that came from memory."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a machine reaches with ``threads`` threads together.

    Attributes:
        flops: fp32 operations a second by multiply-adds.
        bandwidth: bytes a second to and from memory.
        cache: bytes of its last cache; 0 if unknown.
    """

    threads: int
    flops: float
    bandwidth: float
    cache: int


NOMINAL_THREADS = 2


def nominal_speed(isa: Isa, threads: int = NOMINAL_THREADS) -> Speed:
    """The machine for which choices are made: so many cores of a current processor.

    Choices must not change from machine to machine or with its load, so nothing is measured.
    """
    return Speed(threads, 16e9 * isa.lanes * threads, 25e9 * min(threads, 4), 32 << 20)


def predict_seconds(scheme: Scheme, speed: Speed) -> float:
    """From arithmetic with its waiting, and memory traffic.

    Values that fit the last cache are taken to be there; weights are not, since a network's
    weights are read once a run.
    """
    clock = speed.flops / speed.threads / (4 * scheme.lanes)
    compute = block_cycles(scheme, speed.threads) / clock
    return overlapped(compute, memory_bytes(scheme, speed.cache) / speed.bandwidth)


def overlapped(compute: float, memory: float) -> float:
    """Seconds of computing and moving: the larger hides a part of the smaller."""
    return max(compute, memory) + (1 - HIDDEN) * min(compute, memory)


def memory_bytes(scheme: Scheme, cache: int) -> int:
    """Bytes that a run moves to and from memory."""
    problem = scheme.problem
    pixels = problem.batch * problem.out[0] * problem.out[1]
    size = problem.size[0] * problem.size[1]
    inputs = 4 * problem.batch * problem.groups * problem.inputs * size
    result = 4 * pixels * problem.groups * problem.outputs
    moved = 4 * scheme.groups * scheme.slots * problem.depth
    if inputs > cache // 2:
        moved += inputs
    if result > cache // 2:
        moved += result * len(problem.others)
        # A line is read before a part of it is written, unless results are streamed.
        moved += result if scheme.streams else 2 * result
    return moved
