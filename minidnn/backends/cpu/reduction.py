"""Kernels of the reductions: softmax, and averages over irregular windows."""

from __future__ import annotations

from math import prod

from ...graph.operators import LogSoftmax, Softmax
from ...graph.types import TensorType
from .isa import Isa
from .kernels import KernelSource
from .tensor import Tensor

_ROWS = """\
MD_KERNEL(@) {{
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * {size};
    uniform float * uniform y = MD_OUT(float, 1) + t * {size};
    float most = floatbits(0xff800000);
    foreach (i = 0 ... {size}) {{ float a = x[i]; most = md_max(a, most); }}
    uniform float top = extract(most, 0);
    for (uniform int l = 1; l < programCount; l++) {{
      const uniform float a = extract(most, l);
      top = (a > top || a != a) ? a : top;
    }}
    float sum = 0.0f;
    foreach (i = 0 ... {size}) {{ sum += md_exp(x[i] - top); }}
    const uniform float total = reduce_add(sum);
    {last}
  }}
}}
"""

_COLUMNS = """\
MD_KERNEL(@) {{
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * {outer};
    uniform float * uniform y = MD_OUT(float, 1) + t * {outer};
    foreach (i = 0 ... {inner}) {{
      float top = floatbits(0xff800000);
      for (uniform int k = 0; k < {size}; k++) {{ top = md_max(x[k * {inner} + i], top); }}
      float total = 0.0f;
      for (uniform int k = 0; k < {size}; k++) {{ total += md_exp(x[k * {inner} + i] - top); }}
      {last}
    }}
  }}
}}
"""


def print_softmax(op: Softmax | LogSoftmax, type: TensorType) -> tuple[KernelSource, int]:
    """The kernel of a softmax over a NCHW value, and its number of tasks."""
    dim = op.dim % type.rank
    size, inner = type.shape[dim], prod(type.shape[dim + 1 :])
    log = isinstance(op, LogSoftmax)
    tasks = prod(type.shape[:dim])
    if inner == 1:
        value = "x[i] - top - shift" if log else "md_exp(x[i] - top) / total"
        last = f"foreach (i = 0 ... {size}) {{ y[i] = {value}; }}"
        if log:
            last = f"float each = md_log(total); {last.replace('shift', 'each')}"
        return KernelSource.named("softmax", _ROWS.format(size=size, last=last)), tasks
    at = f"k * {inner} + i"
    value = f"x[{at}] - top - shift" if log else f"md_exp(x[{at}] - top) / total"
    shift = "float shift = md_log(total); " if log else ""
    last = f"{shift}for (uniform int k = 0; k < {size}; k++) {{ y[{at}] = {value}; }}"
    text = _COLUMNS.format(outer=size * inner, inner=inner, size=size, last=last)
    return KernelSource.named("softmax", text), tasks


_ADAPTIVE = """\
MD_KERNEL(@) {{
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 image = t / {blocks}, block = t % {blocks};
    const uniform float * uniform x = MD_IN(float, 0) + image * {x_image} + block * {x_plane};
    uniform float * uniform y = MD_OUT(float, 1) + image * {y_image} + block * {y_plane};
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
            row += x[(r * {width} + c) * {lanes} + programIndex];
          total += row;
        }}
        y[(i * {columns} + j) * {lanes} + programIndex] =
          total / (uniform float)((bottom - top) * (right - left));
      }}
    }}
  }}
}}
"""


def print_adaptive(
    batch: int, source: Tensor, result: Tensor, isa: Isa
) -> tuple[KernelSource, int]:
    """The kernel of an adaptive average over a blocked value, and its number of tasks."""
    text = _ADAPTIVE.format(
        blocks=source.blocks,
        x_image=source.image,
        x_plane=source.plane,
        y_image=result.image,
        y_plane=result.plane,
        height=source.rows,
        width=source.columns,
        rows=result.rows,
        columns=result.columns,
        lanes=isa.lanes,
    )
    return KernelSource.named("adaptive", text), batch * source.blocks
