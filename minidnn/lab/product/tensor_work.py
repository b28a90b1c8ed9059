"""What matrix products on tensor cores read, write and compute."""

from __future__ import annotations

import numpy as np

from ..access import L2_CYCLES, SHARED_CYCLES, WARP, Access, Work, lanes, turns
from ..step import Block, Parameters
from .shape import ProductShape
from .work import corners

COPY_INSTRUCTIONS = 6
"""Of one vector fetched and kept: its address, its comparisons, read and store."""
_ACROSS, _DOWN, _DEEP = 32, 64, 16
"""Sums of a warp, and products of an instruction."""
_PRODUCT_CYCLES = 33
"""From an instruction of tensor cores to what needs its result."""


def tensor(shape: ProductShape, block: Block, parameters: Parameters) -> Work:
    """Tiles of both factors in float16, two in turn; 64 by 32 sums a warp."""
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    top, left, share = corners(shape, (rows, columns))
    steps, whole = -(-shape.depth // deep), max(1.0, shape.depth / deep)
    blocks = len(top) * share

    taken = turns(count, rows * deep // 8)
    i, k = taken // (deep // 8), taken % (deep // 8) * 8
    there = (taken >= 0) & (top + i < shape.rows) & (k < shape.depth)
    at = np.where(there, (top + i) * shape.depth + k, -1)
    a = Access("a", "global", at, share * whole, width=8, bytes=2)
    kept = np.where(taken >= 0, i * (deep // 2 + 4) + k // 2, -1)
    to_a = Access("a", "shared", kept[None], blocks * steps, store=True, width=4)

    taken = turns(count, deep // 2 * block[0])
    i, j = taken // block[0], taken % block[0] * 8
    own = np.arange(2).reshape(-1, 1, 1)
    there = (taken >= 0) & (2 * i < shape.depth) & (left + j < shape.columns)
    at = np.where(there, 2 * i * shape.columns + left + j, -1)
    both = np.where(at[:, None] >= 0, at[:, None] + own * shape.columns, -1)
    at = both.reshape(len(at), -1, WARP)
    b = Access("b", "global", at, share * whole, width=8, bytes=2)
    kept = np.where(taken >= 0, i * (columns + 8) + j + 4 * own, -1).reshape(1, -1, WARP)
    to_b = Access("b", "shared", kept, blocks * steps, store=True, width=4)

    number = lanes(count)
    row, column = warp_sums(number, block)
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(4).reshape(-1, 1, 1)
    row = top[..., None, None] + row + 8 * r
    column = left[..., None, None] + column + 8 * c
    there = (number >= 0) & (row < shape.rows) & (column < shape.columns)
    at = np.where(there, row * shape.columns + column, -1).reshape(len(top), -1, WARP)
    y = Access("y", "global", at, share, store=True, width=2, bytes=2)

    reads = fragments(("a", "b"), block, deep, blocks * steps)
    products = tensor_products(block, deep, blocks * steps)
    copies = a.at.shape[1] + b.at.shape[1]
    return Work(
        (a, b, to_a, to_b, *reads, y),
        0.0,
        products + sum(one.requests for one in reads) + blocks * steps * copies * COPY_INSTRUCTIONS,
        cycles_alone(steps, deep),
        ("b",),
        products,
    )


def warp_sums(number: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of a thread's first sum in the block's tile."""
    warp, lane = number // WARP, number % WARP
    across = block[0] // 4
    return warp // across * _DOWN + lane // 4, warp % across * _ACROSS + lane % 4 * 2


def fragments(
    names: tuple[str, str], block: Block, deep: int, times: float
) -> tuple[Access, Access]:
    """What warps read of both tiles, in words of two numbers."""
    number = lanes(block[0] * block[1])
    row, column = warp_sums(number, block)
    column = column - number % 4 * 2 + number % WARP // 4
    k = np.arange(0, deep, _DEEP).reshape(-1, 1, 1, 1, 1) // 2 + number % 4
    part, tile = np.arange(2).reshape(-1, 1, 1, 1), np.arange(8).reshape(-1, 1, 1)
    first = (row + 8 * tile) * (deep // 2 + 4) + k + 4 * part
    second = (k + 4 * part) * (8 * block[0] + 8) + column + 8 * tile[:4]

    def read(name: str, at: np.ndarray) -> Access:
        return Access(name, "shared", np.where(number >= 0, at, -1).reshape(1, -1, WARP), times)

    return read(names[0], first), read(names[1], second)


def tensor_products(block: Block, deep: int, times: float) -> float:
    """Instructions of tensor cores."""
    sums = _DOWN // 16 * (_ACROSS // 8)
    return times * (block[0] * block[1] // WARP) * (deep // _DEEP) * sums


def cycles_alone(steps: int, deep: int) -> float:
    """That a block takes if only its own latencies delay it."""
    products = deep // _DEEP * (SHARED_CYCLES + _PRODUCT_CYCLES)
    return L2_CYCLES + steps * (SHARED_CYCLES + max(L2_CYCLES, products))
