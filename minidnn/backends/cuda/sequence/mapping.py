"""How a plan's work is spread over blocks and threads.

A block computes one task (a patch, or a column of patches) of a *group* of channels of one image.
In a *planar* mapping (NCHW) neighbouring threads compute neighbouring pixels; in others (channels
last) they compute neighbouring channels, a *pack* of them each.  A thread's share of a step is a
*tile* of positions, which share the loads of their windows.

Tiles are chosen by the shared memory accesses that a position costs, each of 32 elements: the taps
that a tile loads, times the bank conflicts between threads of a warp.  The buffers of a patch are
in the shared memory of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, gcd

from minidnn.graph.types import ITEMSIZE
from minidnn.graph.window import Axis, Window

from ....fusion.plan import Binding, KernelPlan, PlanStep
from ...codegen.taps import is_looped
from ..machine import Machine
from ..tensor import Tensor
from .grid import SMALL_PLANE

WARP = 32
SECTOR_BYTES = 32
"""The granularity of global memory accesses, in bytes."""

LINE_BYTES = 128
TILE_ROWS = 4
"""Rows of a channels-last tile whose neighbouring outputs share rows of taps."""

THREADS_OF_COPIED_SUM, ROWS_OF_COPIED_SUM = 256, 11
"""Threads of a block that stages a patch and sums over it, and rows of a thread's tile: eight such
blocks fill a multiprocessor, and tall tiles read few rows twice (33 rows of 131: 0.87 of a copy's
rate, with tiles of four rows 0.85, and then with 128 threads 0.75)."""

PACK_OF_SUMS = 4
"""Channels that a thread sums at once, in float32: few enough that registers are left for
neighbouring outputs, which share conversions and sums of rows."""

MEMORY_CYCLES, BARRIER_CYCLES = 600, 150
"""How long a round of items waits: for global memory, or at the barrier after a step."""

MOST_THREADS = 512
"""The most threads that :func:`choose_mapping` gives a block."""


@dataclass(frozen=True, slots=True)
class ThreadTile:
    """The positions of a step that one thread computes together."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """How a plan is spread over blocks and threads: all that the plan leaves open."""

    planar: bool
    #: Channels of a block, and of a thread.
    group: int
    pack: int
    threads: int
    #: A thread's tile in each step.
    tiles: tuple[ThreadTile, ...]
    #: The patch's buffers in shared memory.
    places: SharedBuffers


def choose_mapping(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], machine: Machine
) -> Mapping:
    """Returns the mapping of a plan on tensors in their layouts: inputs, then outputs."""
    planar = _is_planar(plan, binding, tensors)
    limit = machine.shared_bytes
    pack = 1 if planar else pack_of(binding, tensors)
    stored = (ITEMSIZE[plane.dtype] for plane in plan.planes if plane.buffer is not None)
    pack = min(pack, 16 // max(stored, default=1))
    if any(map(_adds_overlapping, plan.steps)):
        pack = min(pack, PACK_OF_SUMS)
    by_units = tensors if planar and len(plan.steps) == 1 == len(plan.patches(1)) else ()
    tiles = [_tile(plan, step, planar, pack, by_units) for step in plan.steps]
    positions = max(_items(step, tile, plan) for step, tile in zip(plan.steps, tiles, strict=True))
    sizes = [end - begin for begin, end in binding.segments]
    channels = max(sizes)
    group = 1
    if not planar:
        itemsize = min(t.itemsize for t in tensors)
        least = max(pack, SECTOR_BYTES // itemsize)
        group = min(_ceil(channels, pack), _channel_group(sizes, positions, pack, itemsize))
        tasks = binding.batch * len(plan.tasks()) * len(plan.patches(1)) * channels
        while (
            group % (2 * pack) == 0
            and group // 2 >= least
            and tasks // group < machine.enough_blocks
        ):
            group //= 2
    while planar and group < channels and positions * group < 2 * WARP:
        group *= 2
    if by_units and tiles[0].columns > 2:
        group = _fullest(group, positions, binding, machine)
    while True:
        places = place_buffers(plan, group, planar)
        if places.bytes <= limit or group <= pack:
            break
        group = max(pack, _ceil(group // 2, pack))
    items = [_items(s, t, plan) * group // pack for s, t in zip(plan.steps, tiles, strict=True)]
    costs = [_instructions(s, t) * pack for s, t in zip(plan.steps, tiles, strict=True)]
    waits = [MEMORY_CYCLES if _touches_memory(plan, s) else BARRIER_CYCLES for s in plan.steps]
    # Without barriers: as few threads as compute all items in the fewest rounds.
    rounds = ceil(items[0] / MOST_THREADS)
    threads = max(WARP, _ceil(ceil(items[0] / rounds), WARP))
    if len(items) > 1:
        room = limit // max(1, places.bytes)
        threads = _threads(list(zip(items, costs, waits, strict=True)), room)
    if planar and _sums_what_it_copies(plan):
        threads = THREADS_OF_COPIED_SUM
    return Mapping(planar, group, pack, threads, tuple(tiles), places)


def _is_planar(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> bool:
    """Whether most of the elements that are moved belong to NCHW tensors, where pixels are
    adjacent."""
    weights = [0, 0]
    for slot, tensor in zip(binding.slots, tensors, strict=True):
        if tensor.rows * tensor.columns == 1 or tensor.channels == 1:
            continue
        weights[tensor.is_planar] += slot.value.type.size
    if weights == [0, 0]:
        return plan.anchor != (1, 1)
    return weights[1] >= weights[0]


def unit_of(t: Tensor) -> int:
    """Returns the vector width of row accesses to a planar tensor, in elements, at most 16 bytes.

    Offset, strides and row length are multiples of it, so that a vector is in the plane as a whole,
    or not at all.
    """
    if t.pixel != 1:
        return 1
    return gcd(16 // t.itemsize, t.offset, t.image, t.channel, t.row, t.columns)


def reads_units(plan: KernelPlan, tensors: Sequence[Tensor]) -> bool:
    """Whether a lone window can read and write its rows by vectors of at least four elements.

    Then each thread reads and writes vectors of a few rows, and the edges of its neighbours come
    from the cache, which is less work than staging in shared memory.  Small planes of float16 and
    bfloat16 are better kept in registers, as vector accesses convert each element several times:
    over 56 x 56 and 28 x 28 registers reach 0.97 or 0.98 of a copy's rate, vectors 0.80 to 0.94.
    """
    if len(plan.steps) != 1 or len(plan.patches(0)) * len(plan.patches(1)) > 1:
        return False
    if any(t.itemsize == 2 for t in tensors) and plan.anchor[0] * plan.anchor[1] <= SMALL_PLANE:
        return False
    windows = [o.window for s in plan.steps[0].segments for o in s if o.window is not None]
    return bool(windows) and all(_columns_of(w, tensors) >= 4 and not is_looped(w) for w in windows)


def _columns_of(window: Window | None, tensors: Sequence[Tensor]) -> int:
    """Columns of a tile that reads and writes vectors: a whole vector, if neighbouring outputs
    share most of their columns, else what one 32-bit register holds."""
    unit = min(map(unit_of, tensors))
    if window is not None and window.columns.stride == 1:
        return unit
    return min(unit, 4 // max(t.itemsize for t in tensors))


def skips(plan: KernelPlan) -> bool:
    """Whether neighbouring outputs of a window share taps though its stride is greater than 1."""
    windows = [o.window for t in plan.steps for s in t.segments for o in s if o.window is not None]
    return any(1 < axis.stride < axis.kernel for w in windows for axis in w.axes)


def _adds_overlapping(step: PlanStep) -> bool:
    """Whether a step has a sum window whose neighbouring outputs share taps along both axes."""
    windows = [o.window for s in step.segments for o in s if o.window is not None]
    sums = (w for w in windows if w.is_plain and not w.combiner.chooses)
    return any(all(map(moves_by_one, w.axes)) for w in sums)


def _sums_what_it_copies(plan: KernelPlan) -> bool:
    """Whether a plan consists of a step without windows, and of a sum window whose neighbouring
    outputs share taps."""
    if len(plan.steps) != 2 or not _adds_overlapping(plan.steps[1]):
        return False
    return all(o.window is None for o in plan.steps[0].operations)


def pack_of(binding: Binding, tensors: Sequence[Tensor]) -> int:
    """Returns the channels that every access of a thread can move at once, at most eight: more
    would take too many registers as float32."""
    common = min(8, 16 // min(tensor.itemsize for tensor in tensors))
    for begin, end in binding.segments:
        common = gcd(common, gcd(begin, end))
    for slot, tensor in zip(binding.slots, tensors, strict=True):
        if tensor.channels > 1 and tensor.channel != 1:
            return 1
        common = gcd(common, slot.channel)
        for stride in (tensor.offset, tensor.image, tensor.row, tensor.pixel):
            common = gcd(common, stride)
        while common * tensor.itemsize > 16:
            common //= 2
    return max(1, common)


def _channel_group(sizes: Sequence[int], positions: int, pack: int, itemsize: int) -> int:
    """Returns the channels of a block whose threads take packs, for segments of ``sizes`` channels:
    enough for wide accesses and full blocks and, of such groups, the one that leaves the fewest
    channels of blocks unused."""
    sector = max(pack, SECTOR_BYTES // itemsize)
    least = max(LINE_BYTES // itemsize, _ceil(128 * pack // positions, pack))

    def computed(group: int) -> int:
        return sum(_ceil(size, group) for size in sizes)

    return min(range(max(pack, least), 2 * least, sector), key=computed)


def _fullest(group: int, positions: int, binding: Binding, machine: Machine) -> int:
    """Returns the channels of a block whose last warp is hardly idle, if there are enough such
    blocks."""
    counts, channels = [group], [end - begin for begin, end in binding.segments]
    while positions * 2 * group <= MOST_THREADS and gcd(*channels) % (2 * group) == 0:
        group *= 2
        if binding.batch * sum(channels) // group >= machine.enough_blocks:
            counts.append(group)

    def padding_ratio(count: int) -> float:
        return _ceil(positions * count, WARP) / (positions * count)

    return min(counts, key=lambda count: (round(padding_ratio(count), 1), count))


def _instructions(step: PlanStep, tile: ThreadTile) -> int:
    """Estimates the instructions that a tile takes for one channel."""
    instructions = 0
    windows = {o.window for s in step.segments for o in s if o.window is not None}
    for window in sorted(windows, key=repr):
        down, across = window.axes
        rows = _taken(down.kernel, down.stride, down.dilation, tile.rows)
        instructions += (
            2 * rows * _taken(across.kernel, across.stride, across.dilation, tile.columns)
        )
    return 20 + instructions + 6 * tile.rows * tile.columns


def _threads(steps: Sequence[tuple[int, int, int]], most_blocks: int) -> int:
    """Returns the threads of a block, from each step's items, the instructions of one item, and the
    cycles for which each round of items waits.

    A multiprocessor issues four warp instructions a cycle; a warp by itself waits about three
    cycles for each of its own.  While one block waits, others run, at most ``most_blocks`` of them.
    """
    best: tuple[float, int] | None = None
    for threads in range(WARP, MOST_THREADS + 1, WARP):
        room = min(32, 2048 // threads, 65536 // (threads * 56), most_blocks)
        issued = waited = 0.0
        for items, instructions, wait in steps:
            issued += ceil(items / WARP) * instructions / 4
            waited += ceil(items / threads) * (instructions * 3 + wait)
        cost = max(issued, waited / max(1, room))
        if best is None or cost < best[0] * 0.98:
            best = (cost, threads)
    assert best is not None
    return best[1]


def _items(step: PlanStep, tile: ThreadTile, plan: KernelPlan) -> int:
    """The tiles of a step, which are spread over threads."""
    rows, columns = extent_of(step, plan)
    return ceil(rows / tile.rows) * ceil(columns / tile.columns)


def extent_of(step: PlanStep, plan: KernelPlan) -> tuple[int, int]:
    """Returns the most rows and columns that a step computes at once."""
    rows = min(step.rows.size, step.rows.span(plan.schedule.rows))
    return rows, step.columns.span(plan.schedule.columns)


def _tile(
    plan: KernelPlan, step: PlanStep, planar: bool, pack: int, by_units: Sequence[Tensor]
) -> ThreadTile:
    """Returns the tile of a step; ``by_units``: the tensors, if vectors may move their rows."""
    rows, columns = extent_of(step, plan)
    windows = [o.window for s in step.segments for o in s if o.window is not None]
    if any(is_looped(w) for w in windows):
        return ThreadTile(1, 1)
    window = windows[0] if windows else None
    if not planar:
        return ThreadTile(1, 1) if window is None else _tile_of_packs(window, rows, columns, pack)
    if _touches_memory(plan, step) or window is None:
        # Neighbouring threads must access neighbouring elements.
        across = _columns_of(window, by_units) if by_units else 1
        # A warp's vectors are whole rows one below the other, with few rows between them.
        down = 2 if across > 2 else 4
        if window is not None and across == 2 and window.rows.kernel <= window.rows.stride:
            down = 2
        if window is not None and _sums_what_it_copies(plan):
            down = ceil(rows / ceil(rows / ROWS_OF_COPIED_SUM))
        return ThreadTile(min(down, rows), across)
    return _best_tile(window, rows, columns)


def _tile_of_packs(window: Window, rows: int, columns: int, pack: int) -> ThreadTile:
    """Returns the tile of a channels-last step, of which each position takes ``pack`` registers."""
    down, across = map(moves_by_one, window.axes)
    if down:
        return ThreadTile(min(TILE_ROWS, rows), min(2 if across or pack <= 4 else 1, columns))
    return ThreadTile(min(2, rows), min(2 if pack <= 4 else 1, columns))


def moves_by_one(axis: Axis) -> bool:
    """Whether neighbouring outputs share most of their taps along an axis."""
    return axis.stride == 1 < axis.kernel


def _touches_memory(plan: KernelPlan, step: PlanStep) -> bool:
    """Whether a step reads inputs or writes outputs, which are in global memory."""
    numbers = {n for s in step.segments for o in s for n in (*o.operands, o.result)}
    return any(
        plan.planes[n].input is not None or plan.planes[n].output is not None for n in numbers
    )


@cache
def _best_tile(window: Window, rows: int, columns: int) -> ThreadTile:
    """Returns the tile of a window between buffers that costs least."""
    best: tuple[float, ThreadTile] | None = None
    for down in range(1, min(8, rows) + 1):
        for across in range(1, min(7, columns) + 1):
            cost = _cost(window, rows, columns, down, across)
            if best is None or cost < best[0]:
                best = (cost, ThreadTile(down, across))
    assert best is not None
    return best[1]


def _cost(window: Window, rows: int, columns: int, down: int, across: int) -> float:
    """Estimates the shared memory accesses of a position, with the share of idle threads."""
    vertical, horizontal = window.whole
    loads = _taken(vertical.kernel, vertical.stride, vertical.dilation, down)
    loads *= _taken(horizontal.kernel, horizontal.stride, horizontal.dilation, across)
    if loads > 96:
        return float("inf")
    wide, high = ceil(columns / across), ceil(rows / down)
    pitch = columns * horizontal.stride
    read = _conflicts(wide, wide * high, across * horizontal.stride, down * vertical.stride * pitch)
    write = _conflicts(wide, wide * high, across, down * columns)
    items = wide * high
    waste = _ceil(items, WARP) / items * (items * down * across) / (rows * columns)
    return (loads * read / (down * across) + write + 1.5) * waste


def _taken(kernel: int, stride: Fraction | int, dilation: int, outputs: int) -> int:
    """How many positions along an axis the windows of neighbouring outputs read together."""
    return len({o * stride + t * dilation for o in range(outputs) for t in range(kernel)})


@cache
def _conflicts(wide: int, items: int, across: int, down: int) -> float:
    """How often a warp's access is repeated because of bank conflicts, in the worst of the first
    four warps."""
    worst = 0
    for first in range(0, min(items, 4 * WARP), WARP):
        banks: dict[int, set[int]] = {}
        for item in range(first, min(first + WARP, items)):
            address = item % wide * across + item // wide * down
            banks.setdefault(address % WARP, set()).add(address)
        worst = max(worst, *(len(addresses) for addresses in banks.values()))
    return float(worst)


def _ceil(number: int, unit: int) -> int:
    """Rounds a number up to a multiple of ``unit``."""
    return -(-number // unit) * unit


ALIGNMENT = 16
"""The alignment of buffers in shared memory, in bytes."""


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A buffer in shared memory: its offset and size in bytes, and its strides in elements."""

    offset: int
    dtype: str
    #: Strides from one row, column and channel to the next.
    row: int
    column: int
    channel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """The buffers of a plan, by storage, and the bytes of shared memory that they take."""

    of: dict[int, SharedBuffer]
    bytes: int


