"""What streams compute and add up behind their results, as text for ``stream.cu``."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.ir import Value
from ...codegen.code import Code
from ..prelude import TYPES
from ..sum_parts import LARGEST
from ..sums import print_values
from .behind import SumsBehind, region_of
from .chunks import is_aligned, is_regular, step_of
from .problem import ContractionProblem
from .text import fill, template

_ALL = "(float *)(md_shared + (ring - begins))"
"""Where threads meet: the slabs have all been read by then."""
_AT_ONCE = 8
"""Chunks of other tensors that a thread asks for at once."""
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


def registers_of(behind: SumsBehind) -> int:
    """Numbers that a thread keeps for each filter whose results it writes."""
    return 3 if behind.is_moments else len(region_of(behind).reductions)


def shared_bytes(problem: ContractionProblem, filters: int) -> int:
    """Bytes of the vectors that are read behind so many filters."""
    return 0 if problem.behind is None else 4 * filters * len(problem.behind.vectors)


def why_not(problem: ContractionProblem) -> str | None:
    """Why streams cannot compute what is behind a problem; None if they can."""
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
        "SUMS": fill(template("totals.cu"), {"COUNT": registers_of(behind)}),
        "SUMS_VECTORS": _vectors(behind.vectors),
        "SUMS_BEGIN": "  Totals totals;",
        "SUMS_ADD": "",
        "SUMS_END": f"  leave(totals, {_ALL}, part, n0, filters);",
        "WRITE": _computed(behind, down),
        "GIVEN": len(behind.vectors),
    }


def _vectors(dtypes: Sequence[str]) -> str:
    """Lays down the vectors for the block's filters, as numbers."""
    code = Code()
    code.line("float *const given = (float *)(md_shared + (given_at - begins));")
    if dtypes:
        with code.block("for (int i = threadIdx.x; i < FILTERS; i += GROUPS * 128)"):
            for i, _ in enumerate(dtypes):
                read = f"n0 + i < filters ? md_value(g{i}[n0 + i]) : 0.0f"
                code.line(f"given[{i} * FILTERS + i] = {read};")
    return str(code).rstrip("\n")


def _computed(behind: SumsBehind, down: int) -> str:
    """What a thread computes of its chunks, adds up and stores."""
    op = region_of(behind)
    tensors = len(behind.tensors)
    at_once = down
    while at_once > 1 and at_once * tensors > _AT_ONCE:
        at_once //= 2
    ask, declare = Code(), Code()
    for i in range(tensors):
        declare.line(f"uint4 word{i}[{at_once}];")
        ask.line(f"word{i}[h] = *(const uint4 *)(t{i} + m * P_t{i} + n);")
    text = {
        "AT_ONCE": at_once,
        "DECLARE": str(declare).rstrip("\n"),
        "ASK": str(ask).rstrip("\n"),
        "BODY": str(_body(behind)).rstrip("\n"),
    }
    assert op.body.inputs
    return fill(_COMPUTE, text)


def _body(behind: SumsBehind) -> Code:
    op, code = region_of(behind), Code()
    first, *others = op.body.inputs
    tensors = len(behind.tensors)
    names: dict[Value, str] = {first: "a0[k]"}
    for i, word in enumerate(("chunks[i][j + h]", *(f"word{i}[h]" for i in range(tensors)))):
        code.line(f"float a{i}[8];")
        with code.block(""):
            code.line("md_pack<8, T> pack;")
            code.line(f"pack.word = {word};")
            code.line("#pragma unroll")
            code.line(f"for (int k = 0; k < 8; k++) a{i}[k] = md_value(pack.items[k]);")
    for i, value in enumerate(others[:tensors]):
        names[value] = f"a{i + 1}[k]"
    for i, value in enumerate(others[tensors:]):
        code.line(f"float w{i}[8];")
        code.line(f"md_load_floats(w{i}, given + {i} * FILTERS + n - n0);")
        names[value] = f"w{i}[k]"
    for i, _ in enumerate(behind.stored):
        code.line(f"float b{i}[8];")
    code.line("#pragma unroll")
    with code.block("for (int k = 0; k < 8; k++)"):
        values = print_values(code, op, names)
        for i, node in enumerate(op.reductions.values()):
            code.line(f"totals.of[{i}][i][k] += {values[node.inputs[0]]};")
        for i, value in enumerate(op.stored.values()):
            code.line(f"b{i}[k] = {values[value]};")
    for i, _ in enumerate(behind.stored):
        code.line(f"md_write<8>(z{i} + m * P_z{i} + n, b{i});")
    if behind.keeps:
        code.line("md_write_word(y + m * P_y + n, chunks[i][j + h]);")
    return code
