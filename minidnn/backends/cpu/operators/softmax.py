"""Kernels of softmax and log-softmax.  Sizes are operands.

Exponentials are stored in the result, and divided by their sum afterwards.  A long axis is split
into parts: each gives its maximum and the sum of its exponentials, these are combined, and then the
result is written.
"""

from __future__ import annotations

from math import prod

from ....graph.operators import LogSoftmax, Softmax
from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from ..stage import CASCADE, LEVELS, Stage, Staged, Workspace, parts_of, stage

_WIDTH = 512
"""Columns that a task computes."""
_SHORT = 32
"""Rows of at most that length are computed by one lane each."""

_ADD = CASCADE.format(wide="float", combine="c + a")

# Computes the maximum of a row and the sum of its exponentials, which ``keep`` stores.
_ROW = """\
static inline void @_row(const uniform float * uniform x, uniform int64 count,
                         uniform float &top, uniform float &total{formals}) {{
  float most = floatbits(0xff800000);
  foreach (i = 0 ... count) {{ float a = x[i]; most = md_max(a, most); }}
  top = any(most != most) ? floatbits(0x7fc00000) : reduce_max(most);
  float levels[{levels}];
  uniform int64 blocks = 0;
  for (uniform int64 b = 0; b < count; b += 16 * programCount) {{
    const uniform int64 end = b + 16 * programCount < count ? b + 16 * programCount : count;
    float sum = 0.0f;
    foreach (i = b ... end) {{
      // A power that is 0, as that of what is masked, would be computed by way of numbers below the
      // normal ones, which take long.
      const float a = x[i] - top;
      const bool none = a < -104.0f;
      float e = 0.0f;
      if (!any(none)) e = md_exp(a);
      else if (!all(none)) {{
        const float power = md_exp(none ? 0.0f : a);
        e = none ? 0.0f : power;
      }}
      sum += e;{keep}
    }}
    @_push(levels, ++blocks, sum);
  }}
  total = reduce_add(@_rest(levels, blocks, 0.0f));
}}
"""

# Sizes: length of a row.
_ROWS = """\
MD_KERNEL(@) {{
  const uniform int64 count = MD_IN(int64, 2)[0];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * count;
    uniform float * uniform y = MD_OUT(float, 1) + t * count;
    uniform float top, total;
    @_row(x, count, top, total{y});
    {shift}
    foreach (i = 0 ... count) {{ y[i] = {value}; }}
  }}
}}
"""

# Sizes: length, columns, chunks of columns, columns of a chunk, and whether a task stores its
# exponentials in a local tile, whose rows do not conflict in the caches.
_COLUMNS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform int64 inner = n[1];
  uniform float tile[{tile}];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 chunk = t % n[2] * n[3];
    const uniform int64 left = inner - chunk;
    const uniform int64 at = t / n[2] * n[0] * inner + chunk;
    const uniform int count = (uniform int)(left < n[3] ? left : n[3]);
    const uniform float * uniform x = MD_IN(float, 0) + at;
    uniform float * uniform y = MD_OUT(float, 1) + at;
    uniform float * uniform e = n[4] != 0 ? tile : y;
    const uniform int64 step = n[4] != 0 ? count : inner;
    foreach (i = 0 ... count) {{
      float top = floatbits(0xff800000);
      for (uniform int64 k = 0; k < n[0]; k++) {{
        const float a = x[k * inner + i];
        top = md_max(a, top);
        e[k * step + i] = a;
      }}
      float levels[{levels}];
      uniform int64 blocks = 0;
      for (uniform int64 b = 0; b < n[0]; b += 16) {{
        const uniform int64 end = b + 16 < n[0] ? b + 16 : n[0];
        float sum = 0.0f;
        for (uniform int64 k = b; k < end; k++) {{
          const float shifted = e[k * step + i] - top;
          const float power = md_exp(shifted);
          sum += power;
          e[k * step + i] = {keep};
        }}
        @_push(levels, ++blocks, sum);
      }}
      const float total = @_rest(levels, blocks, 0.0f);
      {shift}
      for (uniform int64 k = 0; k < n[0]; k++) {{ y[k * inner + i] = {value}; }}
    }}
  }}
}}
"""
_TILE = 1 << 13
"""Floats of the local tile of a task."""

# Sizes: length, columns, columns of all outer indices.  Quotients of integers this small are exact
# when rounded down from floats.
_EACH = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform int length = (uniform int)n[0], columns = (uniform int)n[1];
  const uniform float inverse = 1.0f / columns;
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 first = t * {chunk};
    const uniform int64 left = n[2] - first;
    const uniform int count = (uniform int)(left < {chunk} ? left : {chunk});
    const uniform int64 outer = first / columns;
    const uniform int column = (uniform int)(first - outer * columns);
    const uniform float * uniform x = MD_IN(float, 0) + outer * length * columns;
    uniform float * uniform y = MD_OUT(float, 1) + outer * length * columns;
    foreach (i = 0 ... count) {{
      const int place = column + i;
      const int row = columns == 1 ? place : (int)((place + 0.5f) * inverse);
      const int from = row * length * columns + (place - row * columns);
      float e[{short}];
      float top = floatbits(0xff800000);
      for (uniform int k = 0; k < length; k++) {{
        e[k] = x[from + k * columns];
        top = md_max(e[k], top);
      }}
      float parts[2] = {{ 0.0f, 0.0f }};
      for (uniform int k = 0; k < length; k++) {{
        {power}
        parts[k / 16] += p;
      }}
      const float total = parts[0] + parts[1];
      {shift}
      for (uniform int k = 0; k < length; k++) {{ y[from + k * columns] = {value}; }}
    }}
  }}
}}
"""
_EACH_CHUNK = 256

