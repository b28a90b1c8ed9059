"""Planes that stay in registers: which plans allow it, and how planes are spread over threads.

If all planes of a plan have one size, each thread can keep the same rectangle of rows and columns
of all of them in registers for the whole kernel.  Windows then exchange only the edges of
rectangles through shared memory, instead of every element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil, gcd

import numpy as np

from minidnn.graph.window import Axis, Window

from ....fusion.plan import Binding, KernelPlan, Plane
from ..tensor import Tensor

MOST_RESIDENT = 104
"""Elements of planes that a thread keeps: less than half of its 255 registers, since windows need
as many again."""

OTHERS = 28
"""Registers that a thread needs in addition to the elements of planes."""

BLOCK_COST = 600.0
"""The cost of starting a block, in the unit of :func:`_cost`: 65,536 blocks of one warp, each a
plane of 14 x 14, take three times as long as blocks of 8 to 64 planes."""

WAITS, WAITS_OF_ONE = 5.0, 2.5
"""Costs grow by ``1 + waits / warps``, for latency that other warps do not hide: of most plans, and
of those with one window over a small plane, where memory traffic hides more."""

KEPT, KEPT_OF_SUMS = 1.4, 3.0
"""Registers for each element that a thread keeps: usually, and where windows sum float32, or half
precision in several windows."""

KEPT_OF_HALVES = 1.2
"""Registers for each element of a lone window over float16 or bfloat16."""

ACCESS = 3.0
"""The cost of moving a 32-bit word between shared memory and registers, for each of the threads
that conflict in a bank.  A lone window over half precision does little else: over 35x35, rectangles
of 7x7 of six channels reach 0.90 of a copy's rate, of 9x9 of eight, where four threads conflict,
0.60."""

ACCESSED = 32
"""How many of the grids that are cheapest otherwise are ranked again with these accesses."""

SMALL_PLANE = 64 * 64
"""Elements of a plane that two warps can keep in registers."""

LARGE_SUMS = 48 * 48
"""Elements of a plane from which on sum windows take less time in shared memory: 20 blocks of
average pooling, normalization and ReLU over 56 x 56 take 0.38 ms there and 0.49 in registers, over
28 x 28 0.50 and 0.49, over 14 x 14 0.33 and 0.25."""

MOST_TAPS = 8
"""The most taps along each axis of a window over planes in registers."""

WARP = BANKS = 32

MOST_OF_SEVERAL = 160
"""Threads of a block that has several channels, at most: more of them wait longer for each other.
Max pooling of float16 over 14 x 14 reaches 0.83 of a copy's rate with 32 threads, 0.81 with 128,
0.74 with 256."""

SHARED = 227 << 10
"""Shared memory of a multiprocessor in bytes, as the cost of grids assumes it."""

SHARED_OF_SEVERAL = 32 << 10
"""Bytes of shared memory that an input of a block with several channels may take, so that a
multiprocessor has several blocks."""

BLOCKS_OF_SEVERAL = 1024
"""The fewest blocks of several channels each, so that every multiprocessor has its share."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How planes are spread over a block: each of ``down`` by ``across`` threads keeps a rectangle
    of ``rows`` by ``columns`` of every plane of a channel, for each of ``channels`` neighbouring
    channels."""

    rows: int
    columns: int
    down: int
    across: int
    channels: int = 1

    @property
    def used(self) -> int:
        """Threads of a block that have a rectangle."""
        return self.down * self.across * self.channels

    @property
    def threads(self) -> int:
        """Threads of a block, in whole warps."""
        return ceil(self.used / WARP) * WARP


def choose_grid(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Grid | None:
    """Returns the cheapest grid for a plan; None if its planes cannot stay in registers."""
    return next(iter(grids(plan, binding, tensors)), None)


def grids(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> list[Grid]:
    """Returns the grids for a plan, the cheapest first; none if its planes cannot stay in
    registers."""
    if not _suits(plan, tensors):
        return []
    height, width = plan.anchor
    kept = live_planes(plan)
    windows = [o.window for o in plan.operations if o.window is not None]
    reach = [max(max(reach_of(w)[axis]) for w in windows) for axis in (0, 1)]
    groups = _channel_groups(plan, binding, tensors)
    sums = _sums_of_float32(plan, tensors) > 0
    lone = len(windows) == 1 and height * width <= SMALL_PLANE
    kept_each, waits = KEPT_OF_SUMS if sums else KEPT, WAITS_OF_ONE if lone else WAITS
    direct = not all(window.is_plain for window in windows)
    is_half = not direct and len(windows) == 1 and all(t.itemsize == 2 for t in tensors)
    priced: list[tuple[float, Grid]] = []
    for rows in range(max(1, reach[0]), min(height, MOST_RESIDENT) + 1):
        for columns in range(max(1, reach[1]), min(width, MOST_RESIDENT // rows) + 1):
            registers = kept * rows * columns
            if registers > MOST_RESIDENT:
                continue
            for channels in groups:
                grid = Grid(rows, columns, ceil(height / rows), ceil(width / columns), channels)
                if channels > 1 and grid.down * grid.across > WARP:
                    break  # a plane is enough for a block
                most = MOST_OF_SEVERAL if channels > 1 else _most_threads(registers)
                if grid.threads <= min(most, _most_threads(registers)):
                    warps = min(48.0, 65536 / (kept_each * registers + OTHERS) / WARP)
                    if is_half:
                        waits, warps = WAITS, _half_precision_warps(grid, registers)
                    if direct:
                        warps = min(warps, _warps_of_edges(plan, grid))
                    cost = sum(_cost(grid, height, width, window) for window in windows)
                    cost *= 1.0 + waits / warps
                    priced.append((cost + BLOCK_COST / (channels * height * width), grid))
    priced.sort(key=lambda one: one[0])
    if is_half:
        first = [(cost + _accesses(grid, height, width), grid) for cost, grid in priced[:ACCESSED]]
        priced[:ACCESSED] = sorted(first, key=lambda one: one[0])
    return [grid for _, grid in priced]


def live_planes(plan: KernelPlan) -> int:
    """Returns how many planes a thread has its rectangle of at once: those that it keeps and, while
    a window computes its taps (it is not plain), its result and those of its operands that are
    inputs."""
    beside = [0]
    for operation in plan.operations:
        window = operation.window
        if window is not None and not window.is_plain:
            under = {plan.planes[number].input for number in operation.operands[: window.under]}
            beside.append(1 + len(under - {None}))
    return peak_live_planes(plan) + max(beside)


def _half_precision_warps(grid: Grid, registers: float) -> float:
    """Estimates the warps of a multiprocessor for a lone half-precision window, in whole blocks."""
    each = ceil((KEPT_OF_HALVES * registers + OTHERS) / 8) * 8
    blocks = min(32, 65536 // (each * grid.threads))
    return max(1.0, min(48.0, blocks * grid.threads / WARP))


def _warps_of_edges(plan: KernelPlan, grid: Grid) -> float:
    """Estimates the warps of a multiprocessor whose shared memory holds a plane and edges for each
    block."""
    return max(1.0, SHARED // shared_bytes(plan, grid) * grid.threads / WARP)


def shared_bytes(plan: KernelPlan, grid: Grid) -> int:
    """Estimates the shared memory of a block whose threads read inputs from global memory, in
    bytes."""
    windows = [o.window for o in plan.operations if o.window is not None]
    phases = [edges_of(window, grid) for window in windows]
    edges = sum(max(counts) for counts in zip_longest(*phases, fillvalue=0))
    return 4 * (plan.anchor[0] * plan.anchor[1] * grid.channels + edges * grid.threads)


def _accesses(grid: Grid, height: int, width: int) -> float:
    """The cost of the shared memory accesses for an element of half precision: the words of a
    rectangle's rows are stored there and loaded again."""
    words = (grid.columns // 2 + 1) / grid.columns
    wasted = grid.threads * grid.rows * grid.columns / (grid.channels * height * width)
    return ACCESS * words * _conflicts(grid, height, width) * wasted


def _conflicts(grid: Grid, height: int, width: int) -> float:
    """The worst bank conflict of a warp whose threads access the first elements of their
    rectangles, as the mean over a block's warps."""
    worst = 0
    for first in range(0, grid.threads, WARP):
        banks: dict[int, set[int]] = {}
        for thread in range(first, first + WARP):
            at = min(thread, grid.used - 1)
            channel, rectangle = divmod(at, grid.down * grid.across)
            y, x = divmod(rectangle, grid.across)
            element = (channel * height + y * grid.rows) * width + x * grid.columns
            banks.setdefault(element // 2 % BANKS, set()).add(element // 2)
        worst += max(map(len, banks.values()))
    return worst / (grid.threads / WARP)


def sums_in_shared_memory(plan: KernelPlan, tensors: Sequence[Tensor]) -> bool:
    """Whether planes are so large, and so many windows are sums, that shared memory suits them
    better."""
    windows = sum(o.window is not None for o in plan.operations)
    large = plan.anchor[0] * plan.anchor[1] >= LARGE_SUMS
    return large and 2 * _sums_of_float32(plan, tensors) > windows


def _sums_of_float32(plan: KernelPlan, tensors: Sequence[Tensor]) -> int:
    """How many windows are sums; none for a lone one over half precision, which leaves registers
    free."""
    windows = [o.window for o in plan.operations if o.window is not None]
    if len(windows) == 1 and all(t.itemsize == 2 for t in tensors):
        return 0
    return sum(window.is_plain and not window.combiner.chooses for window in windows)


def _channel_groups(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> list[int]:
    """Returns the numbers of channels that a block may have: their planes are contiguous, and all
    blocks have the same number."""
    size = plan.anchor[0] * plan.anchor[1]
    if plan.summed or any(p.one_channel for p in plan.planes):
        return [1]
    if any(t.channel != size for t in tensors):
        return [1]
    common = gcd(*(bound for segment in binding.segments for bound in segment))
    blocks = binding.batch * max(end for _, end in binding.segments)
    most = min(
        MOST_OF_SEVERAL,
        SHARED_OF_SEVERAL // (size * max(t.itemsize for t in tensors)),
        blocks // BLOCKS_OF_SEVERAL,
    )
    return [count for count in range(1, max(1, most) + 1) if common % count == 0]


def _most_threads(registers: int) -> int:
    """Threads whose registers fit a multiprocessor, :data:`OTHERS` of each included."""
    return min(1024, 65536 // (-(-(registers + OTHERS) // 8) * 8) // WARP * WARP)


def _cost(grid: Grid, height: int, width: int, window: Window) -> float:
    """Estimates the cost of one element of a window.

    Of a plain window: four operations at half rate, the shared memory accesses of edges, and one
    selection where a rectangle may extend beyond the plane.  Of a window with computed taps: four
    operations for each tap, and the accesses.  Latency that few warps cannot hide is not part of
    it.

    Measured on an H200, 40 blocks of max pooling, normalization and ReLU over 56 x 56: rectangles
    of 7 x 7 take 0.272 ms, of 14 x 7 0.288, of 7 x 4 0.375, of 14 x 5 (a quarter of the threads
    idle) 0.456.
    """
    elements = grid.rows * grid.columns
    wasted = grid.threads * elements / (grid.channels * height * width)
    together = 1.03 if grid.threads > WARP else 1.0
    if not window.is_plain:
        edges = 2 * sum(edges_of(window, grid)) / elements
        return (4.0 * window.taps + 2.0 * edges) * wasted * together
    edges = 4 * (grid.rows + grid.columns) / elements
    below = min(1.0, grid.down - height / grid.rows)
    right = min(1.0, grid.across - width / grid.columns)
    masked = 1.0 - (1.0 - below) * (1.0 - right)
    return (8.0 + 2.0 * edges + 2.5 * masked) * wasted * together


def _suits(plan: KernelPlan, tensors: Sequence[Tensor]) -> bool:
    """Whether the planes of a plan can stay in registers: all have one size, rows are contiguous,
    and windows keep that size."""
    if plan.schedule.strips > 1 or len(plan.patches(0)) * len(plan.patches(1)) > 1:
        return False
    if any(plane.extent != plan.anchor and not is_number(plan, plane) for plane in plan.planes):
        return False
    size = plan.anchor[0] * plan.anchor[1]
    planes = planes_of(plan, tensors)
    if any(not t.is_planar or t.row != t.columns or t.channel % size for t in planes):
        return False
    under = (o.operands[: o.window.under] for o in plan.operations if o.window is not None)
    if any(is_number(plan, plan.planes[number]) for numbers in under for number in numbers):
        return False
    windows = [o.window for o in plan.operations if o.window is not None]
    return bool(windows) and all(_stays(window) for window in windows)


def is_number(plan: KernelPlan, plane: Plane) -> bool:
    """Whether an input has a single element for each plane of the others."""
    return plane.input is not None and plane.extent == (1, 1) != plan.anchor


def planes_of(plan: KernelPlan, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of which a thread reads or writes a rectangle."""
    numbers = {plane.input for plane in plan.planes if is_number(plan, plane)}
    numbers |= {plan.inputs + output for output in plan.summed}
    return [tensor for i, tensor in enumerate(tensors) if i not in numbers]


def _stays(window: Window) -> bool:
    """Whether a window's result has the size of what it reads, so that threads exchange edges
    alone."""
    if window.is_long or window.taps > MOST_TAPS**2:
        return False
    for axis in window.axes:
        if axis.stride != 1 or axis.kernel > MOST_TAPS:
            return False
        offsets = [offset for offset, _ in taps_along(axis)]
        if not offsets or min(offsets) > 0 or max(offsets) < 0:
            return False
    return True


def taps_along(axis: Axis) -> list[tuple[int, int]]:
    """Returns the taps along an axis of stride 1: the offset of each from the output, and its
    number."""
    offsets, numbers = axis.taps(np.zeros(1, int))
    pairs = zip(offsets[0].tolist(), numbers[0].tolist(), strict=True)
    return [(offset, number) for offset, number in pairs if number >= 0]


def reach_of(window: Window) -> tuple[tuple[int, int], tuple[int, int]]:
    """Along rows and columns, how many positions before and after its own an output reads."""
    reach = []
    for axis in window.axes:
        offsets = [offset for offset, _ in taps_along(axis)]
        reach.append((-min(offsets), max(offsets)))
    down, across = reach
    return down, across


def phases_of(window: Window) -> list[int]:
    """Returns the axes along which a window is reduced, in order: of a sum columns first, as sums
    are defined.  Windows with computed taps exchange rows first."""
    order = (1, 0) if window.is_plain and not window.combiner.chooses else (0, 1)
    return [axis for axis in order if window.axes[axis].kernel > 1]


def edges_of(window: Window, grid: Grid) -> list[int]:
    """How many elements a thread gives to its neighbours in each phase."""
    reach = reach_of(window)
    counts = []
    for axis in phases_of(window):
        lines = (grid.columns, grid.rows)[axis]
        if not window.is_plain and axis == 1:
            lines += sum(reach[0])  # corners come from the neighbours above and below
        counts.append(window.under * sum(reach[axis]) * lines)
    return counts


def assign_arrays(plan: KernelPlan, segment: int) -> dict[int, int]:
    """Returns for each plane that outlives its step, or is stored, the array of registers that
    holds it.

    A plane may reuse the array of one that its own step reads last.
    """
    spans: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(plan.steps):
        for operation in step.segments[segment]:
            for number in operation.operands:
                if number in spans:
                    spans[number] = (spans[number][0], i)
            plane = plan.planes[operation.result]
            stored = plane.output is not None and plane.output not in plan.summed
            if plane.buffer is not None or stored:
                spans[operation.result] = (i, i)
    arrays: dict[int, int] = {}
    free_from: list[int] = []
    for number, (begin, end) in spans.items():
        for array, free in enumerate(free_from):
            if free <= begin:
                arrays[number] = array
                free_from[array] = max(end, begin + 1)
                break
        else:
            arrays[number] = len(free_from)
            free_from.append(max(end, begin + 1))
    return arrays


def peak_live_planes(plan: KernelPlan) -> int:
    """How many planes are in registers at once."""
    segments = range(len(plan.steps[0].segments))
    return max(1, *(1 + max(assign_arrays(plan, s).values(), default=0) for s in segments))
