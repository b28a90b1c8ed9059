"""What stands before every kernel: divisions, functions and conversions, in the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.backends.codegen.functions import BOUNDS
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.prelude import TYPES
from minidnn.backends.cuda.sequence.window import product_is_enough, quotient_text
from minidnn.graph.types import INT8_DTYPES, rounded_to, saturated
from tests.cuda.emulator.run import Emulated
from tests.sampling import mixed

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-39, 1.2e-38, 3e38, 1e-30, 1e37]


def apply(text: str, x: np.ndarray, folder: Path, dtype: str = "float") -> np.ndarray:
    """``text``, of a number ``x``, for every number of an array."""
    head = f'extern "C" __global__ void k(float *y, const {dtype} *p) '
    body = f"{{ const float x = md_value(p[blockIdx.x]); y[blockIdx.x] = {text}; }}"
    source = KernelSource("k", head + body)
    result = np.empty(x.size, np.float32)
    launch = Launch(source, (x.size, 1, 1), (1, 1, 1))
    Emulated([source], folder, busy=True).launch(launch, [result, np.ascontiguousarray(x)])
    return result


def numbers(count: int) -> np.ndarray:
    random = np.random.default_rng(0)
    scale = 2.0 ** random.integers(-149, 128, count)
    drawn = (random.uniform(1, 2, count) * scale * random.choice((-1, 1), count)).astype(np.float32)
    return np.concatenate([drawn, np.array(SPECIAL, np.float32)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("divisor", [3, 6, 7, 9, 25, 49, 64])
def test_division_by_a_whole_number_is_exact(divisor: int, tmp_path: Path) -> None:
    x = numbers(20_000)
    inverse = np.float32(1.0) / np.float32(divisor)
    text = f"md_quotient(x, {divisor}.0f, {float(inverse)!r}f)"
    with np.errstate(all="ignore"):
        expected = x / np.float32(divisor)
    np.testing.assert_array_equal(apply(text, x, tmp_path), expected)
    if divisor % 2:
        text = text.replace("md_quotient", "md_odd_quotient")
        np.testing.assert_array_equal(apply(text, x, tmp_path), expected)


def test_where_one_product_is_enough() -> None:
    """Compared with the quotient of every mantissa by each of these: as many as were found."""
    mantissas = (np.arange(1 << 23, dtype=np.uint32) | 0x3F800000).view(np.float32)
    for divisor in (9, 25):
        quotients = mantissas / np.float32(divisor)
        products = mantissas * (np.float32(1.0) / np.float32(divisor))
        same = [
            np.array_equal(rounded_to(dtype, quotients), rounded_to(dtype, products))
            for dtype in ("float16", "bfloat16")
        ]
        assert all(same) == product_is_enough(divisor)
    assert [d for d in range(3, 20) if product_is_enough(d)] == [4, 5, 8, 9, 10, 16, 17, 18, 19]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("divisor", "dtype"),
    mixed(2, [3, 5, 6, 7, 9, 10, 25, 27, 49, 59, 62], ["float16", "bfloat16"]),
)
def test_quotients_of_sums_are_rounded_to_two_bytes(
    dtype: str, divisor: int, tmp_path: Path
) -> None:
    """As exact ones are: at the middle between two numbers, beside it, and of tiny sums."""
    random = np.random.default_rng(1)
    least, bits = {"float16": (-24, 11), "bfloat16": (-133, 8)}[dtype]
    middles = np.arange(2**bits, 2 ** (bits + 1)) * 2.0 ** random.integers(-13, 13, 2**bits)
    middles = (middles * divisor).astype(np.float32)
    near = [np.nextafter(middles, np.float32(to)) for to in (-np.inf, np.inf)]
    tiny = random.integers(-(1 << 20), 1 << 20, 20_000) * 2.0**least
    drawn = rounded_to(dtype, numbers(4000))  # special numbers among them
    sums = np.concatenate([middles, *near, tiny, drawn]).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = rounded_to(dtype, (sums + np.float32(0.0)) / np.float32(divisor))
    text = quotient_text("x", divisor, dtype)
    assert ("md_narrow_quotient" in text) != product_is_enough(divisor)
    got = apply(f"md_round<{TYPES[dtype]}>({text})", sums, tmp_path)
    np.testing.assert_array_equal(got, expected.astype(np.float32))
    zero = got == 0.0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos", "atan"]
)
def test_functions_keep_the_bounds_of_the_cpus(name: str, tmp_path: Path) -> None:
    import math

    random = np.random.default_rng(2)
    x = np.concatenate(
        [
            *(random.uniform(-most, most, 4000) for most in (90, 2, 1e10, 1e38)),
            SPECIAL,
        ]
    ).astype(np.float32)
    wide = x.astype(np.float64)
    others = {"erf": np.vectorize(math.erf), "atan": np.arctan}
    exact: Any = others.get(name, getattr(np, name, None))
    assert exact is not None
    with np.errstate(all="ignore"):
        expected = exact(wide)
        rounded = expected.astype(np.float32)
    got = apply(f"md_{name}(x)", x, tmp_path)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    fine = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[fine])).astype(np.float64)
    error = np.abs(got[fine] - expected[fine]) / unit
    assert error.max() <= BOUNDS[name] + 0.51, f"{error.max()} at {x[fine][error.argmax()]}"
    np.testing.assert_array_equal(got[np.isinf(rounded)], rounded[np.isinf(rounded)])


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_are_rounded_to_every_type(dtype: str, tmp_path: Path) -> None:
    x = np.concatenate([numbers(2000), np.array([65519.9, 65520.0, 6e-8, 2.9e-8], np.float32)])
    with np.errstate(all="ignore"):
        expected = saturated(dtype, x) if dtype in INT8_DTYPES else rounded_to(dtype, x)
        expected = expected.astype(np.float32)
    got = apply(f"md_round<{TYPES[dtype]}>(x)", x, tmp_path)
    np.testing.assert_array_equal(got, expected)


def test_every_float16_is_read(tmp_path: Path) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(apply("x", halves, tmp_path, "md_half"), halves.astype("f4"))
