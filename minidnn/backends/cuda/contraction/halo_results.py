"""How a warp of the kernel of :mod:`halo` goes on with its products, as text for ``halo.cu``."""

from __future__ import annotations

from ...codegen.code import Code
from .behind import SumsBehind
from .chunk_sums import lay_vectors, print_chunk, print_vectors, rows_at_once, totals_text
from .problem import ContractionProblem
from .text import epilogue_of, fill

_ALL = "(float *)(md_shared + (ring - begins))"
"""Where threads meet: pixels have all been read by then."""

_COMPUTED = """\
    turn<N, TURN>(turned, c, lane);
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < DOWN; k++) {
      const long long m = pixel(k);
      if (m >= 0) {
        const int row = lane / LANES + k * ROWS;
        float a0[8], r[8];
        read_turned(a0, turned + row * TURN + lane % LANES * 8, row);
$EPILOGUE$
        md_store<8>(y + m * P_y + n, r);
      }
    }"""

_ROUNDED = """\
    turn_rounded<N>(turned, c, lane);
    __syncwarp();
    uint4 chunks[DOWN];
    #pragma unroll
    for (int j = 0; j < DOWN; j++) {
      const int row = lane / LANES + j * ROWS & 15;
      chunks[j] = *(const uint4 *)(turned + rounded_at<N>(row, lane % LANES));
    }
"""
_WRITTEN = """\
    #pragma unroll
    for (int j = 0; j < DOWN; j++) {
      const long long m = pixel(j);
      if (m >= 0) md_write_word(y + m * P_y + n, chunks[j]);
    }"""

_ASK = """\
$DECLARE$
    auto ask = [&](int j) {
      #pragma unroll
      for (int h = 0; h < $AT_ONCE$; h++) {
        const long long m = pixel(j + h);
$ASK$
      }
    };
    ask(0);"""
_ADDED = """\
$VECTORS$
    #pragma unroll
    for (int j = 0; j < DOWN; j += $AT_ONCE$) {
$NEXT$
      #pragma unroll
      for (int h = 0; h < $AT_ONCE$; h++) {
        const long long m = pixel(j + h);
        if (m >= 0) {
$BODY$
        }
      }
    }"""


def is_rounded(problem: ContractionProblem) -> bool:
    """Whether results are rounded as the products leave them: nothing else is computed of more
    digits."""
    return not problem.stages and problem.y.dtype == problem.x.dtype


def results_text(problem: ContractionProblem, down: int) -> dict[str, object]:
    """The parts of ``halo.cu``; ``down``: rows that a thread writes."""
    behind, rounded = problem.behind, is_rounded(problem)
    text: dict[str, object] = dict.fromkeys(
        ("SUMS", "SUMS_VECTORS", "SUMS_BEGIN", "SUMS_END", "ASK"), ""
    )
    text |= {"TURNED": "T" if rounded else "float", "GIVEN": 0}
    if behind is None:
        computed = fill(_COMPUTED, {"EPILOGUE": epilogue_of(problem)})
        return text | {"RESULTS": _ROUNDED + _WRITTEN if rounded else computed}
    assert rounded
    return text | {
        "SUMS": totals_text(behind),
        "SUMS_VECTORS": lay_vectors(behind.vectors),
        "SUMS_BEGIN": "  Totals totals;",
        "SUMS_END": f"  leave(totals, {_ALL}, part, n0, filters);",
        "ASK": _ask(behind, down),
        "RESULTS": _ROUNDED + _added(behind, down),
        "GIVEN": len(behind.vectors),
    }


def _ask(behind: SumsBehind, down: int) -> str:
    """How a thread asks for some rows of other tensors, and for the first."""
    at_once = rows_at_once(behind, down)
    declare, ask = Code(), Code()
    for i, _ in enumerate(behind.tensors):
        declare.line(f"uint4 word{i}[{at_once}];")
        ask.line(f"word{i}[h] = asked(t{i} + m * P_t{i} + n, m >= 0);")
    text = {"AT_ONCE": at_once, "DECLARE": _text(declare), "ASK": _text(ask)}
    return fill(_ASK, text) if behind.tensors else ""


def _added(behind: SumsBehind, down: int) -> str:
    """What a thread computes of its chunks, adds up and stores."""
    vectors, body = Code(), Code()
    print_vectors(vectors, behind)
    print_chunk(body, behind, "chunks[j + h]", "word{}[h]", "totals.of[{}][0]", False)
    return fill(
        _ADDED,
        {
            "AT_ONCE": rows_at_once(behind, down),
            "VECTORS": _text(vectors),
            "NEXT": "      if (j) ask(j);" if behind.tensors else "",
            "BODY": _text(body),
        },
    )


def _text(code: Code) -> str:
    return str(code).rstrip("\n")
