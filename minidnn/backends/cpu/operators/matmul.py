"""Kernels of products of two matrices that are both computed; sizes are operands of the kernels.

A register tile of float32 has some rows and some vectors of columns.  It accumulates one part of
the K axis in registers, and adds that to the sum of the parts before, so that the rounding error of
long sums stays small.  The tiles of one task share a block of ``b`` in the caches.  The order of a
sum follows from its length alone.  Products of integers have a kernel of their own.

A linear layer of few rows whose weight changes from run to run reads the weight unpacked.  Packing
would move the weight twice more than the product itself, which reads it once.  Lanes are rows of
the input then: the input is transposed first, and the result back.  Sums are added in the order of
the direct algorithm, so the bits are those of a packed weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....fusion.region import Parts
from ....graph.ir import Constant, Node
from ....graph.operators import Linear, Transpose
from ....graph.types import TensorType
from ....kernels.ops.move import lower
from ....kernels.ops.pitched import Pitched
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..contraction import choose_by_price, question_of
from ..contraction.scheme import Scheme
from ..isa import Isa
from ..stage import Pointer, Stage, Staged, Workspace
from ..tensor import STORED, Tensor
from .kernels import SCHEDULE, Shaped, shaped

FEW_ROWS = 64
"""With more rows, packing the weight is a small part of the time."""


def reads_weight_unpacked(node: Node, accuracy: str) -> bool:
    """Whether a node is a linear layer of few rows that reads its weight unpacked."""
    if not isinstance(node.op, Linear) or isinstance(node.inputs[1], Constant):
        return False
    has_few_rows = prod(node.output.shape[:-1]) <= FEW_ROWS
    return has_few_rows and accuracy != "high" and all(v.dtype == "float32" for v in node.inputs)


def print_linear(node: Node, isa: Isa) -> Staged:
    """The kernels of a linear layer that reads its weight unpacked: a transposition, the product,
    and a transposition back.  The pointers are the operands and the output."""
    outputs, features = node.inputs[1].shape
    rows, result = prod(node.output.shape[:-1]), len(node.inputs)
    transposed, products = Workspace(0), Workspace(-(-4 * rows * features // 64) * 64)
    product = product_stage(
        (outputs, rows, features),
        (1, transposed, products),
        isa,
        parts=_parts(node, rows, isa),
        start=2 if result == 3 else None,
    )
    stages = (
        _transpose((rows, features), 0, transposed),
        product,
        _transpose((outputs, rows), products, result),
    )
    return Staged(stages, products.offset + 4 * rows * outputs)


def _parts(node: Node, rows: int, isa: Isa) -> tuple[int, int]:
    """The K extents of a chunk and of a part of a chunk in the direct algorithm's sums."""
    tensors = [Tensor(v.shape[-1], 1, 1, 1, v.shape[-1]) for v in (node.inputs[0], node.output)]
    question = question_of(Parts(node), rows, tensors[0], (), tensors[1], isa)
    scheme = choose_by_price(question).scheme
    assert isinstance(scheme, Scheme) and scheme.part and not scheme.compensated
    return scheme.chunk * scheme.unit, scheme.part * scheme.unit


def _transpose(shape: tuple[int, int], source: Pointer, result: Pointer) -> Stage:
    """The stage that transposes a matrix of this shape."""
    original, transposed = (Pitched.dense(TensorType(extents)) for extents in (shape, shape[::-1]))
    move = shaped(lower(Transpose((1, 0)).index_map(shape), original, transposed, SCHEDULE))
    pointers = (source, lambda: move.tables[0], result, lambda: move.sizes)
    return Stage(move.source, pointers, move.tasks, move.grain)


_ROWS = 6
"""Rows of the result that a task computes at once: each vector of ``b`` is read once for them."""

_COLUMNS = 256
"""Columns of a task."""

