"""Epilogue reductions: the code of kernels that fuse one, and the sweep that follows other cores.

A kernel that fuses one (``stream.cu``, ``halo.cu``) adds up chunks of eight filters of a pixel, of
which a thread has those of the same filters in all of its tiles.  Each block leaves partial sums in
the workspace, and a second kernel combines them.  A sweep reads the contraction's result again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ....graph.ir import Value
from ....runtime.operand import KernelArgument
from ...codegen.code import Code
from ...codegen.dialect import literal
from ..kernels import Launch
from ..partial_sums import LARGEST, PartialSums, reduce_partial_sums
from ..prelude import TYPES
from ..sums import SumsLaunches, print_sums, print_values, reductions_of
from ..tensor import Tensor, is_aligned, is_regular, step_of
from .epilogue_reduction import EpilogueReduction, region_of
from .problem import Addresses, ContractionProblem
from .text import fill, template

AT_ONCE = 8
"""Chunks of other tensors, of 16 bytes, that a thread loads at once."""


def registers_of(reduction: EpilogueReduction) -> int:
    """Registers in which a thread keeps the sums of one filter whose results it writes."""
    return 3 if reduction.is_moments else len(region_of(reduction).reductions)


def shared_bytes(problem: ContractionProblem, filters: int) -> int:
    """Shared memory of a block, in bytes: the vectors that the reduction reads for its filters."""
    return 0 if problem.reduction is None else 4 * filters * len(problem.reduction.vectors)


def why_not(problem: ContractionProblem) -> str | None:
    """Why kernels cannot fuse the epilogue reduction of a problem; None if they can."""
    reduction = problem.reduction
    if reduction is None or reduction.is_moments:
        return None
    tensors = (*reduction.tensors, *reduction.stored)
    if any(t.dtype != problem.x.dtype for t in tensors):
        return "what is added up has several dtypes"
    if any(not is_aligned(t, problem.batch) or not is_regular(t) for t in tensors):
        return "what is added up is not aligned to vectors of 8 channels"
    if any(type.rank != 1 for type in reduction.read[1 + len(reduction.tensors) :]):
        return "what is added up reads other values than tensors and vectors"
    return None


def parameters(problem: ContractionProblem) -> list[str]:
    """The pointers that a kernel takes for the reduction, after that of its result."""
    reduction = problem.reduction
    if reduction is None:
        return []
    element = TYPES[problem.x.dtype]
    pointers = [f"const {element} *__restrict__ t{i}" for i, _ in enumerate(reduction.tensors)]
    pointers += [
        f"const {TYPES[dtype]} *__restrict__ g{i}" for i, dtype in enumerate(reduction.vectors)
    ]
    pointers += [f"{element} *__restrict__ z{i}" for i, _ in enumerate(reduction.stored)]
    return [*pointers, "float *part"]


def names(problem: ContractionProblem) -> list[str]:
    """The names of the numbers of :func:`steps`."""
    reduction = problem.reduction
    if reduction is None:
        return []
    counts = (("t", reduction.tensors), ("z", reduction.stored))
    return [f"{name}{i}" for name, tensors in counts for i, _ in enumerate(tensors)]


def steps(problem: ContractionProblem) -> list[int]:
    """Elements from one pixel to the next, of the tensors that the reduction reads and stores."""
    reduction = problem.reduction
    return [] if reduction is None else list(map(step_of, (*reduction.tensors, *reduction.stored)))


def arguments(
    problem: ContractionProblem,
    first: Sequence[KernelArgument],
    at: Addresses,
    numbers: Sequence[int],
) -> list[list[KernelArgument]]:
    """The arguments of a kernel, ``first`` those that it takes in any case, and of the kernel that
    combines its blocks' partial sums, if there is a reduction."""
    reduction, size = problem.reduction, problem.y.itemsize
    if reduction is None:
        return [[*first, *numbers]]
    layouts = (*reduction.tensors, *(None for _ in reduction.vectors), *reduction.stored)
    operands = [
        a + t.offset * size if t else a for a, t in zip(at.reduction, layouts, strict=False)
    ]
    sums = at.reduction[len(layouts) :]
    return [[*first, *operands, at.workspace, *numbers], [at.workspace, *sums]]


_ALL = "(float *)(md_shared + (ring - begins))"
"""Shared memory in which a block combines its threads' sums: all slabs have been read by then."""


