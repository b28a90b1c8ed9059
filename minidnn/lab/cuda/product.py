"""The ladder of matrix products on a GPU: launches, refusals, memory accesses and arithmetic.

The tensor-core helpers below also serve the convolutions of :mod:`.convolution_work`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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
)
from ..operands import ProductShape, multiply
from ..step import Block, Ladder, Parameters
from .step import CudaStep, Sizes, why_no_patches, why_no_static

_BLOCKS, _DEPTH = 4, 8
"""How many blocks along each axis, and products of an output, are sampled."""
_PRODUCT_INSTRUCTIONS, _NUMBER_COPIED = 5, 10
"""Instructions for each product whose operands are in memory, and to copy one float, or vector."""
VECTOR_COPIED = 6
"""Instructions to copy one vector to shared memory: address, bounds checks, load and store."""
_ACROSS, _DOWN, _DEEP = 32, 64, 16
"""The warp tile along N and M, and the K extent of one tensor-core instruction."""
_PRODUCT_CYCLES = 33
"""Latency of a tensor-core instruction, in cycles."""


def direct(
    shape: ProductShape, block: Block, parameters: Parameters, *, down: bool = False
) -> Work:
    """Returns the work of a step whose products load both operands from memory.  ``down``:
    neighbouring threads compute neighbouring rows, not columns."""
    thread = lanes(block[0] * block[1])
    fast, slow = thread % block[0], thread // block[0]
    tile = (block[0], block[1]) if down else (block[1], block[0])
    top, left, share = corners(shape, tile)
    row, column = top + (fast if down else slow), left + (slow if down else fast)
    active = (thread >= 0) & (row < shape.rows) & (column < shape.columns)
    k = np.arange(min(shape.depth, _DEPTH)).reshape(1, -1, 1, 1)
    times = share * shape.depth / k.size

    def places(at: np.ndarray) -> np.ndarray:
        return np.where(active[:, None], at, -1).reshape(len(at), -1, 32)

    a = Access("a", "global", places(row[:, None] * shape.depth + k), times)
    b = Access("b", "global", places(k * shape.columns + column[:, None]), times)
    y = Access("y", "global", places((row * shape.columns + column)[:, None]), share, store=True)
    return Work(
        (a, b, y),
        a.requests,
        a.requests * _PRODUCT_INSTRUCTIONS,
        shape.depth * (L1_CYCLES + FMA_CYCLES),
        ("a",) if down else ("b",),
    )


def tiles(
    shape: ProductShape,
    block: Block,
    parameters: Parameters,
    *,
    apart: bool = False,
    padded: int = 0,
    width: int = 1,
    of_warps: bool = False,
) -> Work:
    """Returns the work of a step that copies tiles of both operands to shared memory.

    ``width``: floats of a copy; above 1, the tile of the first operand is stored transposed.
    ``apart``: a thread's rows and columns are strided by the block's, not contiguous.  ``padded``:
    floats that pad each row of the first tile.  ``of_warps``: the threads of a warp are a patch of
    8 rows by 4 columns of the block.
    """
    down, across = parameters.get("THREAD_ROWS", 1), parameters.get("THREAD_COLUMNS", 1)
    deep = parameters.get("TILE_DEPTH", block[0])
    rows, columns, threads = block[1] * down, block[0] * across, block[0] * block[1]
    top, left, share = corners(shape, (rows, columns))
    steps, full_steps = -(-shape.depth // deep), max(1.0, shape.depth / deep)
    blocks = len(top) * share

    i, k = np.divmod(turns(threads, rows * deep // width), deep // width)
    k = np.where(i >= 0, k * width, -1)
    at = np.where(
        (i >= 0) & (top + i < shape.rows) & (k < shape.depth), (top + i) * shape.depth + k, -1
    )
    a = Access("a", "global", at, share * full_steps, width=width)
    shared_index = np.where(
        i >= 0, k * (rows + padded) + i if width > 1 else i * (deep + padded) + k, -1
    )
    to_a = Access("a", "shared", shared_index[None], blocks * steps * width, store=True)

    vector = turns(threads, deep * columns // width)
    i, j = vector // (columns // width), vector % (columns // width) * width
    active = (vector >= 0) & (i < shape.depth) & (left + j < shape.columns)
    b = Access(
        "b",
        "global",
        np.where(active, i * shape.columns + left + j, -1),
        share * full_steps,
        width=width,
    )
    shared_index = np.where(vector >= 0, vector * width, -1)
    to_b = Access("b", "shared", shared_index[None], blocks * steps, store=True, width=width)

    thread = lanes(threads)
    i, j = warp_patch(thread, block) if of_warps else (thread // block[0], thread % block[0])
    k, r = np.arange(deep).reshape(-1, 1, 1, 1), np.arange(down // width).reshape(-1, 1, 1)
    c = np.arange(across // width).reshape(-1, 1, 1)
    row = (i + r * block[1]) * width if apart else i * down + r
    at = k * (rows + padded) + row if width > 1 else row * (deep + padded) + k
    of_a = Access("a", "shared", _reads(at, thread), blocks * steps, width=width)
    at = k * columns + (j + c * block[0]) * width
    of_b = Access("b", "shared", _reads(at, thread), blocks * steps, width=width)

    rows_of = np.arange(down).reshape(-1, 1, 1, 1)
    if width > 1:
        row_offset = (i + rows_of // width * block[1]) * width + rows_of % width
    else:
        row_offset = i + rows_of * block[1] if apart else i * down + rows_of
    written = top[..., None, None] + row_offset
    column = left[..., None, None] + (j + c * block[0]) * width
    active = (thread >= 0) & (written < shape.rows) & (column < shape.columns)
    at = np.where(active, written * shape.columns + column, -1).reshape(len(top), -1, 32)
    y = Access("y", "global", at, share, store=True, width=width)

    products = blocks * steps * len(thread) * deep * down * across
    copies = a.at.shape[1] + b.at.shape[1]
    reads = of_a.requests + of_b.requests
    return Work(
        (a, b, to_a, to_b, of_a, of_b, y),
        products,
        products + reads + blocks * steps * copies * _NUMBER_COPIED,
        steps * (L2_CYCLES + 2 * SHARED_CYCLES + deep * max(FMA_CYCLES, down * across)),
        ("b",),
        repeats=steps,
    )


def patches(
    shape: ProductShape, block: Block, parameters: Parameters, *, of_warps: bool = False
) -> Work:
    """Returns the work of a double-buffered step with a register tile of 8 by 8: the next tile is
    loaded while products are computed, so a step along K takes the longer of the two times."""
    eight = {**parameters, "THREAD_ROWS": 8, "THREAD_COLUMNS": 8}
    work = tiles(shape, block, eight, apart=True, padded=4, width=4, of_warps=of_warps)
    deep = parameters["TILE_DEPTH"]
    steps = -(-shape.depth // deep)
    alone = L2_CYCLES + steps * (SHARED_CYCLES + max(L2_CYCLES, 64 * deep))
    return replace(work, alone=alone)


def warp_patch(number: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """The row and column of each thread in a block whose warps are patches of 8 by 4 threads."""
    warp, lane = number // 32, number % 32
    across = block[0] // 4
    return warp // across * 8 + lane // 4, warp % across * 4 + lane % 4


def corners(shape: ProductShape, tile: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, float]:
    """The first row and column of each sampled block, and how many blocks each stands for."""
    down, across = -(-shape.rows // tile[0]), -(-shape.columns // tile[1])
    top, left = np.meshgrid(sample(down, _BLOCKS), sample(across, _BLOCKS))
    share = down * across / top.size
    return top.reshape(-1, 1, 1) * tile[0], left.reshape(-1, 1, 1) * tile[1], share


def _reads(at: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Indices that one block's instructions load, -1 for lanes without a thread."""
    return np.where(number >= 0, at, -1).reshape(1, -1, 32)


