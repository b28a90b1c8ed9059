"""Implicit matrix products on tensor cores (``mma``), where cuDNN has no engine, or a slow one.

The kernel computes any window over channels-last images, fuses the prologue of a 1x1 convolution,
an epilogue and residuals, and reads and writes slices.  Sums of int8 are int32, and begin with
what the filter's header says (:mod:`.int8_filter`).  Sizes and strides are arguments, so that one
kernel serves all shapes; prologue and epilogue are part of its text.  Where tiles are few, a
cluster of blocks makes a tile (split-K): each multiplies some of the slabs, then they add up their
sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ....cudnn.graph.spec import ALIGNMENT
from ....graph.expression import linearize
from ....graph.operators import ReLU, ScaleShift
from ....graph.types import INT8_DTYPES
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..pointwise import print_chain
from ..prelude import TYPES
from ..tensor import is_aligned, is_regular, step_of
from .int8_filter import header_of
from .kernel import UNFUSED, ContractionKernel
from .problem import ContractionProblem
from .split_k import pixels_of
from .text import (
    epilogue_of,
    fill,
    parameters_of,
    reconvergence_barrier,
    source_of,
    template,
    vectors_of,
)
from .tile_choice import DIVISIONS, Tile, candidates, has_few_tiles, slabs_of, tiles_of

_HEAD = ("pixels", "filters", "products", "steps", "columns", "plane", "H", "W")
_GEOMETRY = ("SY", "SX", "PY", "PX", "DY", "DX", "S", "C8", "image", "row", "pixel", "y")
_NAMES = (*_HEAD, *_GEOMETRY)


_FEW_REGISTERS = 112
"""Threads with fewer registers beside their sums divide in 64 bits, by calls, and unroll the first
loads: else they would spill.  Others have the shorter code, as fetching instructions takes longer
than the first slabs do."""


class TileKernel(ContractionKernel):
    """Tiles of pixels by filters; a choice is one of :data:`.tile_choice.DIVISIONS`."""

    name = "tile"

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if problem.x.dtype not in ("float16", "bfloat16", *INT8_DTYPES):
            return f"it is in {problem.x.dtype}"
        if problem.planar or problem.groups != 1:
            return "its images are planar" if problem.planar else f"it has {problem.groups} groups"
        results = (problem.y, *problem.others)
        if not is_aligned(problem.gathered, problem.batch, _each(problem)):
            return "its image is not aligned to vectors of 16 bytes"
        if any(not is_aligned(t, problem.batch) for t in results):
            return "its tensors are not aligned to vectors of 8 channels"
        if problem.is_integer and any(t.dtype not in TYPES or t.offset for t in results):
            return "its result is integers, or what it reads and writes is not aligned"
        if problem.before and not (problem.is_pointwise or prod(problem.w.shape[2:]) == 1):
            return "every tap would compute the prologue"
        if any(not is_regular(t) for t in (problem.y, *problem.others)):
            return "pixels of its result are not at regular strides"
        if (
            max(problem.batch * problem.gathered.image // _each(problem), pixels_of(problem))
            >= 1 << 30
        ):
            return "its images do not fit 32-bit indices"
        return None

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        return UNFUSED if problem.is_unfused and not has_few_tiles(problem, machine) else None

    def price(self, problem: ContractionProblem) -> float:
        # cuDNN's algorithm has a kernel for the prologue, or its engine that fuses stages is slow.
        return 0.9 if problem.before or (problem.stages and problem.is_pointwise) else 1.2

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return candidates(problem, machine)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """One kernel with as many blocks as the machine runs at once, which take tiles in turn;
        with split-K, clusters of blocks do.

        Arguments: image, filter, the others, the vectors of the epilogue, those of the prologue,
        the result; then the numbers of :meth:`numbers`.
        """
        tile, parts = DIVISIONS[choice]
        simple = _is_simple(problem)
        is_integer = problem.is_integer
        is_short_of_registers = tile.spare_registers(parts, machine) < _FEW_REGISTERS
        x = problem.gathered
        text = {
            "T": TYPES[problem.x.dtype],
            "BM": tile.pixels,
            "BN": tile.filters,
            "BK": tile.products,
            "WM": tile.warp_pixels,
            "WN": tile.warp_filters,
            "STAGES": tile.stages,
            "PARTS": parts,
            "CLUSTER": f"__cluster_dims__({parts}, 1, 1) " if parts > 1 else "",
            "BLOCKS": tile.side_by_side(parts, machine),
            "AHEAD": tile.stages if is_short_of_registers else 1,
            "SUM": "int" if is_integer else "float",
            "REGISTER": "r" if is_integer else "f",
            "SHAPE": _SHAPES[problem.x.dtype],
            "SCALED": "" if is_integer else _SCALED.replace("$PTX$", _ptx(problem)),
            "HEADER": header_of(problem) if is_integer else "",
            "BEGIN": _WHOLE_BEGIN if is_integer else _BEGIN,
            "PARAMETERS": parameters_of(problem, _NAMES),
            "TURN": template("transpose.cu"),
            "STATE": _SIMPLE_STATE if simple else _WINDOW_STATE,
            "ROWS": _SIMPLE_ROWS if simple else _WINDOW_ROWS,
            "TAP": "" if simple else _WINDOW_TAP,
            "LOAD": _SIMPLE_LOAD if simple else _WINDOW_LOAD,
            "NEXT": "" if simple else _WINDOW_NEXT,
            "INDEX": "long long" if is_short_of_registers else "int",
            "SHIFT": _each(problem).bit_length() - 1,
            "OUTSIDE": _WHOLE_OUTSIDE if is_integer else _OUTSIDE,
            "CACHE": "cg.shared.global.L2::128B" if simple else "ca.shared.global",
            "STEP": "P_image" if x.rows * x.columns == 1 else "P_pixel",
            "PROLOGUE_LOADS": _prologue_loads(problem),
            "PROLOGUE": _prologue(problem),
            "RESULTS": _whole_results(problem, tile, simple)
            if parts == 1
            else _added_results(problem),
        }
        clusters = max(1, machine.multiprocessors * tile.side_by_side(parts, machine) // parts)
        blocks = min(tiles_of(problem, tile), clusters) * parts
        source = source_of("tile.cu", text)
        shared = tile.shared_bytes(parts)
        return [Launch(source, (blocks, 1, 1), (tile.threads, 1, 1), shared)]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.gathered, problem.y
        out, channels, rows, columns = problem.w.shape
        tile, _ = DIVISIONS[choice]
        return [
            pixels_of(problem),
            out,
            rows * columns * channels // _each(problem),
            slabs_of(problem, tile),
            y.columns,
            y.rows * y.columns,
            x.rows,
            x.columns,
            *problem.stride,
            *(before for before, _ in problem.padding),
            *problem.dilation,
            columns,
            channels // _each(problem),
            x.image,
            x.row,
            x.pixel,
            step_of(y),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return DIVISIONS.shown(choice)


def _is_simple(problem: ContractionProblem) -> bool:
    """Whether row m of the product is pixel m of the image."""
    return problem.is_pointwise and is_regular(problem.gathered)


_SIMPLE_STATE = """\
  long long base[TURNS_A];  // where the rows begin that this thread loads"""
