"""The scalar functions against float64: all exponents, special values, both ISAs to the bit."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.codegen.functions import BOUNDS
from minidnn.backends.cpu.compilers.kernels import FLAGS, Unit, compile_units, prelude
from minidnn.backends.cpu.compilers.library import SharedObject
from minidnn.backends.cpu.execution.program import BoundKernel, NativeProgram, Pool
from minidnn.backends.cpu.isa import Isa, usable_isas
from minidnn.runtime.operand import Operand

from .accuracy import EXACT, Array, errors, in_float64, same

UNARY = ("exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "atan")
BINARY = ("pow", "max", "min")
NAMES = (*UNARY, *BINARY)
BLOCK = 1 << 10
"""Elements of a task."""

KERNEL = """
MD_KERNEL(each_NAME) {
  for (uniform int64 i = (uniform int64)md_begin * BLOCK; i < (uniform int64)md_end * BLOCK;
       i += programCount) {
    float a = MD_IN(float, 0)[i + programIndex];
    float b = MD_IN(float, 1)[i + programIndex];
    MD_OUT(float, 2)[i + programIndex] = CALL;
  }
}
// The same where some program instances are off.
MD_KERNEL(masked_NAME) {
  foreach (i = 0 ... BLOCK - 3) {
    float a = MD_IN(float, 0)[i];
    float b = MD_IN(float, 1)[i];
    if (b > 0.0f) MD_OUT(float, 2)[i] = CALL;
  }
}
MD_KERNEL(alone_NAME) {
  float a = MD_IN(float, 0)[programIndex];
  float b = MD_IN(float, 1)[programIndex];
  MD_OUT(float, 2)[programIndex] = CALL;
}
"""
POSITIVE = [
    *(np.nan, np.inf, 0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 3.4028235e38),
    *(0.5, 1.0, 2.0, 3.0, 2.5, 0.99999994, 1.0000001, 5.9e-8, 3e-8, 1e-10),
    *(88.72283, 88.72284, 89.0, 87.336, 103.97207, 103.97208, 17.4, 9.02, 3.93),
    *(4194304.5, 8388609.0, 16777215.0, 16777216.0, 127.0, 128.0, 149.0, 150.0),
]
SPECIAL = np.array([*POSITIVE, *(-x for x in POSITIVE)], np.float32)


def source() -> str:
    parts = []
    for name in NAMES:
        call = f"md_{name}(a)" if name in UNARY else f"md_{name}(a, b)"
        parts.append(KERNEL.replace("NAME", name).replace("CALL", call))
    return "".join(parts).replace("BLOCK", str(BLOCK))


@cache
def libraries() -> dict[str, SharedObject]:
    isas = usable_isas()
    units = [Unit(f"math_{isa.name}", prelude(isa) + source(), isa) for isa in isas]
    return dict(zip((isa.name for isa in isas), compile_units(units), strict=True))


def call(library: SharedObject, name: str, a: Array, b: Array | None = None) -> Array:
    """The function of any number of elements."""
    size = -(-a.size // BLOCK) * BLOCK
    inputs = [np.resize(x, size) for x in (a, a if b is None else b)]
    out = np.empty(size, np.float32)
    region = BoundKernel(
        library.kernel(f"each_{name}"), tuple(map(Operand, range(3))), size // BLOCK
    )
    NativeProgram([region], 3, pool=Pool(1)).run([x.ctypes.data for x in (*inputs, out)])
    return out[: a.size]


def values(bits: Array) -> Array:
    return bits.astype(np.uint32).view(np.float32)


def all_exponents(count: int, seed: int) -> Array:
    """Both signs and every exponent (denormals, infinity and NaN included) with ``count``
    mantissas each."""
    rng = np.random.default_rng(seed)
    mantissas = rng.integers(0, 1 << 23, (512, count))
    mantissas[:, :2] = 0, (1 << 23) - 1
    return values((np.arange(512)[:, None] << 23 | mantissas).ravel())


def powers(count: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Operands of pow: anything, results of every size, bases near 1, integer exponents."""
    rng = np.random.default_rng(seed)
    anything = all_exponents(-(-count // 512), seed)[:count]
    yield anything, rng.permutation(anything)
    base = np.abs(anything)
    with np.errstate(all="ignore"):
        exponent = rng.uniform(-155, 130, count) / np.log2(base.astype(np.float64))
        yield base, exponent.astype(np.float32)
    near = np.float32(1) + rng.standard_normal(count).astype(np.float32) * np.float32(1e-4)
    yield near, rng.uniform(-1e6, 1e6, count).astype(np.float32)
    yield rng.uniform(0.3, 3, count).astype(np.float32), rng.uniform(-90, 90, count).astype("f4")
    yield anything, rng.integers(-9, 10, count).astype(np.float32)
    yield -base, np.trunc(exponent).astype(np.float32)


def check(name: str, *operands: Array) -> float:
    """Asserts equal bits on all ISAs and the bound; the largest error."""
    results = {isa: call(library, name, *operands) for isa, library in libraries().items()}
    first, *others = results
    for other in others:
        assert same(results[first], results[other]), f"md_{name}: {first} and {other} differ"
    found = errors(results[first], in_float64(name, *operands))
    worst = int(found.argmax())
    assert found[worst] <= BOUNDS[name], (
        f"md_{name}{tuple(float(x[worst]) for x in operands)} = {results[first][worst]!r}: "
        f"{found[worst]:.3f} units of the last place, not {BOUNDS[name]}"
    )
    return float(found[worst])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", UNARY)
def test_error(name: str) -> None:
    largest = check(name, all_exponents(2048, 1))
    assert largest > BOUNDS[name] / 2, "the documented bound is no longer a tight one"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", UNARY)
def test_error_where_it_is_large(name: str) -> None:
    """Uniform numbers have more mantissas near 1 than all exponents have."""
    rng = np.random.default_rng(2)
    low, high = {"exp": (-104, 89), "expm1": (-18, 89)}.get(name, (-4.5, 4.5))
    check(name, rng.uniform(low, high, 1 << 19).astype(np.float32))
    check(name, rng.uniform(-1.1, 1.6, 1 << 19).astype(np.float32))


def test_error_of_pow() -> None:
    largest = max(check("pow", a, b) for a, b in powers(1 << 18, 3))
    assert largest > BOUNDS["pow"] / 2


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("name", UNARY)
def test_all_numbers(name: str, part: int) -> None:
    step = 1 << 13  # arrays that are reused: larger ones are mapped again each time
    for start in range(part << 29, part + 1 << 29, step):
        check(name, values(np.arange(start, start + step)))


@pytest.mark.full
def test_many_powers() -> None:
    for seed in range(100, 140):
        for a, b in powers(1 << 19, seed):
            check("pow", a, b)


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str) -> None:
    """NaN, infinity and zero exactly where NumPy's float32 function has them, with its sign."""
    with np.errstate(all="ignore"):
        of_numpy = EXACT[name](SPECIAL)
    check(name, SPECIAL)
    for library in libraries().values():
        found = call(library, name, SPECIAL)
        for select in (np.isnan, np.isinf, lambda x: x == 0):
            np.testing.assert_array_equal(select(found), select(of_numpy))
        numbers = ~np.isnan(of_numpy)
        np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(of_numpy)[numbers])


