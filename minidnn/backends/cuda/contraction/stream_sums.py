"""What streams compute and add up behind their results, as text for ``stream.cu``."""

from __future__ import annotations

from ...codegen.code import Code
from ..sum_parts import LARGEST
from .behind import SumsBehind
from .problem import ContractionProblem
from .sums_behind import lay_vectors, print_chunk, rows_at_once, totals_text
from .text import fill, template

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
    print_chunk(body, behind, "chunks[i][j + h]", "word{}[h]", "totals.of[{}][i]", True)
    text = {
        "AT_ONCE": at_once,
        "DECLARE": str(declare).rstrip("\n"),
        "ASK": str(ask).rstrip("\n"),
        "BODY": str(body).rstrip("\n"),
    }
    return fill(_COMPUTE, text)
