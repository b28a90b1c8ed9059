"""Kernels of reductions along axes: sums, means, extremes and products.  Sizes are operands.

Neighbouring axes that are reduced count as one; of several such groups the last is reduced first.
So each stage reduces the middle of three axes: ``outer``, ``length``, ``inner``.  Rows
(``inner == 1``) are reduced across lanes, columns lane by lane; where both are short, each lane
computes an output.

For argmax NaN counts as the largest; of several maxima the first or the last counts.  A long axis
is split into parts; the best elements of all parts are compared afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....graph.operators import ArgMax, Reduce
from ....graph.types import INTEGERS, TensorType
from ...codegen.kernel import KernelSource
from ..stage import CASCADE, LEVELS, Stage, Staged, Workspace, parts_of, stage
from ..tensor import STORED

_CHUNK = 64
"""Columns of a task of argmax."""

# Sizes: length, length of a part, parts, columns (the inner extent), chunks of columns.  Columns
# are contiguous; where they are few, lanes compare several positions of the axis at once.
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
    """The kernels of the index of a maximum along an axis."""
    dim = op.dim % x.rank
    outer, length, inner = prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])
    is_integer = x.dtype in INTEGERS
    more, less = "a > best", "a < best"
    if not is_integer:  # NaN is the largest
        more = "(best == best && (a != a || a > best))"
        less = "(a == a && (best != best || a < best))"
    names = {
        "wide": "int64" if is_integer else "float",
        "more": more,
        "less": less,
        "better": f"!{less}" if op.last and not is_integer else ("a >= best" if op.last else more),
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
    # Workspace: the best element of each part, and after them their indices.
    item = 8 if is_integer else 4
    bests, indices = Workspace(0), Workspace(-(-count * item // 64) * 64)
    keep = f"MD_OUT({names['wide']}, 2)[result + i] = best;"
    source = KernelSource.named("argmax", _PARTS.format(**first, sizes=3, places=1, keep=keep))
    second = dict(names, given=names["wide"], where="MD_IN(int64, 1)[at + place * n[3] + i]")
    combine = KernelSource.named("argmax", _PARTS.format(**second, sizes=3, places=2, keep=""))
    stages = (
        stage(source, (0, indices, bests), sizes, tasks, work),
        stage(
            combine,
            (bests, indices, 1),
            [parts, parts, 1, inner, chunks],
            outer * chunks,
            parts * min(inner, _CHUNK),
        ),
    )
    return Staged(stages, indices.offset + count * 8)


_WIDTH = 512
"""Columns that a task reduces."""
_SHORT = 32
_FEW = 2048
"""One lane computes an output where it reduces at most ``_SHORT`` elements, or where the few
columns of an outer index have at most ``_FEW`` elements in all."""

# Sizes: length of a row, length of a part, parts, the divisor of a mean.
_ROWS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform int many = 4 * programCount;
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 first = t % n[2] * n[1];
    const uniform int64 left = n[0] - first;
    const uniform int64 count = left < n[1] ? left : n[1];
    const uniform {given} * uniform x = MD_IN({given}, 0) + (t / n[2] * n[0] + first);
    {wide} levels[{levels}];
    uniform int64 blocks = 0, i = 0;
    while (i + many <= count) {{
      {wide} part[4];
      for (uniform int p = 0; p < 4; p++) part[p] = {start};
      const uniform int64 end = i + 16 * many < count ? i + 16 * many : count;
      for (; i + many <= end; i += many) {{
        for (uniform int p = 0; p < 4; p++) {{
          const {wide} a = x[i + p * programCount + programIndex], c = part[p];
          part[p] = {combine};
        }}
      }}
      for (uniform int p = 2; p > 0; p >>= 1) {{
        for (uniform int q = 0; q < p; q++) {{
          const {wide} a = part[q + p], c = part[q];
          part[q] = {combine};
        }}
      }}
      @_push(levels, ++blocks, part[0]);
    }}
    {wide} tail = {start};
    foreach (j = i ... count) {{ const {wide} a = x[j], c = tail; tail = {combine}; }}
    const {wide} all = @_rest(levels, blocks, tail);
    uniform {wide} result = extract(all, 0);
    for (uniform int l = 1; l < programCount; l++) {{
      const uniform {wide} a = extract(all, l), c = result;
      result = {combine_one};
    }}
    MD_OUT({made}, 1)[t] = (uniform {made})({last_one});
  }}
}}
"""

