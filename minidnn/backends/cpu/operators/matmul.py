"""The kernels of products of float32 matrices that are both computed; sizes are operands.

A register tile has some rows and some vectors of columns.  It sums up a part of the products, and
adds that to the sum of the parts before, so that the error of long sums stays small.  Tiles of one
task share a block of ``b`` in the caches.  The order of a sum follows from its length alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....graph.types import TensorType
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..contraction.stage import Stage, Workspace
from ..isa import Isa
from .staged import Staged

PART = 128
"""Products that are summed up at once: see docs/explanation/numerics-and-determinism.md."""

_ROW_TILES = 6
"""Tiles of rows of a task: each reads the same columns of ``b`` once they are near."""

_COLUMN_TILES = 4
"""Tiles of columns of a task, if tasks are not few then."""

_ENOUGH_TASKS = 32

_SIZES = (
    *("rows", "columns", "depth", "row_groups", "column_groups", "wide", "matrices"),
    *("chunk", "part"),
)
"""The first sizes; behind them stands where the matrices of ``a`` and ``b`` begin."""


def print_matmul(a: TensorType, b: TensorType, y: TensorType, isa: Isa) -> Staged:
    """The kernel of a product; its pointers are the operands, the output and the sizes."""
    batch = y.shape[:-2]
    places = [matrices(a, batch), matrices(b, batch)]
    rows, columns, depth = y.shape[-2], y.shape[-1], a.shape[-1]
    return Staged((product_stage((rows, columns, depth), (0, 1, 2), isa, places),))


def product_stage(
    shape: tuple[int, int, int],
    pointers: tuple[int | Workspace, int | Workspace, int | Workspace],
    isa: Isa,
    places: list[np.ndarray] | None = None,
    parts: tuple[int, int] | None = None,
    start: int | None = None,
) -> Stage:
    """The kernel of products of matrices.

    Args:
        shape: rows and columns of the result, and products of a sum.
        pointers: the operands, and the result.
        places: where each matrix of both operands begins; by default there is one.
        parts: products of a chunk of a sum, and of a part of a chunk.
        start: a pointer to what the sums of each row begin with; by default with zero.
    """
    starts = [np.zeros(1, np.int64)] * 2 if places is None else places
    tile = _tile(shape[0], shape[1], isa)
    row_groups = -(-shape[0] // (tile.rows * _ROW_TILES))
    count, across = len(starts[0]), -(-shape[1] // (tile.vectors * isa.lanes))
    beside = max(1, min(_COLUMN_TILES, across * row_groups * count // _ENOUGH_TASKS))
    column_groups = -(-across // beside)
    sizes = [*shape, row_groups, column_groups, beside * tile.vectors * isa.lanes]
    sizes += [count, *(parts or (max(1, shape[2]), PART))]
    every = np.concatenate([np.array(sizes), *starts]).astype(np.int64)
    kept = tile.rows * _ROW_TILES * beside * tile.vectors * isa.lanes
    return Stage(
        KernelSource.named("matmul", _print(tile, start is not None)),
        (*pointers, lambda: every, *(() if start is None else (start,))),
        count * row_groups * column_groups,
        1,
        4 * kept,
    )


@dataclass(frozen=True)
class _Tile:
    """Sums in registers."""

    rows: int
    vectors: int
    lanes: int


def _tile(rows: int, columns: int, isa: Isa) -> _Tile:
    most, vectors = (8, 3) if isa.registers == 32 else (6, 2)
    tiles = max(1, -(-rows // most))
    return _Tile(max(1, -(-rows // tiles)), max(1, min(vectors, columns // isa.lanes)), isa.lanes)


def _print(tile: _Tile, starts: bool) -> str:
    code = Code()
    for vectors, masked in _widths(tile):
        _function(code, tile, vectors, masked, starts)
    with code.block("MD_KERNEL(@)"):
        code.line("const uniform int64 * uniform n = MD_IN(int64, 3);")
        code.lines(f"const uniform int64 {name} = n[{i}];" for i, name in enumerate(_SIZES))
        code.line("uniform float * uniform sums = (uniform float * uniform)md_scratch;")
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _task(code, tile, starts)
    return str(code)


def _widths(tile: _Tile) -> list[tuple[int, bool]]:
    """Vectors of tiles, the most first, and whether only some lanes are columns."""
    narrow = [(1, False)] if tile.vectors > 1 else []
    return [(tile.vectors, False), *narrow, (1, True)]


def _task(code: Code, tile: _Tile, starts: bool) -> None:
    """Parts of sums, one after another; tiles of columns in each, tiles of rows in these."""
    code.lines(
        (
            "const uniform int64 matrix = t / (row_groups * column_groups);",
            f"const uniform int64 top = t / column_groups % row_groups * {tile.rows * _ROW_TILES};",
            "const uniform int64 left = t % column_groups * wide;",
            f"const uniform int high = (uniform int)min(rows - top, "
            f"(uniform int64){tile.rows * _ROW_TILES});",
            "const uniform int across = (uniform int)min(columns - left, wide);",
            f"const uniform int64 * uniform begins = n + {len(_SIZES)};",
            "const uniform float * uniform a = MD_IN(float, 0) + begins[matrix] + top * depth;",
            "const uniform float * uniform b = MD_IN(float, 1) + begins[matrices + matrix] + left;",
            "uniform float * uniform y = "
            "MD_OUT(float, 2) + (matrix * rows + top) * columns + left;",
            "const uniform bool whole = depth <= min(chunk, part);",
            "uniform float * uniform to = whole ? y : sums;",
            "const uniform int64 apart = whole ? columns : wide;",
            "uniform int64 k = 0;",
        )
    )
    if starts:
        code.line("const uniform float * uniform starts = MD_IN(float, 4) + top;")
    with code.block("do"):
        # A part ends where its chunk does.
        code.line("const uniform int64 end = min(min(k + part, (k / chunk + 1) * chunk), depth);")
        code.line("const uniform int count = (uniform int)(end - k);")
        code.line("uniform int c = 0;")
        with code.block("while (c < across)"):
            for number, (vectors, masked) in enumerate(_widths(tile)):
                test = "else" if masked else f"if (across - c >= {vectors * tile.lanes})"
                with code.block(f"else {test}" if number and not masked else test):
                    _rows(code, tile, vectors, masked, starts)
        code.line("k = end;")
    code.line("while (k < depth);")
    with code.block("if (!whole)"), code.block("for (uniform int r = 0; r < high; r++)"):
        code.line("const uniform int64 from = r * wide, place = r * columns;")
        code.line("foreach (i = 0 ... across) { y[place + i] = sums[from + i]; }")


def _rows(code: Code, tile: _Tile, vectors: int, masked: bool, starts: bool) -> None:
    """The tiles of rows for a tile of columns; the first asks for the next columns."""
    width = vectors * tile.lanes
    code.line("const uniform float * uniform own = b + k * columns + c;")
    code.line("const uniform float * uniform later = own;")
    code.line(f"if (c + {width} < across) later = own + {width};")
    code.line("else if (end < depth) later = b + end * columns;")
    more = (", across - c" if masked else "") + (", starts + r" if starts else "")
    with code.block(f"for (uniform int r = 0; r < high; r += {tile.rows})"):
        code.line(
            f"{_name(vectors, masked)}(a + r * depth + k, depth, high - r, own, columns, "
            f"r == 0 ? later : own, count, to + r * apart + c, apart, k == 0{more});"
        )
    code.line(f"c += {width};")


def _name(vectors: int, masked: bool) -> str:
    return "@_some" if masked else f"@_tile{vectors}"


def _function(code: Code, tile: _Tile, vectors: int, masked: bool, starts: bool) -> None:
    """Sums up ``count`` products for a tile, and adds them to those at ``to``, or writes them."""
    every = [(r, v) for r in range(tile.rows) for v in range(vectors)]
    head = (
        f"static noinline unmasked void {_name(vectors, masked)}(const uniform float * uniform a, "
        "uniform int64 depth, uniform int rows, const uniform float * uniform b, "
        "uniform int64 columns, const uniform float * uniform later, uniform int count, "
        "uniform float * uniform to, uniform int64 apart, uniform bool fresh"
        f"{', uniform int some' if masked else ''}"
        f"{', const uniform float * uniform starts' if starts else ''})"
    )
    with code.block(head):
        for r in range(tile.rows):
            # A row beyond the last is the last once more, and not stored.
            code.line(f"const uniform float * uniform a{r} = a + min(rows - 1, {r}) * depth;")
        for r, v in every:
            start = f"fresh ? starts[min(rows - 1, {r})] : 0.0f" if starts else "0.0f"
            code.line(f"float s{r}_{v} = {start};")
        code.line("#pragma nounroll")
        with code.block("for (uniform int k = 0; k < count; k++)"):
            for v in range(vectors):
                at = f"b[{v * tile.lanes} + programIndex]"
                code.line(f"prefetch_l2((void * uniform)(later + {v * tile.lanes}));")
                if masked:
                    code.line(f"float b{v} = 0.0f; if (programIndex < some) b{v} = {at};")
                else:
                    code.line(f"const float b{v} = {at};")
            for r in range(tile.rows):
                sums = " ".join(f"s{r}_{v} = md_fma(x, b{v}, s{r}_{v});" for v in range(vectors))
                code.line(f"{{ const float x = a{r}[k]; {sums} }}")
            code.line("b += columns;")
            code.line("later += columns;")
        for r, v in every:
            place = f"to[{r} * apart + {v * tile.lanes} + programIndex]"
            lanes = " && programIndex < some" if masked else ""
            code.line(f"if (rows > {r}{lanes}) {place} = fresh ? s{r}_{v} : {place} + s{r}_{v};")


def matrices(type: TensorType, batch: tuple[int, ...]) -> np.ndarray:
    """Where the matrix of each of the batch begins."""
    own = type.shape[:-2]
    first = np.arange(prod(own)).reshape(own) * prod(type.shape[-2:])
    return np.broadcast_to(first, batch).reshape(-1)
