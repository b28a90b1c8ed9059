"""Prints the weight gradient of a convolution in bfloat16, by bf16 dot products.

The gradient sums over pixels, so a dot product's terms are neighbouring pixels.  A task packs a
chunk of the output's gradient with pixels as terms and output channels in lanes, and the input as a
row of pixels for each channel.  Then each tap of the kernel is a product of the two, for which the
rows of pixels are read from the tap's offset.  To that end images have the layout of
:mod:`.scheme`: packed rows are as wide as the padded input, and the gradient is zero between rows.
The sums of chunks are added in float32, in the order of the pixels.  Where there are few tasks, the
chunks are split into parts (split-K), whose partial sums a second kernel adds in order.  All this
follows from shapes, so the bits are the same for every number of threads.

Inputs of few channels have the layout NCHW; for them each tap of a kernel row has rows of pixels of
its own.
"""

from __future__ import annotations

from minidnn.graph.operators import Conv2dWeightGradient

from ....codegen.kernel import KernelSource
from ...isa import Isa
from ...sequences.transpose import Move
from ...stage import Stage, Staged, Workspace
from ...tensor import ELEMENTS, Tensor
from ..numbers import PARAMETER
from .pixel_scheme import LANES, choose_pixels
from .products import BF16_PAIR

_TRANSPOSE = Move("store", alike=False, full=True, element=ELEMENTS["float32"])
_TRANSPOSE_BFLOAT16 = Move("store", alike=False, full=False, element=ELEMENTS["bfloat16"])