def test_exact_results() -> None:
    inf, nan = math.inf, math.nan
    cases = {
        "exp": [(0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (-200, 0), (200, inf)],
        "expm1": [(-0.0, -0.0), (-inf, -1), (-50, -1), (1e-40, 1e-40), (-1e-45, -1e-45)],
        "log": [(1, 0), (0, -inf), (-0.0, -inf), (-1, nan), (-inf, nan), (-1e-45, nan), (inf, inf)],
        "log1p": [(-0.0, -0.0), (-1, -inf), (-1.0000001, nan), (inf, inf), (1e-40, 1e-40)],
        "tanh": [(-0.0, -0.0), (inf, 1), (-inf, -1), (-20, -1), (-1e-45, -1e-45)],
        "erf": [(-0.0, -0.0), (inf, 1), (-inf, -1), (-5, -1), (3.4e38, 1)],
        "sin": [(-0.0, -0.0), (1e-45, 1e-45), (-1e-40, -1e-40)],
        "cos": [(-0.0, 1), (0, 1), (1e-45, 1)],
        "atan": [(-0.0, -0.0), (inf, np.pi / 2), (-inf, -np.pi / 2), (1, np.pi / 4)],
    }
    for name, pairs in cases.items():
        arguments, expected = np.array(pairs, np.float32).T.copy()
        for library in libraries().values():
            found = call(library, name, arguments)
            np.testing.assert_array_equal(found, expected, err_msg=name)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected), err_msg=name)


