"""Kernels that join elements along axes: sums, means, extremes, products, the place of a maximum,
and layer normalization.  Sizes are operands."""

from __future__ import annotations

from math import prod

import numpy as np

from ...graph.operators import ArgMax, LayerNorm, Reduce
from ...graph.types import INTEGERS, TensorType
from .broadcast import CHUNK, STORED, WORTH, Shaped
from .kernels import KernelSource
from .scalar import literal

_BLOCK = 256
"""Elements that are added one after another; then their sums are, so that errors stay small."""

# Sizes: kept inner (columns) or reduced inner (rows), how many reduced outer places, chunks,
# elements a mean divides by, the number of kept outer axes, where the reduced offsets begin, and
# for each kept axis its size and where its offsets begin; then all offsets.
_HEAD = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    uniform int64 row = t / n[2], from = 0;
    for (uniform int axis = (uniform int)n[4] - 1; axis >= 0; axis--) {{
      const uniform int64 size = n[6 + 2 * axis];
      from += n[n[7 + 2 * axis] + row % size];
      row /= size;
    }}
    const uniform {type} * uniform x = MD_IN({type}, 0) + from;
    const uniform int64 * uniform places = n + n[5];
{body}
  }}
}}
"""

# What is joined lies side by side: lanes join it, then each other.
_ROWS = """\
    {wide} all = {start};
    for (uniform int64 k = 0; k < n[1]; k++) {{
      for (uniform int64 b = 0; b < n[0]; b += {most}) {{
        const uniform int64 left = n[0] - b, most = {most};
        const uniform int count = (uniform int)(left < most ? left : most);
        const uniform {type} * uniform z = x + places[k] + b;
        {wide} part = {start};
        foreach (i = 0 ... count) {{ const {wide} a = z[i], c = part; part = {join_part}; }}
        const {wide} a = part, c = all;
        all = {join_all};
      }}
    }}
    uniform {wide} result = extract(all, 0);
    for (uniform int l = 1; l < programCount; l++) {{
      const uniform {wide} a = extract(all, l), c = result;
      result = {join_one};
    }}
    MD_OUT({type}, 1)[t] = (uniform {type})({last});"""

# What stays lies side by side: each lane joins its own.
_COLUMNS = """\
    const uniform int64 first = (t % n[2]) * {chunk};
    const uniform int64 left = n[0] - first, most = {chunk};
    const uniform int count = (uniform int)(left < most ? left : most);
    uniform {type} * uniform y = MD_OUT({type}, 1) + t / n[2] * n[0] + first;
    foreach (i = 0 ... count) {{
      {wide} all = {start};
      for (uniform int64 b = 0; b < n[1]; b += {block}) {{
        uniform int64 end = b + {block};
        if (end > n[1]) end = n[1];
        {wide} part = {start};
        for (uniform int64 k = b; k < end; k++) {{
          const {wide} a = x[places[k] + first + i], c = part;
          part = {join_part};
        }}
        const {wide} a = part, c = all;
        all = {join_all};
      }}
      const {wide} result = all;
      y[i] = ({type})({last});
    }}"""

_FLOATS = {
    "sum": ("0.0f", "c + a", "c + a"),
    "mean": ("0.0f", "c + a", "c + a"),
    "prod": ("1.0f", "c * a", "c * a"),
    "max": ("floatbits(0xff800000)", "md_max(a, c)", "(a > c || a != a) ? a : c"),
    "min": ("floatbits(0x7f800000)", "md_min(a, c)", "(a < c || a != a) ? a : c"),
}
_WHOLE = {
    "sum": ("0", "c + a"),
    "prod": ("1", "c * a"),
    "max": ("((int64)1 << 63)", "a > c ? a : c"),
    "min": ("~((int64)1 << 63)", "a < c ? a : c"),
}


def print_reduce(op: Reduce, x: TensorType) -> Shaped:
    """The kernel of a reduction; its pointers are the input, the output and the sizes."""
    groups = _groups(x.shape, op.dims)
    rows = groups[-1][2]
    inner = groups.pop()[0]
    places = _combined([(size, stride) for size, stride, joined in groups if joined])
    kept = [np.arange(size) * stride for size, stride, joined in groups if not joined]
    whole = x.dtype in INTEGERS
    start, join, join_one = _joins(op.how, whole)
    text = _HEAD.replace("{body}", _ROWS if rows else _COLUMNS).format(
        type=STORED[x.dtype],
        wide="int64" if whole else "float",
        start=start,
        join_part=join,
        join_all=join,
        join_one=join_one,
        last="result / (uniform float)n[3]" if op.how == "mean" else "result",
        block=_BLOCK,
        most=CHUNK,
        chunk=CHUNK,
    )
    chunks = 1 if rows else -(-inner // CHUNK)
    at = 6 + 2 * len(kept)
    head = [inner, len(places), chunks, prod(x.shape[d] for d in op.dims), len(kept), at]
    at += len(places)
    for axis in kept:
        head += [len(axis), at]
        at += len(axis)
    sizes = np.concatenate([np.array(head, np.int64), places, *kept]).astype(np.int64)
    tasks = prod(len(axis) for axis in kept) * chunks
    grain = max(1, min(WORTH // (min(inner, CHUNK) * len(places)), tasks // 8))
    return Shaped(KernelSource.named("reduce", text), sizes, tasks, grain)


def _joins(how: str, whole: bool) -> tuple[str, str, str]:
    """The neutral element, and how ``a`` joins ``c``: in lanes, and in one number."""
    if whole:
        start, join = _WHOLE[how]
        return start, join, join
    return _FLOATS[how]


def _groups(shape: tuple[int, ...], dims: tuple[int, ...]) -> list[tuple[int, int, bool]]:
    """Size, stride and whether it is joined, of runs of neighbouring axes of one kind."""
    found: list[tuple[int, int, bool]] = []
    stride = prod(shape)
    for axis, size in enumerate(shape):
        stride //= size
        if size == 1:
            continue
        if found and found[-1][2] == (axis in dims):
            found[-1] = (found[-1][0] * size, stride, axis in dims)
        else:
            found.append((size, stride, axis in dims))
    return found or [(1, 1, True)]


def _combined(axes: list[tuple[int, int]]) -> np.ndarray:
    """The offsets of all places of some axes."""
    offsets = np.zeros(1, np.int64)
    for size, stride in axes:
        offsets = (offsets[:, None] + np.arange(size) * stride).ravel()
    return offsets


_ARGMAX = """\
MD_KERNEL(@) {{
  // Sizes: elements of the output, size of the axis, elements inside of it.
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 first = t * {chunk};
    const uniform int64 left = n[0] - first, most = {chunk};
    const uniform int count = (uniform int)(left < most ? left : most);
    uniform int64 * uniform y = MD_OUT(int64, 1) + first;
    foreach (i = 0 ... count) {{
      const int64 e = first + i;
      const uniform {type} * x = MD_IN({type}, 0) + (e / n[2] * n[1] * n[2] + e % n[2]);
      {type} best = *x;
      int64 place = 0;
      for (uniform int64 k = 1; k < n[1]; k++) {{
        const {type} a = x[k * n[2]];
        if ({better}) {{ best = a; place = k; }}
      }}
      y[i] = place;
    }}
  }}
}}
"""
_ARGMAX_CHUNK = 64


def print_argmax(op: ArgMax, x: TensorType) -> Shaped:
    """The kernel of the place of a maximum; its pointers are the input, the output, the sizes."""
    dim = op.dim % x.rank
    better = "a >= best" if op.last else "a > best"
    if x.dtype not in INTEGERS:  # NaN is the largest
        better = "a != a || (a >= best)" if op.last else "best == best && (a != a || a > best)"
    text = _ARGMAX.format(type=STORED[x.dtype], better=better, chunk=_ARGMAX_CHUNK)
    size, inner = x.shape[dim], prod(x.shape[dim + 1 :])
    count = x.size // size
    tasks = -(-count // _ARGMAX_CHUNK)
    return Shaped(
        KernelSource.named("argmax", text), np.array([count, size, inner], np.int64), tasks
    )


_LAYER_NORM = """\
MD_KERNEL(@) {{
  // Sizes: elements of a row.
  const uniform int count = (uniform int)MD_IN(int64, {last})[0];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * count;
    uniform float * uniform y = MD_OUT(float, {out}) + t * count;
    float sum = 0.0f;
    foreach (i = 0 ... count) {{ sum += x[i]; }}
    const uniform float mean = reduce_add(sum) / count;
    float squares = 0.0f;
    foreach (i = 0 ... count) {{ const float a = x[i] - mean; squares += a * a; }}
    const uniform float deviation = sqrt(reduce_add(squares) / count + {eps});
    foreach (i = 0 ... count) {{ y[i] = (x[i] - mean) / deviation{affine}; }}
  }}
}}
"""


def print_layer_norm(op: LayerNorm, x: TensorType, operands: int) -> Shaped:
    """The kernel of a layer normalization; its pointers are the operands, the output, the sizes."""
    affine = "".join(
        f" {sign} MD_IN(float, {i})[i]" for sign, i in zip("*+", range(1, operands), strict=False)
    )
    text = _LAYER_NORM.format(last=operands + 1, out=operands, eps=literal(op.eps), affine=affine)
    count = prod(x.shape[x.rank - op.axes :])
    tasks = x.size // count
    grain = max(1, min(WORTH // count, tasks // 8))
    return Shaped(KernelSource.named("layer_norm", text), np.array([count], np.int64), tasks, grain)
