"""What is added up behind a contraction: by kernels of pixels and filters themselves, as text, with
a kernel that joins the parts that their blocks leave; or in a sweep of its own.

Those kernels add up chunks of eight filters of a pixel, of which a thread has those of the same
filters in all of its tiles.
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
from ..prelude import TYPES
from ..sum_parts import LARGEST, SumParts, join_parts
from ..sums import SumsLaunches, found_in, print_sums, print_values
from ..tensor import Tensor, is_aligned, is_regular, step_of
from .behind import SumsBehind, region_of
from .problem import Addresses, ContractionProblem
from .text import fill, template

AT_ONCE = 8
"""Chunks of other tensors that a thread asks for at once."""


def registers_of(behind: SumsBehind) -> int:
    """Numbers that a thread keeps for each filter whose results it writes."""
    return 3 if behind.is_moments else len(region_of(behind).reductions)


def shared_bytes(problem: ContractionProblem, filters: int) -> int:
    """Bytes of the vectors that are read behind so many filters."""
    return 0 if problem.behind is None else 4 * filters * len(problem.behind.vectors)


def why_not(problem: ContractionProblem) -> str | None:
    """Why kernels cannot add up what is behind a problem; None if they can."""
    behind = problem.behind
    if behind is None or behind.is_moments:
        return None
    tensors = (*behind.tensors, *behind.stored)
    if any(t.dtype != problem.x.dtype for t in tensors):
        return "what is added up has several dtypes"
    if any(not is_aligned(t, problem.batch) or not is_regular(t) for t in tensors):
        return "what is added up does not lie in whole chunks of 8 channels"
    if any(type.rank != 1 for type in behind.read[1 + len(behind.tensors) :]):
        return "what is added up reads other values than tensors and vectors"
    return None


def parameters(problem: ContractionProblem) -> list[str]:
    """Of the kernel, behind the result."""
    behind = problem.behind
    if behind is None:
        return []
    element = TYPES[problem.x.dtype]
    found = [f"const {element} *__restrict__ t{i}" for i, _ in enumerate(behind.tensors)]
    found += [f"const {TYPES[dtype]} *__restrict__ g{i}" for i, dtype in enumerate(behind.vectors)]
    found += [f"{element} *__restrict__ z{i}" for i, _ in enumerate(behind.stored)]
    return [*found, "float *part"]


def names(problem: ContractionProblem) -> list[str]:
    """Of the numbers of :func:`steps`."""
    behind = problem.behind
    if behind is None:
        return []
    counts = (("t", behind.tensors), ("z", behind.stored))
    return [f"{name}{i}" for name, some in counts for i, _ in enumerate(some)]


def steps(problem: ContractionProblem) -> list[int]:
    """From one pixel to the next of the tensors that are read and stored behind the contraction."""
    behind = problem.behind
    return [] if behind is None else list(map(step_of, (*behind.tensors, *behind.stored)))


def arguments(
    problem: ContractionProblem,
    first: Sequence[KernelArgument],
    at: Addresses,
    numbers: Sequence[int],
) -> list[list[KernelArgument]]:
    """What a kernel takes, ``first`` what it takes in any case, and what joins the parts that its
    blocks leave, if there are sums."""
    behind, size = problem.behind, problem.y.itemsize
    if behind is None:
        return [[*first, *numbers]]
    lies = (*behind.tensors, *(None for _ in behind.vectors), *behind.stored)
    swept = [a + t.offset * size if t else a for a, t in zip(at.behind, lies, strict=False)]
    sums = at.behind[len(lies) :]
    return [[*first, *swept, at.workspace, *numbers], [at.workspace, *sums]]


def totals_text(behind: SumsBehind) -> str:
    """The sums of a thread, and how those of a block are joined."""
    return fill(template("totals.cu"), {"COUNT": registers_of(behind)})


def lay_vectors(dtypes: Sequence[str]) -> str:
    """Lays down the vectors for the block's filters, as numbers, at ``given_at``."""
    code = Code()
    code.line("float *const given = (float *)(md_shared + (given_at - begins));")
    if dtypes:
        with code.block("for (int i = threadIdx.x; i < FILTERS; i += GROUPS * 128)"):
            for i, _ in enumerate(dtypes):
                read = f"n0 + i < filters ? md_value(g{i}[n0 + i]) : 0.0f"
                code.line(f"given[{i} * FILTERS + i] = {read};")
    return str(code).rstrip("\n")


def rows_at_once(behind: SumsBehind, down: int) -> int:
    """For how many rows that it writes a thread asks for the other tensors' chunks at once."""
    at_once = down
    while at_once > 1 and at_once * len(behind.tensors) > AT_ONCE:
        at_once //= 2
    return at_once


def print_vectors(code: Code, behind: SumsBehind) -> None:
    """Reads the vectors for the filters from ``n`` on, of those that were laid down."""
    for i, _ in enumerate(behind.vectors):
        code.line(f"float w{i}[8];")
        code.line(f"md_load_floats(w{i}, given + {i} * FILTERS + n - n0);")