def totals_text(reduction: EpilogueReduction) -> dict[str, object]:
    """The fragments of a template for a thread's sums, and for their reduction over a block."""
    return {
        "SUMS": fill(template("totals.cu"), {"COUNT": registers_of(reduction)}),
        "SUMS_VECTORS": copy_vectors(reduction.vectors),
        "SUMS_BEGIN": "  Totals totals;",
        "SUMS_END": f"  leave(totals, {_ALL}, part, n0, filters);",
        "GIVEN": len(reduction.vectors),
    }


def copy_vectors(dtypes: Sequence[str]) -> str:
    """The code that copies the vectors for a block's filters, as floats, to ``given_at``."""
    code = Code()
    code.line("float *const given = (float *)(md_shared + (given_at - begins));")
    if dtypes:
        with code.block("for (int i = threadIdx.x; i < FILTERS; i += GROUPS * 128)"):
            for i, _ in enumerate(dtypes):
                read = f"n0 + i < filters ? md_value(g{i}[n0 + i]) : 0.0f"
                code.line(f"given[{i} * FILTERS + i] = {read};")
    return str(code).rstrip("\n")


def rows_at_once(reduction: EpilogueReduction, down: int) -> int:
    """Of how many of the ``down`` rows that it writes a thread loads the other tensors at once."""
    at_once = down
    while at_once > 1 and at_once * len(reduction.tensors) > AT_ONCE:
        at_once //= 2
    return at_once


def print_vectors(code: Code, reduction: EpilogueReduction) -> None:
    """Prints the loads of the vectors for eight filters from ``n`` on, from shared memory."""
    for i, _ in enumerate(reduction.vectors):
        code.line(f"float w{i}[8];")
        code.line(f"md_load_floats(w{i}, given + {i} * FILTERS + n - n0);")


def print_chunk(
    code: Code, reduction: EpilogueReduction, made: str, total: str, reads_vectors: bool
) -> None:
    """Prints what a thread computes from a chunk of pixel ``m``, adds up and stores.

    Args:
        made: the chunk of the contraction's result; those of other tensors are ``word0[h]`` and on.
        total: the array of sums that the chunk is added to, with a field for the sum's number.
        reads_vectors: whether it has to load the vectors first.
    """
    op, tensors = region_of(reduction), len(reduction.tensors)
    first, *others = op.body.inputs
    names: dict[Value, str] = {first: "a0[k]"}
    for i, word in enumerate((made, *(f"word{i}[h]" for i in range(tensors)))):
        code.line(f"float a{i}[8];")
        with code.block(""):
            code.line("md_pack<8, T> pack;")
            code.line(f"pack.word = {word};")
            code.unrolled_line(f"for (int k = 0; k < 8; k++) a{i}[k] = md_value(pack.items[k]);")
    for i, value in enumerate(others[:tensors]):
        names[value] = f"a{i + 1}[k]"
    if reads_vectors:
        print_vectors(code, reduction)
    for i, value in enumerate(others[tensors:]):
        names[value] = f"w{i}[k]"
    for i, _ in enumerate(reduction.stored):
        code.line(f"float b{i}[8];")
    with code.unrolled("for (int k = 0; k < 8; k++)"):
        values = print_values(code, op, names)
        for i, node in enumerate(op.reductions.values()):
            code.line(f"{total.format(i)}[k] += {values[node.inputs[0]]};")
        for i, value in enumerate(op.stored.values()):
            code.line(f"b{i}[k] = {values[value]};")
    for i, _ in enumerate(reduction.stored):
        code.line(f"md_write<8>(z{i} + m * P_z{i} + n, b{i});")
    if reduction.keeps:
        code.line(f"md_write_word(y + m * P_y + n, {made});")