def place_buffers(plan: KernelPlan, group: int, planar: bool) -> SharedBuffers:
    """Assigns offsets in shared memory to the buffers of ``group`` channels a block.

    Storages whose lifetimes do not overlap share memory, unless patches keep rows from one to the
    next.
    """
    buffers: dict[int, SharedBuffer] = {}
    spans = _lifetimes(plan)
    order = sorted(spans, key=lambda storage: (spans[storage], storage))
    total = 0
    for storage in order:
        buffer, dtype = next(
            (p.buffer, p.dtype)
            for p in plan.planes
            if p.buffer is not None and p.buffer.storage == storage
        )
        assert buffer is not None
        if planar:
            row = buffer.columns
            column, channel = 1, row * buffer.rows
            size = channel * group
        else:
            row, column, channel = buffer.columns * group, group, 1
            size = row * buffer.rows
        size_bytes = -(-size * ITEMSIZE[dtype] // ALIGNMENT) * ALIGNMENT
        begin, _ = spans[storage]
        live = [p for other, p in buffers.items() if spans[other][1] >= begin]
        offset = _first_gap(live, size_bytes)
        buffers[storage] = SharedBuffer(offset, dtype, row, column, channel, size_bytes)
        total = max(total, offset + size_bytes)
    return SharedBuffers(buffers, total)


def _first_gap(near: list[SharedBuffer], size: int) -> int:
    """Returns the lowest offset at which ``size`` bytes fit between the buffers in ``near``."""
    offset = 0
    for buffer in sorted(near, key=lambda buffer: buffer.offset):
        if buffer.offset - offset >= size:
            break
        offset = max(offset, buffer.offset + buffer.bytes)
    return offset


def _lifetimes(plan: KernelPlan) -> dict[int, tuple[int, int]]:
    """Returns for each storage the first and the last step that touch it; all steps, if rows are
    kept from patch to patch."""
    spans: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(plan.steps):
        for operation in step.operations:
            for number in (operation.result, *operation.operands):
                buffer = plan.planes[number].buffer
                if buffer is not None:
                    first, _ = spans.get(buffer.storage, (i, i))
                    spans[buffer.storage] = (first, i)
    if plan.schedule.strips > 1:
        return dict.fromkeys(spans, (0, len(plan.steps)))
    return spans