_TEXT = """\
static noinline unmasked void @_gradient(
    {parameter}, const uniform unsigned int16 * uniform g,
    uniform unsigned int * uniform to, uniform int n0, uniform int y0, uniform int vectors) {{
  {numbers}
  // A vector past the last is zero.
  for (uniform int v = 0; v < {vectors}; v++)
    for (uniform int m = 0; m < images; m++)
      for (uniform int r = 0; r < packed_height; r++) {{
        const uniform bool met =
          v < vectors && n0 + m < batch && r < height && y0 + r < g_rows;
        const uniform unsigned int16 * uniform from =
          g + (uniform int64)(met ? m : 0) * g_image + (met ? v : 0) * (uniform int64)g_plane +
          (met ? r : 0) * g_columns * 16;
        uniform unsigned int * uniform y =
          to + ((m * packed_height + r) * (width / 2) * {vectors} + v) * 16;
        const uniform int count = met ? g_columns : 0;
        uniform int q = 0;
        for (; 2 * q + 1 < count; q++) {{
          const unsigned int low = from[2 * q * 16 + programIndex];
          const unsigned int high = from[(2 * q + 1) * 16 + programIndex];
          y[q * {vectors} * 16 + programIndex] = low | high << 16;
        }}
        if (2 * q < count) {{
          y[q * {vectors} * 16 + programIndex] = from[2 * q * 16 + programIndex];
          q++;
        }}
        for (; q < width / 2; q++) y[q * {vectors} * 16 + programIndex] = 0;
      }}
  for (uniform int w = images * packed_height * width / 2; w < blocks * 16; w++)
    for (uniform int v = 0; v < {vectors}; v++) to[(w * {vectors} + v) * 16 + programIndex] = 0;
}}

{packing}

// Some rows once more, with zeros where the gradient has no pixel.
static noinline unmasked void @_exact(
    {parameter}, const uniform unsigned int16 * uniform from, uniform unsigned int16 * uniform to,
    uniform int n0, uniform int y0) {{
  {numbers}
  for (uniform int row = 0; row < {rows}; row++, from += {step}, to += {step}) {{
    for (uniform int m = 0; m < images; m++)
      for (uniform int r = 0; r < packed_height; r++) {{
        const uniform bool met = n0 + m < batch && r < height && y0 + r < g_rows;
        const uniform int at = (m * packed_height + r) * width;
        const uniform int count = met ? g_columns : 0;
        foreach (c = 0 ... width) {{
          unsigned int16 one = 0;
          if (c < count) one = from[at + c];
          to[at + c] = one;
        }}
      }}
    for (uniform int c = pixels; c < blocks * 32; c += 16) to[c + programIndex] = 0;
  }}
}}

static noinline unmasked void @_sums(
    {parameter}, const uniform unsigned int16 * uniform x, const uniform unsigned int16 * uniform g,
    uniform int8 * uniform scratch, uniform float * uniform sums, uniform int t) {{
  {numbers}
  uniform unsigned int * uniform lines = (uniform unsigned int * uniform)(scratch + lines_at);
  uniform unsigned int16 * uniform rows = (uniform unsigned int16 * uniform)(scratch + rows_at);
  uniform unsigned int16 * uniform exact = (uniform unsigned int16 * uniform)(scratch + exact_at);
  uniform float * uniform product = (uniform float * uniform)(scratch + product_at);
  uniform int32 * uniform offsets = (uniform int32 * uniform)(scratch + offsets_at);
  foreach (i = 0 ... blocks) {{ offsets[i] = i * 64; }}
  foreach (i = 0 ... sums_floats) {{ sums[i] = 0.0f; }}
  const uniform int place = t % tasks, part = t / tasks;
  const uniform int group = place / across / out_tasks;
  const uniform int first = place / across % out_tasks * out_tiles * {vectors};
  const uniform int from = place % across * row_tiles * {rows};
  const uniform int all = (outputs + 15) / 16;
  const uniform unsigned int16 * uniform own = g + (group * all + first) * (uniform int64)g_plane;
  const uniform int begin = (uniform int64)chunks * part / parts;
  const uniform int end = (uniform int64)chunks * (part + 1) / parts;
  {begin_tiles}
  for (uniform int chunk = begin; chunk < end; chunk++) {{
    const uniform int n0 = chunk / of_image * images, y0 = chunk % of_image * height;
    const uniform unsigned int16 * uniform here =
      own + (uniform int64)n0 * g_image + y0 * g_columns * 16;
    for (uniform int o = 0; o < out_tiles; o++)
      @_gradient(numbers, here + o * {vectors} * (uniform int64)g_plane,
                 lines + o * blocks * {line_words}, n0, y0, all - first - o * {vectors});
    const uniform bool finite = @_rows(numbers, x, scratch, group, from, n0, y0);
    for (uniform int i = 0; i < row_tiles; i++)
      for (uniform int tap = 0; tap < taps; tap++) {{
        const uniform unsigned int16 * uniform at = rows + i * {rows} * {step} + shifts[tap];
        if (!finite) {{
          @_exact(numbers, at, exact, n0, y0);
          at = exact;
        }}
        for (uniform int o = 0; o < out_tiles; o++) {{
          {products}((const uniform int8 * uniform)at, offsets, blocks, 1, 0,
            (const uniform int8 * uniform)(lines + o * blocks * {line_words}), product);
          uniform float * uniform to = sums + ((o * row_tiles + i) * taps + tap) * {tile};
          for (uniform int k = 0; k < {tile}; k += 16)
            to[k + programIndex] += product[k + programIndex];
        }}
      }}
  }}
  {end_tiles}
}}
"""

