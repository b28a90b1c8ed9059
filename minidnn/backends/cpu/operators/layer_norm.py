"""Kernels of layer and group normalization.  Sizes are operands.

A block's mean is computed first, then the sums of the deviations from it and of their squares; the
former corrects the rounded mean.  Blocks are combined in float64 by Chan, Golub and LeVeque's
formula (doi:10.1080/00031305.1983.10483115).  So a mean that is large compared with the deviation
costs no digits.

In the blocked layout lanes are channels, and the vectors of a pixel are a plane apart.  Each sum is
added in the order of a contiguous row of channels, so that the bits are those of the normalization
that is not fused.
"""

from __future__ import annotations

from math import prod

from ....fusion.region import FusedNormalization
from ....graph.ir import Constant
from ....graph.operators import GroupNorm, LayerNorm
from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from ..stage import Staged, Workspace, parts_of, stage
from ..tensor import ELEMENTS, Tensor

_TASK_FLOATS = 1 << 13
"""About so many elements are worth a task."""

# Sizes: pixels of an image and of a task, tasks of an image, channels, image strides of x and y.
_KERNEL = """\
static inline void @_pixel({constant} x, {pointer} y, uniform int channels,
                           uniform int64 pixels{formals}) {{
  const uniform @_Moments moments = @_moments(x, channels, pixels);
{scale}
  for (uniform int c = 0; c < channels; c += programCount) {{
    const float v = {load};
    float result = ((v - mean) - rest) * scale;
    if (c + programIndex < channels) {{ {affine} }} else result = 0.0f;
    {store}
  }}
}}
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, {last});
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 image = t / n[2], first = t % n[2] * n[1];
    const uniform int64 end = min(first + n[1], n[0]);
    {constant} x = MD_IN({type}, 0) + image * n[4];
    {pointer} y = MD_OUT({type}, {out}) + image * n[5];
    for (uniform int64 p = first; p < end; p++) {{
      const uniform int64 at = p * programCount;
      @_pixel(x + at, y + at, (uniform int)n[3], n[0]{vectors});
    }}
  }}
}}
"""


def why_not_channel_norm(region: FusedNormalization) -> str | None:
    """Why there is no kernel that normalizes channels in blocks; None if there is."""
    dtype = region.body.inputs[0].dtype
    if dtype not in ELEMENTS:
        return f"it is {dtype}"
    for value in region.vectors:
        if value.dtype != "float32" and not isinstance(value, Constant):
            return f"{value!r} is no constant"
    return None