# Sizes: length, length of a part, parts, the divisor of a mean, columns, chunks of columns, rows
# that are reduced side by side as one row (more than one where columns are few).
_COLUMNS = """\
static inline void @_combine(uniform {wide} * uniform to, const uniform {wide} * uniform from,
                          uniform bool fresh, uniform int count) {{
  if (fresh) {{
    foreach (i = 0 ... count) {{ to[i] = from[i]; }}
  }} else {{
    foreach (i = 0 ... count) {{ const {wide} a = from[i], c = to[i]; to[i] = {combine}; }}
  }}
}}
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 chunk = t % n[5] * {width}, part = t / n[5] % n[2], outer = t / n[5] / n[2];
    const uniform int64 first = part * n[1];
    const uniform int64 left = n[0] - first, wide = n[4] - chunk;
    const uniform int64 count = left < n[1] ? left : n[1];
    const uniform int columns = (uniform int)(wide < {width} ? wide : {width});
    const uniform int beside = (uniform int)n[6];
    const uniform int width = columns * beside;
    const uniform int64 step = n[4] * beside, rows = count / beside;
    const uniform {given} * uniform x =
      MD_IN({given}, 0) + ((outer * n[0] + first) * n[4] + chunk);
    uniform {wide} block[{width}], levels[{levels} * {width}];
    uniform int64 blocks = 0;
    for (uniform int64 r = 0; r < rows; r += 8) {{
      const uniform {given} * uniform z = x + r * step;
      if (r + 8 <= rows) {{
        foreach (i = 0 ... width) {{
          {wide} c = z[i];
          for (uniform int k = 1; k < 8; k++) {{ const {wide} a = z[k * step + i]; c = {combine}; }}
          block[i] = c;
        }}
      }} else {{
        foreach (i = 0 ... width) {{
          {wide} c = z[i];
          for (uniform int k = 1; k < rows - r; k++) {{
            const {wide} a = z[k * step + i];
            c = {combine};
          }}
          block[i] = c;
        }}
      }}
      const uniform {wide} * uniform from = block;
      uniform {wide} * uniform to = levels;
      blocks++;
      for (uniform int64 k = blocks; ; k /= 16) {{
        @_combine(to, from, k % 16 == 1, width);
        if (k % 16 != 0) break;
        from = to;
        to += {width};
      }}
    }}
    // What is left of the levels, then the rows that fill no row of what was combined.
    uniform bool fresh = true;
    const uniform {wide} * uniform from = levels;
    for (uniform int64 k = blocks; k > 0; k /= 16) {{
      if (k % 16 != 0) {{ @_combine(block, from, fresh, width); fresh = false; }}
      from += {width};
    }}
    if (fresh) {{
      foreach (i = 0 ... width) {{ block[i] = {start}; }}
    }}
    const uniform int rest = (uniform int)((count - rows * beside) * n[4]);
    foreach (i = 0 ... rest) {{
      const {wide} a = x[rows * step + i], c = block[i];
      block[i] = {combine};
    }}
    for (uniform int many = beside; many > 1;) {{
      const uniform int half = (many + 1) / 2;
      @_combine(block, block + half * columns, false, (many - half) * columns);
      many = half;
    }}
    uniform {made} * uniform y = MD_OUT({made}, 1) + ((outer * n[2] + part) * n[4] + chunk);
    foreach (i = 0 ... columns) {{ const {wide} result = block[i]; y[i] = ({made})({last}); }}
  }}
}}
"""

