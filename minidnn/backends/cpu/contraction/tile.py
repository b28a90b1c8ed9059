"""Prints the functions that compute register tiles."""

from __future__ import annotations

from ..code import Code
from .epilogue import Epilogue
from .scheme import LINE_FLOATS, Scheme


def tile_name(rows: int, columns: int, vectors: int) -> str:
    return f"@_tile_{rows}x{columns}x{vectors}"


def print_tile(
    code: Code, scheme: Scheme, epilogue: Epilogue, rows: int, columns: int, vectors: int
) -> None:
    """A function for ``rows`` x ``columns`` pixels and ``vectors`` vectors of channels.

    It is given the first pixel's inputs ``x``, weights ``w``, later weights to ask for
    (``ahead``), initial values ``bias``; with chunks the steps from ``begin`` to ``end``, and
    where unfinished sums are kept.
    """
    lanes = scheme.lanes
    parameters = [f"const uniform float * uniform {name}" for name in ("x", "w", "ahead", "bias")]
    if scheme.chunk:
        parameters += ["uniform int begin", "uniform int end", "uniform float * uniform kept"]
    parameters += epilogue.parameters
    head = f"static noinline unmasked void {tile_name(rows, columns, vectors)}("
    with code.block(head + ", ".join(parameters) + ")"):
        names = [(p, v) for p in range(rows * columns) for v in range(vectors)]
        for v in range(vectors):
            start = f"bias[{v * lanes} + programIndex]"
            code.line(f"float b{v} = {f'begin > 0 ? 0.0f : {start}' if scheme.chunk else start};")
        for p, v in names:
            code.line(f"float a{p}_{v} = b{v};")
        epilogue.begin(code)
        with code.block(f"if (end == {scheme.steps})" if scheme.chunk else ""):
            epilogue.prefetch(code, rows, columns, vectors)
        _sums(code, scheme, rows, columns, vectors)
        if scheme.chunk:
            _add_parts(code, scheme, names, vectors)
        epilogue.print(code, rows, columns, vectors)


def _add_parts(code: Code, scheme: Scheme, names: list[tuple[int, int]], vectors: int) -> None:
    """Adds this part of the sums to those before it; returns unless it is the last."""
    kept = {(p, v): f"kept[{(p * vectors + v) * scheme.lanes} + programIndex]" for p, v in names}
    with code.block("if (begin > 0)"):
        for p, v in names:
            code.line(f"a{p}_{v} = {kept[p, v]} + a{p}_{v};")
    with code.block(f"if (end < {scheme.steps})"):
        for p, v in names:
            code.line(f"{kept[p, v]} = a{p}_{v};")
        code.line("return;")


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
        if across > 1:
            code.line("#pragma nounroll")
        with code.block(f"for (uniform int kx = 0; kx < {across}; kx++)" if across > 1 else ""):
            _products(code, scheme, rows, columns, vectors, channels)
            if across > 1:
                code.line(f"xi += {problem.dilation[1] * read.column};")
        if down > 1:
            code.line(f"xr += {problem.dilation[0] * read.row};")


def _products(
    code: Code, scheme: Scheme, rows: int, columns: int, vectors: int, channels: int
) -> None:
    """One tap: each channel of each pixel times the weights of all vectors."""
    read, lanes = scheme.read, scheme.lanes
    down, across = scheme.problem.stride
    for line in range(scheme.lines_ahead):
        code.line(f"prefetch_l2((void * uniform)(ahead + {line * LINE_FLOATS}));")
    if scheme.inputs_ahead:
        shift = rows * columns * across * read.column
        for p in range(rows * columns):
            row, column = divmod(p, columns)
            at = row * down * read.row + column * across * read.column + shift
            if at % LINE_FLOATS == 0:
                code.line(f"prefetch_l1((void * uniform)(xi + {at}));")
    if scheme.lines_ahead:
        code.line(f"ahead += {scheme.lines_ahead * LINE_FLOATS};")
    for channel in range(channels):
        with code.block(""):
            for v in range(vectors):
                at = (channel * vectors + v) * lanes
                code.line(f"float w{v} = w[{at} + programIndex];")
            for p in range(rows * columns):
                row, column = divmod(p, columns)
                at = row * down * read.row + column * across * read.column
                at += channel * read.channel
                sums = " ".join(f"a{p}_{v} = md_fma(w{v}, x0, a{p}_{v});" for v in range(vectors))
                lane = " + programIndex" if scheme.spread else ""
                code.line(f"{{ float x0 = xi[{at}{lane}]; {sums} }}")
    code.line(f"w += {channels * vectors * lanes};")
