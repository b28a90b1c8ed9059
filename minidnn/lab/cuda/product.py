"""The steps of the ladder of matrix products."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..shapes import ProductShape, multiply
from ..step import KERNELS, Block, Ladder, Parameters
from .product_work import direct, patches, tensor, tiles
from .step import MOST_STATIC, CudaStep, Sizes


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


def _unfit(
    shape: ProductShape, block: Block, parameters: Parameters, padded: int, whole_vectors: bool
) -> str | None:
    """Why tiles do not fit shared memory; ``padded`` numbers are added to each row of one."""
    if whole_vectors and (shape.columns % 4 or shape.depth % 4):
        return f"{shape.columns} columns, depth {shape.depth}; this step wants multiples of 4"
    for name, number in parameters.items():
        if whole_vectors and name != "RESIDENT" and number % 4:
            return f"{name}={number}; this step wants a multiple of 4"
    rows, columns = tile_of(block, parameters)
    deep = parameters["TILE_DEPTH"]
    pads = deep if whole_vectors else rows
    if (asked := 4 * (deep * (rows + columns) + padded * pads)) > MOST_STATIC:
        return f"{asked} bytes of static shared memory; there may be {MOST_STATIC}"
    return None


def _by_patches(shape: ProductShape, block: Block, parameters: Parameters) -> Sizes:
    """Eight rows and columns a thread."""
    return _by_columns(shape, block, _EIGHT)


def _unfit_patches(
    shape: ProductShape, block: Block, parameters: Parameters, whole_warps: bool
) -> str | None:
    """Why two tiles in turn do not do; ``whole_warps``: each has eight rows of four threads."""
    if parameters["TILE_DEPTH"] % 4:
        return f"TILE_DEPTH={parameters['TILE_DEPTH']}; this step wants a multiple of 4"
    if whole_warps and (block[0] % 4 or block[1] % 8):
        return f"a block of {block[0]} x {block[1]} threads; this step wants patches of 4 x 8"
    across, deep = 2 * block[0], parameters["TILE_DEPTH"] // 4
    if (threads := block[0] * block[1]) % across or threads % deep:
        return f"{threads} threads a block; this step wants multiples of {across} and of {deep}"
    twice = {**_EIGHT, "TILE_DEPTH": 2 * parameters["TILE_DEPTH"]}
    return _unfit(shape, block, twice, 4, whole_vectors=True)


def _unfit_tensor(shape: ProductShape, block: Block, parameters: Parameters) -> str | None:
    deep = parameters["TILE_DEPTH"]
    if shape.columns % 8 or shape.depth % 8:
        return f"{shape.columns} columns, depth {shape.depth}; this step wants multiples of 8"
    if block[0] % 4 or block[1] % 8:
        return f"a block of {block[0]} x {block[1]} threads; this step wants patches of 4 x 8"
    if deep % 16:
        return f"TILE_DEPTH={deep}; this step wants a multiple of 16"
    words = 8 * block[1] * (deep // 2 + 4) + deep // 2 * (8 * block[0] + 8)
    if (asked := 8 * words) > MOST_STATIC:
        return f"{asked} bytes of static shared memory; there may be {MOST_STATIC}"
    return None


def _step(name: str, **given: Any) -> CudaStep:
    return CudaStep(name=name, source=KERNELS / "product" / f"{name}.cu", **given)


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
