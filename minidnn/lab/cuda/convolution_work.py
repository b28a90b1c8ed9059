"""What the steps of the ladder of convolutions read, write and compute.

Some compute a matrix product whose second factor are the images unfolded: written before, or
gathered.
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
"""Tiles and planes of the image that are looked at; every eighth plane begins at the same place of
a sector."""
_COPY_INSTRUCTIONS, _CHANNEL_INSTRUCTIONS = 25, 30
"""Of one number copied to shared memory, with its place and its comparisons; and of a channel, with
its two barriers."""


Instructions = tuple[int, int, int]
"""Of a loop that is not written out: for each product, for each row of a window, and for each
channel: reads, multiply-add, addresses, comparisons, and the loops themselves."""


def a_product(shape: ConvolutionShape, instructions: Instructions) -> float:
    """Instructions of a product, those of rows and channels shared out."""
    product, row, channel = instructions
    return product + row / shape.window_width + channel / shape.taps


def _joined(group: int, before: int) -> int:
    """How many neighbouring weights the compiler reads as one vector: as many as their place
    behind the tile is a multiple of."""
    return next(width for width in (4, 2, 1) if group % width == before % width == 0)


def _tap_reads(shape: ConvolutionShape, tile_width: int, joined: bool) -> dict[int, list[int]]:
    """The taps of a window by how many neighbours are read at once: two where the compiler knows
    that they are aligned, as with an even stride."""
    found: dict[int, list[int]] = {}
    for i in range(shape.window_height):
        j = 0
        while j < shape.window_width:
            pair = joined and shape.stride % 2 == 0 and shape.dilation == 1
            pair = pair and (i * tile_width + j) % 2 == 0 and j + 1 < shape.window_width
            found.setdefault(1 + pair, []).append(i * shape.window_width + j)
            j += 1 + pair
    return found


@dataclass(frozen=True, eq=False)
class _Threads:
    """Where threads of some blocks are: (blocks, warps, 32), row -1 of those that compute nothing;
    and how many blocks there are for each of these."""

    row: np.ndarray
    column: np.ndarray
    share: float

    @property
    def warps(self) -> int:
        return self.row.shape[1]


def _in_tiles(shape: ConvolutionShape, block: Block, positions: int = 1) -> _Threads:
    """A thread's positions are a block apart, each of them instructions of its own."""
    outputs = (block[0] * positions, block[1])
    across, down = shape.tiles(outputs)
    tiles = sample(across * down, _TILES)[:, None, None, None]
    number, position = lanes(block[0] * block[1]), np.arange(positions)[:, None, None]
    row = tiles // across * outputs[1] + number // block[0] + 0 * position
    column = tiles % across * outputs[0] + number % block[0] + position * block[0]
    inside = (number >= 0) & (row < shape.out_height) & (column < shape.out_width)
    flat = (len(tiles), -1, 32)
    row, column = np.where(inside, row, -1).reshape(flat), column.reshape(flat)
    return _Threads(row, column, across * down / len(tiles))


