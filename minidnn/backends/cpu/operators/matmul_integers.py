"""The kernel of products of matrices of integers that are both computed; sizes are operands."""

from __future__ import annotations

from math import prod

import numpy as np

from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from .broadcast import STORED, Shaped
from .matmul import matrices

_ROWS = 6
"""Rows of the result that a task computes at once: each vector of ``b`` is read once for them."""

_COLUMNS = 256
"""Columns of a task."""

# Sizes: M, N, K, row tiles, column tiles, where the offsets of the matrices of a and b begin.
_MATMUL = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 3);
  const uniform int depth = (uniform int)n[2];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 matrix = t / (n[3] * n[4]);
    const uniform int64 top = t / n[4] % n[3] * {rows}, first = t % n[4] * {columns};
    const uniform int64 left = n[1] - first, below = n[0] - top;
    const uniform int count = (uniform int)(left < {columns} ? left : {columns});
    const uniform int rows = (uniform int)(below < {rows} ? below : {rows});
    const uniform {a} * uniform a = MD_IN({a}, 0) + n[n[5] + matrix] + top * n[2];
    const uniform {b} * uniform b = MD_IN({b}, 1) + n[n[6] + matrix] + first;
    uniform {sum} * uniform y = MD_OUT({sum}, 2) + (matrix * n[0] + top) * n[1] + first;
{pointers}
    foreach (i = 0 ... count) {{
{start}
      for (uniform int k = 0; k < depth; k++) {{
        const {sum} each = b[k * n[1] + i];
{sums}
      }}
{store}
    }}
  }}
}}
"""


def print_matmul_of_integers(a: TensorType, b: TensorType, y: TensorType) -> Shaped:
    """The kernel of a product; its pointers are the operands, the output and the sizes."""
    every = range(_ROWS)
    types = {name: STORED[type.dtype] for name, type in (("a", a), ("b", b), ("sum", y))}
    text = _MATMUL.format(
        **types,
        rows=_ROWS,
        columns=_COLUMNS,
        # A row beyond the last is the last once more, and not stored.
        pointers="\n".join(
            f"    const uniform {types['a']} * uniform a{r} = a + (rows > {r} ? {r} : 0) * n[2];"
            for r in every
        ),
        start="\n".join(f"      {types['sum']} s{r} = 0;" for r in every),
        sums="\n".join(f"        s{r} += ({types['sum']})a{r}[k] * each;" for r in every),
        store="\n".join(f"      if (rows > {r}) y[{r} * n[1] + i] = s{r};" for r in every),
    )
    batch = y.shape[:-2]
    rows, columns, depth = y.shape[-2], y.shape[-1], a.shape[-1]
    tiles = (-(-rows // _ROWS), -(-columns // _COLUMNS))
    places = [matrices(a, batch), matrices(b, batch)]
    head = [rows, columns, depth, *tiles, 7, 7 + len(places[0])]
    sizes = np.concatenate([np.array(head, np.int64), *places]).astype(np.int64)
    return Shaped(KernelSource.named("matmul", text), sizes, prod(batch) * prod(tiles))
