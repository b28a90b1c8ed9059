"""Kernels of pooling outside of sequences: adaptive averages, and maxima of int8 and uint8.

Short windows are added pixel by pixel, with channels in lanes.  For long windows a first kernel
adds rows, which threads share, and a second one adds their sums; both in the order of
``graph.window.sum_taps``.  The input has blocks of channels, which are lanes then, or is NCHW,
where lanes are neighbouring pixels of a row.

Maxima of int8 and uint8 are of NCHW values.  A task is a row of results: it reduces the rows under
its windows first, then the columns.  Sizes are operands, so that one kernel serves all windows of a
dtype.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from ....graph.operator import Windowed
from ....graph.operators import AdaptiveAvgPool2d
from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..stage import PART, Stage, Staged, Workspace, stage
from ..tensor import ELEMENTS, STORED, Element, Tensor
from .kernels import Shaped

_SEGMENT = 4096
"""Pixels of a row that are added by one task: sixteen blocks of 256."""

_ADAPTIVE = """\
MD_KERNEL(@) {{
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 image = t / {blocks}, block = t % {blocks};
    const uniform {x} * uniform x = MD_IN({x}, 0) + image * {x_image} + block * {x_plane};
    uniform {y} * uniform y = MD_OUT({y}, 1) + image * {y_image} + block * {y_plane};
    for (uniform int i = 0; i < {rows}; i++) {{
      const uniform int top = i * {height} / {rows};
      const uniform int bottom = ((i + 1) * {height} + {rows} - 1) / {rows};
      for (uniform int j = 0; j < {columns}; j++) {{
        const uniform int left = j * {width} / {columns};
        const uniform int right = ((j + 1) * {width} + {columns} - 1) / {columns};
        float total = 0.0f;
        for (uniform int r = top; r < bottom; r++) {{
          float row = 0.0f;
          for (uniform int c = left; c < right; c++)
            row += {read};
          total += row;
        }}
        const float value = total / (uniform float)((bottom - top) * (right - left));
        {store}
      }}
    }}
  }}
}}
"""


def print_adaptive(
    op: AdaptiveAvgPool2d,
    type: TensorType,
    source: Tensor,
    result: Tensor,
    isa: Isa,
    any_size: bool = False,
) -> Staged:
    """The kernels of an adaptive average of blocked channels or, if its windows are long, of NCHW;
    with ``any_size`` kernels that serve any spatial size, for both layouts."""
    if any_size or op.is_long(type):
        return _print_long(op, type.shape[0], source, result, isa, any_size)
    batch = type.shape[0]
    x, y = ELEMENTS[source.dtype], ELEMENTS[result.dtype]
    at = f"(r * {source.columns} + c) * {isa.lanes} + programIndex"
    to = f"(i * {result.columns} + j) * {isa.lanes} + programIndex"
    text = _ADAPTIVE.format(
        x=x.type,
        y=y.type,
        read=x.load(f"x[{at}]"),
        store=y.store(f"y[{to}]", "value"),
        blocks=source.blocks,
        x_image=source.image,
        x_plane=source.plane,
        y_image=result.image,
        y_plane=result.plane,
        height=source.rows,
        width=source.columns,
        rows=result.rows,
        columns=result.columns,
    )
    kernel = KernelSource.named("adaptive", text)
    return Staged((Stage(kernel, (0, 1), batch * source.blocks),))


# The sum of up to 4096 contiguous pixels, each of one element (of a row in NCHW) or of as many as
# there are lanes: blocks of 256 pixels in 16 partial sums, of which halves are added to halves.
_PLANAR_SUM = """\
static inline uniform float @_sum(const uniform <type> * uniform x, uniform int count) {
  uniform float total = 0.0f;
  if (count <= 16) {
    for (uniform int i = 0; i < count; i++) total += <x[i]>;
    return total;
  }
  for (uniform int b = 0; b < count; b += 256) {
    const uniform int end = b + 256 < count ? b + 256 : count;
    const uniform int whole = b + (end - b) / 16 * 16;
    float part[<vectors>];
    for (uniform int v = 0; v < <vectors>; v++) part[v] = 0.0f;
    for (uniform int i = b; i < whole; i += 16) {
      for (uniform int v = 0; v < <vectors>; v++) {
        part[v] += <x[i + v * programCount + programIndex]>;
      }
    }
    for (uniform int v = 0; v < <vectors>; v++) {
      const int i = whole + v * programCount + programIndex;
      if (i < end) part[v] += <x[i]>;
    }
    float sum = part[0];
    if (<vectors> == 2) sum += part[<vectors> - 1];
    for (uniform int half = programCount / 2; half > 0; half /= 2) sum += rotate(sum, half);
    total += extract(sum, 0);
  }
  return total;
}
"""
_BLOCKED_SUM = """\
static inline float @_sum(const uniform <type> * uniform x, uniform int count) {
  float total = 0.0f;
  if (count <= 16) {
    for (uniform int i = 0; i < count; i++) total += <x[i * programCount + programIndex]>;
    return total;
  }
  for (uniform int b = 0; b < count; b += 256) {
    const uniform int end = b + 256 < count ? b + 256 : count;
    float sums[8];
    for (uniform int half = 0; half < 2; half++) {
      float part[8];
      for (uniform int l = 0; l < 8; l++) part[l] = 0.0f;
      uniform int i = b + 8 * half;
      for (; i + 8 <= end; i += 16) {
        for (uniform int l = 0; l < 8; l++) {
          part[l] += <x[(i + l) * programCount + programIndex]>;
        }
      }
      for (uniform int l = 0; i + l < end; l++) {
        part[l] += <x[(i + l) * programCount + programIndex]>;
      }
      for (uniform int l = 0; l < 8; l++) sums[l] = half == 0 ? part[l] : sums[l] + part[l];
    }
    for (uniform int half = 4; half > 0; half /= 2) {
      for (uniform int l = 0; l < half; l++) sums[l] += sums[l + half];
    }
    total += sums[0];
  }
  return total;
}
"""

# The sum of any number of pixels: segments are added 16 at a time, and these sums again.
_LONG_SUM = """\
static inline {number} @_long(const uniform {type} * uniform x, uniform int count) {{
  if (count <= {segment}) return @_sum(x, count);
  {number} levels[6];
  for (uniform int l = 0; l < 6; l++) levels[l] = 0.0f;
  uniform int segments = 0;
  for (uniform int b = 0; b < count; b += {segment}) {{
    const uniform int left = count - b, most = {segment};
    levels[0] += @_sum(x + b * {lanes}, left < most ? left : most);
    segments++;
    uniform int l = 0;
    for (uniform int k = segments; k % 16 == 0; k /= 16) {{
      levels[l + 1] += levels[l];
      levels[l] = 0.0f;
      l++;
    }}
  }}
  for (uniform int l = 0; l < 5; l++) levels[l + 1] += levels[l];
  return levels[5];
}}
"""

# Sizes: planes (or blocks) of an image, rows, columns, rows of a task, tasks of a plane, columns of
# the result, image stride, plane stride; then the begin and the end column of each window.
_ADD_ROWS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 plane = t / n[4], first = t % n[4] * n[3];
    const uniform int64 past = first + n[3] < n[1] ? first + n[3] : n[1];
    const uniform {type} * uniform x =
      MD_IN({type}, 0) + (plane / n[0] * n[6] + plane % n[0] * n[7]);
    for (uniform int64 j = 0; j < n[5]; j++) {{
      const uniform int64 left = n[8 + 2 * j];
      const uniform int count = (uniform int)(n[9 + 2 * j] - left);
      uniform float * uniform y = MD_OUT(float, 1) + (plane * n[5] + j) * n[1] * {lanes};
      {rows}
    }}
  }}
}}
"""
_ROW_BY_ROW = """\
for (uniform int64 r = first; r < past; r++) {{
        const {number} sum = @_long(x + (r * n[2] + left) * {lanes}, count);
        {keep}
      }}"""
