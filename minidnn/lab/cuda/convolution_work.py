"""The memory accesses and the arithmetic of the convolution ladder's steps.

Each function returns the :class:`Work` of a launch.  Addresses are computed for a sample of the
blocks, and each sampled block stands for several of the grid.  The later steps are matrix products
(implicit GEMM): filters are the M axis, output positions of all images the N axis, and channels by
taps the K axis.  The im2col matrix is either written to memory first, or gathered from the images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..access import (
    FMA_CYCLES,
    L1_CYCLES,
    L2_CYCLES,
    SHARED_CYCLES,
    WARP,
    Access,
    Work,
    lanes,
    sample,
    turns,
    uniform,
)
from ..operands import ConvolutionShape
from ..step import Block, Parameters
from .product import VECTOR_COPIED, cycles_alone, fragments, tensor_products, warp_patch, warp_sums

_TILES, _PLANES = 36, 8
"""How many tiles and planes of the image are sampled.  Eight planes are enough: every eighth begins
at the same offset in a sector."""
_COPY_INSTRUCTIONS, _CHANNEL_INSTRUCTIONS = 25, 30
"""Instructions to copy one float to shared memory, with its address and bounds checks, and
instructions of the loop over channels, with its two barriers."""


Instructions = tuple[int, int, int]
"""Instructions of a loop nest that is not unrolled, for each product, each window row and each
channel: loads, multiply-add, addresses, comparisons, and the loop counters."""


def a_product(shape: ConvolutionShape, instructions: Instructions) -> float:
    """Instructions for each product, those of window rows and of channels amortized."""
    product, row, channel = instructions
    return product + row / shape.window_width + channel / shape.taps


def _load_width(group: int, before: int) -> int:
    """The width of the vector loads that the compiler makes of neighbouring weights: the widest
    to which both the group and the weights' offset, behind the input tile, are aligned."""
    return next(width for width in (4, 2, 1) if group % width == before % width == 0)


def _tap_reads(shape: ConvolutionShape, tile_width: int, paired: bool) -> dict[int, list[int]]:
    """The taps of a window by the width of the load that reads them: two neighbours at once where
    the compiler knows that the pair is aligned, as with an even stride."""
    taps_by_width: dict[int, list[int]] = {}
    for i in range(shape.window_height):
        j = 0
        while j < shape.window_width:
            pair = paired and shape.stride % 2 == 0 and shape.dilation == 1
            pair = pair and (i * tile_width + j) % 2 == 0 and j + 1 < shape.window_width
            taps_by_width.setdefault(1 + pair, []).append(i * shape.window_width + j)
            j += 1 + pair
    return taps_by_width


@dataclass(frozen=True, eq=False)
class _Threads:
    """The output row and column of each thread of the sampled blocks, (blocks, warps, 32); the row
    is -1 where a thread computes nothing.  ``share``: blocks that each sampled one stands for."""

    row: np.ndarray
    column: np.ndarray
    share: float

    @property
    def warps(self) -> int:
        return self.row.shape[1]


def _in_tiles(shape: ConvolutionShape, block: Block, positions: int = 1) -> _Threads:
    """Threads of blocks that cover 2-D tiles.  A thread's positions are a block's width apart, and
    each has its own instructions."""
    outputs = (block[0] * positions, block[1])
    across, down = shape.tiles(outputs)
    tiles = sample(across * down, _TILES)[:, None, None, None]
    thread, position = lanes(block[0] * block[1]), np.arange(positions)[:, None, None]
    row = tiles // across * outputs[1] + thread // block[0] + 0 * position
    column = tiles % across * outputs[0] + thread % block[0] + position * block[0]
    inside = (thread >= 0) & (row < shape.out_height) & (column < shape.out_width)
    flat = (len(tiles), -1, 32)
    row, column = np.where(inside, row, -1).reshape(flat), column.reshape(flat)
    return _Threads(row, column, across * down / len(tiles))


