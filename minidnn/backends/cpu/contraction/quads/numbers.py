"""The numbers that kernels of products of four bytes read when they run, each by its name."""

from __future__ import annotations

from ..dots.numbers import DOT_NUMBERS, Table
from .scheme import QuadScheme


def _run(scheme: QuadScheme) -> int:
    """Bytes that lie side by side in what one result reads."""
    columns, side = scheme.problem.kernel[1], scheme.problem.dilation[1] == 1
    return scheme.row_terms * (columns if side else 1)


def _row_stride(scheme: QuadScheme) -> int:
    copies = scheme.packing in ("rows", "unrolled")
    return scheme.problem.stride[0] if copies else scheme.row_stride


QUAD_NUMBERS: Table = {
    **DOT_NUMBERS,
    "row_stride": _row_stride,
    # Rows of inputs whose pixels lie side by side, of which what each result reads is copied.
    "column_stride": lambda s: s.problem.stride[1],
    "kernel_rows": lambda s: s.problem.kernel[0],
    "line_inputs": lambda s: s.row_terms,
    "line_width": lambda s: s.packed_width if s.packing == "rows" else s.line_width,
    "packed_pixel": lambda s: s.pixel_bytes,
    "run": _run,
    "runs": lambda s: 1 if s.problem.dilation[1] == 1 else s.problem.kernel[1],
    "tap_columns_apart": lambda s: s.problem.dilation[1],
    "tap_rows_apart": lambda s: s.problem.dilation[0],
}