def tensor(shape: ProductShape, block: Block, parameters: Parameters) -> Work:
    """Returns the work of a product on tensor cores: double-buffered tiles in float16, and a warp
    tile of 64 rows by 32 columns."""
    deep, count = parameters["TILE_DEPTH"], block[0] * block[1]
    rows, columns = 8 * block[1], 8 * block[0]
    top, left, share = corners(shape, (rows, columns))
    steps, full_steps = -(-shape.depth // deep), max(1.0, shape.depth / deep)
    blocks = len(top) * share

    vector = turns(count, rows * deep // 8)
    i, k = vector // (deep // 8), vector % (deep // 8) * 8
    active = (vector >= 0) & (top + i < shape.rows) & (k < shape.depth)
    at = np.where(active, (top + i) * shape.depth + k, -1)
    a = Access("a", "global", at, share * full_steps, width=8, bytes=2)
    shared_index = np.where(vector >= 0, i * (deep // 2 + 4) + k // 2, -1)
    to_a = Access("a", "shared", shared_index[None], blocks * steps, store=True, width=4)

    vector = turns(count, deep // 2 * block[0])
    i, j = vector // block[0], vector % block[0] * 8
    row_of_pair = np.arange(2).reshape(-1, 1, 1)
    active = (vector >= 0) & (2 * i < shape.depth) & (left + j < shape.columns)
    at = np.where(active, 2 * i * shape.columns + left + j, -1)
    both = np.where(at[:, None] >= 0, at[:, None] + row_of_pair * shape.columns, -1)
    at = both.reshape(len(at), -1, WARP)
    b = Access("b", "global", at, share * full_steps, width=8, bytes=2)
    shared_index = np.where(vector >= 0, i * (columns + 8) + j + 4 * row_of_pair, -1).reshape(
        1, -1, WARP
    )
    to_b = Access("b", "shared", shared_index, blocks * steps, store=True, width=4)

    thread = lanes(count)
    row, column = warp_sums(thread, block)
    r, c = np.arange(8).reshape(-1, 1, 1, 1), np.arange(4).reshape(-1, 1, 1)
    row = top[..., None, None] + row + 8 * r
    column = left[..., None, None] + column + 8 * c
    active = (thread >= 0) & (row < shape.rows) & (column < shape.columns)
    at = np.where(active, row * shape.columns + column, -1).reshape(len(top), -1, WARP)
    y = Access("y", "global", at, share, store=True, width=2, bytes=2)

    reads = fragments(("a", "b"), block, deep, blocks * steps)
    products = tensor_products(block, deep, blocks * steps)
    copies = a.at.shape[1] + b.at.shape[1]
    return Work(
        (a, b, to_a, to_b, *reads, y),
        0.0,
        products + sum(one.requests for one in reads) + blocks * steps * copies * VECTOR_COPIED,
        cycles_alone(steps, deep),
        ("b",),
        products,
    )


def warp_sums(number: np.ndarray, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """The row and column, in the block's tile, of the first accumulator of each thread."""
    warp, lane = number // WARP, number % WARP
    across = block[0] // 4
    return warp // across * _DOWN + lane // 4, warp % across * _ACROSS + lane % 4 * 2


def fragments(
    names: tuple[str, str], block: Block, deep: int, times: float
) -> tuple[Access, Access]:
    """The loads of operand fragments from both tiles in shared memory, in words of two float16."""
    thread = lanes(block[0] * block[1])
    row, column = warp_sums(thread, block)
    column = column - thread % 4 * 2 + thread % WARP // 4
    k = np.arange(0, deep, _DEEP).reshape(-1, 1, 1, 1, 1) // 2 + thread % 4
    part, tile = np.arange(2).reshape(-1, 1, 1, 1), np.arange(8).reshape(-1, 1, 1)
    first = (row + 8 * tile) * (deep // 2 + 4) + k + 4 * part
    second = (k + 4 * part) * (8 * block[0] + 8) + column + 8 * tile[:4]

    def read(name: str, at: np.ndarray) -> Access:
        return Access(name, "shared", np.where(thread >= 0, at, -1).reshape(1, -1, WARP), times)

    return read(names[0], first), read(names[1], second)


def tensor_products(block: Block, deep: int, times: float) -> float:
    """How many tensor-core instructions warps execute."""
    sums = _DOWN // 16 * (_ACROSS // 8)
    return times * (block[0] * block[1] // WARP) * (deep // _DEEP) * sums


def cycles_alone(steps: int, deep: int) -> float:
    """Cycles that a block takes if only its own latencies delay it."""
    products = deep // _DEEP * (SHARED_CYCLES + _PRODUCT_CYCLES)
    return L2_CYCLES + steps * (SHARED_CYCLES + max(L2_CYCLES, products))


def tile_of(block: Block, parameters: Parameters) -> tuple[int, int]:
    """Rows and columns of the block's output tile."""
    rows, columns = parameters.get("THREAD_ROWS", 1), parameters.get("THREAD_COLUMNS", 1)
    return block[1] * rows, block[0] * columns


def _by_rows(shape: ProductShape, block: Block, parameters: Parameters) -> Sizes:
    return (-(-shape.rows // block[0]), -(-shape.columns // block[1]), 1), (*block, 1), 0


def _by_columns(shape: ProductShape, block: Block, parameters: Parameters) -> Sizes:
    rows, columns = tile_of(block, parameters)
    return (-(-shape.columns // columns), -(-shape.rows // rows), 1), (*block, 1), 0


def _square_only(shape: ProductShape, block: Block, parameters: Parameters) -> str | None:
    if block[0] == block[1]:
        return None
    return f"a block of {block[0]} x {block[1]} threads; this step wants square ones"


def _unfit(
    shape: ProductShape, block: Block, parameters: Parameters, padded: int, whole_vectors: bool
) -> str | None:
    """Why tiles do not fit shared memory; ``padded``: floats that pad each row of the first one."""
    if whole_vectors and (shape.columns % 4 or shape.depth % 4):
        return f"{shape.columns} columns, depth {shape.depth}; this step wants multiples of 4"
    for name, number in parameters.items():
        if whole_vectors and name != "RESIDENT" and number % 4:
            return f"{name}={number}; this step wants a multiple of 4"
    rows, columns = tile_of(block, parameters)
    deep = parameters["TILE_DEPTH"]
    pads = deep if whole_vectors else rows
    return why_no_static(4 * (deep * (rows + columns) + padded * pads))


def _by_patches(shape: ProductShape, block: Block, parameters: Parameters) -> Sizes:
    """The launch with a register tile of 8 by 8."""
    return _by_columns(shape, block, _EIGHT)


def _unfit_patches(
    shape: ProductShape, block: Block, parameters: Parameters, whole_warps: bool
) -> str | None:
    """Why double buffering does not suit a block; ``whole_warps``: warps are patches of 4 x 8."""
    if parameters["TILE_DEPTH"] % 4:
        return f"TILE_DEPTH={parameters['TILE_DEPTH']}; this step wants a multiple of 4"
    if whole_warps and (reason := why_no_patches(block)) is not None:
        return reason
    across, deep = 2 * block[0], parameters["TILE_DEPTH"] // 4
    if (threads := block[0] * block[1]) % across or threads % deep:
        return f"{threads} threads a block; this step wants multiples of {across} and of {deep}"
    twice = {**_EIGHT, "TILE_DEPTH": 2 * parameters["TILE_DEPTH"]}
    return _unfit(shape, block, twice, 4, whole_vectors=True)


def _unfit_tensor(shape: ProductShape, block: Block, parameters: Parameters) -> str | None:
    deep = parameters["TILE_DEPTH"]
    if shape.columns % 8 or shape.depth % 8:
        return f"{shape.columns} columns, depth {shape.depth}; this step wants multiples of 8"
    if (reason := why_no_patches(block)) is not None:
        return reason
    if deep % 16:
        return f"TILE_DEPTH={deep}; this step wants a multiple of 16"
    words = 8 * block[1] * (deep // 2 + 4) + deep // 2 * (8 * block[0] + 8)
    return why_no_static(8 * words)


_step = partial(CudaStep.of, "product")
_EIGHT = {"THREAD_ROWS": 8, "THREAD_COLUMNS": 8}
_SQUARE = {**_EIGHT, "TILE_DEPTH": 8}

PRODUCT = Ladder(
    "product",
    "matrix product, float32, rows of both factors one after the other",
    ProductShape(),
    (
        _step("naive", sizes=_by_rows, work=partial(direct, down=True)),
        _step("coalesced", sizes=_by_columns, work=direct, helps=("uncoalesced accesses",)),
        _step(
            "tiled", sizes=_by_columns, work=tiles, refusal=_square_only, helps=("load units", "L2")
        ),
        _step(
            "column_tile",
            sizes=_by_columns,
            work=partial(tiles, padded=1),
            parameters={"THREAD_ROWS": 8, "TILE_DEPTH": 8},
            refusal=partial(_unfit, padded=1, whole_vectors=False),
            helps=("shared memory", "L2", "bank conflicts"),
        ),
        _step(
            "register_tile",
            sizes=_by_columns,
            work=partial(tiles, apart=True, padded=1),
            parameters=_SQUARE,
            refusal=partial(_unfit, padded=1, whole_vectors=False),
            helps=("shared memory", "L2", "latency"),
        ),
        _step(
            "vectors",
            sizes=_by_columns,
            work=partial(tiles, apart=True, padded=4, width=4),
            parameters=_SQUARE,
            refusal=partial(_unfit, padded=4, whole_vectors=True),
            helps=("shared memory", "issue"),
        ),
        _step(
            "buffered",
            sizes=_by_patches,
            work=patches,
            parameters={"TILE_DEPTH": 8, "RESIDENT": 2},
            refusal=partial(_unfit_patches, whole_warps=False),
            helps=("latency", "occupancy"),
        ),
        _step(
            "warps",
            sizes=_by_patches,
            work=partial(patches, of_warps=True),
            parameters={"TILE_DEPTH": 8, "RESIDENT": 2},
            refusal=partial(_unfit_patches, whole_warps=True),
            helps=("shared memory", "bank conflicts"),
        ),
        _step(
            "tensor",
            sizes=_by_patches,
            work=tensor,
            parameters={"TILE_DEPTH": 32, "RESIDENT": 2},
            refusal=_unfit_tensor,
            helps=("arithmetic", "shared memory", "memory", "L2"),
        ),
    ),
    multiply,
    {str(size): ProductShape(size, size, size) for size in (256, 1024, 2048, 4096)},
)