# Rows of pixels of inputs in blocks of channels: pixels are paired, then transposed.
_BLOCKED = """\
static noinline unmasked uniform bool @_rows(
    {parameter}, const uniform unsigned int16 * uniform x, uniform int8 * uniform scratch,
    uniform int group, uniform int from, uniform int n0, uniform int y0) {{
  {numbers}
  uniform unsigned int * uniform turned = (uniform unsigned int * uniform)(scratch + turned_at);
  uniform unsigned int * uniform seen = (uniform unsigned int * uniform)(scratch + seen_at);
  uniform float * uniform rows = (uniform float * uniform)(scratch + rows_at);
  seen[programIndex] = 0;
  unsigned int most = 0;
  const uniform int last = min(inputs - from, row_tiles * {rows});
  for (uniform int b = 0; b * 16 < last; b++)
    for (uniform int phase = 0; phase < phase_rows * phase_columns; phase++) {{
      const uniform int py = first_rows[phase / phase_columns] - before_y;
      const uniform int px = first_columns[phase % phase_columns] - before_x;
      for (uniform int m = 0; m < images; m++)
        for (uniform int r = 0; r < packed_height; r++) {{
          const uniform int y = (y0 + r) * down + py;
          const uniform bool met = n0 + m < batch && y >= 0 && y < x_rows;
          const uniform int64 block = (group * inputs + from) / 16 + b;
          const uniform unsigned int16 * uniform row =
            x + (met ? n0 + m : 0) * (uniform int64)x_image + block * x_plane +
            (met ? y : 0) * (uniform int64)x_columns * 16;
          uniform unsigned int * uniform to = turned + (m * packed_height + r) * (width / 2) * 16;
          const uniform int begin = clamp((-px + over - 1) / over, 0, width);
          const uniform int end = clamp((x_columns - px + over - 1) / over, begin, width);
          if (!met || begin == end) {{
            for (uniform int q = 0; q < width / 2; q++) to[q * 16 + programIndex] = 0;
          }} else {{
            // Pairs of which one pixel, or none, lies inside.
            for (uniform int q = 0; q < width / 2; q++) {{
              if (2 * q >= begin && 2 * q + 1 < end) {{
                q = end / 2 - 1;
                continue;
              }}
              unsigned int low = 0, high = 0;
              if (2 * q >= begin && 2 * q < end) low = row[(2 * q * over + px) * 16 + programIndex];
              if (2 * q + 1 >= begin && 2 * q + 1 < end)
                high = row[((2 * q + 1) * over + px) * 16 + programIndex];
              most = max(most, max(low & 0x7fff, high & 0x7fff));
              to[q * 16 + programIndex] = low | high << 16;
            }}
            for (uniform int q = (begin + 1) / 2; q < end / 2; q++) {{
              const unsigned int low = row[(2 * q * over + px) * 16 + programIndex];
              const unsigned int high = row[((2 * q + 1) * over + px) * 16 + programIndex];
              most = max(most, max(low & 0x7fff, high & 0x7fff));
              to[q * 16 + programIndex] = low | high << 16;
            }}
          }}
        }}
      {transpose}(rows + (b * 16 * {step} + phase * pixels) / 2, {step} / 2, 16, pixels / 2,
        (uniform float * uniform)turned, seen);
    }}
  for (uniform int row = 0; row < last; row++) {{
    uniform unsigned int16 * uniform to = (uniform unsigned int16 * uniform)rows + row * {step};
    for (uniform int c = phase_rows * phase_columns * pixels; c + 16 <= {step}; c += 16)
      to[c + programIndex] = 0;
  }}
  return reduce_max(most) < 0x7f80;
}}
"""

# Rows of pixels of NCHW inputs, for each channel one row for each tap of a kernel row.
_SPREAD = """\
static noinline unmasked uniform bool @_rows(
    {parameter}, const uniform unsigned int16 * uniform x, uniform int8 * uniform scratch,
    uniform int group, uniform int from, uniform int n0, uniform int y0) {{
  {numbers}
  uniform unsigned int16 * uniform rows = (uniform unsigned int16 * uniform)(scratch + rows_at);
  const uniform int last = min(group_rows - from, row_tiles * {rows});
  unsigned int most = 0;
  for (uniform int row = 0; row < last; row++) {{
    const uniform int channel = (from + row) / kernel_columns;
    const uniform int px = (from + row) % kernel_columns * apart - before_x;
    uniform unsigned int16 * uniform to = rows + row * {step};
    for (uniform int phase = 0; phase < phase_rows; phase++)
      for (uniform int m = 0; m < images; m++)
        for (uniform int r = 0; r < packed_height; r++, to += width) {{
          const uniform int y = (y0 + r) * down + first_rows[phase] - before_y;
          const uniform bool met = n0 + m < batch && y >= 0 && y < x_rows;
          const uniform unsigned int16 * uniform given =
            x + (met ? n0 + m : 0) * (uniform int64)x_image + channel * (uniform int64)x_plane +
            (met ? y : 0) * (uniform int64)x_columns;
          foreach (c = 0 ... width) {{
            const int place = c * over + px;
            unsigned int16 one = 0;
            // Lanes that are masked may read what the pointer points to.
            if (met && c < g_columns && place >= 0 && place < x_columns) one = given[place];
            most = max(most, (unsigned int)one & 0x7fff);
            to[c] = one;
          }}
        }}
    to = rows + row * {step};
    for (uniform int c = phase_rows * pixels; c < {step}; c++) to[c] = 0;
  }}
  return reduce_max(most) < 0x7f80;
}}
"""