def print_channel_norm(op: FusedNormalization, x: Tensor, y: Tensor) -> Staged:
    """The kernel of a fused normalization of tensors in blocks of as many channels as lanes.

    Its pointers are the tensor, weight and bias, if there are any, and the result.
    """
    normalization = op.core.op
    assert isinstance(normalization, LayerNorm)
    element, names = x.element, ("weight", "bias")[: len(op.vectors)]
    load = element.load("x[(uniform int64)c * pixels + programIndex]")
    affine = " ".join(
        f"result = result {sign} {name}[c + programIndex];"
        for sign, name in zip("*+", names, strict=False)
    )
    moments = moments_of(
        pointer=element.constant_pointer,
        more=", uniform int64 pixels",
        apart=" * pixels",
        whole=element.load("z[(uniform int64)(i + p * programCount) * pixels + programIndex]"),
        rest=(
            "for (uniform int i = whole; i < count; i += programCount) "
            "if (i + programIndex < count)"
        ),
        last=element.load("z[(uniform int64)i * pixels + programIndex]"),
    )
    out = len(names) + 1
    text = moments + _KERNEL.format(
        constant=element.constant_pointer,
        pointer=element.pointer,
        type=element.type,
        formals="".join(f", const uniform float * uniform {name}" for name in names),
        scale=SCALE.format(eps=f"{float(normalization.eps)!r}d"),
        load=load,
        affine=affine,
        store=element.store("y[(uniform int64)c * pixels + programIndex]", "result"),
        last=out + 1,
        out=out,
        vectors="".join(f", MD_IN(float, {i})" for i in range(1, out)),
    )
    batch, channels, rows, columns = op.body.inputs[0].shape
    pixels = rows * columns
    pixels_of_task = max(1, min(pixels, _TASK_FLOATS // channels))
    tasks = -(-pixels // pixels_of_task)
    sizes = [pixels, pixels_of_task, tasks, channels, x.image, y.image]
    source = KernelSource.named("channel_norm", text)
    return Staged(
        (stage(source, tuple(range(out + 1)), sizes, batch * tasks, pixels_of_task * channels),)
    )


_BLOCK = 1024

_MOMENTS = """\
struct @_Moments {{ double count, mean, squares; }};
static inline void @_combine(uniform @_Moments &to, const uniform @_Moments &from) {{
  const uniform double count = to.count + from.count;
  const uniform double apart = from.mean - to.mean;
  const uniform double weight = from.count / count;
  to.mean += apart * weight;
  to.squares += from.squares + apart * apart * (to.count * weight);
  to.count = count;
}}
static inline uniform @_Moments @_moments({pointer} x, uniform int64 length{more}) {{
  const uniform int many = 4 * programCount;
  uniform @_Moments all;
  for (uniform int64 b = 0; b < length; b += {block}) {{
    const uniform int count = (uniform int)(length - b < {block} ? length - b : {block});
    const uniform int whole = count - count % many;
    {pointer} z = x + b{apart};
    float sum[4], apart[4], squares[4];
    for (uniform int p = 0; p < 4; p++) {{
      sum[p] = 0.0f;
      apart[p] = 0.0f;
      squares[p] = 0.0f;
    }}
    for (uniform int i = 0; i < whole; i += many) {{
      for (uniform int p = 0; p < 4; p++) sum[p] += {whole};
    }}
    {rest} {{ sum[0] += {last}; }}
    const uniform float mean = reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3])) / count;
    for (uniform int i = 0; i < whole; i += many) {{
      for (uniform int p = 0; p < 4; p++) {{
        const float a = {whole} - mean;
        apart[p] += a;
        squares[p] += a * a;
      }}
    }}
    {rest} {{
      const float a = {last} - mean;
      apart[0] += a;
      squares[0] += a * a;
    }}
    const uniform double rest = reduce_add((apart[0] + apart[1]) + (apart[2] + apart[3]));
    const uniform double total =
      reduce_add((squares[0] + squares[1]) + (squares[2] + squares[3]));
    uniform @_Moments one;
    one.count = count;
    one.mean = mean + rest / count;
    const uniform double squared = total - rest * (rest / count);
    one.squares = squared < 0 ? 0 : squared;
    if (b == 0) all = one;
    else @_combine(all, one);
  }}
  return all;
}}
"""

#: The arguments of :func:`moments_of` for contiguous rows.
_SIDE_BY_SIDE = {
    "pointer": "const uniform float * uniform",
    "more": "",
    "apart": "",
    "whole": "z[i + p * programCount + programIndex]",
    "rest": "foreach (i = whole ... count)",
    "last": "z[i]",
}


def moments_of(**how: str) -> str:
    """The function that computes count, mean and sum of squared deviations of a row.

    Args:
        how: how the row is read: the type of its ``pointer``; ``more`` parameters; ``apart``, the
            stride of its elements, as a factor; ``whole``, the vector of elements that is ``p``
            vectors after element ``i``; ``rest``, the loop over elements that fill no four
            vectors; and ``last``, an element in that loop.
    """
    return _MOMENTS.format(block=_BLOCK, **how)


# Writes ``count`` normalized elements from element ``first`` of row ``row`` on.
_WRITE = """\
static inline void @_write(const uniform @_Moments &moments, const uniform float * uniform x,
                           uniform float * uniform y, uniform int64 row, uniform int64 first,
                           uniform int64 count, const uniform int64 * uniform n{formals}) {{
{scale}
{each}
}}
"""
SCALE = """\
  const uniform float mean = (uniform float)moments.mean;
  const uniform float rest = (uniform float)(moments.mean - mean);
  const uniform double variance = moments.squares / moments.count;
  const uniform float scale = (uniform float)(1.0d / sqrt(variance + {eps}));"""
"""What elements are normalized with: ``((x - mean) - rest) * scale``."""
_BY_ELEMENT = "  foreach (i = 0 ... count) {{ y[i] = ((x[i] - mean) - rest) * scale{affine}; }}"
# Sizes after those of rows: rows of an image, channels of a row, elements of a channel.  Where
# elements are few, each lane computes its own channel: quotients of integers this small are exact
# when rounded down from floats.
_BY_CHANNEL = """\
  weight += row % n[3] * n[4];
  bias += row % n[3] * n[4];
  if (n[5] >= 16) {
    for (uniform int64 b = 0; b < count;) {
      const uniform int64 c = (first + b) / n[5];
      const uniform int64 past = (c + 1) * n[5] - first;
      const uniform int64 end = past < count ? past : count;
      const uniform float w = weight[c], shift = bias[c];
      foreach (i = b ... end) { y[i] = md_fma(((x[i] - mean) - rest) * scale, w, shift); }
      b = end;
    }
    return;
  }
  const uniform float inverse = 1.0f / (uniform int)n[5];
  for (uniform int64 b = 0; b < count; b += 1024) {
    const uniform int64 from = (first + b) / n[5];
    const uniform int over = (uniform int)(first + b - from * n[5]);
    const uniform int most = (uniform int)(count - b < 1024 ? count - b : 1024);
    foreach (i = 0 ... most) {
      const int c = (int)((over + i + 0.5f) * inverse);
      y[b + i] = md_fma(((x[b + i] - mean) - rest) * scale, weight[from + c], bias[from + c]);
    }
  }"""

# Sizes: elements of a row and of a part, and parts.  A task is a row.
_WHOLE = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, {last});
  const uniform int64 count = n[0];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform float * uniform x = MD_IN(float, 0) + t * count;
    const uniform @_Moments moments = @_moments(x, count);
    @_write(moments, x, MD_OUT(float, {out}) + t * count, t, 0, count, n{vectors});
  }}
}}
"""

# Rows that are split: a task computes the moments of a part.
_FIRST = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 2);
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 first = t % n[2] * n[1];
    const uniform int64 left = n[0] - first;
    const uniform float * uniform x = MD_IN(float, 0) + (t / n[2] * n[0] + first);
    const uniform @_Moments moments = @_moments(x, left < n[1] ? left : n[1]);
    MD_OUT(double, 1)[3 * t] = moments.count;
    MD_OUT(double, 1)[3 * t + 1] = moments.mean;
    MD_OUT(double, 1)[3 * t + 2] = moments.squares;
  }}
}}
"""