# Sizes: M, N, K, row tiles, column tiles, where the offsets of the matrices of a and b begin.
_MATMUL = """\
MD_KERNEL(@) {{
  const uniform int64 * uniform n = MD_IN(int64, 3);
  const uniform int depth = (uniform int)n[2];
  for (uniform int64 t = md_begin; t < md_end; t++) {{
    const uniform int64 matrix = t / (n[3] * n[4]);
    const uniform int64 top = t / n[4] % n[3] * {rows}, first = t % n[4] * {columns};
    const uniform int64 left = n[1] - first, below = n[0] - top;
    const uniform int count = (uniform int)(left < {columns} ? left : {columns});
    const uniform int rows = (uniform int)(below < {rows} ? below : {rows});
    const uniform {a} * uniform a = MD_IN({a}, 0) + n[n[5] + matrix] + top * n[2];
    const uniform {b} * uniform b = MD_IN({b}, 1) + n[n[6] + matrix] + first;
    uniform {sum} * uniform y = MD_OUT({sum}, 2) + (matrix * n[0] + top) * n[1] + first;
{pointers}
    foreach (i = 0 ... count) {{
{start}
      for (uniform int k = 0; k < depth; k++) {{
        const {sum} each = b[k * n[1] + i];
{sums}
      }}
{store}
    }}
  }}
}}
"""