def print_chunk(code: Code, behind: SumsBehind, made: str, total: str, reads_vectors: bool) -> None:
    """What a thread computes of a chunk of pixel ``m``, adds up and stores.

    Args:
        made: the word that the contraction makes; those of other tensors are ``word0[h]`` and on.
        total: what the numbers of the chunk are added to, by the sum's number.
        reads_vectors: whether the vectors have not been read yet.
    """
    op, tensors = region_of(behind), len(behind.tensors)
    first, *others = op.body.inputs
    names: dict[Value, str] = {first: "a0[k]"}
    for i, word in enumerate((made, *(f"word{i}[h]" for i in range(tensors)))):
        code.line(f"float a{i}[8];")
        with code.block(""):
            code.line("md_pack<8, T> pack;")
            code.line(f"pack.word = {word};")
            code.line("#pragma unroll")
            code.line(f"for (int k = 0; k < 8; k++) a{i}[k] = md_value(pack.items[k]);")
    for i, value in enumerate(others[:tensors]):
        names[value] = f"a{i + 1}[k]"
    if reads_vectors:
        print_vectors(code, behind)
    for i, value in enumerate(others[tensors:]):
        names[value] = f"w{i}[k]"
    for i, _ in enumerate(behind.stored):
        code.line(f"float b{i}[8];")
    code.line("#pragma unroll")
    with code.block("for (int k = 0; k < 8; k++)"):
        values = print_values(code, op, names)
        for i, node in enumerate(op.reductions.values()):
            code.line(f"{total.format(i)}[k] += {values[node.inputs[0]]};")
        for i, value in enumerate(op.stored.values()):
            code.line(f"b{i}[k] = {values[value]};")
    for i, _ in enumerate(behind.stored):
        code.line(f"md_write<8>(z{i} + m * P_z{i} + n, b{i});")
    if behind.keeps:
        code.line(f"md_write_word(y + m * P_y + n, {made});")


@dataclass(frozen=True)
class TileParts(SumParts):
    """What ``blocks`` leave that share tiles of ``size`` pixels in turn."""

    blocks: int = 1

    @property
    def count(self) -> int:
        return self.blocks

    def of_part(self, part: str) -> str:
        tiles = -(-self.packs // self.size)
        missing = literal(float(tiles * self.size - self.packs))
        whole = f"(({tiles - 1} - {part}) / {self.blocks} + 1) * {literal(float(self.size))}"
        return f"({whole} - ({part} == {(tiles - 1) % self.blocks} ? {missing} : 0.0f))"


def tile_parts(problem: ContractionProblem, pixels: int, blocks: int) -> TileParts:
    """The parts of a problem's sums, of blocks that share tiles of so many pixels."""
    assert problem.behind is not None
    y, op = problem.made, region_of(problem.behind)
    dtypes = {i: node.output.dtype for i, node in op.reductions.items()}
    packs = problem.batch * y.rows * y.columns
    return TileParts(found_in(op), dtypes, y.channels, pixels, packs, 1, blocks)


def join_of_parts(problem: ContractionProblem, pixels: int, blocks: int) -> Launch:
    """The kernel that joins such parts; it takes them, then where it writes the sums."""
    return join_parts(tile_parts(problem, pixels, blocks))


@cache
def sweep_of(problem: ContractionProblem) -> SumsLaunches:
    """The kernels that read a problem's result for its sums."""
    behind = problem.behind
    assert behind is not None
    op = region_of(behind)
    lies: dict[Value, Tensor] = {op.body.inputs[0]: problem.made}
    lies |= zip(op.body.inputs[1 : 1 + len(behind.tensors)], behind.tensors, strict=True)
    lies |= zip(op.stored.values(), behind.stored, strict=True)
    return print_sums(op, lies.__getitem__)


_ALL = "(float *)(md_shared + (ring - begins))"
"""Where threads meet: the slabs have all been read by then."""
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
    """The parts of ``stream.cu``; ``down``: rows that a thread writes."""
    behind = problem.behind
    if behind is None:
        return {**dict.fromkeys(_NOTHING, ""), "WRITE": _WRITE, "GIVEN": 0}
    if behind.is_moments:
        return {
            "SUMS": fill(template("moments.cu"), {"LARGEST": LARGEST}),
            "SUMS_VECTORS": "",
            "SUMS_BEGIN": "  Moments moments;",
            "SUMS_ADD": "    add(moments, chunks, left - row0);",
            "SUMS_END": f"  leave(moments, {_ALL}, part, n0, filters);",
            "WRITE": _WRITE,
            "GIVEN": 0,
        }
    return {
        "SUMS": totals_text(behind),
        "SUMS_VECTORS": lay_vectors(behind.vectors),
        "SUMS_BEGIN": "  Totals totals;",
        "SUMS_ADD": "",
        "SUMS_END": f"  leave(totals, {_ALL}, part, n0, filters);",
        "WRITE": _computed(behind, down),
        "GIVEN": len(behind.vectors),
    }


def _computed(behind: SumsBehind, down: int) -> str:
    """What a thread computes of its chunks, adds up and stores."""
    at_once = rows_at_once(behind, down)
    ask, declare, body = Code(), Code(), Code()
    for i, _ in enumerate(behind.tensors):
        declare.line(f"uint4 word{i}[{at_once}];")
        ask.line(f"word{i}[h] = *(const uint4 *)(t{i} + m * P_t{i} + n);")
    print_chunk(body, behind, "chunks[i][j + h]", "totals.of[{}][i]", True)
    text = {
        "AT_ONCE": at_once,
        "DECLARE": str(declare).rstrip("\n"),
        "ASK": str(ask).rstrip("\n"),
        "BODY": str(body).rstrip("\n"),
    }
    return fill(_COMPUTE, text)
