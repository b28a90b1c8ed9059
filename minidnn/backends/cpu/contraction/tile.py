"""Prints the functions that compute register tiles."""

from __future__ import annotations

from ..code import Code
from .epilogue import Epilogue
from .scheme import Scheme


def tile_name(rows: int, columns: int, vectors: int) -> str:
    return f"@_tile_{rows}x{columns}x{vectors}"


def print_tile(
    code: Code, scheme: Scheme, epilogue: Epilogue, rows: int, columns: int, vectors: int
) -> None:
    """A function for ``rows`` x ``columns`` pixels and ``vectors`` vectors of channels.

    It is given the first pixel's inputs ``x``, weights ``w``, initial values ``bias``; with
    chunks the steps from ``begin`` to ``end`` and where unfinished sums are kept.
    """
    pixels = rows * columns
    lanes = scheme.lanes
    parameters = [f"const uniform float * uniform {name}" for name in ("x", "w", "bias")]
    if scheme.chunk:
        parameters += ["uniform int begin", "uniform int end", "uniform float * uniform kept"]
    parameters += epilogue.parameters
    head = f"static noinline unmasked void {tile_name(rows, columns, vectors)}("
    with code.block(head + ", ".join(parameters) + ")"):
        names = [(p, v) for p in range(pixels) for v in range(vectors)]
        for v in range(vectors):
            code.line(f"float b{v} = bias[{v * lanes} + programIndex];")
        for p, v in names:
            code.line(f"float a{p}_{v} = b{v};")
        if scheme.chunk:
            with code.block("if (begin > 0)"):
                for p, v in names:
                    at = (p * vectors + v) * lanes
                    code.line(f"a{p}_{v} = kept[{at} + programIndex];")
        _sums(code, scheme, rows, columns, vectors)
        if scheme.chunk:
            with code.block(f"if (end < {scheme.steps})"):
                for p, v in names:
                    at = (p * vectors + v) * lanes
                    code.line(f"kept[{at} + programIndex] = a{p}_{v};")
                code.line("return;")
        epilogue.print(code, rows, columns, vectors)


def _sums(code: Code, scheme: Scheme, rows: int, columns: int, vectors: int) -> None:
    read, problem = scheme.read, scheme.problem
    full, rest = divmod(problem.inputs, scheme.unit)
    chunk = bool(scheme.chunk)
    begin, end = ("begin", f"min(end, {full})") if chunk else ("0", str(full))
    if chunk:
        code.line(f"x += (uniform int64)begin * {read.block};")
    code.line("#pragma nounroll")
    with code.block(f"for (uniform int step = {begin}; step < {end}; step++)"):
        _step(code, scheme, rows, columns, vectors, scheme.unit)
        code.line(f"x += {read.block};")
    if rest:
        with code.block(f"if (end > {full})" if chunk else ""):
            _step(code, scheme, rows, columns, vectors, rest)


def _step(code: Code, scheme: Scheme, rows: int, columns: int, vectors: int, channels: int) -> None:
    """All taps of one block of channels."""
    read, problem = scheme.read, scheme.problem
    down, across = problem.kernel
    code.line("const uniform float * uniform xr = x;")
    if down > 1:
        code.line("#pragma nounroll")
    with code.block(f"for (uniform int ky = 0; ky < {down}; ky++)" if down > 1 else ""):
        code.line("const uniform float * uniform xi = xr;")
        if scheme.taps_unrolled:
            taps = [(c, kx) for kx in range(across) for c in range(channels)]
            _products(code, scheme, rows, columns, vectors, taps)
        else:
            loop = f"for (uniform int kx = 0; kx < {across}; kx++)" if across > 1 else ""
            if across > 1:
                code.line("#pragma nounroll")
            with code.block(loop):
                taps = [(c, 0) for c in range(channels)]
                _products(code, scheme, rows, columns, vectors, taps)
                if across > 1:
                    code.line(f"xi += {problem.dilation[1] * read.column};")
        if down > 1:
            code.line(f"xr += {problem.dilation[0] * read.row};")


def _products(
    code: Code,
    scheme: Scheme,
    rows: int,
    columns: int,
    vectors: int,
    taps: list[tuple[int, int]],
) -> None:
    read, problem, lanes = scheme.read, scheme.problem, scheme.lanes
    for number, (channel, kx) in enumerate(taps):
        with code.block(""):
            for v in range(vectors):
                at = (number * vectors + v) * lanes
                code.line(f"float w{v} = w[{at} + programIndex];")
            for p in range(rows * columns):
                row, column = divmod(p, columns)
                at = (
                    row * problem.stride[0] * read.row
                    + (column * problem.stride[1] + kx * problem.dilation[1]) * read.column
                    + channel * read.channel
                )
                sums = " ".join(f"a{p}_{v} = md_fma(w{v}, x0, a{p}_{v});" for v in range(vectors))
                if scheme.spread:
                    code.line(f"{{ float x0 = xi[{at} + programIndex]; {sums} }}")
                else:
                    code.line(f"{{ float x0 = xi[{at}]; {sums} }}")
    code.line(f"w += {len(taps) * vectors * lanes};")
