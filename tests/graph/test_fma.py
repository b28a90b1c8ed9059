"""``fma`` against exact rational arithmetic, rounded once by integers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from minidnn.graph.expression import argument, evaluate, fma

LARGEST = Fraction(2**24 - 1) * 2**104


def rounded(value: Fraction) -> float:
    """A rational as float32: to nearest, ties to even, gradual underflow."""
    size = abs(value)
    exponent = -149
    if size:
        # floor(log2(size)), by the lengths of numerator and denominator, corrected by one.
        log = size.numerator.bit_length() - size.denominator.bit_length()
        log -= size < Fraction(2) ** log
        exponent = max(log - 23, -149)
    # Fraction's round() is to nearest, ties to even.
    result = round(size / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return (
        float("inf") * (1 if value > 0 else -1)
        if result > LARGEST
        else float(result if value >= 0 else -result)
    )


def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return evaluate(fma(argument(0), argument(1), argument(2)), (a, b, c))


def check(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    results = compute(a, b, c)
    assert results.dtype == np.float32
    for x, y, z, result in zip(*(v.tolist() for v in (a, b, c, results)), strict=True):
        expected = rounded(Fraction(x) * Fraction(y) + Fraction(z))
        assert result == expected, f"fma({x.hex()}, {y.hex()}, {z.hex()})"


def floats(random: np.random.Generator, count: int, low: int = -149, high: int = 127) -> np.ndarray:
    """Both signs, exponents evenly from ``low`` to ``high``, all bits of the mantissa."""
    mantissa = random.integers(2**23, 2**24, count) * random.choice([-1.0, 1.0], count)
    with np.errstate(under="ignore"):
        return np.ldexp(mantissa, random.integers(low, high + 1, count) - 23).astype(np.float32)


def test_rounding_itself() -> None:
    """The oracle agrees with NumPy's own conversion of float64."""
    random = np.random.default_rng(1)
    wide = np.ldexp(random.uniform(-2, 2, 2000), random.integers(-152, 130, 2000))
    with np.errstate(all="ignore"):
        expected = wide.astype(np.float32)
    assert [rounded(Fraction(x)) for x in wide.tolist()] == expected.tolist()
    assert rounded(Fraction(0)) == 0.0


@pytest.mark.parametrize(("low", "high"), [(-149, 127), (-20, 20), (-2, 2)])
def test_random_numbers(low: int, high: int) -> None:
    random = np.random.default_rng(2)
    check(*(floats(random, 2000, low, high) for _ in range(3)))


def test_cancellation() -> None:
    """c is -a * b rounded, or a few units beside it: what is left is the rounding error."""
    random = np.random.default_rng(3)
    a, b = floats(random, 2000, -30, 30), floats(random, 2000, -30, 30)
    c = -(a * b)
    for _ in range(2):
        check(a, b, c)
        c = np.nextafter(c, np.float32(np.inf) * random.choice([-1, 1], len(c)).astype(np.float32))


def test_ties_broken_by_the_last_bit() -> None:
    """a * b lies halfway between two float32, and c, far below float64's last bit of it,
    decides: rounding the sum to float64 first would lose c."""
    random = np.random.default_rng(4)
    # 25 bits, the last one set: halfway.  As a product of two numbers that float32 holds.
    halfway = (2 * random.integers(2**23, 2**24, 4000) + 1).tolist()
    factors = [
        (number // divisor, divisor)
        for number in halfway
        for divisor in (3, 5, 7, 11, 13)
        if number % divisor == 0
    ]
    assert len(factors) > 1000
    a, b = np.array(factors, np.float32).T
    # The products lie between 2^24 and 2^25, where float64 has steps of 2^-28.
    beside = [0.75 * 2.0**-28, 0.25 * 2.0**-28, 2.0**-100]
    for tiny in (*beside, *(-c for c in beside), 2.0**-149, 0.0):
        check(a, b, np.full(len(a), tiny, np.float32))
        check(-a, b, np.full(len(a), tiny, np.float32))


def test_subnormal_and_overflowing_results() -> None:
    random = np.random.default_rng(5)
    check(
        floats(random, 1000, -80, -65),
        floats(random, 1000, -80, -65),
        floats(random, 1000, -149, -140),
    )
    check(
        floats(random, 1000, 60, 66), floats(random, 1000, 60, 66), floats(random, 1000, 126, 127)
    )


def test_nan_infinities_and_signed_zeros() -> None:
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0, 3e38]
    a, b, c = np.array(list(itertools.product(numbers, repeat=3)), np.float32).T
    with np.errstate(all="ignore"):
        # Sums and products of these are exact in float64, or invalid there as well.
        expected = (a.astype(np.float64) * b + c).astype(np.float32)
    actual = compute(a, b, c)
    np.testing.assert_array_equal(actual, expected)
    zero = expected == 0
    np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))


def test_shapes_broadcast_and_scalars_work() -> None:
    a, b, c = np.ones((2, 1), np.float32), np.full(3, 2, np.float32), np.float32(3)
    np.testing.assert_array_equal(compute(a, b, np.asarray(c)), np.full((2, 3), 5))
    assert compute(*(np.asarray(v, np.float32) for v in (2, 3, 4))) == 10


def test_float64_is_rounded_twice_and_half_precision_once_more() -> None:
    random = np.random.default_rng(6)
    a, b, c = random.standard_normal((3, 100))
    np.testing.assert_array_equal(compute(a, b, c), a * b + c)
    half = [v.astype(np.float16) for v in (a, b, c)]
    single = compute(*(v.astype(np.float32) for v in half))
    np.testing.assert_array_equal(compute(*half), single.astype(np.float16))
