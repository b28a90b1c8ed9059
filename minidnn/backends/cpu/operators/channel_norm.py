"""Kernels of layer normalizations of channels that lie in blocks.

Lanes are channels, whose vectors lie a plane apart.  Each sum is added as that of a row of
channels is (see :mod:`.layer_norm`), so that the bits are those of the normalization by itself.
"""

from __future__ import annotations

from ....fusion.region import FusedNormalization
from ...codegen.kernel import KernelSource
from ..tensor import Tensor
from .layer_norm import SCALE, moments_of
from .staged import Staged, stage

_TASK_FLOATS = 1 << 13
"""About so many elements are worth a task."""

# Sizes: pixels of an image, of a task, tasks of an image, channels, from image to image of x and y.
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


def print_channel_norm(op: FusedNormalization, x: Tensor, y: Tensor) -> Staged:
    """The kernel of a region on tensors that lie in blocks of as many channels as there are lanes.

    Its pointers are the tensor, weight and bias, if there are any, and the result.
    """
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
        scale=SCALE.format(eps=f"{float(op.normalization.eps)!r}d"),
        load=load,
        affine=affine,
        store=element.store("y[(uniform int64)c * pixels + programIndex]", "result"),
        last=out + 1,
        out=out,
        vectors="".join(f", MD_IN(float, {i})" for i in range(1, out)),
    )
    batch, channels, rows, columns = op.body.inputs[0].shape
    pixels = rows * columns
    each = max(1, min(pixels, _TASK_FLOATS // channels))
    tasks = -(-pixels // each)
    sizes = [pixels, each, tasks, channels, x.image, y.image]
    source = KernelSource.named("channel_norm", text)
    return Staged((stage(source, tuple(range(out + 1)), sizes, batch * tasks, each * channels),))
