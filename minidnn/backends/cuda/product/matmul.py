"""Products of batches of matrices: of halves on tensor cores, others in the precision of their sums
(float32, and whole numbers in int32); and the tasks of them and of what is made of them.

Without tensor cores a block makes 64 x 64 elements, a thread 4 x 4 of them, from slabs of 16 in
shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ....fusion.attention import FusedAttention, FusedAttentionGradient
from ....fusion.product import BatchedProduct, FusedProduct, shape_of
from ....graph.ir import Node, Value
from ....graph.operators import MatMul
from ....graph.types import HALVES
from ...codegen.kernel import KernelSource
from ..expressions import STORED, read
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..task import Task, at_offset
from .attention import attention_tasks
from .fragments import kernel_of, unravel

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


_TEXT = """\
extern "C" __global__ void @(const {A} *a, const {B} *b, {Y} *y) {
  MD_SHARED;
  {SUM} (*left)[68] = ({SUM} (*)[68])md_shared, (*right)[68] = left + 16;
  const int thread = threadIdx.x, row = thread / 16 * 4, column = thread % 16 * 4;
  const int tile = blockIdx.x % {TILES}u, m0 = tile / {TILES_N} * 64, n0 = tile % {TILES_N} * 64;
  {UNRAVEL}
  {SUM} sum[4][4] = {};
  for (int k0 = 0; k0 < {K}; k0 += 16) {
    #pragma unroll
    for (int i = thread; i < 64 * 16; i += 256) {
      const int of_a = {LINE_A}, k_a = {INNER_A}, of_b = {LINE_B}, k_b = {INNER_B};
      const int m = m0 + of_a, ka = k0 + k_a, kb = k0 + k_b, n = n0 + of_b;
      left[k_a][of_a] = m < {M} && ka < {K} ? {READ_A} : ({SUM})0;
      right[k_b][of_b] = kb < {K} && n < {N} ? {READ_B} : ({SUM})0;
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < 16; k++) {
      if (k0 + k >= {K}) break;
      md_pack<4, {SUM}> p, q;
      p.word = *(const uint4 *)&left[k][row];
      q.word = *(const uint4 *)&right[k][column];
      #pragma unroll
      for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
          sum[i][j] = {ADDED};
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      if (m0 + row + i < {M} && n0 + column + j < {N})
        y[(m0 + row + i) * {STEP_Y}ll + n0 + column + j] = {RESULT};
}
"""


def print_exactly(shape: BatchedProduct, dtype_a: str, dtype_b: str) -> Launch:
    """The kernel; pointers are both operands, which may be bytes of different signs, and the
    result."""
    tiles = (-(-shape.rows // 64), -(-shape.columns // 64))
    count = max(1, tiles[0] * tiles[1])
    whole = shape.result == "int32"
    left = f"a[m * {shape.a.rows}ll + ka * {shape.a.columns}ll]"
    right = f"b[kb * {shape.b.rows}ll + n * {shape.b.columns}ll]"
    # Neighbouring threads read what follows each other.
    across, along = "i % 64", "i / 64"
    inner, outer = "i % 16", "i / 16"
    turned_a, turned_b = shape.a.columns != 1, shape.b.columns != 1
    factor = "" if shape.factor == 1.0 else f" * {shape.factor!r}f"
    parts: dict[str, object] = {
        "A": STORED[dtype_a],
        "B": STORED[dtype_b],
        "Y": STORED[shape.result],
        "SUM": "int" if whole else "float",
        "UNRAVEL": unravel(
            f"blockIdx.x / {count}u",
            shape.batch,
            shape.batch_steps,
        ),
        "LINE_A": across if turned_a else outer,
        "INNER_A": along if turned_a else inner,
        "LINE_B": outer if turned_b else across,
        "INNER_B": inner if turned_b else along,
        "READ_A": f"(int){read(left, dtype_a, True)}" if whole else f"md_value({left})",
        "READ_B": f"(int){read(right, dtype_b, True)}" if whole else f"md_value({right})",
        "ADDED": "p.items[i] * q.items[j] + sum[i][j]"
        if whole
        else "md_fma(p.items[i], q.items[j], sum[i][j])",
        "RESULT": "sum[i][j]" if whole else f"md_as<{TYPES[shape.result]}>(sum[i][j]{factor})",
        "STEP_Y": shape.y.rows,
    }
    parts |= {"M": shape.rows, "N": shape.columns, "K": shape.inner}
    parts |= {"TILES": count, "TILES_N": max(1, tiles[1])}
    text = _TEXT
    for name, value in parts.items():
        text = text.replace("{" + name + "}", str(value))
    source = KernelSource.named("matmul", text)
    return Launch(source, (count * shape.count, 1, 1), (256, 1, 1), 2 * 16 * 68 * 4)


BATCHED = (MatMul, FusedProduct, FusedAttention, FusedAttentionGradient)


def tasks_of_batches(node: Node, machine: Machine, others: bool) -> Sequence[Task]:
    """The tasks of such a node, with ``others`` to be measured if they are wanted."""
    if isinstance(node.op, (FusedAttention, FusedAttentionGradient)):
        return attention_tasks(node)
    (launch, *more), operands = print_product(node, machine)
    shape, _ = shape_of(node)
    a, b = operands
    pointers = at_offset(a, shape.a.offset), at_offset(b, shape.b.offset), node.output
    return (Task(node, launch, pointers, tuple(more) if others else ()),)


def print_product(node: Node, machine: Machine) -> tuple[list[Launch], tuple[Value, Value]]:
    """The kernels that may be the fastest for a MatMul, or for a region of one: the one first that
    is taken to be, and the others give the same bits.

    Pointers are the two operands that are told, and the result.
    """
    shape, (a, b) = shape_of(node)
    if why_not_tensor_cores(shape) is not None:
        return [print_exactly(shape, a.dtype, b.dtype)], (a, b)
    tiles = candidates(shape, machine)
    return [print_on_tensor_cores(shape, tile) for tile in tiles], (a, b)
