"""Choosing how pixels are cut into blocks, and how many tasks share a packed one.

A task computes one group of channels of one block of pixels.  Small blocks fit the caches and
keep all threads busy; large ones read the weights less often and pack less input twice.
"""

from __future__ import annotations

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
