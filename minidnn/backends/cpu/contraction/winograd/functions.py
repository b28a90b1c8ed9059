"""Prints the functions of Winograd kernels that transform a tile of inputs, or of products back to
results, and the code that calls them."""

from __future__ import annotations

from ....codegen.code import Code
from ..epilogue import Epilogue
from ..numbers import PARAMETER, Numbers
from ..scheme import LINE_FLOATS
from .scheme import Named, Transform, WinogradScheme

TILES_AHEAD = 4
"""Prefetch distance of products, in tiles: they are read as one stream per matrix, which is more
streams than hardware prefetchers follow."""

_POINTER = "const uniform float * uniform"


def print_into(code: Code, scheme: WinogradScheme, numbers: Numbers, border: bool) -> None:
    """Prints ``@_into``, which transforms a tile of inputs and prefetches the one at ``later``.

    With ``border`` prints ``@_border``, for tiles that are partly outside the image: there it reads
    ``zeros`` (a row of them).
    """
    n = scheme.transform.inputs
    parameters = [PARAMETER, f"{_POINTER} x", "uniform float * uniform v", f"{_POINTER} later"]
    if border:
        parameters += [f"{_POINTER} zeros", "uniform int row0", "uniform int column0"]
    name = "@_border" if border else "@_into"
    head = f"static noinline unmasked void {name}({', '.join(parameters)})"
    with code.block(head), numbers.declared(code):
        row = numbers("x_row", scheme.problem.source.row)
        _ask(code, scheme, row)
        for r in range(n):
            code.line(f"{_POINTER} x{r} = x + {r} * {row};")
        if border:
            height = numbers("height", scheme.problem.in_size[0])
            width = numbers("width", scheme.problem.in_size[1])
            for r in range(n):
                code.line(f"if (row0 + {r} < 0 || row0 + {r} >= {height}) x{r} = zeros;")
            for c in range(n):
                inside = f"column0 + {c} >= 0 && column0 + {c} < {width}"
                code.line(f"const uniform bool inside{c} = {inside};")
        _transform_inputs(code, scheme, numbers, border)


def _ask(code: Code, scheme: WinogradScheme, row: str) -> None:
    for r in range(scheme.transform.inputs):
        for c in range(scheme.transform.outputs):
            if c * scheme.lanes % LINE_FLOATS == 0:
                at = f"later + {r} * {row} + {c * scheme.lanes}"
                code.line(f"prefetch_l2((void * uniform)({at}));")


def _transform_inputs(code: Code, scheme: WinogradScheme, numbers: Numbers, border: bool) -> None:
    """Prints B' d B, some rows of B' d at a time, as many as registers hold."""
    lanes, transform = scheme.lanes, scheme.transform
    n = transform.inputs
    matrix = numbers("v_matrix", scheme.source_matrix)

    def loader(column: int) -> Named:
        loaded: dict[int, str] = {}

        def load(r: int) -> str:
            if r not in loaded:
                loaded[r] = code.fresh()
                at = f"x{r} + {column * lanes}"
                if border:
                    at = f"(inside{column} ? {at} : zeros)"
                code.line(f"const float {loaded[r]} = *((varying float * uniform)({at}));")
            return loaded[r]

        return load

    for parts in _groups(transform, scheme.lanes):
        columns = []
        for c in range(n):
            load = loader(c)
            columns.append([x for part in parts for x in transform.print_inputs(code, part, load)])
        for i in range(len(columns[0])):
            row = [column[i] for column in columns]
            for part in range(len(transform.input_parts)):
                for name in transform.print_inputs(code, part, row.__getitem__):
                    code.line(f"v[programIndex] = {name};")
                    code.line(f"v += {matrix};")


def _groups(transform: Transform, lanes: int) -> list[list[int]]:
    """The :attr:`.scheme.Transform.input_parts`, grouped so that the rows of B' d of each group fit
    the registers (32 of 16 lanes, 16 of 8)."""
    most_floats = 24 if lanes == 16 else 12
    groups: list[list[int]] = [[]]
    used = 0
    for part, rows in enumerate(transform.input_parts):
        size = len(rows) * transform.inputs
        if groups[-1] and used + size > most_floats:
            groups.append([])
            used = 0
        groups[-1].append(part)
        used += size
    return groups


