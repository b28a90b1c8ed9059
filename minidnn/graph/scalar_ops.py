"""The table of operations that scalar expressions consist of: NumPy function, arity and cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

#: The number of elements of a block, of which all temporaries fit a cache.
_BLOCK = 1 << 15

COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}


def _fma(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` rounded once, for float16 and float32.

    The product is exact in float64.  The sum is rounded to odd there, so that rounding it
    again to float32 gives what one rounding would have given (Boldo and Melquiond, "Emulation
    of a FMA and correctly rounded sums", IEEE Trans. Computers 57(4), 2008).  float64 operands
    are rounded twice: the oracle does not need more.
    """
    dtype = np.result_type(a, b, c)
    if dtype == np.float64:
        return a * b + c
    return _by_blocks(_fma_to_odd, dtype, np.float64, a, b, c)


def _fma_to_odd(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    product = a * b
    rounded = np.array(product + c)  # not a scalar, whose bits could not be changed
    virtual = rounded - product
    error = (product - (rounded - virtual)) + (c - virtual)
    bits = rounded.view(np.int64)
    inexact = np.isfinite(rounded) & (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == (rounded > 0)
    bits += np.where(inexact, np.where(away, 1, -1), 0)
    return rounded


def _by_blocks(
    function: Callable[..., np.ndarray], result: Any, computed: Any, *operands: Any
) -> np.ndarray:
    """Applies an element-wise function block by block, so that its temporaries stay small.

    Args:
        function: takes flat arrays of one length and of the dtype ``computed``.
        result: the dtype of the result.
        computed: the dtype in which the operands are given to ``function``.
        operands: arrays that broadcast.
    """
    if np.broadcast(*operands).size <= _BLOCK:
        arrays = np.broadcast_arrays(*(np.asarray(each, computed) for each in operands))
        return function(*arrays).astype(result)
    reads: list[list[Literal["readonly"]]] = [["readonly"] for _ in operands]
    blocks = np.nditer(
        [*operands, None],
        ["external_loop", "buffered", "zerosize_ok"],
        [*reads, ["writeonly", "allocate"]],
        [*(computed for _ in operands), result],
        casting="unsafe",
        buffersize=_BLOCK,
    )
    with blocks:
        for *block_operands, block_result in blocks:
            block_result[...] = function(*block_operands)
        return np.asarray(blocks.operands[-1])


def _divide(a: Any, b: Any) -> Any:
    """``a / b``; for integers the quotient is rounded towards zero, and is 0 for divisor 0."""
    dtype = np.result_type(a, b)
    if dtype.kind != "i":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    inexact = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + (inexact & ((a < 0) != (b < 0))), dtype)


def _power(a: Any, b: Any) -> Any:
    """``a ** b``; for integers it is rounded towards zero, and is 0 for 0 to a negative power."""
    dtype = np.result_type(a, b)
    if dtype.kind != "i":
        return np.power(a, b)
    a, b = np.broadcast_arrays(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b >= 0, np.power(a, np.maximum(b, 0)), inverse).astype(dtype)


_erf = np.frompyfunc(math.erf, 1, 1)


def _numpy_erf(x: Any) -> Any:
    return _by_blocks(_erf_of_floats, np.asarray(x).dtype, np.float64, x)


def _erf_of_floats(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf(x), np.float64)


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """What the system knows about one scalar operation.

    Args:
        arity: the number of operands.
        evaluate: the operation as a function of NumPy arrays.
        operations: the cost of one evaluation, in additions.
    """

    arity: int
    evaluate: Callable[..., Any]
    #: The number of operations that the cost model counts (a transcendental is a short polynomial).
    operations: int = 1


SCALAR_OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(2, np.add),
    "sub": ScalarOp(2, np.subtract),
    "mul": ScalarOp(2, np.multiply),
    "div": ScalarOp(2, _divide, 4),
    "fma": ScalarOp(3, _fma, 1),
    "neg": ScalarOp(1, np.negative),
    "abs": ScalarOp(1, np.abs),
    # NaN in either operand gives NaN, as in IEEE 754-2019 maximum/minimum.
    "maximum": ScalarOp(2, np.maximum),
    "minimum": ScalarOp(2, np.minimum),
    "floor": ScalarOp(1, np.floor),
    # To the nearest integer, ties to even.
    "round": ScalarOp(1, np.rint),
    "sqrt": ScalarOp(1, np.sqrt, 4),
    "exp": ScalarOp(1, np.exp, 10),
    "expm1": ScalarOp(1, np.expm1, 12),
    "log": ScalarOp(1, np.log, 12),
    "log1p": ScalarOp(1, np.log1p, 14),
    "tanh": ScalarOp(1, np.tanh, 14),
    "erf": ScalarOp(1, _numpy_erf, 16),
    "pow": ScalarOp(2, _power, 24),
    "sin": ScalarOp(1, np.sin, 50),
    "cos": ScalarOp(1, np.cos, 50),
    "atan": ScalarOp(1, np.arctan, 24),
    "lt": ScalarOp(2, np.less),
    "le": ScalarOp(2, np.less_equal),
    "gt": ScalarOp(2, np.greater),
    "ge": ScalarOp(2, np.greater_equal),
    "eq": ScalarOp(2, np.equal),
    "where": ScalarOp(3, np.where),
}


#: Operations that integers have, too.
INTEGER_OPS = frozenset(
    ("add", "sub", "mul", "div", "pow", "neg", "abs", "maximum", "minimum", *COMPARISONS, "where")
)
