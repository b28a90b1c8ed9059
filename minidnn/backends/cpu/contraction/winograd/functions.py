"""Prints the functions of Winograd kernels: a tile's inputs with zeros around, both transforms."""

from __future__ import annotations

from ...code import Code
from ..epilogue import Epilogue
from ..numbers import PARAMETER, Numbers
from .scheme import WinogradScheme

_POINTER = "const uniform float * uniform"


def print_patch(code: Code, scheme: WinogradScheme, numbers: Numbers) -> None:
    """``@_patch``: copies a tile of a block of channels; what lies outside the image is zero."""
    problem, lanes, n = scheme.problem, scheme.lanes, scheme.transform.inputs
    head = f"static noinline unmasked void @_patch({PARAMETER}, {_POINTER} x, "
    head += "uniform int row0, uniform int column0, uniform float * uniform patch)"
    with code.block(head), numbers.declared(code):
        height = numbers("height", problem.size[0])
        width = numbers("width", problem.size[1])
        row = numbers("x_row", problem.source.row)
        code.line(f"const uniform int left = clamp(-column0, 0, {n});")
        code.line(f"const uniform int right = clamp({width} - column0, left, {n});")
        with code.block(f"for (uniform int i = 0; i < {n}; i++)"):
            code.line(f"uniform float * uniform to = patch + i * {n * lanes};")
            code.line("const uniform int y = row0 + i;")
            code.line(f"const uniform bool outside = y < 0 || y >= {height};")
            code.line(f"const uniform int l = outside ? {n} : left, r = outside ? {n} : right;")
            code.line(f"{_POINTER} from = x + (uniform int64)y * {row} + column0 * {lanes};")
            zeros = "for (uniform int j = {}; j < {}; j++) "
            zeros += f"to[j * {lanes} + programIndex] = 0.0f;"
            code.line(zeros.format("0", "l"))
            with code.block("for (uniform int j = l; j < r; j++)"):
                at = f"j * {lanes} + programIndex"
                code.line(f"to[{at}] = from[{at}];")
            code.line(zeros.format("r", str(n)))


def print_into(code: Code, scheme: WinogradScheme, numbers: Numbers) -> None:
    """``@_into``: transforms a tile of inputs; ``row`` floats lie between its rows."""
    lanes, transform = scheme.lanes, scheme.transform
    n = transform.inputs
    head = f"static noinline unmasked void @_into({PARAMETER}, {_POINTER} x, uniform int row, "
    head += "uniform float * uniform v)"
    with code.block(head), numbers.declared(code):
        matrix = numbers("v_matrix", scheme.source_matrix)
        columns = []
        for c in range(n):
            names = []
            for r in range(n):
                names.append(code.fresh())
                code.line(f"const float {names[-1]} = x[{r} * row + {c * lanes} + programIndex];")
            columns.append(transform.print_inputs(code, names))
        for r in range(n):
            for name in transform.print_inputs(code, [column[r] for column in columns]):
                code.line(f"v[programIndex] = {name};")
                code.line(f"v += {matrix};")


def print_out(
    code: Code, scheme: WinogradScheme, numbers: Numbers, epilogue: Epilogue, partial: bool
) -> None:
    """``@_out``: transforms a tile of products back, adds the bias, and applies the epilogue.

    ``@_edge``, if ``partial``, for tiles of which only a part lies within the result.
    """
    transform = scheme.transform
    n, m = transform.inputs, transform.outputs
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
        columns = []
        for c in range(n):
            names = []
            for r in range(n):
                names.append(code.fresh())
                at = f"(uniform int64){r * n + c} * {matrix} + programIndex"
                code.line(f"const float {names[-1]} = products[{at}];")
            columns.append(transform.print_outputs(code, names))
        code.line("const float b = bias[programIndex];")
        for r in range(m):
            results = transform.print_outputs(code, [column[r] for column in columns])
            for c, result in enumerate(results):
                code.line(f"const float a{r * m + c}_0 = {result} + b;")
        epilogue.print(code, m, m, 1, partial)


def print_load_or_patch(
    code: Code, scheme: WinogradScheme, numbers: Numbers, image: str, row: str, column: str
) -> None:
    """Calls for one tile of the block of channels ``b``: from the source, or with zeros around."""
    problem, lanes, transform = scheme.problem, scheme.lanes, scheme.transform
    m, n = transform.outputs, transform.inputs
    x_image = numbers("x_image", problem.source.image)
    x_plane = numbers("x_plane", problem.source.plane)
    x_row = numbers("x_row", problem.source.row)
    height, width = numbers("height", problem.size[0]), numbers("width", problem.size[1])
    above = numbers("before_row", problem.padding[0][0])
    left = numbers("before_column", problem.padding[1][0])
    at = f"(uniform int64){image} * {x_image} + (uniform int64)b * {x_plane}"
    code.line(f"{_POINTER} xb = x + {at};")
    code.line(f"const uniform int row0 = {row} * {m} - {above};")
    code.line(f"const uniform int column0 = {column} * {m} - {left};")
    inside = f"row0 >= 0 && column0 >= 0 && row0 + {n} <= {height} && column0 + {n} <= {width}"
    with code.block(f"if ({inside})"):
        at = f"xb + (uniform int64)row0 * {x_row} + column0 * {lanes}"
        code.line(f"@_into(numbers, {at}, {x_row}, v);")
    with code.block("else"):
        code.line("@_patch(numbers, xb, row0, column0, patch);")
        code.line(f"@_into(numbers, patch, {n * lanes}, v);")


def print_store_or_edge(
    code: Code,
    scheme: WinogradScheme,
    numbers: Numbers,
    epilogue: Epilogue,
    image: str,
    row: str,
    column: str,
) -> None:
    """Calls that transform the tile ``products`` of the vector of channels ``first`` back."""
    problem, m = scheme.problem, scheme.transform.outputs
    rows, columns = numbers("out_rows", problem.out[0]), numbers("out_columns", problem.out[1])
    limit = numbers("all_outputs", problem.outputs)
    code.line(f"const uniform int row1 = {row} * {m};")
    code.line(f"const uniform int column1 = {column} * {m};")
    arguments = ["numbers", "products", "bias + first"]
    views = [("y", problem.result)]
    views += [(f"z{i}", view) for i, view in enumerate(problem.others)]
    for name, view in views:
        image_stride = numbers(f"{name}_image", view.image)
        row_stride = numbers(f"{name}_row", view.row)
        arguments.append(
            f"{name} + (uniform int64){image} * {image_stride} + row1 * {row_stride} + "
            f"column1 * {view.column}"
        )
    arguments += [f"e{i} + first" for i in range(len(epilogue.vectors))]
    arguments += ["first", limit]
    given = ", ".join(arguments)
    with code.block(f"if (row1 + {m} <= {rows} && column1 + {m} <= {columns})"):
        code.line(f"@_out({given});")
    with code.block("else"):
        extents = f"min({m}, {rows} - row1), min({m}, {columns} - column1)"
        code.line(f"@_edge({given}, {extents});")