_SIMPLE_ROWS = """\
    #pragma unroll
    for (int i = 0; i < TURNS_A; i++) {
      const long long m = m0 + first + i * ROWS;
      base[i] = m < P_pixels ? m * $STEP$ : -1;
    }"""
_SIMPLE_LOAD = """\
        const bool inside = some && base[i] >= 0;
        const T *from = inside ? x + base[i] + q * EACH : x;
        copy<T>(slab + place(first + i * ROWS, column), from, inside);"""

_WINDOW_STATE = """\
  // Where the rows begin that this thread loads: the corner of their window, in chunks, and in rows
  // and columns of the image.
  int base[TURNS_A];
  int top[TURNS_A], left[TURNS_A];
  const int H = (int)P_H, W = (int)P_W, S = (int)P_S, C8 = (int)P_C8;
  const int DY = (int)P_DY, DX = (int)P_DX, columns = (int)P_columns;
  // Of the chunk that is loaded next: channel, column and row of the filter.
  const int chunk0 = step0 * CHUNKS + column;
  const int channel0 = chunk0 % C8, across0 = chunk0 / C8 % S * DX, down0 = chunk0 / C8 / S * DY;
  int channel = 0, across = 0, down = 0;"""
_WINDOW_ROWS = """\
    channel = channel0, across = across0, down = down0;
    #pragma unroll
    for (int i = 0; i < TURNS_A; i++) {
      const $INDEX$ plane = ($INDEX$)P_plane, m = ($INDEX$)(m0 + first + i * ROWS);
      const $INDEX$ image = m / plane;
      const int p = (int)(m - image * plane);
      top[i] = p / columns * (int)P_SY - (int)P_PY;
      left[i] = p % columns * (int)P_SX - (int)P_PX;
      base[i] = (int)((image * P_image + top[i] * P_row + left[i] * P_pixel) >> $SHIFT$);
      if (m >= P_pixels) top[i] = -(1 << 29);
    }"""
_WINDOW_TAP = """\
      const long long tap = down * P_row + across * P_pixel + channel * EACH;"""