# The sizes of the kernels below: length, length of a part, parts, columns, chunks of columns, rows
# that are computed side by side as one, partial results.
_PART = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, {sizes});
  const uniform int64 inner = n[3];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 chunk = t % n[4] * {width}, part = t / n[4] % n[2], outer = t / n[4] / n[2];
    const uniform int64 first = part * n[1];
    const uniform int64 left = n[0] - first, wide = inner - chunk;
    const uniform int64 length = left < n[1] ? left : n[1];
    const uniform int columns = (uniform int)(wide < {width} ? wide : {width});
    const uniform int width = columns * (uniform int)n[5];
    const uniform int64 step = inner * n[5], all = length * inner;
"""

# The first kernel stores the maximum of each part, and after all maxima the sums.
_PARTS = (
    _PART
    + """\
    const uniform int64 whole = length / n[5] * step;
    const uniform int64 at = (outer * n[0] + first) * inner + chunk;
    const uniform int64 result = (outer * n[2] + part) * inner + chunk;
    const uniform float * uniform x = MD_IN(float, 0) + at;{y}
    uniform float tops[{width}], totals[{width}];
    foreach (i = 0 ... width) {{
      float top = floatbits(0xff800000);
      for (uniform int64 k = 0; k < whole; k += step) {{ top = md_max(x[k + i], top); }}
      if (whole + i < all) top = md_max(x[whole + i], top);
      tops[i] = top;
    }}
    // A part may be minus infinity alone; its powers are zeros then.
    foreach (i = 0 ... columns) {{
      float top = floatbits(0xff800000);
      for (uniform int k = 0; k < width; k += columns) {{ top = md_max(tops[k + i], top); }}
      MD_OUT(float, {out})[result + i] = top;
      const float base = top == floatbits(0xff800000) ? 0.0f : top;
      for (uniform int k = 0; k < width; k += columns) {{ tops[k + i] = base; }}
    }}
    foreach (i = 0 ... width) {{
      const float base = tops[i];
      float sum = 0.0f;
      for (uniform int64 b = 0; b < whole; b += 16 * step) {{
        const uniform int64 end = b + 16 * step < whole ? b + 16 * step : whole;
        float part = 0.0f;
        for (uniform int64 k = b; k < end; k += step) {{
          const float power = md_exp(x[k + i] - base);
          part += power;{keep}
        }}
        sum += part;
      }}
      if (whole + i < all) {{
        const uniform int64 k = whole;
        const float power = md_exp(x[k + i] - base);
        sum += power;{keep}
      }}
      totals[i] = sum;
    }}
    for (uniform int many = width / columns; many > 1;) {{
      const uniform int half = (many + 1) / 2;
      foreach (i = 0 ... (many - half) * columns) {{ totals[i] += totals[half * columns + i]; }}
      many = half;
    }}
    foreach (i = 0 ... columns) {{ MD_OUT(float, {out})[result + n[6] + i] = totals[i]; }}
  }}
}}
"""
)

# Combines the parts: of each column the maximum, and the sum or its logarithm.
_COMBINE = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  const uniform int64 inner = n[3];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * n[2] * inner;
    uniform float * uniform y = MD_OUT(float, 1) + t * 2 * inner;
    foreach (i = 0 ... inner) {{
      float top = floatbits(0xff800000), sum = 0.0f;
      for (uniform int64 k = 0; k < n[2]; k++) {{ top = md_max(x[k * inner + i], top); }}
      for (uniform int64 b = 0; b < n[2]; b += 16) {{
        const uniform int64 end = b + 16 < n[2] ? b + 16 : n[2];
        float part = 0.0f;
        for (uniform int64 k = b; k < end; k++) {{
          part += x[k * inner + i + n[6]] * md_exp(x[k * inner + i] - top);
        }}
        sum += part;
      }}
      const float total = sum;
      y[i] = top;
      y[i + inner] = {total};
    }}
  }}
}}
"""

_WRITE = (
    _PART
    + """\
    const uniform int64 at = (outer * n[0] + first) * inner + chunk;
    const uniform float * uniform x = MD_IN(float, 0) + at;
    uniform float * uniform y = MD_OUT(float, {out}) + at;
    const uniform float * uniform own =
      MD_IN(float, 1) + ((outer * n[2] + part) * inner + chunk);
    const uniform float * uniform known = MD_IN(float, 2) + (outer * 2 * inner + chunk);
    uniform float values[2 * {width}];
    for (uniform int b = 0; b < width; b += columns) {{
      foreach (i = 0 ... columns) {{ {values} }}
    }}
    for (uniform int64 k = 0; k < all; k += step) {{
      const uniform int count = (uniform int)(all - k < width ? all - k : width);
      foreach (i = 0 ... count) {{ {write} }}
    }}
  }}
}}
"""
)