# Sizes: length, the divisor of a mean, columns, outputs.  Quotients of integers this small are
# exact when rounded down from floats.
_EACH = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform int length = (uniform int)n[0], columns = (uniform int)n[2];
  const uniform float inverse = 1.0f / columns;
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 first = t * {chunk};
    const uniform int64 left = n[3] - first;
    const uniform int count = (uniform int)(left < {chunk} ? left : {chunk});
    const uniform int64 outer = first / columns;
    const uniform int column = (uniform int)(first - outer * columns);
    const uniform {given} * uniform x = MD_IN({given}, 0) + outer * length * columns;
    uniform {made} * uniform y = MD_OUT({made}, 1) + first;
    foreach (i = 0 ... count) {{
      const int place = column + i;
      const int row = columns == 1 ? place : (int)((place + 0.5f) * inverse);
      const int from = row * length * columns + (place - row * columns);
      {wide} all = {start};
      for (uniform int b = 0; b < length; b += 16) {{
        const uniform int end = b + 16 < length ? b + 16 : length;
        {wide} part = {start};
        for (uniform int k = b; k < end; k++) {{
          const {wide} a = x[from + k * columns], c = part;
          part = {combine};
        }}
        const {wide} a = part, c = all;
        all = {combine};
      }}
      const {wide} result = all;
      y[i] = ({made})({last});
    }}
  }}
}}
"""
_EACH_CHUNK = 1024

#: Of each reduction: its identity, and how it combines ``a`` with ``c``, as vectors and as scalars.
_FLOATS = {
    "sum": ("0.0f", "c + a", "c + a"),
    "mean": ("0.0f", "c + a", "c + a"),
    "prod": ("1.0f", "c * a", "c * a"),
    "max": ("floatbits(0xff800000)", "md_max(a, c)", "(a > c || a != a) ? a : c"),
    "min": ("floatbits(0x7f800000)", "md_min(a, c)", "(a < c || a != a) ? a : c"),
}
_WHOLE = {
    "sum": ("0", "c + a", "c + a"),
    "prod": ("1", "c * a", "c * a"),
    "max": ("((int64)1 << 63)", "a > c ? a : c", "a > c ? a : c"),
    "min": ("~((int64)1 << 63)", "a < c ? a : c", "a < c ? a : c"),
}


@dataclass(frozen=True)
class _Step:
    """A stage that reduces the middle of three axes, part by part."""

    outer: int
    length: int
    inner: int
    part: int
    divisor: int = 1

    @property
    def parts(self) -> int:
        return -(-self.length // self.part) or 1

    @property
    def results(self) -> int:
        return self.outer * self.parts * self.inner

    @property
    def is_each(self) -> bool:
        """Whether each lane computes an output."""
        few = self.inner > 1 and self.length * self.inner <= _FEW
        many = self.outer * self.inner >= 64
        short = self.length <= _SHORT or few
        return self.parts == 1 and self.inner < _SHORT and short and many

    @property
    def beside(self) -> int:
        """How many rows are reduced side by side as one, so that all lanes have elements."""
        return max(1, min(_WIDTH // 2 // max(1, self.inner), self.part // 8))


def print_reduce(op: Reduce, x: TensorType) -> Staged:
    """The kernels of a reduction."""
    steps = _steps(x.shape, op)
    is_integer = x.dtype in INTEGERS
    wide, item = ("int64", 8) if is_integer else ("float", 4)
    # Partial results alternate between two buffers of the workspace.
    buffer_bytes = [max((s.results for s in steps[i:-1:2]), default=0) * item for i in (0, 1)]
    workspace = (Workspace(0), Workspace(-(-buffer_bytes[0] // 64) * 64))
    stages: list[Stage] = []
    for number, step in enumerate(steps):
        is_last = number == len(steps) - 1
        source = 0 if number == 0 else workspace[(number - 1) % 2]
        source_type = STORED[x.dtype] if number == 0 else wide
        result_type = STORED[x.dtype] if is_last else wide
        result = 1 if is_last else workspace[number % 2]
        stages.append(_print(op.how, step, source_type, result_type, (source, result)))
    return Staged(tuple(stages), workspace[1].offset + buffer_bytes[1] if len(steps) > 1 else 0)


def _steps(shape: tuple[int, ...], op: Reduce) -> list[_Step]:
    """The stages of a reduction, in order."""
    groups = _groups(shape, op.dims)
    steps: list[_Step] = []
    while any(reduced for _, reduced in groups):
        index = max(i for i, (_, reduced) in enumerate(groups) if reduced)
        outer = prod(size for size, _ in groups[:index])
        inner = prod(size for size, _ in groups[index + 1 :])
        length = groups.pop(index)[0]
        rows_at_once = max(1, _WIDTH // 2 // max(inner, 1)) if inner > 1 else 1
        tasks = outer * max(1, -(-inner // _WIDTH))
        part = parts_of(length, max(1, min(inner, _WIDTH)), tasks, rows_at_once)
        steps.append(_Step(outer, length, inner, part))
        if steps[-1].parts > 1:
            parts = steps[-1].parts
            steps.append(_Step(outer, parts, inner, parts))
    if op.how == "mean":
        last, count = steps[-1], prod(shape[d] for d in op.dims)
        steps[-1] = _Step(last.outer, last.length, last.inner, last.part, count)
    return steps


def _groups(shape: tuple[int, ...], dims: tuple[int, ...]) -> list[tuple[int, bool]]:
    """The extents of runs of neighbouring axes, and whether a run is reduced or kept."""
    groups: list[tuple[int, bool]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if groups and groups[-1][1] == (axis in dims):
            groups[-1] = (groups[-1][0] * size, axis in dims)
        else:
            groups.append((size, axis in dims))
    return groups if any(reduced for _, reduced in groups) else [*groups, (1, True)]


def _print(
    how: str,
    step: _Step,
    source_type: str,
    result_type: str,
    pointers: tuple[int | Workspace, int | Workspace],
) -> Stage:
    """The stage of a step, by the kernel for rows, for columns, or for one output a lane."""
    is_integer = result_type.startswith("int")
    start, combine, combine_one = (_WHOLE if is_integer else _FLOATS)[how]
    names = {
        "given": source_type,
        "made": result_type,
        "wide": "int64" if is_integer else "float",
        "start": start,
        "combine": combine,
        "combine_one": combine_one,
    }

    def source(kind: str, text: str, divisor: int, **more: object) -> KernelSource:
        last = "result" if is_integer else f"result / (uniform float)n[{divisor}]"
        return KernelSource.named(kind, text.format(last=last, last_one=last, **names, **more))

    if step.is_each:
        outputs = step.outer * step.inner
        sizes = [step.length, step.divisor, step.inner, outputs]
        kernel = source("reduce_each", _EACH, 1, chunk=_EACH_CHUNK)
        tasks = -(-outputs // _EACH_CHUNK)
        return stage(kernel, pointers, sizes, tasks, _EACH_CHUNK * step.length)
    sizes = [step.length, step.part, step.parts, step.divisor]
    if step.inner == 1:
        kernel = source("reduce_rows", CASCADE + _ROWS, 3, levels=LEVELS)
        return stage(kernel, pointers, sizes, step.outer * step.parts, step.part)
    chunks = -(-step.inner // _WIDTH)
    kernel = source("reduce_columns", _COLUMNS, 3, width=_WIDTH, levels=8)
    tasks = step.outer * step.parts * chunks
    work = step.part * min(step.inner, _WIDTH)
    return stage(kernel, pointers, [*sizes, step.inner, chunks, step.beside], tasks, work)
