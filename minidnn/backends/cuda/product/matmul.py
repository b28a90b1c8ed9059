"""Batched matrix products, and the tasks of the nodes that contain one.

Products of float16 and bfloat16 run on tensor cores, in tiles that a cost model ranks.  All others
run on CUDA cores in the precision of their sums (float32; int32 for integers): a block computes a
tile of 64 x 64 elements, a thread 4 x 4 of them, in steps of 16 along K through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....fusion.product import BatchedProduct, shape_of
from ....graph.ir import Node, Value
from ....graph.types import HALF_DTYPES
from ...codegen.kernel import KernelSource
from ..expressions import STORED, read
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..task import Task, at_offset
from .fragments import kernel_of, unravel

_INNER = 64
"""Extent of the K tile: the products of a row and a column in one stage of shared memory."""
_CHUNK = 8
"""Elements in 16 bytes, the width of one memory access."""


@dataclass(frozen=True)
class ProductTile:
    """The M x N tile of the result that a block computes, and the tile of each of its warps, in
    elements."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int

    @property
    def threads(self) -> int:
        return self.rows // self.warp_rows * (self.columns // self.warp_columns) * 32

    def count(self, shape: BatchedProduct) -> int:
        """The number of tiles that cover one matrix of the result."""
        return -(-shape.rows // self.rows) * -(-shape.columns // self.columns)

    def side_by_side(self, shape: BatchedProduct, machine: Machine) -> int:
        """An estimate of the blocks that a multiprocessor runs at once, by shared memory, registers
        and threads."""
        registers = self.threads * (_REGISTERS + self.warp_rows * self.warp_columns // 32)
        blocks = min(machine.shared_bytes // self.shared_bytes(shape), 65536 // registers)
        return max(1, min(blocks, 2048 // self.threads))

    def shared_bytes(self, shape: BatchedProduct) -> int:
        """Dynamic shared memory of a block, in bytes: one or two stages of both operands, or the
        tile of the result, which passes through the same memory at the end."""
        extents_a, extents_b = (
            (_INNER, n) if outer else (n, _INNER)
            for n, outer in zip((self.rows, self.columns), _majors(shape), strict=True)
        )
        stage = sum(lines * _pitch(line) for lines, line in (extents_a, extents_b))
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
"""Multiply-adds of a multiprocessor in a cycle, as the cost model takes them."""
_BYTES = 32.0
"""Bytes that a multiprocessor reads from the L2 cache in a cycle."""
_LATENCY = 3000.0
"""Memory latency of a tile in cycles, which other blocks on the multiprocessor hide.  With it the
tile chosen for products of attention is within 5 % of the fastest (one H200)."""
_REGISTERS = 38
"""Registers of a thread beside its accumulators."""
_MEASURED = 3
"""Tiles that are measured: those that the cost model ranks first."""


def _pitch(line: int) -> int:
    """Bytes from one line of ``line`` elements in shared memory to the next: an odd number of
    16-byte units, so that neighbouring lines begin in different banks."""
    return (line // _CHUNK | 1) * 16


def _majors(shape: BatchedProduct) -> tuple[bool, bool]:
    """Whether the first operand is contiguous along M, and the second along N; otherwise they are
    contiguous along K.  Shared memory keeps the order that they have in global memory."""
    return shape.a.columns != 1, shape.b.columns == 1


def why_not_tensor_cores(shape: BatchedProduct) -> str | None:
    """Why tensor cores do not compute a product; None if they do."""
    if shape.dtype not in HALF_DTYPES:
        return f"it is in {shape.dtype}"
    if 0 in (shape.rows, shape.columns, shape.inner, shape.count):
        return "there is nothing to multiply"
    return None


def candidates(shape: BatchedProduct, machine: Machine) -> list[ProductTile]:
    """The tiles that are worth measuring, the cost model's choice first."""

    def cycles(tile: ProductTile) -> float:
        """Predicted cycles: waves of tiles, each as long as the slower of arithmetic and L2 reads,
        and the latency that other blocks on the multiprocessor do not hide."""
        resident = tile.side_by_side(shape, machine)
        products = tile.rows * tile.columns * shape.inner / _PRODUCTS
        elements = (tile.rows + tile.columns) * shape.inner + tile.rows * tile.columns
        bytes = elements * 2 / _BYTES
        waves = -(-tile.count(shape) * shape.count // machine.multiprocessors)
        waits = min(products, bytes) + _LATENCY
        return waves * (max(products, bytes) + waits / min(resident, waves))

    return sorted(TILES, key=cycles)[:_MEASURED]


def print_on_tensor_cores(shape: BatchedProduct, tile: ProductTile) -> Launch:
    """The kernel of a product of float16 or bfloat16 on tensor cores; its pointers are both
    operands and the result."""
    m_major_a, n_major_b = _majors(shape)
    a, b, y = shape.a, shape.b, shape.y
    width_a = a.width(_CHUNK, shape.rows if m_major_a else shape.inner)
    width_b = b.width(_CHUNK, shape.columns if n_major_b else shape.inner)
    parameters = {
        "M": shape.rows,
        "N": shape.columns,
        "K": shape.inner,
        "BM": tile.rows,
        "BN": tile.columns,
        "BK": _INNER,
        "WM": tile.warp_rows,
        "WN": tile.warp_columns,
        "TURNED_A": int(m_major_a),
        "TURNED_B": int(n_major_b),
        "UNRAVEL": unravel("blockIdx.x / (unsigned int)TILES", shape.batch, shape.batch_steps),
        "FIRST_A": "m0" if m_major_a else f"m0 * {a.rows}ll",
        "FIRST_B": "n0" if n_major_b else f"n0 * {b.columns}ll",
        "STEP_A": a.columns if m_major_a else a.rows,
        "STEP_B": b.rows if n_major_b else b.columns,
        "STEP_K_A": a.columns,
        "STEP_K_B": b.rows,
        "STEP_Y": y.rows,
        "WIDTH_A": width_a,
        "WIDTH_B": width_b,
        "WIDTH_Y": y.width(_CHUNK, shape.columns),
        "FACTOR": "" if shape.factor == 1.0 else f" * {shape.factor!r}f",
    }
    source = kernel_of("product.cu", shape.dtype, parameters)
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


def print_on_cuda_cores(shape: BatchedProduct, dtype_a: str, dtype_b: str) -> Launch:
    """The kernel of a product on CUDA cores; its pointers are both operands, which may be one int8
    and one uint8, and the result."""
    tiles = (-(-shape.rows // 64), -(-shape.columns // 64))
    count = max(1, tiles[0] * tiles[1])
    is_integer = shape.result == "int32"

    def operand(element: str, dtype: str) -> str:
        return f"(int){read(element, dtype, True)}" if is_integer else f"md_value({element})"

    element_a = f"a[m * {shape.a.rows}ll + ka * {shape.a.columns}ll]"
    element_b = f"b[kb * {shape.b.rows}ll + n * {shape.b.columns}ll]"
    # Neighbouring threads read neighbouring elements, whether along M (or N) or along K.
    mn_fastest, k_slowest = "i % 64", "i / 64"
    k_fastest, mn_slowest = "i % 16", "i / 16"
    m_major_a, k_major_b = shape.a.columns != 1, shape.b.columns != 1
    factor = "" if shape.factor == 1.0 else f" * {shape.factor!r}f"
    parameters: dict[str, object] = {
        "A": STORED[dtype_a],
        "B": STORED[dtype_b],
        "Y": STORED[shape.result],
        "SUM": "int" if is_integer else "float",
        "UNRAVEL": unravel(f"blockIdx.x / {count}u", shape.batch, shape.batch_steps),
        "LINE_A": mn_fastest if m_major_a else mn_slowest,
        "INNER_A": k_slowest if m_major_a else k_fastest,
        "LINE_B": mn_slowest if k_major_b else mn_fastest,
        "INNER_B": k_fastest if k_major_b else k_slowest,
        "READ_A": operand(element_a, dtype_a),
        "READ_B": operand(element_b, dtype_b),
        "ADDED": "p.items[i] * q.items[j] + sum[i][j]"
        if is_integer
        else "md_fma(p.items[i], q.items[j], sum[i][j])",
        "RESULT": "sum[i][j]" if is_integer else f"md_as<{TYPES[shape.result]}>(sum[i][j]{factor})",
        "STEP_Y": shape.y.rows,
    }
    parameters |= {"M": shape.rows, "N": shape.columns, "K": shape.inner}
    parameters |= {"TILES": count, "TILES_N": max(1, tiles[1])}
    text = _TEXT
    for name, value in parameters.items():
        text = text.replace("{" + name + "}", str(value))
    source = KernelSource.named("matmul", text)
    return Launch(source, (count * shape.count, 1, 1), (256, 1, 1), 2 * 16 * 68 * 4)


def product_tasks(node: Node, machine: Machine, others: bool) -> Sequence[Task]:
    """The task of a MatMul or of a region of one; with ``others`` it has the other tiles' launches
    as well, to be measured."""
    (launch, *alternatives), operands = print_product(node, machine)
    shape, _ = shape_of(node)
    a, b = operands
    pointers = at_offset(a, shape.a.offset), at_offset(b, shape.b.offset), node.output
    return (Task(node, launch, pointers, tuple(alternatives) if others else ()),)


def print_product(node: Node, machine: Machine) -> tuple[list[Launch], tuple[Value, Value]]:
    """The launches that are worth measuring for a MatMul or a region of one, the cost model's
    choice first; all give the same bits.

    Their pointers are the two operands that are returned, and the result.
    """
    shape, (a, b) = shape_of(node)
    if why_not_tensor_cores(shape) is not None:
        return [print_on_cuda_cores(shape, a.dtype, b.dtype)], (a, b)
    tiles = candidates(shape, machine)
    return [print_on_tensor_cores(shape, tile) for tile in tiles], (a, b)