@dataclass(frozen=True)
class TilePartialSums(PartialSums):
    """Partial sums of ``blocks`` blocks that share tiles of ``size`` pixels.

    :meth:`of_part`, which moments need, assumes that blocks take tiles in turn.
    """

    blocks: int = 1

    @property
    def count(self) -> int:
        return self.blocks

    def of_part(self, part: str) -> str:
        tiles = -(-self.packs // self.size)
        missing = literal(float(tiles * self.size - self.packs))
        full = f"(({tiles - 1} - {part}) / {self.blocks} + 1) * {literal(float(self.size))}"
        return f"({full} - ({part} == {(tiles - 1) % self.blocks} ? {missing} : 0.0f))"


def tile_partial_sums(problem: ContractionProblem, pixels: int, blocks: int) -> TilePartialSums:
    """The partial sums of a problem's reduction, of ``blocks`` that share tiles of ``pixels``."""
    assert problem.reduction is not None
    y, op = problem.made, region_of(problem.reduction)
    dtypes = {i: node.output.dtype for i, node in op.reductions.items()}
    packs = problem.batch * y.rows * y.columns
    return TilePartialSums(reductions_of(op), dtypes, y.channels, pixels, packs, 1, blocks)


def partial_sum_reduction(problem: ContractionProblem, pixels: int, blocks: int) -> Launch:
    """The kernel that combines such partial sums: it takes their address, then the results'."""
    return reduce_partial_sums(tile_partial_sums(problem, pixels, blocks))


@cache
def sweep_of(problem: ContractionProblem) -> SumsLaunches:
    """The kernels that compute a problem's epilogue reduction from its result in memory."""
    reduction = problem.reduction
    assert reduction is not None
    op = region_of(reduction)
    layouts: dict[Value, Tensor] = {op.body.inputs[0]: problem.made}
    layouts |= zip(op.body.inputs[1 : 1 + len(reduction.tensors)], reduction.tensors, strict=True)
    layouts |= zip(op.stored.values(), reduction.stored, strict=True)
    return print_sums(op, layouts.__getitem__)


_NOTHING = ("SUMS", "SUMS_VECTORS", "SUMS_BEGIN", "SUMS_ADD", "SUMS_END")

_WRITE = """\
    #pragma unroll
    for (int i = 0; i < ACROSS; i++) {
      const int n = n1 + column0 + i * LANES * 8;
      T *to = y + (m1 + row0) * P_y + n;
      #pragma unroll
      for (int j = 0; j < DOWN; j++, to += ROWS * P_y)
        if (n < filters && row0 + j * ROWS < left) md_write_word(to, chunks[i][j]);
    }"""

_COMPUTE = """\
    #pragma unroll
    for (int i = 0; i < ACROSS; i++) {
      const int n = n1 + column0 + i * LANES * 8;
      #pragma unroll
      for (int j = 0; j < DOWN; j += $AT_ONCE$) {
$DECLARE$
        #pragma unroll
        for (int h = 0; h < $AT_ONCE$; h++) {
          const long long m = m1 + row0 + (j + h) * ROWS;
          if (n < filters && row0 + (j + h) * ROWS < left) {
$ASK$
          }
        }
        #pragma unroll
        for (int h = 0; h < $AT_ONCE$; h++) {
          const long long m = m1 + row0 + (j + h) * ROWS;
          if (n < filters && row0 + (j + h) * ROWS < left) {
$BODY$
          }
        }
      }
    }"""


def sums_text(problem: ContractionProblem, down: int) -> dict[str, object]:
    """The reduction's fragments of ``stream.cu``; ``down``: rows that a thread writes."""
    reduction = problem.reduction
    if reduction is None:
        return {**dict.fromkeys(_NOTHING, ""), "WRITE": _WRITE, "GIVEN": 0}
    if reduction.is_moments:
        return {
            "SUMS": fill(template("moments.cu"), {"LARGEST": LARGEST}),
            "SUMS_VECTORS": "",
            "SUMS_BEGIN": "  Moments moments;",
            "SUMS_ADD": "    add(moments, chunks, left - row0);",
            "SUMS_END": f"  leave(moments, {_ALL}, part, n0, filters);",
            "WRITE": _WRITE,
            "GIVEN": 0,
        }
    return {**totals_text(reduction), "SUMS_ADD": "", "WRITE": _computed(reduction, down)}


def _computed(reduction: EpilogueReduction, down: int) -> str:
    """The code of what a thread computes from its chunks, adds up and stores."""
    at_once = rows_at_once(reduction, down)
    ask, declare, body = Code(), Code(), Code()
    for i, _ in enumerate(reduction.tensors):
        declare.line(f"uint4 word{i}[{at_once}];")
        ask.line(f"word{i}[h] = *(const uint4 *)(t{i} + m * P_t{i} + n);")
    print_chunk(body, reduction, "chunks[i][j + h]", "totals.of[{}][i]", True)
    text = {
        "AT_ONCE": at_once,
        "DECLARE": str(declare).rstrip("\n"),
        "ASK": str(ask).rstrip("\n"),
        "BODY": str(body).rstrip("\n"),
    }
    return fill(_COMPUTE, text)
