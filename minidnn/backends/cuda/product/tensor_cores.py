"""Products of halves on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ....fusion.product import BatchedProduct
from ..kernels import Launch
from ..machine import Machine
from .batches import unravel
from .fragments import HALVES, kernel_of

_INNER = 64
"""Products of a row and a column that are in shared memory at once."""
_CHUNK = 8
"""Elements of 16 bytes."""


@dataclass(frozen=True)
class ProductTile:
    """What a block makes, and what each of its warps does."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int

    @property
    def threads(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    def count(self, shape: BatchedProduct) -> int:
        """How many make the products of a pair of matrices."""
        return -(-shape.rows // self.rows) * -(-shape.columns // self.columns)

    def side_by_side(self, shape: BatchedProduct, machine: Machine) -> int:
        """How many about run at once on a multiprocessor."""
        registers = self.threads * (_REGISTERS + self.warp_rows * self.warp_columns // 32)
        most = min(machine.shared_bytes // self.shared_bytes(shape), 65536 // registers)
        return max(1, min(most, 2048 // self.threads))

    def shared_bytes(self, shape: BatchedProduct) -> int:
        lines_a, lines_b = (
            (_INNER, n) if turned else (n, _INNER)
            for n, turned in zip((self.rows, self.columns), _turned(shape), strict=True)
        )
        stage = sum(lines * _pitch(line) for lines, line in (lines_a, lines_b))
        stages = 2 if shape.inner > _INNER else 1
        return max(stage * stages, self.rows * _pitch(self.columns))


TILES = (
    ProductTile(32, 32, 16, 16),
    ProductTile(32, 64, 16, 32),
    *(ProductTile(64, columns, 32, columns // 2) for columns in (32, 64, 96, 128)),
    ProductTile(128, 64, 32, 32),
    ProductTile(128, 128, 64, 32),
)

_PRODUCTS = 1024.0
"""Multiply-adds of a multiprocessor in a cycle."""
_BYTES = 32.0
"""Bytes that it reads of the second-level cache meanwhile."""
_WAITS = 3000.0
"""Cycles that a tile waits for memory, while others go on beside it.  With it the tile chosen for
products of attention is within 5 % of the fastest (one H200)."""
_REGISTERS = 38
"""Of a thread beside its sums."""
_MEASURED = 3


def _pitch(line: int) -> int:
    """Bytes from one line in shared memory to the next."""
    return (line // _CHUNK | 1) * 16


def _turned(shape: BatchedProduct) -> tuple[bool, bool]:
    """Whether the lines of an operand are those of products."""
    return shape.a.columns != 1, shape.b.columns == 1


def why_not_tensor_cores(shape: BatchedProduct) -> str | None:
    """Why tensor cores do not compute a product; None if they do."""
    if shape.dtype not in HALVES:
        return f"it is in {shape.dtype}"
    if 0 in (shape.rows, shape.columns, shape.inner, shape.count):
        return "there is nothing to multiply"
    return None


def candidates(shape: BatchedProduct, machine: Machine) -> list[ProductTile]:
    """The tiles that may be the fastest, the one first that is taken to be."""

    def cycles(tile: ProductTile) -> float:
        beside = tile.side_by_side(shape, machine)
        products = tile.rows * tile.columns * shape.inner / _PRODUCTS
        moved = (tile.rows + tile.columns) * shape.inner + tile.rows * tile.columns
        bytes = moved * 2 / _BYTES
        rounds = -(-tile.count(shape) * shape.count // machine.multiprocessors)
        waits = min(products, bytes) + _WAITS
        return rounds * (max(products, bytes) + waits / min(beside, rounds))

    return sorted(TILES, key=cycles)[:_MEASURED]


def print_on_tensor_cores(shape: BatchedProduct, tile: ProductTile) -> Launch:
    """The kernel; pointers are both operands and the result."""
    turned_a, turned_b = _turned(shape)
    a, b, y = shape.a, shape.b, shape.y
    width_a = a.width(_CHUNK, shape.rows if turned_a else shape.inner)
    width_b = b.width(_CHUNK, shape.columns if turned_b else shape.inner)
    parts = {
        "M": shape.rows,
        "N": shape.columns,
        "K": shape.inner,
        "BM": tile.rows,
        "BN": tile.columns,
        "BK": _INNER,
        "WM": tile.warp_rows,
        "WN": tile.warp_columns,
        "TURNED_A": int(turned_a),
        "TURNED_B": int(turned_b),
        "UNRAVEL": unravel("blockIdx.x / (unsigned int)TILES", shape.batch, shape.batch_steps),
        "FIRST_A": "m0" if turned_a else f"m0 * {a.rows}ll",
        "FIRST_B": "n0" if turned_b else f"n0 * {b.columns}ll",
        "STEP_A": a.columns if turned_a else a.rows,
        "STEP_B": b.rows if turned_b else b.columns,
        "STEP_K_A": a.columns,
        "STEP_K_B": b.rows,
        "STEP_Y": y.rows,
        "WIDTH_A": width_a,
        "WIDTH_B": width_b,
        "WIDTH_Y": y.width(_CHUNK, shape.columns),
        "FACTOR": "" if shape.factor == 1.0 else f" * {shape.factor!r}f",
    }
    source = kernel_of(Path(__file__).with_name("product.cu"), shape.dtype, parts)
    grid = (tile.count(shape) * shape.count, 1, 1)
    return Launch(source, grid, (tile.threads, 1, 1), tile.shared_bytes(shape))