def print_softmax(op: Softmax | LogSoftmax, type: TensorType) -> Staged:
    """The kernels of a softmax or log-softmax of a dense value."""
    dim = op.dim % type.rank
    outer, length, inner = prod(type.shape[:dim]), type.shape[dim], prod(type.shape[dim + 1 :])
    log = isinstance(op, LogSoftmax)
    shift = "const float shift = md_log(total);" if log else ""
    if inner < _SHORT and length <= _SHORT and outer * inner >= 2 * _SHORT:
        return _each(outer, length, inner, log, shift)
    chunks = max(1, -(-inner // _WIDTH))
    rows_at_once = max(1, _WIDTH // max(inner, 1))
    part = parts_of(length, max(1, min(inner, _WIDTH)), outer * chunks, rows_at_once)
    if part < length:
        return _split_softmax(outer, length, inner, part, chunks, rows_at_once, log)
    if inner == 1:
        keep = "" if log else " y[i] = e;"
        formals = "" if log else ", uniform float * uniform y"
        value = "x[i] - top - shift" if log else "y[i] / total"
        uniform = shift.replace("const float shift", "const uniform float shift")
        uniform = uniform.replace("md_log(total)", "extract(md_log((varying float)total), 0)")
        row = _ROW.format(keep=keep, formals=formals, levels=LEVELS)
        text = row + _ROWS.format(y="" if log else ", y", shift=uniform, value=value)
        source = KernelSource.named("softmax", _ADD + text)
        return Staged((stage(source, (0, 1), [length], outer, 8 * length),))
    chunk_columns = max(1, min(_WIDTH, max(16, _TILE // max(1, length) // 16 * 16), inner))
    text = _COLUMNS.format(
        keep="shifted" if log else "power",
        shift=shift,
        value="e[k * step + i] - shift" if log else "e[k * step + i] / total",
        levels=LEVELS,
        tile=_TILE,
    )
    chunks = -(-inner // chunk_columns)
    source = KernelSource.named("softmax", _ADD + text)
    sizes = [length, inner, chunks, chunk_columns, int(length * chunk_columns <= _TILE)]
    return Staged((stage(source, (0, 1), sizes, outer * chunks, 8 * chunk_columns * length),))


def _each(outer: int, length: int, inner: int, log: bool, shift: str) -> Staged:
    """The kernel for short rows and few columns, where each lane computes one softmax."""
    text = _EACH.format(
        chunk=_EACH_CHUNK,
        short=_SHORT,
        power="const float p = md_exp(e[k] - top);" + ("" if log else " e[k] = p;"),
        shift=shift,
        value="e[k] - top - shift" if log else "e[k] / total",
    )
    count = outer * inner
    source = KernelSource.named("softmax_each", text)
    sizes, tasks = [length, inner, count], -(-count // _EACH_CHUNK)
    return Staged((stage(source, (0, 1), sizes, tasks, 8 * _EACH_CHUNK * length),))


def _split_softmax(
    outer: int, length: int, inner: int, part: int, chunks: int, rows_at_once: int, log: bool
) -> Staged:
    """The kernels for an axis that is split into parts."""
    parts = -(-length // part)
    results = outer * parts * inner
    sizes = [length, part, parts, inner, chunks, rows_at_once, results]
    combined = Workspace(-(-results * 8 // 64) * 64)
    names = {"width": _WIDTH, "sizes": 4, "out": 3}
    if log:
        total = "md_log(total)"
        partial = _PARTS.format(width=_WIDTH, sizes=2, out=1, y="", keep="")
        values = "values[b + i] = known[i]; values[b + i + {width}] = known[i + inner];"
        write = "y[k + i] = x[k + i] - values[i] - values[i + {width}];"
    else:
        total = "total"
        y = "\n    uniform float * uniform y = MD_OUT(float, 1) + at;"
        partial = _PARTS.format(width=_WIDTH, sizes=3, out=2, y=y, keep=" y[k + i] = power;")
        values = "values[b + i] = md_exp(own[i] - known[i]) / known[i + inner];"
        write = "y[k + i] *= values[i];"
    write_text = _WRITE.format(
        values=values.format(width=_WIDTH), write=write.format(width=_WIDTH), **names
    )
    tasks, work = outer * parts * chunks, 8 * part * min(inner, _WIDTH)
    tops = Workspace(0)

    def of(kind: str, text: str, pointers: tuple[int | Workspace, ...], tasks: int) -> Stage:
        return stage(KernelSource.named(kind, text), pointers, sizes, tasks, work)

    stages = (
        of("softmax_parts", partial, (0, tops) if log else (0, 1, tops), tasks),
        of("softmax_combine", _COMBINE.format(total=total), (tops, combined), outer),
        of("softmax_write", write_text, (0, tops, combined, 1), tasks),
    )
    return Staged(stages, combined.offset + outer * inner * 8)
