"""Kernels that pack weights which change from run to run.

They are given what the functions in runner/weights.c are, and write the same bits.  Those are
compiled for every x86-64 processor, which is enough for weights that are packed once.
"""

from __future__ import annotations

from functools import cache

from ...codegen.code import Code
from ...codegen.kernel import KernelSource

_SHAPE = (
    *("outputs", "inputs", "lanes", "vectors", "wide", "tile_groups", "step", "taps", "unit"),
    "local",
)
"""``shape`` in runner/weights.c."""


@cache
def print_packing() -> KernelSource:
    """As ``md_pack_weights``."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _begin(code)
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _part(code)
            code.line("const uniform int64 group = t / pieces / tile_groups;")
            code.line("const uniform int64 depth = inputs * taps;")
            with code.block("for (uniform int64 lane = 0; lane < width; lane += programCount)"):
                _lane(code, 2, "group * outputs", "depth")
                at = "(group * slots + first) * depth + lane"
                code.line(f"uniform float * uniform to = MD_OUT(float, 0) + {at};")
                with code.block("for (uniform int64 at = begin; at < end; at += unit)"):
                    code.line("const uniform int64 many = min(unit, inputs - at);")
                    with (
                        code.block("for (uniform int64 i = 0; i < many; i++)"),
                        code.block("for (uniform int64 tap = 0; tap < taps; tap++)"),
                    ):
                        code.line("const float x = from[place + (int)((at + i) * taps + tap)];")
                        row = "(at * taps + tap * many + i) * width + programIndex"
                        code.line(f"to[{row}] = inside ? x : 0.0f;")
    return KernelSource.named("pack_weights", str(code))


def print_transforming(n: int) -> KernelSource:
    """As ``md_pack_transformed_n``: in float64, rounded once."""
    code = Code()
    with code.block("MD_KERNEL(@)"):
        _begin(code)
        code.line("const uniform double * uniform g = MD_IN(double, 2);")
        with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
            _part(code)
            code.line("const uniform int64 next = inputs * (local ? width : slots);")
            with code.block("for (uniform int64 lane = 0; lane < width; lane += programCount)"):
                _lane(code, 3, "0", "inputs * 9")
                at = f"first * inputs * (local ? {n * n} : 1) + lane"
                code.line(f"uniform float * uniform to = MD_OUT(float, 0) + {at};")
                with code.block("for (uniform int64 i = begin; i < end; i++)"):
                    _transform(code, n)
    return KernelSource.named("pack_transformed", str(code))


def _begin(code: Code) -> None:
    code.line("const uniform int64 * uniform shape = MD_IN(int64, 1);")
    code.lines(f"const uniform int64 {name} = shape[{i}];" for i, name in enumerate(_SHAPE))
    code.line("const uniform int64 pieces = (inputs + step - 1) / step;")
    code.line("const uniform int64 slots = (outputs + lanes - 1) / lanes * lanes;")


def _part(code: Code) -> None:
    """What a task writes: ``part_of`` in runner/weights.c."""
    code.line("const uniform int64 tiles = t / pieces % tile_groups;")
    code.line("const uniform int64 narrow = max((uniform int64)0, tiles - wide);")
    code.line("const uniform int64 first = (tiles * vectors - narrow) * lanes;")
    code.line("const uniform int64 width = (vectors - (tiles >= wide ? 1 : 0)) * lanes;")
    code.line("const uniform int64 begin = t % pieces * step;")
    code.line("const uniform int64 end = min(inputs, begin + step);")


def _lane(code: Code, weights: int, before: str, depth: str) -> None:
    """Where the weights of each lane's output begin; those behind the last read the last."""
    code.line("const int64 output = first + lane + programIndex;")
    code.line("const bool inside = output < outputs;")
    code.line("const uniform int64 lowest = min(first + lane, outputs - 1);")
    code.line(
        f"const uniform float * uniform from = MD_IN(float, {weights}) + "
        f"({before} + lowest) * {depth};"
    )
    code.line(f"const int place = (int)((min(output, outputs - 1) - lowest) * ({depth}));")


def _transform(code: Code, n: int) -> None:
    for tap in range(9):
        code.line(f"const float x{tap} = from[place + (int)(i * 9 + {tap})];")
        code.line(f"const double t{tap} = inside ? (double)x{tap} : 0.0d;")
    code.line("uniform float * uniform y = to + i * width;")
    with code.block(f"for (uniform int row = 0; row < {n}; row++)"):
        for tap in range(3):
            a, b, c = (f"g[3 * row + {k}] * t{3 * k + tap}" for k in range(3))
            code.line(f"const double h{tap} = {a} + {b} + {c};")
        for column in range(n):
            a, b, c = (f"g[{3 * column + k}] * h{k}" for k in range(3))
            code.line(f"y[{column} * next + programIndex] = (float)({a} + {b} + {c});")
        code.line(f"y += {n} * next;")