# Sums are arranged in the order of an output's weights, then transposed for 16 outputs at a time.
_STORE = """\
static noinline unmasked void @_store(
    {parameter}, uniform int8 * uniform scratch, const uniform float * uniform sums,
    uniform unsigned int16 * uniform y, uniform int place) {{
  {numbers}
  uniform float * uniform ordered = (uniform float * uniform)(scratch + ordered_at);
  uniform unsigned int * uniform seen = (uniform unsigned int * uniform)(scratch + seen_at);
  seen[programIndex] = 0;
  const uniform int group = place / across / out_tasks;
  const uniform int first = place / across % out_tasks * out_tiles * {vectors} * 16;
  const uniform int from = place % across * row_tiles * {rows};
  const uniform int count = min(group_rows - from, row_tiles * {rows});
  const uniform int columns = {columns};
  for (uniform int v = 0; v < out_tiles * {vectors} && first + v * 16 < outputs; v++) {{
    for (uniform int i = 0; i < row_tiles; i++)
      for (uniform int tap = 0; tap < taps; tap++) {{
        const uniform float * uniform s = sums + v % {vectors} * 16 +
          ((v / {vectors} * row_tiles + i) * taps + tap) * {tile};
        const uniform int last = min(count - i * {rows}, {rows});
        for (uniform int r = 0; r < last; r++) {{
          const uniform int row = i * {rows} + r;
          const uniform int at = (row / columns * taps + tap) * columns + row % columns;
          ordered[at * 16 + programIndex] = s[r * {vectors} * 16 + programIndex];
        }}
      }}
    const uniform int64 output = group * outputs + first + v * 16;
    {turn}(y + (output * group_rows + from) * taps, group_rows * taps,
      min(outputs - first - v * 16, 16), count * taps, ordered, seen);
  }}
}}
"""

_WHOLE = """\
MD_KERNEL(@) {{
  {parameter} = MD_IN(int32, 3);
  {numbers}
  uniform int8 * uniform scratch = (uniform int8 * uniform)md_scratch;
  const uniform unsigned int16 * uniform x = MD_IN(unsigned int16, 0);
  const uniform unsigned int16 * uniform g = MD_IN(unsigned int16, 1);
  uniform float * uniform sums = (uniform float * uniform)(scratch + sums_at);
  for (uniform int t = md_begin; t < md_end; t++) {{
    @_sums(numbers, x, g, scratch, sums, t);
    @_store(numbers, scratch, sums, MD_OUT(unsigned int16, 2), t);
  }}
}}
"""
_PART = """\
MD_KERNEL(@) {{
  {parameter} = MD_IN(int32, 3);
  {numbers}
  const uniform unsigned int16 * uniform x = MD_IN(unsigned int16, 0);
  const uniform unsigned int16 * uniform g = MD_IN(unsigned int16, 1);
  for (uniform int t = md_begin; t < md_end; t++) {{
    uniform float * uniform sums = MD_OUT(float, 2) + (uniform int64)t * sums_floats;
    @_sums(numbers, x, g, (uniform int8 * uniform)md_scratch, sums, t);
  }}
}}
"""
_REDUCE = """\
MD_KERNEL(@) {{
  {parameter} = MD_IN(int32, 2);
  {numbers}
  uniform int8 * uniform scratch = (uniform int8 * uniform)md_scratch;
  uniform float * uniform sums = (uniform float * uniform)(scratch + sums_at);
  for (uniform int t = md_begin; t < md_end; t++) {{
    const uniform float * uniform z = MD_IN(float, 0) + (uniform int64)t * sums_floats;
    foreach (i = 0 ... sums_floats) {{
      float all = z[i];
      for (uniform int64 p = 1; p < parts; p++) all += z[p * tasks * sums_floats + i];
      sums[i] = all;
    }}
    @_store(numbers, scratch, sums, MD_OUT(unsigned int16, 1), t);
  }}
}}
"""