_WINDOW_LOAD = """\
        const bool inside = some && (unsigned)(top[i] + down) < (unsigned)H
                            && (unsigned)(left[i] + across) < (unsigned)W;
$OUTSIDE$"""
_OUTSIDE = """\
        const T *from = inside ? x + base[i] * (long long)EACH + tap : x;
        copy<T>(slab + place(first + i * ROWS, column), from, inside);"""
_WHOLE_OUTSIDE = """\
        const T *from = inside ? x + base[i] * (long long)EACH + tap : zeros;
        copy<T>(slab + place(first + i * ROWS, column), from, true);"""
_WINDOW_NEXT = """\
      channel += CHUNKS;
      while (channel >= C8) {
        channel -= C8;
        across += DX;
        if (across == S * DX) {
          across = 0;
          down += DY;
        }
      }"""


_SHAPES = {
    "float16": "m16n8k16.row.col.f32.f16.f16.f32",
    "bfloat16": "m16n8k16.row.col.f32.bf16.bf16.f32",
    "uint8": "m16n8k32.row.col.s32.u8.s8.s32",
    "int8": "m16n8k32.row.col.s32.s8.s8.s32",
}
_SCALED = """\
// fma and ReLU of two numbers at once; NaN stays NaN.
template <class>
MD_FUNCTION unsigned int scaled(unsigned int x, unsigned int scale, unsigned int shift) {
  unsigned int y;
  asm("fma.rn.relu.$PTX$x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(scale), "r"(shift));
  return y;
}"""
_BEGIN = """\
  #pragma unroll
  for (int i = 0; i < WM / 16; i++)
    #pragma unroll
    for (int j = 0; j < WN / 8; j++)
      #pragma unroll
      for (int k = 0; k < 4; k++) c[i][j][k] = 0.0f;"""
_WHOLE_BEGIN = """\
  #pragma unroll
  for (int j = 0; j < WN / 8; j++)
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int n = n0 + wn + j * 8 + (lane & 3) * 2 + k;
      const int begin = n < filters && part == 0 ? starts[n] : 0;
      #pragma unroll
      for (int i = 0; i < WM / 16; i++) c[i][j][k] = c[i][j][k + 2] = begin;
    }"""

_WHOLE_ADDED = "floatbits(intbits(total[i][j]) + intbits(more[j]))"
_WHOLE_TOTAL = """\
      float a0[8];
      #pragma unroll
      for (int j = 0; j < 8; j++) a0[j] = (float)(int)intbits(total[i][j]);"""


def _ptx(problem: ContractionProblem) -> str:
    return "f16" if problem.x.dtype == "float16" else "bf16"


def _each(problem: ContractionProblem) -> int:
    """Elements of a chunk of 16 bytes."""
    return ALIGNMENT // problem.x.itemsize


_SCALE_SHIFT, _RELU = (linearize(op.expression()) for op in (ScaleShift(), ReLU()))


def is_packed(problem: ContractionProblem) -> bool:
    """Whether the prologue is scale, shift and ReLU: one instruction for two packed elements."""
    return [step.code for step in problem.before] == [_SCALE_SHIFT, _RELU]


def _prologue_loads(problem: ContractionProblem) -> str:
    """The loads of the prologue's vectors for a thread's chunks, before it waits for the chunks."""
    if not problem.before:
        return ""
    count = len(problem.before_vectors)
    code = Code()
    code.line("const int loaded0 = (step0 + step) * CHUNKS + column;")
    code.line("const int q = loaded0 < products ? loaded0 * 8 : 0;")
    for i in range(count):
        if is_packed(problem):
            code.line(f"const uint4 s{i} = *(const uint4 *)(u{i} + q);")
        else:
            code.line(f"float s{i}[8];")
            code.line(f"md_load<8>(s{i}, u{i} + q);")
    return str(code).rstrip("\n")


def _prologue(problem: ContractionProblem) -> str:
    """The prologue, which each thread computes on the chunks that it has loaded itself.  Chunks
    after the last one stay zeros: of these the prologue might make infinities."""
    if not problem.before:
        return ""
    code = Code()
    code.line("unsigned char *loaded = md_shared + slot * STAGE;")
    chunks = "for (int i = 0; i < TURNS_A; i++)"
    with code.block("if (loaded0 < products)"), code.unrolled(chunks):
        code.line("T *chunk = (T *)(loaded + place(first + i * ROWS, column));")
        _print_before(code, problem)
    return str(code).rstrip("\n")


