"""Kernels of the place of a maximum.  Sizes are operands.

NaN counts as the largest; of several the first counts, or the last.  A long axis is cut into
parts; the best of each are compared afterwards.
"""

from __future__ import annotations

from math import prod

from ....graph.operators import ArgMax
from ....graph.types import INTEGERS, TensorType
from ...codegen.kernel import KernelSource
from ..contraction.stage import Workspace
from .broadcast import STORED
from .staged import Staged, parts_of, stage

_CHUNK = 64

# Sizes: length, its parts, parts, elements inside of the axis, chunks of them.  Columns lie side
# by side; where there are few, lanes take every so many-th position of them.
_PARTS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, {sizes});
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 chunk = t % n[4] * {chunk}, part = t / n[4] % n[2], outer = t / n[4] / n[2];
    const uniform int64 first = part * n[1];
    const uniform int64 left = n[0] - first, wide = n[3] - chunk;
    const uniform int count = (uniform int)(left < n[1] ? left : n[1]);
    const uniform int columns = (uniform int)(wide < {chunk} ? wide : {chunk});
    const uniform int beside = n[3] * 2 <= programCount ? programCount / columns : 1;
    const uniform int64 at = (outer * n[0] + first) * n[3] + chunk;
    const uniform {given} * uniform x = MD_IN({given}, 0) + at;
    uniform {wide} bests[{chunk}];
    uniform int places[{chunk}];
    foreach (i = 0 ... columns * beside) {{
      const int own = i / columns;
      {wide} best = 0;
      int place = -1;
      uniform int k = 0;
      if (own < count) {{
        best = x[i];
        place = own;
      }}
      for (k = beside; k + beside <= count; k += beside) {{
        const {wide} a = x[k * n[3] + i];
        if ({better}) {{ best = a; place = k + own; }}
      }}
      if (k + own < count) {{
        const {wide} a = x[k * n[3] + i];
        if ({better}) {{ best = a; place = k + own; }}
      }}
      bests[i] = best;
      places[i] = place;
    }}
    const uniform int64 result = (outer * n[2] + part) * n[3] + chunk;
    foreach (i = 0 ... columns) {{
      {wide} best = bests[i];
      int place = places[i];
      for (uniform int k = 1; k < beside; k++) {{
        const {wide} a = bests[k * columns + i];
        const int here = places[k * columns + i];
        const bool same = !({more}) && !({less});
        if (here >= 0 && ({more} || (same && {before}))) {{ best = a; place = here; }}
      }}
      MD_OUT(int64, {places})[result + i] = {where};
      {keep}
    }}
  }}
}}
"""


def print_argmax(op: ArgMax, x: TensorType) -> Staged:
    """The kernels of the place of a maximum."""
    dim = op.dim % x.rank
    outer, length, inner = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    whole = x.dtype in INTEGERS
    more, less = "a > best", "a < best"
    if not whole:  # NaN is the largest
        more = "(best == best && (a != a || a > best))"
        less = "(a == a && (best != best || a < best))"
    names = {
        "wide": "int64" if whole else "float",
        "more": more,
        "less": less,
        "better": f"!{less}" if op.last and not whole else ("a >= best" if op.last else more),
        "before": "here > place" if op.last else "here < place",
        "chunk": _CHUNK,
    }
    chunks = -(-inner // _CHUNK)
    part = parts_of(length, max(1, min(inner, _CHUNK)), outer * chunks)
    parts = -(-length // part)
    count = outer * parts * inner
    first = dict(names, given=STORED[x.dtype], where="first + place")
    sizes = [length, part, parts, inner, chunks]
    tasks, work = outer * parts * chunks, part * min(inner, _CHUNK)
    if parts == 1:
        source = KernelSource.named("argmax", _PARTS.format(**first, sizes=2, places=1, keep=""))
        return Staged((stage(source, (0, 1), sizes, tasks, work),))
    # The best of each part, and their places behind them.
    item = 8 if whole else 4
    bests, places = Workspace(0), Workspace(-(-count * item // 64) * 64)
    keep = f"MD_OUT({names['wide']}, 2)[result + i] = best;"
    source = KernelSource.named("argmax", _PARTS.format(**first, sizes=3, places=1, keep=keep))
    again = dict(names, given=names["wide"], where="MD_IN(int64, 1)[at + place * n[3] + i]")
    joins = KernelSource.named("argmax", _PARTS.format(**again, sizes=3, places=2, keep=""))
    stages = (
        stage(source, (0, places, bests), sizes, tasks, work),
        stage(
            joins,
            (bests, places, 1),
            [parts, parts, 1, inner, chunks],
            outer * chunks,
            parts * min(inner, _CHUNK),
        ),
    )
    return Staged(stages, places.offset + count * 8)
