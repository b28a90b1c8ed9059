"""Convolutions in exact float32 as implicit matrix products with split-K.

Blocks that compute all products of their results leave most multiprocessors idle where pixels are
few: at batch 1 a layer of 14x14 pixels and 512 filters makes eight blocks.  Here K, the taps of all
channels, is split: blocks compute partial sums side by side into the workspace, and a second kernel
adds them, always in the same order, and computes the epilogue.  With one part the first kernel does
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ..kernels import Launch
from ..machine import Machine
from ..pointwise import print_chain
from ..tensor import has_contiguous_channels
from .kernel import ContractionKernel
from .problem import Addresses, ContractionProblem
from .split_k import (
    MOST_DOWN,
    RESULT,
    Divisions,
    filled,
    filter_blocks,
    layout_names,
    layout_numbers,
    part_bytes,
    pixels_of,
    planar_epilogue_of,
    print_total,
    result_numbers,
    total_numbers,
    without_stages,
)
from .text import parameters_of, source_of, template

_DEEP = 16
"""K of a slab."""
_MOST_TAPS = 15
"""Rows or columns of a window: half of the bits of a mask, less one that no pixel has."""
_MOST_PARTS = 64
_LEAST_SLABS = 4
"""Slabs of a part, at least, so that filling the pipeline is not most of its work."""
_THREADS = 512
"""Threads of a multiprocessor, at 128 registers each."""
_MOST_PIXELS = 1 << 30


@dataclass(frozen=True)
class DirectShape:
    """The tile shape of a block.

    Attributes:
        filters, pixels: M and N of a block.
        rows, columns: M and N of a thread.
        stages: slabs in shared memory at once.
    """

    filters: int
    pixels: int
    rows: int = 8
    columns: int = 8
    stages: int = 3

    @property
    def threads(self) -> int:
        return self.filters // self.rows * (self.pixels // self.columns)

    @property
    def shared_bytes(self) -> int:
        return self.stages * _DEEP * (self.filters + 4 + self.pixels) * 4

    def __str__(self) -> str:
        return f"of {self.filters} filters by {self.pixels} pixels"


SHAPES = (
    DirectShape(128, 128),
    DirectShape(64, 128),
    DirectShape(128, 64),
    DirectShape(64, 64),
    DirectShape(32, 128, 8, 4, 4),
    DirectShape(32, 64, 8, 4, 4),
)
DIVISIONS = Divisions(SHAPES)


class DirectKernel(ContractionKernel):
    """Products of filters by gathered pixels; a choice is one of :data:`DIVISIONS`."""

    name = "direct"
    usual_price = 1.4

    def why_not(self, problem: ContractionProblem, machine: Machine) -> str | None:
        x, y = problem.x, problem.y
        if not problem.is_exact:
            return "its products need not be exact float32"
        if not problem.planar or problem.gather is not None:
            return "its image is not planar"
        if problem.before and prod(problem.w.shape[2:]) > 1:
            return "every tap would compute the prologue"
        if problem.groups != 1:
            return "it has groups"
        if x.pixel != 1 or not all(map(has_contiguous_channels, (y, *problem.others))):
            return "its planes have gaps"
        if max(problem.w.shape[2:]) > _MOST_TAPS:
            return f"its filters have more than {_MOST_TAPS} rows or columns"
        if prod(problem.w.shape[2:]) == 1 and any(map(any, problem.padding)):
            return "it pads an image that it reads pixel by pixel"
        if problem.w.shape[0] > MOST_DOWN:
            return "it has too many filters"
        sizes = (pixels_of(problem), x.channels * x.channel, x.rows * x.row)
        return "it is too large for 32-bit indices" if max(sizes) >= _MOST_PIXELS else None

    def choices(self, problem: ContractionProblem, machine: Machine) -> Sequence[int]:
        return DIVISIONS.promising(_priced(problem, machine))

    def launches(
        self, problem: ContractionProblem, choice: int, machine: Machine
    ) -> Sequence[Launch]:
        """The kernel of the products, and the one that adds up parts if there are several.

        Arguments of the first are those of :func:`.text.parameters_of`, without others and vectors
        where a second follows; each then takes the numbers of :func:`_sizes_of`.
        """
        shape, parts = DIVISIONS[choice]
        first = _product(problem, shape, parts)
        return [first] if parts == 1 else [first, print_total(problem)]

    def arguments(
        self, problem: ContractionProblem, choice: int, at: Addresses, machine: Machine
    ) -> list[list[KernelArgument]]:
        first, second = _sizes_of(problem, choice)
        operands = (*at.others, *at.vectors, *at.before, at.y)
        if not second:
            return [[at.x, at.w, *operands, *first]]
        product = [at.x, at.w, *at.before, at.workspace, *first]
        return [product, [at.workspace, at.w, *operands, *second]]

    def workspace(self, problem: ContractionProblem, choice: int, machine: Machine) -> int:
        """Bytes of all partial sums."""
        return part_bytes(problem, DIVISIONS[choice][1])

    def shape(self, choice: int) -> str:
        return DIVISIONS.shown(choice)


def _priced(problem: ContractionProblem, machine: Machine) -> Iterator[tuple[float, int]]:
    """Estimates the cycles of each choice: a multiprocessor has 128 multiply-adds in one."""
    slabs = -(-_products(problem) // _DEEP)
    for i, shape in enumerate(SHAPES):
        tiles = prod(_grid(problem, shape))
        for wanted in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, _MOST_PARTS):
            if wanted > 1 and slabs < wanted * _LEAST_SLABS:
                break
            parts = filled(slabs, wanted)
            # Blocks of the busiest multiprocessor.
            blocks = -(-tiles * parts // machine.multiprocessors)
            warps = min(blocks, _THREADS // shape.threads) * shape.threads // 32
            rate = 128 * min(1.0, (warps + 2) / 10)  # two warps a scheduler hide what they wait for
            depth = -(-slabs // parts) * _DEEP
            loaded = shape.filters + shape.pixels
            work = shape.filters * shape.pixels * depth + 10 * loaded * depth
            cycles = blocks * work / rate + 1500
            if parts > 1:
                cycles += 3000 + 2 * part_bytes(problem, parts) / 2500
            yield cycles, DIVISIONS.number(i, parts)


def _sizes_of(problem: ContractionProblem, choice: int) -> tuple[list[int], list[int]]:
    """The numbers that both kernels take."""
    shape, parts = DIVISIONS[choice]
    rows, columns = problem.w.shape[2:]
    x = problem.x
    slabs = -(-_products(problem) // _DEEP)
    numbers = [
        *result_numbers(problem, parts),
        *(_grid(problem, shape)[1], _products(problem), -(-slabs // parts) * _DEEP),
        *(problem.y.columns, *problem.stride, *(before for before, _ in problem.padding)),
        *(x.rows, x.columns, x.image, x.channel, x.row),
        *(rows * columns, rows, columns, *problem.dilation),
    ]
    layouts = layout_numbers(problem)
    return ([*numbers, *layouts], []) if parts == 1 else (numbers, total_numbers(problem, parts))


_PRODUCT = (
    *RESULT,
    *("groups", "products", "depth", "columns", "down", "across", "top", "left"),
    *("height", "breadth", "image", "channel", "row"),
    *("taps", "tap_rows", "tap_columns", "tap_down", "tap_across"),
)


def _products(problem: ContractionProblem) -> int:
    """K: the taps of all channels."""
    return prod(problem.w.shape[1:])


def _grid(problem: ContractionProblem, shape: DirectShape) -> tuple[int, int]:
    """Blocks along pixels, and along filters."""
    return -(-pixels_of(problem) // shape.pixels), filter_blocks(problem, shape.filters)


def _product(problem: ContractionProblem, shape: DirectShape, parts: int) -> Launch:
    """The kernel of the products, which leaves partial sums if there are several parts."""
    window = prod(problem.w.shape[2:]) > 1
    text: dict[str, object] = {
        **{"BM": shape.filters, "BN": shape.pixels, "RM": shape.rows, "RN": shape.columns},
        "THREADS": shape.threads,
        "STAGES": shape.stages,
        "MULTIPLY": template("multiply.cu"),
        "INSIDE": _INSIDE if window else "    inside = 1;",
        "TAPS": _TAPS if window else "",
        "FIRST": _FIRST if window else "",
        "ENTRIES": _ENTRIES if window else "",
        "NEXT": _NEXT if window else "",
        "TAP": _TAP if window else _POINT,
        "BEFORE": _before(problem),
        "RESULTS": _PARTS
        if parts > 1
        else _RESULTS.replace("$EPILOGUE$", planar_epilogue_of(problem)),
    }
    names = _PRODUCT if parts > 1 else (*_PRODUCT, *layout_names(problem))
    core_problem = without_stages(problem) if parts > 1 else problem
    text["PARAMETERS"] = parameters_of(core_problem, names, distances=False)
    source = source_of("direct.cu", text)
    shared = shape.shared_bytes + (shape.stages * _DEEP * 8 if window else 0)
    blocks = prod(_grid(problem, shape))
    return Launch(source, (blocks, parts, 1), (shape.threads, 1, 1), shared)


_INSIDE = """\
    for (int i = 0; i < (int)P_tap_rows; i++)
      if ((unsigned int)(top + i * (int)P_tap_down) < (unsigned int)P_height) inside |= 1u << i;
    for (int j = 0; j < (int)P_tap_columns; j++)
      if ((unsigned int)(left + j * (int)P_tap_across) < (unsigned int)P_breadth)
        inside |= 65536u << j;"""

_TAPS = """\

  // Products of the slabs that are loaded next: how far from a pixel's first tap each lies, and the
  // bits of its row and column.
  uint2 *const entries = (uint2 *)(slabs + STAGES * SLAB);
  const auto enter = [&](int at, int to) {
    const int k = at + to % DEEP, c = k / (int)P_taps, tap = k - c * (int)P_taps;
    const int i = tap / (int)P_tap_columns, j = tap - i * (int)P_tap_columns;
    const int away = i * (int)P_tap_down * (int)P_row + j * (int)P_tap_across;
    uint2 entry;
    entry.x = (unsigned int)(c * channel + away);
    entry.y = k < end ? 1u << i | 65536u << j : ~0u;  // no pixel has them all
    entries[to] = entry;
  };"""

_FIRST = """\
  for (int i = thread; i < STAGES * DEEP; i += THREADS) enter(begin + i / DEEP * DEEP, i);
  __syncthreads();"""

_ENTRIES = """\
    uint2 entry[DEEP / STEP];
    #pragma unroll
    for (int i = 0; i < DEEP / STEP; i++)
      entry[i] = entries[(at - begin) / DEEP % STAGES * DEEP + first + i * STEP];"""

_NEXT = "    if (thread < DEEP) enter(at + STAGES * DEEP, slot * DEEP + thread);"

_TAP = """\
      const bool some = (inside & entry[i].y) == entry[i].y;
      const float *const source = from + (int)entry[i].x;"""

_POINT = """\
      const bool some = inside && k < left;
      const float *const source = from + (at + k) * channel;"""

_PARTS = """\
  y += (long long)blockIdx.y * filters * P_width;
  #pragma unroll
  for (int i = 0; i < RM; i++) {
    const int k = k0 + i / 4 * TY * 4 + ty + i % 4;
    #pragma unroll
    for (int g = 0; g < RN / 4; g++) {
      const int m = m0 + g * TX * 4 + tx;
      const float *const s = sum[i] + g * 4;
      const float four[4] = {s[0], s[1], s[2], s[3]};
      if (k < filters && m < pixels) md_store<4>(y + k * P_width + m, four);
    }
  }"""

_RESULTS = """\

  // Results pass through shared memory, half of the filters at a time: neighbours write neighbours.
  __syncthreads();
  #pragma unroll
  for (int half = 0; half < RM / 4; half++) {
    #pragma unroll
    for (int i = 0; i < 4; i++)
      #pragma unroll
      for (int g = 0; g < RN / 4; g++) {
        const float (&s)[RN] = sum[half * 4 + i];
        const float four[4] = {s[g * 4], s[g * 4 + 1], s[g * 4 + 2], s[g * 4 + 3]};
        md_store<4>(slabs + (ty + i) * BN + g * TX * 4 + tx, four);
      }
    __syncthreads();
    #pragma unroll 1
    for (int at = thread; at < TY * BN; at += THREADS) {
      const int k = k0 + half * TY * 4 + at / (BN / 4), m = m0 + at % (BN / 4) * 4;
      if (k >= filters || m >= pixels) continue;
      float a0[4], r[4];
      md_load<4>(a0, slabs + at * 4);
$EPILOGUE$
    }
    __syncthreads();
  }"""


def _before(problem: ContractionProblem) -> str:
    """The prologue, which each thread computes on the elements that it has loaded itself."""
    if not problem.before:
        return ""
    code = Code()
    with code.unrolled("for (int i = 0; i < DEEP / STEP; i++)", 4):
        code.line("const int k = first + i * STEP, j = 0;")
        code.line("if (at + k >= end) break;")
        code.line("float *const one = slabs + slot * SLAB + DEEP * LINE + k * BN + (own ^ 1);")
        code.line("const float a0[1] = {*one};")
        value = print_chain(code, problem.before, "u{}[at + k]".format, problem.x.dtype)
        code.line(f"*one = {value};")
    return str(code).rstrip("\n")