def print_matmul_of_integers(a: TensorType, b: TensorType, y: TensorType) -> Shaped:
    """The kernel of a product of integers; its pointers are the operands, the output and the
    sizes."""
    every = range(_ROWS)
    types = {name: STORED[type.dtype] for name, type in (("a", a), ("b", b), ("sum", y))}
    text = _MATMUL.format(
        **types,
        rows=_ROWS,
        columns=_COLUMNS,
        # A row beyond the last is the last once more, and not stored.
        pointers="\n".join(
            f"    const uniform {types['a']} * uniform a{r} = a + (rows > {r} ? {r} : 0) * n[2];"
            for r in every
        ),
        start="\n".join(f"      {types['sum']} s{r} = 0;" for r in every),
        sums="\n".join(f"        s{r} += ({types['sum']})a{r}[k] * each;" for r in every),
        store="\n".join(f"      if (rows > {r}) y[{r} * n[1] + i] = s{r};" for r in every),
    )
    batch = y.shape[:-2]
    rows, columns, depth = y.shape[-2], y.shape[-1], a.shape[-1]
    tiles = (-(-rows // _ROWS), -(-columns // _COLUMNS))
    offsets = [matrices(a, batch), matrices(b, batch)]
    head = [rows, columns, depth, *tiles, 7, 7 + len(offsets[0])]
    sizes = np.concatenate([np.array(head, np.int64), *offsets]).astype(np.int64)
    return Shaped(KernelSource.named("matmul", text), sizes, prod(batch) * prod(tiles))


PART = 128
"""The K extent of a part: see docs/explanation/numerics-and-determinism.md."""

_ROW_TILES = 6
"""Row tiles of a task: they read the same columns of ``b``, which the first brings into caches."""

_COLUMN_TILES = 4
"""Column tiles of a task, unless that leaves too few tasks."""

_ENOUGH_TASKS = 32

_SIZES = (
    *("rows", "columns", "depth", "row_groups", "column_groups", "wide", "matrices"),
    *("chunk", "part"),
)
"""The names of the first sizes; after them come the offsets of the matrices of ``a`` and ``b``."""


def print_matmul(a: TensorType, b: TensorType, y: TensorType, isa: Isa) -> Staged:
    """The kernel of a float32 product; its pointers are the operands, the output and the sizes."""
    batch = y.shape[:-2]
    offsets = [matrices(a, batch), matrices(b, batch)]
    rows, columns, depth = y.shape[-2], y.shape[-1], a.shape[-1]
    return Staged((product_stage((rows, columns, depth), (0, 1, 2), isa, offsets),))


def product_stage(
    shape: tuple[int, int, int],
    pointers: tuple[int | Workspace, int | Workspace, int | Workspace],
    isa: Isa,
    places: list[np.ndarray] | None = None,
    parts: tuple[int, int] | None = None,
    start: int | None = None,
) -> Stage:
    """The stage of a batch of float32 matrix products.

    Args:
        shape: M, N and K.
        pointers: the operands, and the result.
        places: the offsets in elements of the matrices of both operands; by default each has one.
        parts: K extents of a chunk of a sum, and of a part of a chunk.
        start: a pointer to the initial values of the sums, one for each row; by default zeros.
    """
    starts = [np.zeros(1, np.int64)] * 2 if places is None else places
    tile = _tile(shape[0], shape[1], isa)
    row_groups = -(-shape[0] // (tile.rows * _ROW_TILES))
    count, across = len(starts[0]), -(-shape[1] // (tile.vectors * isa.lanes))
    column_tiles = max(1, min(_COLUMN_TILES, across * row_groups * count // _ENOUGH_TASKS))
    column_groups = -(-across // column_tiles)
    sizes = [*shape, row_groups, column_groups, column_tiles * tile.vectors * isa.lanes]
    sizes += [count, *(parts or (max(1, shape[2]), PART))]
    size_operand = np.concatenate([np.array(sizes), *starts]).astype(np.int64)
    scratch_floats = tile.rows * _ROW_TILES * column_tiles * tile.vectors * isa.lanes
    return Stage(
        KernelSource.named("matmul", _print(tile, start is not None)),
        (*pointers, lambda: size_operand, *(() if start is None else (start,))),
        count * row_groups * column_groups,
        1,
        4 * scratch_floats,
    )


@dataclass(frozen=True)
class _Tile:
    """A register tile: ``rows`` times ``vectors`` accumulators of ``lanes`` floats."""

    rows: int
    vectors: int
    lanes: int


def _tile(rows: int, columns: int, isa: Isa) -> _Tile:
    """The register tile for a result of this shape."""
    most_rows, vectors = (8, 3) if isa.registers == 32 else (6, 2)
    tiles = max(1, -(-rows // most_rows))
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
    """The widths of register tiles in vectors, the widest first, and whether lanes are masked."""
    narrow = [(1, False)] if tile.vectors > 1 else []
    return [(tile.vectors, False), *narrow, (1, True)]


def _task(code: Code, tile: _Tile, starts: bool) -> None:
    """Prints the loops of a task: over parts of the K axis, column tiles, and row tiles."""
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
    """Prints the loop over the row tiles of a column tile; the first prefetches columns of the
    next."""
    width = vectors * tile.lanes
    code.line("const uniform float * uniform own = b + k * columns + c;")
    code.line("const uniform float * uniform later = own;")
    code.line(f"if (c + {width} < across) later = own + {width};")
    code.line("else if (end < depth) later = b + end * columns;")
    more_arguments = (", across - c" if masked else "") + (", starts + r" if starts else "")
    with code.block(f"for (uniform int r = 0; r < high; r += {tile.rows})"):
        code.line(
            f"{_name(vectors, masked)}(a + r * depth + k, depth, high - r, own, columns, "
            f"r == 0 ? later : own, count, to + r * apart + c, apart, k == 0{more_arguments});"
        )
    code.line(f"c += {width};")


def _name(vectors: int, masked: bool) -> str:
    return "@_some" if masked else f"@_tile{vectors}"


def _function(code: Code, tile: _Tile, vectors: int, masked: bool, starts: bool) -> None:
    """Prints the function of a register tile: it accumulates ``count`` products, and adds the sums
    to those at ``to``, or writes them."""
    accumulators = [(r, v) for r in range(tile.rows) for v in range(vectors)]
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
        for r, v in accumulators:
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
        for r, v in accumulators:
            target = f"to[{r} * apart + {v * tile.lanes} + programIndex]"
            lanes = " && programIndex < some" if masked else ""
            code.line(f"if (rows > {r}{lanes}) {target} = fresh ? s{r}_{v} : {target} + s{r}_{v};")


def matrices(type: TensorType, batch: tuple[int, ...]) -> np.ndarray:
    """The offset in elements of each matrix of a batch, to which the operand is broadcast."""
    own_batch = type.shape[:-2]
    offsets = np.arange(prod(own_batch)).reshape(own_batch) * prod(type.shape[-2:])
    return np.broadcast_to(offsets, batch).reshape(-1)
