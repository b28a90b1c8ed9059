"""Integer contractions without tensor cores: those with groups, or channels that fill no chunks.

A thread computes one filter or four of a pixel.  Groups of one channel are computed byte by byte,
four neighbours of a word at a time; others by dot products of four packed bytes (``dp4a``), which
are read 16 bytes at once where alignment allows.  Sums are exact, and so are results of int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ....cudnn.graph.spec import ALIGNMENT
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import Tensor, is_regular, step_of
from .int8_filter import header_of, is_by_channel
from .kernel import ContractionKernel
from .problem import ContractionProblem
from .split_k import pixels_of
from .text import compute_stages, parameters_of, source_of
from .tile import TileKernel

_HEAD = ("pixels", "filters", "channels", "each", "plane", "columns", "H", "W", "R", "S")
_GEOMETRY = ("SY", "SX", "PY", "PX", "DY", "DX", "image", "row", "pixel", "y")
_NAMES = (*_HEAD, *_GEOMETRY)
_THREADS = 128
_MOST = 1 << 31


class Dp4aKernel(ContractionKernel):
    """One filter or four of a pixel for each thread; there is one choice."""

    name = "dp4a"
    usual_price = 1.0

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        if not problem.is_integer:
            return f"it is in {problem.x.dtype}"
        if problem.planar:
            return "its images are planar"
        tensors = (problem.gathered, problem.y, *problem.others)
        if any(t.channel != 1 and t.channels > 1 for t in tensors):
            return "its channels are not contiguous"
        if any(not is_regular(t) for t in tensors[1:]):
            return "pixels of its result are not at regular strides"
        if pixels_of(problem) * problem.w.shape[0] >= _MOST * _THREADS:
            return "it has too many results"
        return None

    def why_slow(self, problem: ContractionProblem, machine: Machine) -> str | None:
        return "tensor cores compute it" if TileKernel().why_not(problem, machine) is None else None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return (0,)

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        lanes = _lanes(problem)
        text = {
            "T": TYPES[problem.x.dtype],
            "PTX": {"uint8": "u32", "int8": "s32"}[problem.x.dtype],
            "LANES": lanes,
            "STEP": lanes if is_by_channel(problem) else _step(problem),
            "THREADS": _THREADS,
            "PARAMETERS": parameters_of(problem, _NAMES),
            "HEADER": header_of(problem),
            "PRODUCTS": _products(problem),
            "RESULTS": _results(problem, lanes),
        }
        blocks = -(-pixels_of(problem) * (problem.w.shape[0] // lanes) // _THREADS)
        return [Launch(source_of("dp4a.cu", text), (blocks, 1, 1), (_THREADS, 1, 1))]

    def numbers(self, problem: ContractionProblem, choice: int, machine: Machine) -> list[int]:
        x, y = problem.gathered, problem.y
        out, channels, rows, columns = problem.w.shape
        return [
            pixels_of(problem),
            out,
            channels,
            out // problem.groups,
            y.rows * y.columns,
            y.columns,
            x.rows,
            x.columns,
            rows,
            columns,
            *problem.stride,
            *(before for before, _ in problem.padding),
            *problem.dilation,
            x.image,
            x.row,
            x.pixel,
            step_of(y),
            *map(step_of, problem.others),
        ]

    def shape(self, choice: int) -> str:
        return "of bytes"


def _common(problem: ContractionProblem) -> int:
    """Bytes that one access of the image may take, by the alignment of its pixels."""
    x: Tensor = problem.gathered
    steps = (x.image, x.row, x.pixel, x.offset)
    return gcd(ALIGNMENT, *steps)


def _lanes(problem: ContractionProblem) -> int:
    """Filters that a thread computes."""
    out = problem.w.shape[0]
    if is_by_channel(problem):
        return 4 if out % 4 == 0 and _common(problem) % 4 == 0 else 1
    return 4 if out // problem.groups % 4 == 0 else 1


def _step(problem: ContractionProblem) -> int:
    """Bytes of an access: a word of four, four words, or a single byte."""
    common = gcd(_common(problem), problem.w.shape[1])
    return common if common in (4, ALIGNMENT) else 4 if common == 8 else 1


_BY_CHANNEL = """\
      const unsigned char *const a = (const unsigned char *)(inside ? from : zeros);
      const signed char *const b = (const signed char *)(w + (r * P_S + s) * P_filters + n);
      md_pack<LANES, T> one;
      md_pack<LANES, md_s8> by;
      one.word = *(const md_word<LANES>::type *)a;
      by.word = *(const md_word<LANES>::type *)b;
      #pragma unroll
      for (int j = 0; j < LANES; j++) sums[j] += (int)one.items[j].bits * by.items[j].bits;"""
_BY_BYTE = """\
      const T *b = w + ((n * P_R + r) * P_S + s) * P_channels;
      for (int i = 0; i < (int)P_channels; i++) {
        const int a = inside ? (int)from[i].bits : (int)zeros[0].bits;
        #pragma unroll
        for (int j = 0; j < LANES; j++)
          sums[j] += a * (int)((const md_s8 *)b)[i + j * (P_R * P_S * P_channels)].bits;
      }"""
_BY_WORD = """\
      const T *b = w + ((n * P_R + r) * P_S + s) * P_channels;
      for (int i = 0; i < (int)P_channels; i += STEP) {
        md_pairs<STEP / 4> one, by;
        one.word = *(const md_word<STEP>::type *)(inside ? from + i : zeros);
        #pragma unroll
        for (int j = 0; j < LANES; j++) {
          by.word = *(const md_word<STEP>::type *)(b + i + j * (P_R * P_S * P_channels));
          #pragma unroll
          for (int k = 0; k < STEP / 4; k++) sums[j] = quad<T>(one.items[k], by.items[k], sums[j]);
        }
      }"""


def _products(problem: ContractionProblem) -> str:
    """The code that adds the products of a tap to a thread's sums."""
    if is_by_channel(problem):
        return _BY_CHANNEL
    return _BY_BYTE if _step(problem) == 1 else _BY_WORD


def _results(problem: ContractionProblem, lanes: int) -> str:
    """The epilogue and the stores of a thread's results."""
    code = Code()
    code.line(f"y += m * P_y + n{_offset(problem.y)};")
    if not problem.stages and problem.y.dtype not in TYPES:
        code.unrolled_line("for (int j = 0; j < LANES; j++) y[j] = sums[j];")
        return str(code).rstrip("\n")
    code.line("float a0[LANES], r[LANES];")
    code.unrolled_line("for (int j = 0; j < LANES; j++) a0[j] = (float)sums[j];")
    read = []
    for i, t in enumerate(problem.others):
        read.append((f"a{1 + i}", f"x{1 + i}[m * P_other{i} + n + j{_offset(t)}]"))
    read += [(f"b{i}", f"v{i}[n + j]") for i in range(len(problem.vectors))]
    for name, element in read:
        code.line(f"float {name}[LANES];")
        code.unrolled_line(f"for (int j = 0; j < LANES; j++) {name}[j] = md_value({element});")
    compute_stages(code, problem, "LANES")
    steps = (problem.y.offset, step_of(problem.y), lanes)
    if all(step % lanes == 0 for step in steps):
        code.line("md_store<LANES>(y, r);")
    else:
        kind = TYPES[problem.y.dtype]
        code.unrolled_line(f"for (int j = 0; j < LANES; j++) y[j] = md_as<{kind}>(r[j]);")
    return str(code).rstrip("\n")


def _offset(t: Tensor) -> str:
    """The term that adds a tensor's offset to an index."""
    return f" + {t.offset}" if t.offset else ""