# A task combines the moments of a row's parts, and writes one part.
_SECOND = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, {last});
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform double * uniform from = MD_IN(double, {moments}) + t / n[2] * n[2] * 3;
    uniform @_Moments moments;
    for (uniform int64 p = 0; p < n[2]; p++) {{
      uniform @_Moments one;
      one.count = from[3 * p];
      one.mean = from[3 * p + 1];
      one.squares = from[3 * p + 2];
      if (p == 0) moments = one;
      else @_combine(moments, one);
    }}
    const uniform int64 first = t % n[2] * n[1];
    const uniform int64 left = n[0] - first;
    const uniform int64 at = t / n[2] * n[0] + first;
    const uniform int64 count = left < n[1] ? left : n[1];
    @_write(moments, MD_IN(float, 0) + at, MD_OUT(float, {out}) + at, t / n[2], first, count,
            n{vectors});
  }}
}}
"""


def print_layer_norm(op: LayerNorm | GroupNorm, x: TensorType, operands: int) -> Staged:
    """The kernels of a normalization; ``operands`` counts its input, weight and bias."""
    names = ("weight", "bias")[: operands - 1]
    formals = "".join(f", const uniform float * uniform {name}" for name in names)
    sizes: list[int] = []
    start = ""
    if isinstance(op, LayerNorm):
        length = prod(x.shape[x.rank - op.axes :])
        start = " + first"
        affine = "".join(f" {sign} {name}[i]" for sign, name in zip("*+", names, strict=False))
        loop = _BY_ELEMENT.format(affine=affine)
    else:
        length, inner = prod(x.shape[1:]) // op.groups, prod(x.shape[2:])
        sizes = [op.groups, x.shape[1] // op.groups, inner]
        loop = _BY_CHANNEL if names else _BY_ELEMENT.format(affine="")
    rows = x.size // length
    part = parts_of(length, 1, rows)
    parts = -(-length // part)
    sizes = [length, part, parts, *sizes]
    scale = SCALE.format(eps=f"{float(op.eps)!r}d")
    write = _WRITE.format(formals=formals, each=loop, scale=scale)
    moments = moments_of(**_SIDE_BY_SIDE)
    start = start if parts > 1 else ""
    vectors = "".join(f", MD_IN(float, {i}){start}" for i in range(1, operands))
    values = tuple(range(operands))
    if parts == 1:
        whole = _WHOLE.format(last=operands + 1, out=operands, vectors=vectors)
        source = KernelSource.named("layer_norm", moments + write + whole)
        return Staged((stage(source, (*values, operands), sizes, rows, length),))
    first = KernelSource.named("moments", moments + _FIRST.format())
    second = _SECOND.format(last=operands + 2, moments=operands, out=operands + 1, vectors=vectors)
    source = KernelSource.named("layer_norm", moments + write + second)
    tasks = rows * parts
    stages = (
        stage(first, (0, Workspace(0)), sizes, tasks, part),
        stage(source, (*values, Workspace(0), operands), sizes, tasks, part),
    )
    return Staged(stages, tasks * 24)
