"""Kernels that move elements by an index map, and copies.

Elements are moved as integers of their size, so two kernels a size serve every move.  Sizes and
offsets are operands.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ....fusion.planning import build_plan
from ....fusion.sequence import Schedule
from ....graph.expression import argument
from ....graph.index_map import OUTSIDE, IndexMap
from ....graph.ir import Graph, Node, Value
from ....graph.operators import Formula, Identity
from ....graph.types import BYTES, ITEMSIZE, TensorType
from ....runtime.arrays import to_bits
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..sequences.sequence import SequenceKernel, print_sequence
from ..tensor import Tensor
from .kernels import CHUNK, WORTH, Shaped


def copied(type: TensorType) -> Graph:
    """A region that gives its input."""
    value = Value(type, "source")
    op = Formula(argument(0), title="Copy", dtype=type.dtype, compute="float32")
    node = Node(op if type.dtype in BYTES else Identity(), [value], "copy")
    return Graph([value], node.outputs, [node])


def print_copy(
    type: TensorType, source: Tensor, result: Tensor, isa: Isa, channel: int = 0
) -> SequenceKernel:
    """Copies a value to where it lies otherwise: in another layout, or from ``channel`` on of a
    wider value."""
    _, _, rows, columns = type.plane
    plan, binding = build_plan(copied(type), Schedule(rows, columns))
    slots = tuple(replace(slot, channel=slot.channel - channel) for slot in binding.outputs)
    binding = replace(binding, outputs=slots)
    return print_sequence(plan, binding, [source], [result], isa)


#: Elements are copied as integers of their size.
RAW = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}

#: Rows that take in the axis before them, if they are neighbours and if they are not, and what they
#: become at most.
_SHORT_RUN, _SHORT, _LONGEST = 16, 64, 4096

# Sizes: length, chunks a row, base, fill, the inner axis's lead, run and stride (run kernels), the
# number of outer axes, for each its size and where its offsets begin; then all offsets.
_MOVE = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform {raw} fill = (uniform {raw})n[3];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    uniform int64 row = t / n[1], from = n[2];
    const uniform int64 first = (t % n[1]) * {chunk};
    uniform {raw} * uniform y = MD_OUT({raw}, 1) + row * n[0] + first;
    const uniform int64 left = n[0] - first, most = {chunk};
    const uniform int count = (uniform int)(left < most ? left : most);
    uniform bool outside = false;
    for (uniform int axis = (uniform int)n[7] - 1; axis >= 0; axis--) {{
      const uniform int64 size = n[8 + 2 * axis];
      const uniform int64 offset = n[n[9 + 2 * axis] + row % size];
      row /= size;
      if (offset < 0) outside = true;
      from += offset;
    }}
    if (outside) {{
      foreach (i = 0 ... count) {{ y[i] = fill; }}
      continue;
    }}
    const uniform {raw} * uniform x = MD_IN({raw}, 0) + from;
{inner}
  }}
}}
"""

_RUN = """\
    uniform int64 lead = n[4] - first, end = n[4] + n[5] - first;
    if (lead < 0) lead = 0;
    if (lead > count) lead = count;
    if (end < lead) end = lead;
    if (end > count) end = count;
    x += first - n[4];
    foreach (i = 0 ... (uniform int)lead) {{ y[i] = fill; }}
    foreach (i = (uniform int)lead ... (uniform int)end) {{ y[i] = x[i]; }}
    foreach (i = (uniform int)end ... count) {{ y[i] = fill; }}"""

_EACH = """\
    const uniform int64 * uniform places = n + n[6] + first;
    foreach (i = 0 ... count) {{
      const int64 place = places[i];
      {raw} value = fill;
      if (place >= 0) value = x[place];
      y[i] = value;
    }}"""


def print_move(index: IndexMap, dtype: str) -> Shaped:
    """The kernel of a move; its pointers are the input, the output and the sizes."""
    raw = RAW[ITEMSIZE[dtype]]
    small = index.collapsed()
    outer, inner = _widened(*small.offsets) if small.offsets else ([], np.zeros(1, np.int64))
    run = _run(inner)
    text = (_RUN if run else _EACH).replace("{raw}", raw).replace("{{", "{").replace("}}", "}")
    text = _MOVE.format(raw=raw, chunk=CHUNK, inner=text)
    lead, length = run or (0, 0)
    base = small.base + (int(inner[lead]) if run and length else 0)
    filled = to_bits(np.array([small.fill]), dtype).view(f"i{ITEMSIZE[dtype]}")[0]
    chunks = -(-len(inner) // CHUNK)
    at = 8 + 2 * len(outer)
    head = [len(inner), chunks, base, int(filled), lead, length, at, len(outer)]
    tables = [] if run else [inner]
    at += 0 if run else len(inner)
    for axis in outer:
        head += [len(axis), at]
        at += len(axis)
        tables.append(axis)
    sizes = np.concatenate([np.array(head, np.int64), *tables]).astype(np.int64)
    tasks = prod(len(axis) for axis in outer) * chunks
    grain = max(1, min(WORTH // len(inner), tasks // 8))
    return Shaped(KernelSource.named("move", text), sizes, tasks, grain)


def _widened(*axes: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The outer axes and the inner one, which takes in the axis before it, or a part of that, while
    it is so short that finding where a row begins takes longer than moving it."""
    *outer, inner = axes
    while outer and len(inner) < (_SHORT_RUN if _run(inner) else _SHORT):
        size = len(outer[-1])
        most = min(size, _LONGEST // len(inner))
        shares = [n for n in range(2, most + 1) if size % n == 0]
        share = next((n for n in reversed(shares) if _is_split(outer[-1], n)), 1)
        if share == 1:
            break
        rows = outer.pop().reshape(-1, share)
        near = np.where(rows[0] == OUTSIDE, OUTSIDE, rows[0] - (rows[0, 0] if len(rows) > 1 else 0))
        outside = (near[:, None] == OUTSIDE) | (inner == OUTSIDE)
        inner = np.where(outside, OUTSIDE, near[:, None] + inner).ravel()
        outer += [rows[:, 0]] if len(rows) > 1 else []
    return outer, inner


def _is_split(axis: np.ndarray, share: int) -> bool:
    """Whether an axis is the same steps of that many elements, from several places on."""
    if share == len(axis):
        return True
    rows = axis.reshape(-1, share)
    return not (axis == OUTSIDE).any() and bool((rows - rows[:, :1] == rows[0] - rows[0, 0]).all())


def _run(inner: np.ndarray) -> tuple[int, int] | None:
    """Where neighbours begin and how many they are, if all else is outside; else None."""
    (inside,) = np.nonzero(inner != OUTSIDE)
    if not inside.size:
        return (0, 0)
    lead, length = int(inside[0]), int(inside[-1] - inside[0]) + 1
    run = inner[lead : lead + length]
    ordered = np.array_equal(run, run[0] + np.arange(length)) and length == inside.size
    return (lead, length) if ordered else None