def test_special_powers() -> None:
    """IEEE 754's list by hand, then every pair of special values against C's pow."""
    inf, nan = math.inf, math.nan
    cases = [(x, y, 1.0) for x in (nan, inf, 0.0, -2.5, 1.0) for y in (0.0, -0.0)]
    cases += [(1.0, y, 1.0) for y in (nan, inf, -inf, 5.5)] + [(-1.0, inf, 1.0), (-1.0, -inf, 1.0)]
    cases += [(nan, 1.0, nan), (2.0, nan, nan), (-1.0, nan, nan), (-8.0, 1 / 3, nan)]
    cases += [(0.0, -1.0, inf), (-0.0, -1.0, -inf), (-0.0, -2.0, inf), (-0.0, -0.5, inf)]
    cases += [(-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0), (-0.0, inf, 0.0), (-0.0, -inf, inf)]
    cases += [(0.5, inf, 0.0), (0.5, -inf, inf), (2.0, inf, inf), (-2.0, -inf, 0.0)]
    cases += [(-inf, 3.0, -inf), (-inf, 2.0, inf), (-inf, 0.5, inf), (-inf, -3.0, -0.0)]
    cases += [(inf, -0.5, 0.0), (inf, 1e-45, inf), (-2.0, 3.0, -8.0), (-2.0, 2.0, 4.0)]
    cases += [(-1.0, 16777215.0, -1.0), (-1.0, 16777216.0, 1.0), (-1.0, 4194304.5, nan)]
    cases += [(2.0, 128.0, inf), (2.0, -149.0, 1e-45), (2.0, -151.0, 0.0), (-2.0, 129.0, -inf)]
    a, b, expected = np.array(cases, np.float32).T.copy()
    numbers = ~np.isnan(expected)
    for library in libraries().values():
        found = call(library, "pow", a, b)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(expected)[numbers])
    x, y = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(SPECIAL, SPECIAL))
    check("pow", x, y)


@pytest.mark.parametrize(("name", "reference"), [("max", np.maximum), ("min", np.minimum)])
def test_maximum_and_minimum(name: str, reference: np.ufunc, isa: Isa) -> None:
    pairs = [grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL)]
    numbers = all_exponents(8, 4)
    for a, b in (pairs, (numbers, numbers[::-1])):
        found = call(libraries()[isa.name], name, a, b)
        np.testing.assert_array_equal(found, reference(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_some_instances_off(name: str, isa: Isa) -> None:
    library = libraries()[isa.name]
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, BLOCK)).astype(np.float32)
    a[::7] = np.nan
    out = np.full(BLOCK, 7, np.float32)
    region = BoundKernel(library.kernel(f"masked_{name}"), tuple(map(Operand, range(3))), 1)
    NativeProgram([region], 3, pool=Pool(1)).run([x.ctypes.data for x in (a, b, out)])
    on = (b > 0) & (np.arange(BLOCK) < BLOCK - 3)
    np.testing.assert_array_equal(out, np.where(on, call(library, name, a, b), np.float32(7)))


@pytest.mark.sampled(3)
def test_no_branches_or_calls(isa: Isa, tmp_path: Path, real_ispc: str) -> None:
    path = tmp_path / "math.ispc"
    path.write_text(prelude(isa) + source())
    command = [real_ispc, str(path), *FLAGS, f"--target={isa.target}", "--emit-asm", "-o", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bodies = dict(re.findall(r"(?ms)^alone_(\w+):(.*?)^\.Lfunc_end", text))
    assert sorted(bodies) == sorted(NAMES)
    for name, body in bodies.items():
        assert not re.findall(r"(?m)^\s+(?:j\w+|call\w*)\s.*$", body), name
    registers = {"avx512": "z", "avx2": "y"}[isa.name]
    assert len(re.findall(rf"vmaxps.*%{registers}mm", bodies["max"])) == 1


@pytest.mark.sampled(3)
def test_unused_functions_leave_no_code(isa: Isa, tmp_path: Path, real_ispc: str) -> None:
    path = tmp_path / "none.ispc"
    path.write_text(prelude(isa) + "MD_KERNEL(nothing) { MD_OUT(float, 0)[0] = 0.0f; }\n")
    command = [real_ispc, str(path), *FLAGS, f"--target={isa.target}", "--emit-asm", "-o", "-"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"(?m)^(\w+):", text) == ["nothing"]
