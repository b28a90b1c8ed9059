"""Batched matrix products of values that are both computed: a kernel of exact products, of whole
numbers in int32.

A block makes 64 x 64 elements, a thread 4 x 4 of them, from slabs of 16 in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...graph.types import TensorType
from ..codegen.kernel import KernelSource
from .kernels import Launch
from .prelude import TYPES
from .whole import STORED, read

_TEXT = """\
extern "C" __global__ void @(const {A} *a, const {B} *b, const long long *table, {Y} *y) {
  MD_SHARED;
  {SUM} (*left)[68] = ({SUM} (*)[68])md_shared, (*right)[68] = left + 16;
  const int thread = threadIdx.x, row = thread / 16 * 4, column = thread % 16 * 4;
  const int tile = blockIdx.x % {TILES}u, m0 = tile / {TILES_N} * 64, n0 = tile % {TILES_N} * 64;
  const long long image = blockIdx.x / {TILES}u;
  a += table[image * 2];
  b += table[image * 2 + 1];
  y += image * {M}ll * {N};
  {SUM} sum[4][4] = {};
  for (int k0 = 0; k0 < {K}; k0 += 16) {
    for (int i = thread; i < 64 * 16; i += 256) {
      const int m = m0 + i / 16, ka = k0 + i % 16, kb = k0 + i / 64, n = n0 + i % 64;
      left[i % 16][i / 16] = m < {M} && ka < {K} ? {READ_A} : ({SUM})0;
      right[i / 64][i % 64] = kb < {K} && n < {N} ? {READ_B} : ({SUM})0;
    }
    __syncthreads();
    for (int k = 0; k < 16 && k0 + k < {K}; k++)
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
          sum[i][j] = {JOIN};
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      if (m0 + row + i < {M} && n0 + column + j < {N})
        y[(m0 + row + i) * {N}ll + n0 + column + j] = {RESULT};
}
"""


def print_matmul(
    a: TensorType, b: TensorType, out: TensorType
) -> tuple[Launch, Callable[[], np.ndarray]]:
    """The kernel over dense values, and the table (int64) of where each pair of matrices begins.

    Pointers are both, the table, the output.
    """
    rows, inner = a.shape[-2:]
    columns = b.shape[-1]
    batch = prod(out.shape[:-2])
    tiles = (-(-rows // 64), -(-columns // 64))
    count = max(1, tiles[0] * tiles[1])
    whole = out.dtype == "int32"
    left, right = "a[m * {K}ll + ka]", "b[kb * {N}ll + n]"
    join = "left[k][row + i], right[k][column + j], sum[i][j]"
    parts: dict[str, object] = {
        "A": STORED[a.dtype],
        "B": STORED[b.dtype],
        "Y": STORED[out.dtype],
        "SUM": "int" if whole else "float",
        "READ_A": f"(int){read(left, a.dtype, True)}" if whole else f"md_value({left})",
        "READ_B": f"(int){read(right, b.dtype, True)}" if whole else f"md_value({right})",
        "JOIN": "left[k][row + i] * right[k][column + j] + sum[i][j]"
        if whole
        else f"md_fma({join})",
        "RESULT": "sum[i][j]" if whole else f"md_as<{TYPES[out.dtype]}>(sum[i][j])",
    }
    parts |= {"M": rows, "N": columns, "K": inner, "TILES": count, "TILES_N": tiles[1]}
    text = _TEXT
    for name, value in parts.items():
        text = text.replace("{" + name + "}", str(value))
    source = KernelSource.named("matmul", text)
    launch = Launch(source, (count * batch, 1, 1), (256, 1, 1), 2 * 16 * 68 * 4)

    def table() -> np.ndarray:
        firsts = [_first(x, out.shape[:-2]) for x in (a, b)]
        return np.stack(firsts, axis=-1).reshape(-1).astype(np.int64)

    return launch, table


def _first(x: TensorType, batch: tuple[int, ...]) -> np.ndarray:
    """Where the matrix of each element of the batch begins, which may repeat."""
    own = x.shape[:-2]
    count = prod(own)
    firsts = np.arange(count).reshape(own) * prod(x.shape[-2:])
    return np.broadcast_to(firsts, batch).reshape(-1)