def _in_order(shape: ConvolutionShape, block: Block) -> _Threads:
    positions, threads = shape.out_height * shape.out_width, block[0] * block[1]
    blocks = -(-positions // threads)
    chosen = sample(blocks, _TILES)[:, None, None]
    number = lanes(threads)
    position = chosen * threads + number
    inside = (number >= 0) & (position < positions)
    row = np.where(inside, position // shape.out_width, -1)
    return _Threads(row, position % shape.out_width, blocks / len(chosen))


def _image(
    shape: ConvolutionShape, row: np.ndarray, column: np.ndarray, there: np.ndarray
) -> tuple[np.ndarray, float]:
    """Places in the first planes, of rows and columns (blocks, instructions, 32); and for how many
    planes each of them stands."""
    planes = shape.batch * shape.channels
    plane = np.arange(min(planes, _PLANES)).reshape(1, -1, 1, 1)
    inside = there & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    at = (plane * shape.height + row[:, None]) * shape.width + column[:, None]
    at = np.where(inside[:, None], at, -1)
    return at.reshape(len(row), -1, row.shape[-1]), planes / plane.size


def _result(shape: ConvolutionShape, threads: _Threads, times: float) -> Access:
    """The plane of an image and a filter, written once."""
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
    """Of a step whose products read both factors from memory; ``padded``: products with padding are
    computed, too."""
    threads = (_in_order if in_order else _in_tiles)(shape, block)
    i, j = np.divmod(np.arange(shape.taps), shape.window_width)
    row = threads.row[:, None] * shape.stride - shape.padding
    row = row + i.reshape(1, -1, 1, 1) * shape.dilation
    column = threads.column[:, None] * shape.stride - shape.padding
    column = column + j.reshape(1, -1, 1, 1) * shape.dilation
    there = np.broadcast_to(threads.row[:, None] >= 0, row.shape)
    flat = (len(row), -1, 32)
    at, planes = _image(shape, row.reshape(flat), column.reshape(flat), there.reshape(flat))
    x = Access("x", "global", at, threads.share * planes * shape.filters)
    weight = np.arange(at.shape[1]) // threads.warps % (shape.channels * shape.taps)
    computed = at >= 0
    if padded:
        whole = there.reshape(flat)[:, None]
        every = (len(at), at.shape[1] // whole.shape[2], *whole.shape[2:])
        computed = np.broadcast_to(whole, every).reshape(at.shape)
    weights = np.where(computed, weight[:, None], -1)
    w = Access("w", "constant" if constant else "global", weights, x.times)
    products = shape.channels * shape.taps * (shape.batch if images_in_turn else 1)
    each = a_product(shape, instructions)
    # A channel's first number of the image, and each eighth weight, come from L2.
    missed = L2_CYCLES * (1 / shape.taps + 1 / 8)
    return Work(
        (x, w, _result(shape, threads, threads.share)),
        w.requests,
        w.requests * each,
        products * (L1_CYCLES + FMA_CYCLES * each + missed),
        ("x",) if images_in_turn else (),
    )


def halves(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Of a step as :func:`halo` says, whose images, filters and result lie in float16."""
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
    """Of a step that copies tiles with their halo to shared memory; with so many instructions, or
    none but reads and multiply-adds where the window is written out.  ``width``:
    weights that are read at a time."""
    group = parameters.get("GROUP", 1)
    groups = -(-shape.filters // group)
    count = block[0] * block[1]
    positions = parameters.get("POSITIONS", 1)
    outputs = (block[0] * positions, block[1])
    threads = _in_tiles(shape, block, positions)
    tile_width, tile_height = shape.halo(outputs)
    across, down = shape.tiles(outputs)
    tiles = sample(across * down, _TILES)[:, None, None]
    taken = turns(count, tile_width * tile_height)
    row = tiles // across * outputs[1] * shape.stride - shape.padding + taken // tile_width
    column = tiles % across * outputs[0] * shape.stride - shape.padding + taken % tile_width
    there = np.broadcast_to(taken >= 0, row.shape)
    at, planes = _image(shape, row, column, there)
    x = Access("x", "global", at, threads.share * planes * groups)
    blocks = len(tiles) * threads.share * groups * shape.batch
    channels = blocks * shape.channels
    number = lanes(count)
    tap_reads = []
    for wide, taps_of in _tap_reads(shape, tile_width, joined=instructions is None).items():
        i, j = np.divmod(np.repeat(taps_of, positions), shape.window_width)
        i, j = i.reshape(-1, 1, 1), j.reshape(-1, 1, 1)
        position = np.tile(np.arange(positions), len(taps_of)).reshape(-1, 1, 1)
        row = number // block[0] * shape.stride + i * shape.dilation
        column = (number % block[0] + position * block[0]) * shape.stride + j * shape.dilation
        place = np.where(number >= 0, row * tile_width + column, -1).reshape(1, -1, 32)
        tap_reads.append(Access("x", "shared", place, channels, width=wide))
    accesses = [
        x,
        Access("x", "shared", taken[None], channels, store=True),
        *tap_reads,
        _result(shape, threads, threads.share),
    ]
    copied = float((taken >= 0).any(-1).sum())
    if "GROUP" in parameters:
        width = max(width, _joined(group, tile_width * tile_height))
        every = range(0, shape.taps * group, width)
        taken = turns(count, shape.taps * group)
        chosen = sample(groups, _PLANES)
        filter = chosen.reshape(-1, 1, 1) * group + taken % group
        place = filter * shape.channels * shape.taps + taken // group
        place = np.where((taken >= 0) & (filter < shape.filters), place, -1)
        accesses += [
            Access("w", "global", place, channels / len(chosen)),
            Access("w", "shared", taken[None], channels, store=True),
            Access("w", "shared", uniform(every, count), channels, width=width),
        ]
        copied += float((taken >= 0).any(-1).sum())
    else:
        at = uniform(range(min(shape.channels, _PLANES) * shape.taps), count)
        times = channels / min(shape.channels, _PLANES)
        accesses.append(Access("w", "global", at, times))
    taps = channels * len(number) * shape.taps
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
        + channels * (copied * _COPY_INSTRUCTIONS + len(number) * _CHANNEL_INSTRUCTIONS),
        shape.channels * (L2_CYCLES + 2 * SHARED_CYCLES + shape.taps * wait),
        repeats=shape.channels,
    )


TILES, DEPTHS = 36, 8
"""Tiles of positions, and steps along what is summed, that are looked at."""
_WEIGHT_INSTRUCTIONS, GATHER_INSTRUCTIONS = 4, 12
"""Of one number fetched and kept: its address, its comparisons, read and store."""
_UNFOLD_INSTRUCTIONS = 40
"""Of one number written to the images unfolded: divisions, comparisons, read and store."""


def implicit(
    shape: ConvolutionShape, block: Block, parameters: Parameters, *, unfolded: bool = False
) -> Work:
    """Eight filters by eight positions a thread, two tiles in turn, or STAGES of them, a patch for
    each warp; ``unfolded``: the images lie in the scratch memory "matrix"."""
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    plane = shape.out_height * shape.out_width
    positions, depth = shape.batch * plane, shape.terms
    across, down, steps = -(-positions // columns), -(-shape.filters // rows), -(-depth // deep)
    chosen, first = sample(across, TILES), sample(steps, DEPTHS) * deep
    share, blocks = across * down / len(chosen), across * down
    stretch = steps / len(first)
    number = lanes(count)

    taken = turns(count, rows * deep)
    tops = sample(down, DEPTHS).reshape(-1, 1, 1, 1) * rows
    filter, k = tops + taken // deep, first.reshape(1, -1, 1, 1) + taken % deep
    there = (taken >= 0) & (filter < shape.filters) & (k < depth)
    at = np.where(there, filter * depth + k, -1).reshape(len(tops), -1, 32)
    w = Access("w", "global", at, blocks / len(tops) * stretch)
    kept = np.where(taken >= 0, taken % deep * (rows + 4) + taken // deep, -1)
    to_w = Access("w", "shared", kept[None], blocks * steps, store=True)

    each = deep // (block[1] // 8)
    own = number // columns * each + np.arange(each).reshape(-1, 1, 1)
    if unfolded:
        at, name = _in_matrix(shape, chosen, columns, number, first, own), "matrix"
    else:
        at, name = gathered(shape, chosen, columns, number, first, own), "x"
    x = Access(name, "global", at, share * stretch)
    kept = np.where(number >= 0, own * columns + number % columns, -1).reshape(1, -1, 32)
    to_x = Access("x", "shared", kept, blocks * steps, store=True)

    i, j = warp_patch(number, block)
    along, half = np.arange(deep).reshape(-1, 1, 1, 1), np.arange(2).reshape(-1, 1, 1)
    reads = [
        Access(
            name,
            "shared",
            np.where(number >= 0, at, -1).reshape(1, -1, 32),
            blocks * steps,
            width=4,
        )
        for name, at in (
            ("w", along * (rows + 4) + (i + half * block[1]) * 4),
            ("x", along * columns + (j + half * block[0]) * 4),
        )
    ]
    stores = _stores(shape, chosen * columns, block, (i, j), number, share)
    products = blocks * steps * len(number) * deep * 64
    fetched = (
        steps
        * blocks
        * (
            len(taken) * _WEIGHT_INSTRUCTIONS
            + len(number) * each * (_WEIGHT_INSTRUCTIONS if unfolded else GATHER_INSTRUCTIONS)
        )
    )
    # So many tiles are on their way while one is multiplied.
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
    """Of the kernel that writes the images unfolded: a thread writes one number."""
    threads, positions = block[0] * block[1], shape.batch * shape.out_height * shape.out_width
    across = -(-positions // threads)
    chosen, first = sample(across, TILES), sample(shape.terms, DEPTHS * shape.taps)
    share = across * shape.terms / (len(chosen) * len(first))
    where = (shape, chosen, threads, lanes(threads), first, np.zeros((1, 1, 1), int))
    x = Access("x", "global", gathered(*where), share)
    matrix = Access("matrix", "global", _in_matrix(*where), share, store=True)
    return Work((x, matrix), 0.0, matrix.requests * _UNFOLD_INSTRUCTIONS, L2_CYCLES)


def _in_matrix(
    shape: ConvolutionShape,
    chosen: np.ndarray,
    columns: int,
    number: np.ndarray,
    first: np.ndarray,
    own: np.ndarray,
) -> np.ndarray:
    """Places of the images unfolded, as of :func:`gathered`."""
    positions = shape.batch * shape.out_height * shape.out_width
    position = chosen.reshape(-1, 1, 1, 1, 1) * columns + number % columns
    k = first.reshape(1, -1, 1, 1, 1) + own
    there = (number >= 0) & (position < positions) & (k < shape.terms)
    return np.where(there, k * positions + position, -1).reshape(len(chosen), -1, 32)


def gathered(
    shape: ConvolutionShape,
    chosen: np.ndarray,
    columns: int,
    number: np.ndarray,
    first: np.ndarray,
    own: np.ndarray,
) -> np.ndarray:
    """Places of the image that the threads of tiles fetch."""
    plane = shape.out_height * shape.out_width
    position = chosen.reshape(-1, 1, 1, 1, 1) * columns + number % columns
    channel, tap = np.divmod(first.reshape(1, -1, 1, 1, 1) + own, shape.taps)
    image, inner = np.divmod(position, plane)
    row = inner // shape.out_width * shape.stride - shape.padding
    row = row + tap // shape.window_width * shape.dilation
    column = inner % shape.out_width * shape.stride - shape.padding
    column = column + tap % shape.window_width * shape.dilation
    there = (number >= 0) & (image < shape.batch) & (channel < shape.channels)
    there = there & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    at = ((image * shape.channels + channel) * shape.height + row) * shape.width + column
    return np.where(there, at, -1).reshape(len(chosen), -1, 32)


def _stores(
    shape: ConvolutionShape,
    left: np.ndarray,
    block: Block,
    patch: tuple[np.ndarray, np.ndarray],
    number: np.ndarray,
    share: float,
) -> Access:
    """The result: vectors where four positions are of one image, else numbers."""
    i, j = patch
    plane = shape.out_height * shape.out_width
    width = 4 if plane % 4 == 0 else 1
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(0, 8, width).reshape(-1, 1, 1)
    filter = (i + r // 4 * block[1]) * 4 + r % 4
    position = left.reshape(-1, 1, 1, 1, 1) + (j + c // 4 * block[0]) * 4 + c % 4
    there = (number >= 0) & (filter < shape.filters) & (position < shape.batch * plane)
    at = (position // plane * shape.filters + filter) * plane + position % plane
    at = np.where(there, at, -1).reshape(len(left), -1, 32)
    # The first filters stand for all.
    held = min(shape.filters, 8 * block[1])
    down = -(-shape.filters // (8 * block[1]))
    return Access("y", "global", at, share * shape.filters / (held * down), store=True, width=width)


def tensor(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Tiles of filters and of images in float16, two in turn; 64 by 32 sums a warp."""
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    plane, depth = shape.out_height * shape.out_width, shape.terms
    positions = shape.batch * plane
    across, down, steps = -(-positions // columns), -(-shape.filters // rows), -(-depth // deep)
    chosen, first = sample(across, TILES), sample(steps, DEPTHS) * deep
    blocks, stretch = across * down, steps / len(first)
    share = blocks / len(chosen)
    number = lanes(count)

    width = 8 if depth % 8 == 0 else 1
    taken = turns(count, rows * deep // 8)
    tops = sample(down, DEPTHS).reshape(-1, 1, 1, 1, 1) * rows
    filter = tops + taken // (deep // 8)
    k = first.reshape(1, -1, 1, 1, 1) + taken % (deep // 8) * 8
    k = k + np.arange(0, 8, width).reshape(-1, 1, 1)
    there = (taken >= 0) & (filter < shape.filters) & (k < depth)
    at = np.where(there, filter * depth + k, -1).reshape(len(tops), -1, WARP)
    w = Access("w", "global", at, blocks / len(tops) * stretch, width=width, bytes=2)
    kept = taken // (deep // 8) * (deep // 2 + 4) + taken % (deep // 8) * 4
    kept = np.where(taken >= 0, kept, -1)[None]
    to_w = Access("w", "shared", kept, blocks * steps, store=True, width=4)

    pairs = deep // 2 // (block[1] // 8)
    own = number // columns * pairs * 2 + np.arange(2 * pairs).reshape(-1, 1, 1)
    at = gathered(shape, chosen, columns, number, first, own)
    x = Access("x", "global", at, share * stretch, bytes=2)
    kept = own[::2] // 2 * (columns + 8) + number % columns
    kept = np.where(number >= 0, kept, -1).reshape(1, -1, WARP)
    to_x = Access("x", "shared", kept, blocks * steps, store=True)

    reads = fragments(("w", "x"), block, deep, blocks * steps)
    products = tensor_products(block, deep, blocks * steps)
    fetched = len(taken) * 8 / width * VECTOR_COPIED
    fetched += len(number) * 2 * pairs * GATHER_INSTRUCTIONS
    return Work(
        (w, to_w, x, to_x, *reads, _tensor_stores(shape, chosen * columns, block, share)),
        0.0,
        products + sum(one.requests for one in reads) + blocks * steps * fetched,
        cycles_alone(steps, deep),
        (),
        products,
        steps,
    )


def _tensor_stores(shape: ConvolutionShape, left: np.ndarray, block: Block, share: float) -> Access:
    """The result, number by number; the first filters stand for all."""
    number, plane = lanes(block[0] * block[1]), shape.out_height * shape.out_width
    row, column = warp_sums(number, block)
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(8).reshape(-1, 1, 1)
    filter = row + 8 * r
    position = left.reshape(-1, 1, 1, 1, 1) + column + c // 2 * 8 + c % 2
    there = (number >= 0) & (filter < shape.filters) & (position < shape.batch * plane)
    at = (position // plane * shape.filters + filter) * plane + position % plane
    at = np.where(there, at, -1).reshape(len(left), -1, WARP)
    held, down = min(shape.filters, 8 * block[1]), -(-shape.filters // (8 * block[1]))
    times = share * shape.filters / (held * down)
    return Access("y", "global", at, times, store=True, bytes=2)
