"""The steps of the ladder of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..step import Block, Ladder, LadderStep, Parameters, Sizes
from .shape import ProductShape, multiply
from .work import direct, tiles

_FOLDER = Path(__file__).parent
_MOST_STATIC = 48 << 10
"""Bytes of shared memory whose size stands in the text."""


def tile_of(block: Block, parameters: Parameters) -> tuple[int, int]:
    """Rows and columns of the result that a block computes."""
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


def _fits(*, padded: int, whole_vectors: bool) -> Callable[..., str | None]:
    """Why tiles do not fit shared memory; ``padded`` numbers are added to each row of one."""

    def why_not(shape: ProductShape, block: Block, parameters: Parameters) -> str | None:
        if whole_vectors and (shape.columns % 4 or shape.depth % 4):
            return f"{shape.columns} columns, depth {shape.depth}; this step wants multiples of 4"
        rows, columns = tile_of(block, parameters)
        deep = parameters["TILE_DEPTH"]
        pads = deep if whole_vectors else rows
        if (asked := 4 * (deep * (rows + columns) + padded * pads)) > _MOST_STATIC:
            return f"{asked} bytes of static shared memory; there may be {_MOST_STATIC}"
        return None

    return why_not


NAIVE = LadderStep(
    "naive",
    "one thread an element, down the columns",
    "A thread reads a row of the first factor and a column of the second. Threads of a warp have "
    "different rows: what they read and write at a time lies whole rows apart.",
    "Each read of the first factor touches 32 sectors for 32 numbers: about one percent of the "
    "peak.",
    _FOLDER,
    _by_rows,
    partial(direct, down=True),
)
COALESCED = LadderStep(
    "coalesced",
    "one thread an element, along the rows",
    "Threads of a warp have neighbouring columns: they share one number of the first factor, and "
    "read 32 neighbours of the second.",
    "Several times faster, for one exchanged pair of letters. Two reads a multiply-add remain.",
    _FOLDER,
    _by_columns,
    direct,
)
TILED = LadderStep(
    "tiled",
    "square tiles in shared memory",
    "A block copies a square of each factor to shared memory, and each number there is read by as "
    "many threads as the square is wide.",
    "Reads from L2 fall by the width of the tile. Shared memory is read twice a multiply-add, "
    "which is now the limit.",
    _FOLDER,
    _by_columns,
    tiles,
    refusal=_square_only,
)
COLUMN_TILE = LadderStep(
    "column_tile",
    "several elements of a column a thread",
    "A thread keeps THREAD_ROWS sums in registers: a number of the second factor is read once for "
    "all of them.",
    "Nearly half the reads of shared memory a multiply-add, and larger tiles: fewer reads from L2.",
    _FOLDER,
    _by_columns,
    tiles,
    {"THREAD_ROWS": 8, "TILE_DEPTH": 8},
    _fits(padded=0, whole_vectors=False),
)
REGISTER_TILE = LadderStep(
    "register_tile",
    "a square of elements a thread",
    "THREAD_ROWS x THREAD_COLUMNS sums are in registers: 16 reads serve 64 multiply-adds. Rows of "
    "the first tile are one number longer, so that threads below each other use different banks.",
    "A quarter of a read a multiply-add: arithmetic becomes the limit for the first time. "
    "Registers allow few warps, which have enough independent work.",
    _FOLDER,
    _by_columns,
    partial(tiles, apart=True, padded=1),
    {"THREAD_ROWS": 8, "THREAD_COLUMNS": 8, "TILE_DEPTH": 8},
    _fits(padded=1, whole_vectors=False),
)
VECTORS = LadderStep(
    "vectors",
    "four numbers an access",
    "Global and shared memory are read as float4. The first factor's tile lies transposed, so that "
    "four rows of it are one vector.",
    "A quarter of the read instructions, which leaves the scheduler to multiply-adds.",
    _FOLDER,
    _by_columns,
    partial(tiles, apart=True, padded=4, width=4),
    {"THREAD_ROWS": 8, "THREAD_COLUMNS": 8, "TILE_DEPTH": 8},
    _fits(padded=4, whole_vectors=True),
)

PRODUCT = Ladder(
    "product",
    "matrix product, float32, rows of both factors one after the other",
    ProductShape(),
    (NAIVE, COALESCED, TILED, COLUMN_TILE, REGISTER_TILE, VECTORS),
    multiply,
)