def print_out(
    code: Code, scheme: WinogradScheme, numbers: Numbers, epilogue: Epilogue, partial: bool
) -> None:
    """Prints ``@_out``, which transforms a tile of products back, adds the bias, and applies the
    epilogue.

    With ``partial`` prints ``@_edge``, for tiles that are only partly within the result.
    """
    transform = scheme.transform
    m = transform.outputs
    parameters = [PARAMETER, f"{_POINTER} products", f"{_POINTER} bias", *epilogue.parameters]
    if partial:
        parameters += ["uniform int rows_", "uniform int columns_"]
    name = "@_edge" if partial else "@_out"
    head = f"static noinline unmasked void {name}({', '.join(parameters)})"
    with code.block(head), numbers.declared(code):
        epilogue.begin(code, 1)
        if not partial:
            epilogue.prefetch(code, m, m, 1, next_tile=m)
        matrix = numbers("m_matrix", scheme.product_matrix)
        code.line("const float b = bias[programIndex];")
        code.line(f"{_POINTER} from;")
        _transform_outputs(code, transform, matrix, lanes=scheme.lanes)
        epilogue.print(code, m, m, 1, partial)


def _transform_outputs(code: Code, transform: Transform, matrix: str, lanes: int) -> None:
    """Prints ``a<pixel>_0``, the results with the bias, some columns at a time, as many as the
    registers hold."""
    n, m = transform.inputs, transform.outputs
    fits = lanes == 16 or m == 2
    for columns in [range(m)] if fits else [range(0, m, 2), range(1, m, 2)]:
        code.line("from = products;")
        rows = []
        for _ in range(n):
            row = []
            for _ in range(n):
                row.append(code.fresh())
                code.line(f"const float {row[-1]} = from[programIndex];")
                if columns[0] == 0:
                    code.line(f"prefetch_l1((void * uniform)(from + {TILES_AHEAD * lanes}));")
                code.line(f"from += {matrix};")
            rows.append(transform.print_outputs(code, columns, row.__getitem__))
        for i, c in enumerate(columns):
            column = [row[i] for row in rows]
            results = transform.print_outputs(code, range(m), column.__getitem__)
            for r, result in enumerate(results):
                code.line(f"const float a{r * m + c}_0 = {result} + b;")


def print_load(
    code: Code,
    scheme: WinogradScheme,
    numbers: Numbers,
    image: str,
    row: str,
    column: str,
    later: str,
) -> None:
    """Prints the calls that transform one tile of inputs of the block of channels ``b``, inside the
    image or at its border.

    ``later``: the offset in floats from this tile to the one to prefetch.
    """
    problem, lanes, transform = scheme.problem, scheme.lanes, scheme.transform
    m, n = transform.outputs, transform.inputs
    x_image = numbers("x_image", problem.source.image)
    x_plane = numbers("x_plane", problem.source.plane)
    x_row = numbers("x_row", problem.source.row)
    height, width = numbers("height", problem.in_size[0]), numbers("width", problem.in_size[1])
    above = numbers("before_row", problem.padding[0][0])
    left = numbers("before_column", problem.padding[1][0])
    at = f"(uniform int64){image} * {x_image} + (uniform int64)b * {x_plane}"
    code.line(f"{_POINTER} xb = x + {at};")
    code.line(f"const uniform int row0 = {row} * {m} - {above};")
    code.line(f"const uniform int column0 = {column} * {m} - {left};")
    code.line(f"{_POINTER} from = xb + (uniform int64)row0 * {x_row} + column0 * {lanes};")
    inside = f"row0 >= 0 && column0 >= 0 && row0 + {n} <= {height} && column0 + {n} <= {width}"
    with code.block(f"if ({inside})"):
        code.line(f"@_into(numbers, from, v, from + {later});")
    with code.block("else"):
        code.line(f"@_border(numbers, from, v, from + {later}, zeros, row0, column0);")


def print_store(
    code: Code,
    scheme: WinogradScheme,
    numbers: Numbers,
    epilogue: Epilogue,
    image: str,
    row: str,
    column: str,
) -> None:
    """Prints the calls that transform the tile ``products`` back, whose vector of output channels
    begins with ``first``."""
    problem, m = scheme.problem, scheme.transform.outputs
    rows, columns = (
        numbers("out_rows", problem.out_size[0]),
        numbers("out_columns", problem.out_size[1]),
    )
    limit = numbers("all_outputs", problem.out_channels)
    code.line(f"const uniform int row1 = {row} * {m};")
    code.line(f"const uniform int column1 = {column} * {m};")
    arguments = ["numbers", "products", "bias + first"]
    for name, view in problem.result_views.items():
        image_stride = numbers(f"{name}_image", view.image)
        row_stride = numbers(f"{name}_row", view.row)
        arguments.append(
            f"{name} + (uniform int64){image} * {image_stride} + row1 * {row_stride} + "
            f"column1 * {view.column}"
        )
    arguments += [f"e{i} + first" for i in range(len(epilogue.vectors))]
    arguments += ["first", limit]
    passed = ", ".join(arguments)
    with code.block(f"if (row1 + {m} <= {rows} && column1 + {m} <= {columns})"):
        code.line(f"@_out({passed});")
    with code.block("else"):
        extents = f"min({m}, {rows} - row1), min({m}, {columns} - column1)"
        code.line(f"@_edge({passed}, {extents});")
