"""What float32 functions are compared with: float64 functions, and errors in last places."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

Array = np.ndarray


def erf64(x: Array) -> Array:
    """erf in float64: the series below 2**-6 (relative error 4e-13), 1 from 6 on."""
    tiny, z = np.abs(x) < 2.0**-6, x * x
    series = 2 / math.sqrt(math.pi) * x * (1 - z / 3 + z * z / 10)
    y = np.where(tiny, series, np.copysign(1.0, x))
    y[np.isnan(x)] = np.nan
    rest = ~tiny & (np.abs(x) < 6)
    y[rest] = np.fromiter(map(math.erf, x[rest].tolist()), np.float64)
    return y


EXACT: Mapping[str, Callable[..., Array]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": erf64,
    "pow": np.power,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
}


def in_float64(name: str, *operands: Array) -> Array:
    """The function of float32 values, with an error of some last places of float64."""
    with np.errstate(all="ignore"):
        return EXACT[name](*(x.astype(np.float64) for x in operands))


def errors(found: Array, exact: Array) -> Array:
    """Errors of float32 values in units of the last place that the exact ones (float64) have.

    Infinity counts as 2**128, the number after the largest, so overflow is an error only of values
    below it.  A NaN on one side only is infinitely wrong, so is the wrong sign, and so is any
    other number where the exact one is 0 or infinity.
    """
    top = 2.0**128
    limited = np.clip(exact, -top, top)
    exponent = np.maximum((limited.view(np.int64) >> 52) & 0x7FF, 1023 - 126)
    place = ((exponent - 23) << 52).view(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaN
        result = np.abs(np.clip(found.astype(np.float64), -top, top) - limited) / place
    nan = np.isnan(exact)
    wrong = np.isnan(found) != nan
    wrong |= (np.signbit(found) != np.signbit(exact)) & ~nan
    wrong |= ((exact == 0) | np.isinf(exact)) & (result != 0)
    return np.where(wrong, np.inf, np.where(nan, 0.0, result))


def same(a: Array, b: Array) -> bool:
    """Whether float32 arrays have the same bits (any NaN equals any other)."""
    differ = a.view(np.uint32) != b.view(np.uint32)
    return not differ.any() or bool((np.isnan(a) & np.isnan(b))[differ].all())