def _in_order(shape: ConvolutionShape, block: Block) -> _Threads:
    positions, threads = shape.out_height * shape.out_width, block[0] * block[1]
    blocks = -(-positions // threads)
    sampled = sample(blocks, _TILES)[:, None, None]
    thread = lanes(threads)
    position = sampled * threads + thread
    inside = (thread >= 0) & (position < positions)
    row = np.where(inside, position // shape.out_width, -1)
    return _Threads(row, position % shape.out_width, blocks / len(sampled))


def _image(
    shape: ConvolutionShape, row: np.ndarray, column: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, float]:
    """The image's indices at these rows and columns, (blocks, instructions, 32), in the first
    planes; and how many planes of the batch each of those stands for."""
    planes = shape.batch * shape.channels
    plane = np.arange(min(planes, _PLANES)).reshape(1, -1, 1, 1)
    inside = active & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    at = (plane * shape.height + row[:, None]) * shape.width + column[:, None]
    at = np.where(inside[:, None], at, -1)
    return at.reshape(len(row), -1, row.shape[-1]), planes / plane.size


def _result(shape: ConvolutionShape, threads: _Threads, times: float) -> Access:
    """The stores of the result: each output once."""
    at = threads.row * shape.out_width + threads.column
    at = np.where(threads.row >= 0, at, -1)
    planes = np.arange(min(shape.filters, _PLANES)).reshape(1, -1, 1, 1)
    size = shape.out_height * shape.out_width
    at = np.where(at[:, None] >= 0, at[:, None] + planes * size, -1)
    times *= shape.batch * shape.filters / planes.size
    return Access("y", "global", at.reshape(len(at), -1, 32), times, store=True)


def direct(
    shape: ConvolutionShape,
    block: Block,
    parameters: Parameters,
    *,
    instructions: Instructions,
    in_order: bool = False,
    constant: bool = False,
    images_in_turn: bool = False,
    padded: bool = False,
) -> Work:
    """Returns the work of a step whose products load both operands from memory.

    ``in_order``: threads follow each other in flat output positions instead of 2-D tiles.
    ``constant``: weights are in constant memory.  ``images_in_turn``: a thread loops over images.
    ``padded``: products with padding are computed, too.
    """
    threads = (_in_order if in_order else _in_tiles)(shape, block)
    i, j = np.divmod(np.arange(shape.taps), shape.window_width)
    row = threads.row[:, None] * shape.stride - shape.padding
    row = row + i.reshape(1, -1, 1, 1) * shape.dilation
    column = threads.column[:, None] * shape.stride - shape.padding
    column = column + j.reshape(1, -1, 1, 1) * shape.dilation
    active = np.broadcast_to(threads.row[:, None] >= 0, row.shape)
    flat = (len(row), -1, 32)
    at, planes = _image(shape, row.reshape(flat), column.reshape(flat), active.reshape(flat))
    x = Access("x", "global", at, threads.share * planes * shape.filters)
    weight = np.arange(at.shape[1]) // threads.warps % (shape.channels * shape.taps)
    computed = at >= 0
    if padded:
        active_flat = active.reshape(flat)[:, None]
        shape_of_all = (len(at), at.shape[1] // active_flat.shape[2], *active_flat.shape[2:])
        computed = np.broadcast_to(active_flat, shape_of_all).reshape(at.shape)
    weights = np.where(computed, weight[:, None], -1)
    w = Access("w", "constant" if constant else "global", weights, x.times)
    products = shape.channels * shape.taps * (shape.batch if images_in_turn else 1)
    instructions_each = a_product(shape, instructions)
    # A channel's first number of the image, and each eighth weight, come from L2.
    missed = L2_CYCLES * (1 / shape.taps + 1 / 8)
    return Work(
        (x, w, _result(shape, threads, threads.share)),
        w.requests,
        w.requests * instructions_each,
        products * (L1_CYCLES + FMA_CYCLES * instructions_each + missed),
        ("x",) if images_in_turn else (),
    )


def halo_float16(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Returns the work of a step like :func:`halo`, with all operands in float16."""
    work = halo(shape, block, parameters, width=4)
    accesses = [replace(one, bytes=2 if one.space == "global" else 4) for one in work.accesses]
    return replace(work, accesses=tuple(accesses))


def halo(
    shape: ConvolutionShape,
    block: Block,
    parameters: Parameters,
    *,
    instructions: Instructions | None = None,
    width: int = 1,
) -> Work:
    """Returns the work of a step that copies input tiles with their halo to shared memory.

    ``instructions``: those of its loops; None where the window is unrolled, so that only loads and
    multiply-adds are left.  ``width``: weights that a load reads.
    """
    group = parameters.get("GROUP", 1)
    groups = -(-shape.filters // group)
    count = block[0] * block[1]
    positions = parameters.get("POSITIONS", 1)
    outputs = (block[0] * positions, block[1])
    threads = _in_tiles(shape, block, positions)
    tile_width, tile_height = shape.halo(outputs)
    across, down = shape.tiles(outputs)
    tiles = sample(across * down, _TILES)[:, None, None]
    element = turns(count, tile_width * tile_height)
    row = tiles // across * outputs[1] * shape.stride - shape.padding + element // tile_width
    column = tiles % across * outputs[0] * shape.stride - shape.padding + element % tile_width
    active = np.broadcast_to(element >= 0, row.shape)
    at, planes = _image(shape, row, column, active)
    x = Access("x", "global", at, threads.share * planes * groups)
    blocks = len(tiles) * threads.share * groups * shape.batch
    channels = blocks * shape.channels
    thread = lanes(count)
    tap_reads = []
    for wide, taps_of in _tap_reads(shape, tile_width, paired=instructions is None).items():
        i, j = np.divmod(np.repeat(taps_of, positions), shape.window_width)
        i, j = i.reshape(-1, 1, 1), j.reshape(-1, 1, 1)
        position = np.tile(np.arange(positions), len(taps_of)).reshape(-1, 1, 1)
        row = thread // block[0] * shape.stride + i * shape.dilation
        column = (thread % block[0] + position * block[0]) * shape.stride + j * shape.dilation
        index = np.where(thread >= 0, row * tile_width + column, -1).reshape(1, -1, 32)
        tap_reads.append(Access("x", "shared", index, channels, width=wide))
    accesses = [
        x,
        Access("x", "shared", element[None], channels, store=True),
        *tap_reads,
        _result(shape, threads, threads.share),
    ]
    copied = float((element >= 0).any(-1).sum())
    if "GROUP" in parameters:
        width = max(width, _load_width(group, tile_width * tile_height))
        offsets = range(0, shape.taps * group, width)
        element = turns(count, shape.taps * group)
        sampled = sample(groups, _PLANES)
        filter = sampled.reshape(-1, 1, 1) * group + element % group
        index = filter * shape.channels * shape.taps + element // group
        index = np.where((element >= 0) & (filter < shape.filters), index, -1)
        accesses += [
            Access("w", "global", index, channels / len(sampled)),
            Access("w", "shared", element[None], channels, store=True),
            Access("w", "shared", uniform(offsets, count), channels, width=width),
        ]
        copied += float((element >= 0).any(-1).sum())
    else:
        at = uniform(range(min(shape.channels, _PLANES) * shape.taps), count)
        times = channels / min(shape.channels, _PLANES)
        accesses.append(Access("w", "global", at, times))
    taps = channels * len(thread) * shape.taps
    a_tap = (
        a_product(shape, instructions) if instructions else group * positions + -(-group // width)
    )
    read = 0.0 if instructions else sum(one.requests for one in tap_reads)
    wait = SHARED_CYCLES + FMA_CYCLES if instructions else max(FMA_CYCLES, group * positions)
    return Work(
        tuple(accesses),
        taps * group * positions,
        taps * a_tap
        + read
        + channels * (copied * _COPY_INSTRUCTIONS + len(thread) * _CHANNEL_INSTRUCTIONS),
        shape.channels * (L2_CYCLES + 2 * SHARED_CYCLES + shape.taps * wait),
        repeats=shape.channels,
    )


TILES, DEPTHS = 36, 8
"""How many N tiles, and steps along K, are sampled."""
_WEIGHT_INSTRUCTIONS, GATHER_INSTRUCTIONS = 4, 12
"""Instructions to copy one weight, or one gathered pixel, to shared memory: address, bounds checks,
load and store."""
_UNFOLD_INSTRUCTIONS = 40
"""Instructions for one element of the im2col matrix: divisions, bounds checks, load and store."""


def implicit(
    shape: ConvolutionShape, block: Block, parameters: Parameters, *, unfolded: bool = False
) -> Work:
    """Returns the work of an implicit GEMM with 8 filters by 8 positions a thread.

    Tiles are double-buffered, or a ring of STAGES; the threads of a warp cover a patch of the tile.
    ``unfolded``: the second operand is the im2col matrix in the scratch array "matrix".
    """
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    plane = shape.out_height * shape.out_width
    positions, depth = shape.batch * plane, shape.terms
    across, down, steps = -(-positions // columns), -(-shape.filters // rows), -(-depth // deep)
    sampled, first = sample(across, TILES), sample(steps, DEPTHS) * deep
    share, blocks = across * down / len(sampled), across * down
    steps_each = steps / len(first)
    thread = lanes(count)

    element = turns(count, rows * deep)
    tops = sample(down, DEPTHS).reshape(-1, 1, 1, 1) * rows
    filter, k = tops + element // deep, first.reshape(1, -1, 1, 1) + element % deep
    active = (element >= 0) & (filter < shape.filters) & (k < depth)
    at = np.where(active, filter * depth + k, -1).reshape(len(tops), -1, 32)
    w = Access("w", "global", at, blocks / len(tops) * steps_each)
    shared_index = np.where(element >= 0, element % deep * (rows + 4) + element // deep, -1)
    to_w = Access("w", "shared", shared_index[None], blocks * steps, store=True)

    each = deep // (block[1] // 8)
    k_offset = thread // columns * each + np.arange(each).reshape(-1, 1, 1)
    if unfolded:
        at, name = _in_matrix(shape, sampled, columns, thread, first, k_offset), "matrix"
    else:
        at, name = gathered(shape, sampled, columns, thread, first, k_offset), "x"
    x = Access(name, "global", at, share * steps_each)
    shared_index = np.where(thread >= 0, k_offset * columns + thread % columns, -1).reshape(
        1, -1, 32
    )
    to_x = Access("x", "shared", shared_index, blocks * steps, store=True)

    i, j = warp_patch(thread, block)
    along, half = np.arange(deep).reshape(-1, 1, 1, 1), np.arange(2).reshape(-1, 1, 1)
    reads = [
        Access(
            name,
            "shared",
            np.where(thread >= 0, at, -1).reshape(1, -1, 32),
            blocks * steps,
            width=4,
        )
        for name, at in (
            ("w", along * (rows + 4) + (i + half * block[1]) * 4),
            ("x", along * columns + (j + half * block[0]) * 4),
        )
    ]
    stores = _stores(shape, sampled * columns, block, (i, j), thread, share)
    products = blocks * steps * len(thread) * deep * 64
    fetched = (
        steps
        * blocks
        * (
            len(element) * _WEIGHT_INSTRUCTIONS
            + len(thread) * each * (_WEIGHT_INSTRUCTIONS if unfolded else GATHER_INSTRUCTIONS)
        )
    )
    # The tiles that are being loaded while one is multiplied.
    ahead = parameters.get("STAGES", 2) - 1
    alone = L2_CYCLES + steps * (SHARED_CYCLES + max(L2_CYCLES / ahead, 64 * deep))
    return Work(
        (w, to_w, x, to_x, *reads, stores),
        products,
        products + sum(one.requests for one in reads) + fetched,
        alone,
        repeats=steps,
    )


def unfold(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Returns the work of the im2col kernel: a thread writes one element."""
    threads, positions = block[0] * block[1], shape.batch * shape.out_height * shape.out_width
    across = -(-positions // threads)
    sampled, first = sample(across, TILES), sample(shape.terms, DEPTHS * shape.taps)
    share = across * shape.terms / (len(sampled) * len(first))
    elements = (shape, sampled, threads, lanes(threads), first, np.zeros((1, 1, 1), int))
    x = Access("x", "global", gathered(*elements), share)
    matrix = Access("matrix", "global", _in_matrix(*elements), share, store=True)
    return Work((x, matrix), 0.0, matrix.requests * _UNFOLD_INSTRUCTIONS, L2_CYCLES)


def _in_matrix(
    shape: ConvolutionShape,
    sampled: np.ndarray,
    columns: int,
    thread: np.ndarray,
    first: np.ndarray,
    k_offset: np.ndarray,
) -> np.ndarray:
    """Indices into the im2col matrix that the threads of N tiles load, as :func:`gathered`."""
    positions = shape.batch * shape.out_height * shape.out_width
    position = sampled.reshape(-1, 1, 1, 1, 1) * columns + thread % columns
    k = first.reshape(1, -1, 1, 1, 1) + k_offset
    active = (thread >= 0) & (position < positions) & (k < shape.terms)
    return np.where(active, k * positions + position, -1).reshape(len(sampled), -1, 32)


def gathered(
    shape: ConvolutionShape,
    chosen: np.ndarray,
    columns: int,
    number: np.ndarray,
    first: np.ndarray,
    own: np.ndarray,
) -> np.ndarray:
    """Indices into the images that the threads of N tiles load; -1 for padding.

    ``chosen``: the sampled tiles, of ``columns`` positions each.  ``number``: threads by warp and
    lane.  ``first``: where the sampled steps begin along K.  ``own``: the offsets along K of the
    elements that a thread loads.
    """
    plane = shape.out_height * shape.out_width
    position = chosen.reshape(-1, 1, 1, 1, 1) * columns + number % columns
    channel, tap = np.divmod(first.reshape(1, -1, 1, 1, 1) + own, shape.taps)
    image, inner = np.divmod(position, plane)
    row = inner // shape.out_width * shape.stride - shape.padding
    row = row + tap // shape.window_width * shape.dilation
    column = inner % shape.out_width * shape.stride - shape.padding
    column = column + tap % shape.window_width * shape.dilation
    active = (number >= 0) & (image < shape.batch) & (channel < shape.channels)
    active = active & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    at = ((image * shape.channels + channel) * shape.height + row) * shape.width + column
    return np.where(active, at, -1).reshape(len(chosen), -1, 32)


def _stores(
    shape: ConvolutionShape,
    first_position: np.ndarray,
    block: Block,
    patch: tuple[np.ndarray, np.ndarray],
    thread: np.ndarray,
    share: float,
) -> Access:
    """The stores of the result: vectors of four where four positions share an image."""
    i, j = patch
    plane = shape.out_height * shape.out_width
    width = 4 if plane % 4 == 0 else 1
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(0, 8, width).reshape(-1, 1, 1)
    filter = (i + r // 4 * block[1]) * 4 + r % 4
    position = first_position.reshape(-1, 1, 1, 1, 1) + (j + c // 4 * block[0]) * 4 + c % 4
    active = (thread >= 0) & (filter < shape.filters) & (position < shape.batch * plane)
    at = (position // plane * shape.filters + filter) * plane + position % plane
    at = np.where(active, at, -1).reshape(len(first_position), -1, 32)
    # The first M tile stands for all.
    held = min(shape.filters, 8 * block[1])
    down = -(-shape.filters // (8 * block[1]))
    return Access("y", "global", at, share * shape.filters / (held * down), store=True, width=width)


def tensor(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Returns the work of an implicit GEMM on tensor cores: double-buffered tiles in float16, and a
    warp tile of 64 filters by 32 positions."""
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    plane, depth = shape.out_height * shape.out_width, shape.terms
    positions = shape.batch * plane
    across, down, steps = -(-positions // columns), -(-shape.filters // rows), -(-depth // deep)
    sampled, first = sample(across, TILES), sample(steps, DEPTHS) * deep
    blocks, stretch = across * down, steps / len(first)
    share = blocks / len(sampled)
    thread = lanes(count)

    width = 8 if depth % 8 == 0 else 1
    element = turns(count, rows * deep // 8)
    tops = sample(down, DEPTHS).reshape(-1, 1, 1, 1, 1) * rows
    filter = tops + element // (deep // 8)
    k = first.reshape(1, -1, 1, 1, 1) + element % (deep // 8) * 8
    k = k + np.arange(0, 8, width).reshape(-1, 1, 1)
    active = (element >= 0) & (filter < shape.filters) & (k < depth)
    at = np.where(active, filter * depth + k, -1).reshape(len(tops), -1, WARP)
    w = Access("w", "global", at, blocks / len(tops) * stretch, width=width, bytes=2)
    shared_index = element // (deep // 8) * (deep // 2 + 4) + element % (deep // 8) * 4
    shared_index = np.where(element >= 0, shared_index, -1)[None]
    to_w = Access("w", "shared", shared_index, blocks * steps, store=True, width=4)

    pairs = deep // 2 // (block[1] // 8)
    k_offset = thread // columns * pairs * 2 + np.arange(2 * pairs).reshape(-1, 1, 1)
    at = gathered(shape, sampled, columns, thread, first, k_offset)
    x = Access("x", "global", at, share * stretch, bytes=2)
    shared_index = k_offset[::2] // 2 * (columns + 8) + thread % columns
    shared_index = np.where(thread >= 0, shared_index, -1).reshape(1, -1, WARP)
    to_x = Access("x", "shared", shared_index, blocks * steps, store=True)

    reads = fragments(("w", "x"), block, deep, blocks * steps)
    products = tensor_products(block, deep, blocks * steps)
    fetched = len(element) * 8 / width * VECTOR_COPIED
    fetched += len(thread) * 2 * pairs * GATHER_INSTRUCTIONS
    return Work(
        (w, to_w, x, to_x, *reads, _tensor_stores(shape, sampled * columns, block, share)),
        0.0,
        products + sum(one.requests for one in reads) + blocks * steps * fetched,
        cycles_alone(steps, deep),
        (),
        products,
        steps,
    )


def _tensor_stores(
    shape: ConvolutionShape, first_position: np.ndarray, block: Block, share: float
) -> Access:
    """The stores of the result, element by element; the first M tile stands for all."""
    thread, plane = lanes(block[0] * block[1]), shape.out_height * shape.out_width
    row, column = warp_sums(thread, block)
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(8).reshape(-1, 1, 1)
    filter = row + 8 * r
    position = first_position.reshape(-1, 1, 1, 1, 1) + column + c // 2 * 8 + c % 2
    active = (thread >= 0) & (filter < shape.filters) & (position < shape.batch * plane)
    at = (position // plane * shape.filters + filter) * plane + position % plane
    at = np.where(active, at, -1).reshape(len(first_position), -1, WARP)
    held, down = min(shape.filters, 8 * block[1]), -(-shape.filters // (8 * block[1]))
    times = share * shape.filters / (held * down)
    return Access("y", "global", at, times, store=True, bytes=2)