_ROWS_BESIDE = """\
foreach (r = first ... past) {{
        const uniform {type} * uniform z = x + left;
        float sum = 0.0f;
        for (uniform int i = 0; i < count; i++) sum += {read};
        y[r] = sum;
      }}"""

# Sizes: planes (or blocks) of an image, rows, rows and columns of the result, channels, image and
# plane stride of the result; then the begin and the end row of each window, and the number of
# columns of each window.
_ADD_SUMS = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 j = t % n[3], i = t / n[3] % n[2], plane = t / n[3] / n[2];
    const uniform int64 image = plane / n[0], own = plane % n[0];
    const uniform int64 * uniform rows = n + 7 + 2 * i;
    const uniform int count = (uniform int)(rows[1] - rows[0]);
    const uniform float * uniform x =
      MD_IN(float, 0) + ((plane * n[3] + j) * n[1] + rows[0]) * {lanes};
    const {number} sum = @_long(x, count);
    const {number} value = sum / (uniform float)(count * n[7 + 2 * n[2] + j]);
    uniform {result} * uniform y = MD_OUT({result}, 1) + image * n[5];
    const uniform int64 at = i * n[3] + j;
    {store}
  }}
}}
"""


def _print_long(
    op: AdaptiveAvgPool2d,
    batch: int,
    source: Tensor,
    result: Tensor,
    isa: Isa,
    any_size: bool = False,
) -> Staged:
    """The kernels that add rows, and then the sums of rows, to averages."""
    blocked = source.block > 1
    lanes, planes = source.block, source.blocks
    type = TensorType((batch, source.channels, source.rows, source.columns), source.dtype)
    x, y = ELEMENTS[source.dtype], ELEMENTS[result.dtype]
    down, across = op.spans(type)
    if source.columns == len(across) == 1:  # one column is added as one row
        source, down, across = replace(source, rows=1, columns=source.rows), across, down
    names = {"number": "float" if blocked else "uniform float", "lanes": lanes}

    def add(element: Element) -> str:
        """The functions that add elements of a row or column."""
        text = _BLOCKED_SUM if blocked else _PLANAR_SUM.replace("<vectors>", str(16 // isa.lanes))
        text = re.sub(r"<(x\[.*?\])>", lambda read: element.load(read[1]), text)
        text = text.replace("<type>", element.type)
        return text + _LONG_SUM.format(segment=_SEGMENT, type=element.type, **names)

    short = not any_size and max(high - low for low, high in across) <= 16
    keep = "y[r * programCount + programIndex] = sum;" if blocked else "y[r] = sum;"
    rows = _ROWS_BESIDE if short and not blocked else _ROW_BY_ROW
    read = x.load("z[(int)r * (uniform int)n[2] + i]")
    inner = rows.format(keep=keep, type=x.type, read=read, **names)
    text = add(x) + _ADD_ROWS.format(rows=inner, type=x.type, **names)
    rows_of_task = max(1, PART // (source.columns * lanes))
    tasks_of_plane = -(-source.rows // rows_of_task)
    sizes = [planes, source.rows, source.columns, rows_of_task, tasks_of_plane, len(across)]
    sizes += [source.image, source.plane, *(edge for span in across for edge in span)]
    first = stage(
        KernelSource.named("average_rows", text),
        (0, Workspace(0)),
        sizes,
        batch * planes * tasks_of_plane,
        rows_of_task * source.columns * lanes,
    )
    store = _store(blocked, result, isa)
    text = add(ELEMENTS["float32"]) + _ADD_SUMS.format(store=store, result=y.type, **names)
    sizes = [planes, source.rows, len(down), len(across), source.channels]
    sizes += [result.image, result.plane, *(edge for span in down for edge in span)]
    sizes += [high - low for low, high in across]
    last = stage(
        KernelSource.named("average", text),
        (Workspace(0), 1),
        sizes,
        batch * planes * len(down) * len(across),
        max(high - low for low, high in down) * lanes,
    )
    return Staged((first, last), batch * planes * len(across) * source.rows * lanes * 4)


def _store(blocked: bool, result: Tensor, isa: Isa) -> str:
    """The statement that stores the average of a channel or of a block of channels; lanes without
    a channel are zeros."""
    value = ELEMENTS[result.dtype].narrows.format("value")
    if not blocked and result.dtype != "float32":
        value = f"extract((int){value}, 0)"
    if blocked and result.block > 1:
        return f"y[own * n[6] + at * programCount + programIndex] = {value};"
    if blocked:
        channel = "(own * programCount + programIndex)"
        return f"if ({channel} < n[4]) y[{channel} * n[6] + at] = {value};"
    if result.block == 1:
        return f"y[own * n[6] + at] = {value};"
    lanes = isa.lanes
    return f"""\