def _print_before(code: Code, problem: ContractionProblem) -> None:
    """Prints the prologue of a chunk."""
    if is_packed(problem):
        scale, shift = (a.index for a in problem.before[0].arguments[1:])
        code.line("uint4 x = *(const uint4 *)chunk;")
        for part in "xyzw":
            code.line(f"x.{part} = scaled<T>(x.{part}, s{scale}.{part}, s{shift}.{part});")
        code.line("*(uint4 *)chunk = x;")
        return
    code.line("float a0[8];")
    code.line("md_load<8>(a0, chunk);")
    with code.unrolled("for (int j = 0; j < 8; j++)"):
        value = print_chain(code, problem.before, "s{}[j]".format, problem.x.dtype, round_to="T")
        code.line(f"a0[j] = {value};")
    code.line("md_store<8>(chunk, a0);")


def _whole_results(problem: ContractionProblem, tile: Tile, simple: bool) -> str:
    """The code after the products of a tile that one block makes."""
    early = _early(problem, tile.early[not simple], tile.warp_pixels // 16)
    text = {
        "JOIN": reconvergence_barrier(problem),
        "OTHERS": _others(problem, early),
        "EPILOGUE": epilogue_of(problem, f"[i % {early}][k]" if early else None),
        "NEXT_OTHERS": _next_others(problem, early),
    }
    return _results("tile_integers.cu", problem, text)


def _added_results(problem: ContractionProblem) -> str:
    """The code after the products of a tile that a cluster makes: a block adds up its rows."""
    is_integer = problem.is_integer
    text = {
        "OTHERS": _others_of_parts(problem),
        "EPILOGUE": epilogue_of(problem, "[i]"),
        "ADDED": _WHOLE_ADDED if is_integer else "total[i][j] + more[j]",
        "TOTAL": _WHOLE_TOTAL if is_integer else "      const float (&a0)[8] = total[i];",
    }
    return _results("tile_partial_sums.cu", problem, text)


def _results(file: str, problem: ContractionProblem, text: Mapping[str, str]) -> str:
    return fill(template(file), {"VECTORS": vectors_of(problem), **text}).rstrip("\n")


def _early(problem: ContractionProblem, float16_groups: int, most: int) -> int:
    """For how many groups of sixteen rows the other tensors are loaded early: in as many registers
    as ``float16_groups`` groups of one float16 tensor take."""
    size = sum(t.itemsize for t in problem.others)
    return min(most, 2 * float16_groups // size) if problem.others else float16_groups


def _others(problem: ContractionProblem, early: int) -> str:
    """The loads of the other tensors that come early; without them the epilogue loads these."""
    code = Code()
    for i in range(len(problem.others) if early else 0):
        code.line(f"{_word(problem, i)} p{i}[{early}][WN / 16];")
        groups, words = f"for (int i = 0; i < {early}; i++)", "for (int k = 0; k < WN / 16; k++)"
        with code.unrolled(groups), code.unrolled(words):
            row = "lane / (WN / 8) + k * (32 / (WN / 8))"
            code.line(f"const long long m = m0 + wm + i * 16 + {row};")
            code.line(f"if (m < P_pixels && some) p{i}[i][k] = {_chunk(problem, i, 'm')};")
    return str(code).rstrip("\n")


def _next_others(problem: ContractionProblem, early: int) -> str:
    """The loads for a later group of rows, once the registers of this one are free."""
    code = Code()
    if problem.others and early:
        with code.block(f"if (i + {early} < WM / 16)"):
            code.line(f"const long long next = m + {16 * early};")
            for i in range(len(problem.others)):
                word = f"p{i}[i % {early}][k]"
                code.line(f"if (next < P_pixels && some) {word} = {_chunk(problem, i, 'next')};")
    return str(code).rstrip("\n")


def _others_of_parts(problem: ContractionProblem) -> str:
    """The loads of the other tensors for a block's own rows, before the barrier of its cluster."""
    code = Code()
    for i in range(len(problem.others)):
        code.line(f"{_word(problem, i)} p{i}[TIMES];")
        with code.unrolled("for (int i = 0; i < TIMES; i++)"):
            code.line("const int row = i * DOWN + thread / ACROSS;")
            code.line("const long long m = m0 + part * OWN + row;")
            code.line(
                f"if (row < OWN && m < P_pixels && some) p{i}[i] = {_chunk(problem, i, 'm')};"
            )
    return str(code).rstrip("\n")


def _chunk(problem: ContractionProblem, i: int, m: str) -> str:
    """The expression that loads a word of one of the other tensors at pixel ``m``."""
    return f"*(const {_word(problem, i)} *)(x{1 + i} + {m} * P_other{i} + n)"


def _word(problem: ContractionProblem, i: int) -> str:
    """The type of a word with eight elements of one of the other tensors."""
    return {1: "uint2", 2: "uint4", 4: "md_two_words"}[problem.others[i].itemsize]
