"""What a convolution on tensor cores reads, writes and computes."""

from __future__ import annotations

import numpy as np

from ..access import WARP, Access, Work, lanes, sample, turns
from ..product.tensor_work import (
    COPY_INSTRUCTIONS,
    cycles_alone,
    fragments,
    tensor_products,
    warp_sums,
)
from ..step import Block, Parameters
from .implicit_work import DEPTHS, GATHER_INSTRUCTIONS, TILES, gathered
from .shape import ConvolutionShape


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
    fetched = len(taken) * 8 / width * COPY_INSTRUCTIONS
    fetched += len(number) * 2 * pairs * GATHER_INSTRUCTIONS
    return Work(
        (w, to_w, x, to_x, *reads, _stores(shape, chosen * columns, block, share)),
        0.0,
        products + sum(one.requests for one in reads) + blocks * steps * fetched,
        cycles_alone(steps, deep),
        (),
        products,
        steps,
    )


def _stores(shape: ConvolutionShape, left: np.ndarray, block: Block, share: float) -> Access:
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
