"""What a convolution reads, writes and computes as a matrix product whose second factor are the
images unfolded: written before, or gathered."""

from __future__ import annotations

import numpy as np

from ..access import L2_CYCLES, SHARED_CYCLES, WARP, Access, Work, lanes, sample, turns
from ..shapes import ConvolutionShape
from ..step import Block, Parameters
from .product_work import (
    VECTOR_COPIED,
    cycles_alone,
    fragments,
    tensor_products,
    warp_patch,
    warp_sums,
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