y += own / {lanes} * n[6] + at * {lanes};
    y[own % {lanes}] = {value};
    if (own == n[4] - 1) {{
      for (uniform int l = own % {lanes} + 1; l < {lanes}; l++) y[l] = 0;
    }}"""


_MAXIMUM = """\
MD_KERNEL(@) {{
  const uniform int32 * uniform n = MD_IN(int32, 2);
  const uniform int height = n[0], width = n[1], out_rows = n[2], out_columns = n[3];
  const uniform int taps = n[4], down = n[5], apart = n[6], above = n[7];
  const uniform int across = n[8], stride = n[9], distance = n[10], left = n[11];
  uniform {type} * uniform rows = (uniform {type} * uniform)md_scratch;
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int first = (uniform int)(t % out_rows) * down - above;
    const uniform {type} * uniform x = MD_IN({type}, 0) + t / out_rows * height * width;
    uniform {type} * uniform y = MD_OUT({type}, 1) + t * out_columns;
    foreach (i = 0 ... width) rows[i] = {least};
    for (uniform int k = 0; k < taps; k++) {{
      const uniform int r = first + k * apart;
      if (r < 0 || r >= height) continue;
      const uniform {type} * uniform row = x + (uniform int64)r * width;
      foreach (i = 0 ... width) {{
        const {type} a = rows[i], b = row[i];
        rows[i] = a > b ? a : b;
      }}
    }}
    foreach (i = 0 ... out_columns) y[i] = {least};
    for (uniform int k = 0; k < across; k++) {{
      const uniform int shift = k * distance - left;
      // The first result whose tap is a column, and the one behind the last.
      const uniform int begin = shift >= 0 ? 0 : (stride - 1 - shift) / stride;
      uniform int end = shift >= width ? 0 : (width - shift + stride - 1) / stride;
      end = min(end, out_columns);
      if (begin >= end) continue;
      if (stride == 1) {{
        foreach (i = begin ... end) {{
          const {type} a = y[i], b = rows[i + shift];
          y[i] = a > b ? a : b;
        }}
        continue;
      }}
      if (stride == 2) {{
        // Pairs of bytes lie side by side, and a gather would read byte by byte.
        const uniform int16 * uniform pairs = (const uniform int16 * uniform)(rows + shift);
        foreach (i = begin ... end) {{
          const {type} a = y[i], b = ({type})pairs[i];
          y[i] = a > b ? a : b;
        }}
        continue;
      }}
      foreach (i = begin ... end) {{
        // Lanes that are not wanted read the first byte, which must be there.
        const {type} a = y[i], b = rows[max(i * stride + shift, 0)];
        y[i] = a > b ? a : b;
      }}
    }}
  }}
}}
"""


_CALL_BYTES = 1 << 12
"""About as many bytes are read by one call of the kernel, which computes as many tasks."""


def print_byte_window(op: Windowed, x: TensorType, y: TensorType) -> Shaped:
    """The kernel of a max window over int8 or uint8; its pointers are input, output and sizes."""
    window = op.window()
    text = _MAXIMUM.format(type=STORED[x.dtype], least=np.iinfo(x.dtype).min)
    sizes = [*x.shape[2:], *y.shape[2:]]
    for axis in window.whole:
        sizes += [axis.kernel, axis.stride, axis.dilation, axis.padding[0]]
    tasks = y.shape[0] * y.shape[1] * y.shape[2]
    source = KernelSource.named("byte_window", text)
    grain = max(1, _CALL_BYTES // (x.shape[3] * window.rows.kernel))
    scratch = x.shape[3] + 1
    return Shaped(source, np.array(sizes, np.int32), tasks, grain, scratch_bytes=scratch)