def print_pixel_products(
    op: Conv2dWeightGradient, batch: int, x: Tensor, gradient: Tensor, isa: Isa
) -> Staged:
    """Prints the kernels; the pointers are the input, the gradient and the result, all in bfloat16.

    Args:
        batch: images.
        x, gradient: the layouts of the operands: the gradient in blocks of lanes, the input
            likewise or in NCHW.
    """
    scheme = choose_pixels(op, batch, x, gradient, isa)
    products, names = scheme.products(), list(scheme.numbers())
    declared = [f"const uniform int {name} = numbers[{i}];" for i, name in enumerate(names)]
    phases_and_shifts = f"numbers + {len(names)}"
    for name, after in (
        ("first_rows", ""),
        ("first_columns", " + phase_rows"),
        ("shifts", " + phase_rows + phase_columns"),
    ):
        declared.append(f"const uniform int32 * uniform {name} = {phases_and_shifts}{after};")
    begin, end = (f"{name}();" if products.tiles else "" for name in BF16_PAIR.tiles)
    substitutions = {
        **{"parameter": PARAMETER, "numbers": "\n  ".join(declared), "rows": scheme.rows},
        **{"vectors": scheme.vectors, "step": scheme.step // 2, "tile": scheme.tile},
        **{"line_words": 16 * scheme.vectors * LANES, "products": products.name},
        **{"begin_tiles": begin, "end_tiles": end, "transpose": _TRANSPOSE.name},
        **{
            "turn": _TRANSPOSE_BFLOAT16.name,
            "columns": "kernel_columns" if scheme.is_spread else "1",
        },
    }
    declarations = [products.declaration]
    declarations += [f'extern "C" void {call}' for call in (begin, end) if call]
    packing = (_SPREAD if scheme.is_spread else _BLOCKED).format(**substitutions)
    text = "\n".join(declarations) + "\n" + _TEXT.format(packing=packing, **substitutions)
    store = _STORE.format(**substitutions)
    shared = {text: () if scheme.is_spread else (_TRANSPOSE,), store: (_TRANSPOSE_BFLOAT16,)}
    scratch = scheme.scratch_bytes

    def kernel(kind: str, *texts: str) -> KernelSource:
        pieces = products.pieces if text in texts else ()
        moves = {move for part in texts for move in shared.get(part, ())}
        functions = tuple(sorted(move.text(LANES) for move in moves))
        return KernelSource.named(kind, "\n".join(texts), beside=pieces, shared=functions)

    if scheme.parts == 1:
        source = kernel("pair_gradient", text, store, _WHOLE.format(**substitutions))
        stage = Stage(source, (0, 1, 2, scheme.table), scheme.tasks, 1, scratch)
        return Staged((stage,))
    partial = kernel("pair_gradient", text, _PART.format(**substitutions))
    reduction = kernel("reduce_pair_gradient", store, _REDUCE.format(**substitutions))
    workspace = Workspace(0)
    stages = (
        Stage(partial, (0, 1, workspace, scheme.table), scheme.tasks * scheme.parts, 1, scratch),
        Stage(reduction, (workspace, 2, scheme.table), scheme.tasks, 1, scratch),
    )
    return Staged(stages, 4 * scheme.tasks * scheme.parts * scheme.sums)
