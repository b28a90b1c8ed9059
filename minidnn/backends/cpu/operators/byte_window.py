"""Maxima of bytes over windows, of values that lie as NCHW.

A task is a row of results: the largest bytes of the rows under its windows first, then of the
columns.  Sizes are operands, so that one kernel serves all windows of a dtype.
"""

from __future__ import annotations

import numpy as np

from ....graph.operator import Windowed
from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from ..tensor import STORED
from .kernels import Shaped

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
"""Bytes that a call reads."""


def print_byte_window(op: Windowed, x: TensorType, y: TensorType) -> Shaped:
    """The kernel of a maximum window over bytes; its pointers are input, output and sizes."""
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
