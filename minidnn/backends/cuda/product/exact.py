"""Products of batches of matrices in the precision of their sums: float32, and whole numbers in
int32.

A block makes 64 x 64 elements, a thread 4 x 4 of them, from slabs of 16 in shared memory.
"""

from __future__ import annotations

from ....fusion.product import BatchedProduct
from ...codegen.kernel import KernelSource
from ..kernels import Launch
from ..prelude import TYPES
from ..whole import STORED, read
from .batches import unravel

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
