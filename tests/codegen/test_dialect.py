"""Scalar expressions and functions in every language, and what a C compiler makes of them."""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess

import numpy as np
import pytest

from minidnn.backends.codegen.dialect import CUDA, ISPC, C, Dialect, literal
from minidnn.backends.codegen.functions import BOUNDS, FUNCTIONS, INTEGER_FUNCTIONS
from minidnn.graph.expression import (
    Instruction,
    argument,
    clip,
    linearize,
    maximum,
    minimum,
)
from minidnn.graph.scalar_ops import SCALAR_OPS
from tests.cpu.accuracy import errors, in_float64

#: What a prelude defines for the functions.
PRELUDE = """
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
typedef int64_t int64;
#define md_fma(a, b, c) _Generic((a), double: fma, default: fmaf)(a, b, c)
static uint32_t intbits(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
static float floatbits(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """``each_<name>`` of every function, and those of integers."""
    folder = tmp_path_factory.mktemp("functions")
    text = PRELUDE + C.fill(FUNCTIONS) + C.fill(INTEGER_FUNCTIONS).replace("@", "whole")
    for name in BOUNDS:
        call = f"md_{name}(a[i], b[i])" if name == "pow" else f"md_{name}(a[i])"
        head = f"void each_{name}(const float *a, const float *b, float *y, int64 size)"
        text += f"{head} {{ for (int64 i = 0; i < size; i++) y[i] = {call}; }}\n"
    for name in ("div", "pow"):
        text += f"int64 call_{name}(int64 a, int64 b) {{ return whole_{name}(a, b); }}\n"
    (folder / "functions.c").write_text(text)
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    flags = ["-O1", "-ffp-contract=off", "-fwrapv", "-march=native", "-shared", "-fPIC", "-Wall"]
    command = [compiler, *flags, "-Wno-unused", "-o", "functions.so", "functions.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "functions.so"))


@pytest.mark.parametrize("name", BOUNDS)
def test_functions_in_c_keep_the_bounds(name: str, library: ctypes.CDLL) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 40_000, np.uint32)
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)
    a = np.concatenate([bits.view(np.float32), special])
    b = np.resize(special, a.size) if name == "pow" else a
    y = np.empty_like(a)
    library[f"each_{name}"](*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, y)), a.size)
    exact = in_float64(name, a, b) if name == "pow" else in_float64(name, a)
    assert errors(y, exact).max() <= BOUNDS[name]


def test_whole_numbers_in_c(library: ctypes.CDLL) -> None:
    """Division cuts off and gives 0 for a divisor of 0; powers wrap around."""
    calls = library.call_div, library.call_pow
    for call in calls:
        call.restype, call.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    least, wrapped = -(1 << 63), ctypes.c_int64(3**41).value
    for a, b, quotient, power in (
        *((7, 2, 3, 49), (-7, 2, -3, 49), (-7, -1, 7, 0), (5, 0, 0, 1), (0, 0, 0, 1)),
        *((1, -3, 0, 1), (-1, -3, 0, -1), (-1, -2, 0, 1), (0, -2, 0, 0), (3, 41, 0, wrapped)),
        (least, -1, least, 0),
    ):
        assert [call(a, b) for call in calls] == [quotient, power], (a, b)


@pytest.mark.parametrize("dialect", [ISPC, CUDA, C], ids=["ISPC", "CUDA", "C"])
@pytest.mark.parametrize("whole", [False, True])
def test_every_operation_has_a_text(dialect: Dialect, whole: bool) -> None:
    for op, rule in SCALAR_OPS.items():
        operands = tuple(range(rule.arity))
        code = [Instruction("argument", (), i) for i in operands]
        code.append(Instruction(op, operands))
        lines, _ = dialect.print_code(code, ["p", "q", "r"], iter("xy").__next__, whole)
        assert all(name in lines[0] for name, _ in zip("pqr", operands, strict=False))
        assert not set("${}") & set(lines[0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0f"),
        (-0.0, "(-0.0f)"),
        (-1.5, "(-1.5f)"),
        (1e10, "10000000000.0f"),
        (2.0**100, "1.2676506002282294e+30f"),
        (2.0**-149, "1.401298464324817e-45f"),
        (2.0**66, "7.378697629483821e+19f"),
        (1e39, "floatbits(0x7f800000)"),
        (-1e39, "floatbits(0xff800000)"),
        (float("nan"), "floatbits(0x7fc00000)"),
    ],
)
def test_literals(value: float, text: str) -> None:
    assert literal(value) == text


def test_literals_round_once() -> None:
    """Halfway cases of float32, and what rounds to infinity."""
    for value in (16777217.0, 1.0 + 2**-24, 3.4028235677973366e38, 7.006492321624085e-46):
        with np.errstate(over="ignore"):
            expected = np.float32(value)
        assert literal(value) == literal(float(expected))
    assert struct.pack("<f", 1e-46) == bytes(4) and literal(1e-46) == "0.0f"


def test_one_operation_where_the_order_settles_nan() -> None:
    """A maximum with a constant is one instruction, so no function stands in the text; on a GPU it
    always is."""
    x = argument(0)
    for expression in (maximum(x, 0.0), minimum(6.0, x), clip(x, -1.0, 1.0)):
        lines, _ = ISPC.print_code(linearize(expression), ["a"], iter("tuv").__next__)
        assert not any("md_" in line for line in lines), lines
    lines, result = ISPC.print_code(linearize(maximum(x, 0.0)), ["a"], iter("t").__next__)
    assert (lines, result) == (["float t = 0.0f > a ? 0.0f : a;"], "t")
    lines, _ = CUDA.print_code(linearize(maximum(x, 0.0)), ["a"], iter("t").__next__)
    assert lines == ["float t = md_max(a, 0.0f);"]
