"""Functions made of the scalar operations, and expressions in the places of others' arguments.

There are signs, rounding, equality, the circular and hyperbolic functions that are no scalar
operations, and activations that are no operators of their own; these are all as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from minidnn.graph.expression import (
    Expression,
    atan,
    cos,
    exp,
    expm1,
    floor,
    linearize,
    log,
    log1p,
    sigmoid,
    sin,
    sqrt,
    tanh,
    where,
)


def sign(x: Expression) -> Expression:
    """Of zeros and NaN it is what they are; it has no slope anywhere."""
    return where(x > 0, 1.0, where(x < 0, -1.0, 0.0 * x))


def odd(x: Expression, y: Expression) -> Expression:
    """``y``, which is of ``|x|`` and has the slope 1 at 0, with the sign of x; a zero keeps its
    sign, and NaN stays NaN, and so does the slope."""
    return where(x > 0, y, where(x < 0, -y, x * (1.0 + x)))


#: From here on exp(x) may overflow where half of it does not.
_HIGH = 80.0
#: From here on x^2 + 1 is x^2, which may overflow.
_VAST = 1e9


def _half_exp(a: Expression) -> Expression:
    root = exp(0.5 * a)
    return 0.5 * root * root


def sinh(x: Expression) -> Expression:
    a = abs(x)
    e = expm1(a)
    return odd(x, where(a > _HIGH, _half_exp(a), 0.5 * (e + e / (e + 1.0))))


def cosh(x: Expression) -> Expression:
    a = where(x < 0.0, -x, x)
    return where(a > _HIGH, _half_exp(a), 0.5 * (exp(a) + 1.0 / exp(a)))


def asinh(x: Expression) -> Expression:
    a = abs(x)
    near = log1p(a + a * a / (1.0 + sqrt(a * a + 1.0)))
    return odd(x, where(a > _VAST, log(a) + math.log(2.0), near))


def acosh(x: Expression) -> Expression:
    over = x - 1.0
    near = log1p(over + sqrt(over) * sqrt(x + 1.0))
    return where(x > _VAST, log(x) + math.log(2.0), near)


def atanh(x: Expression) -> Expression:
    return 0.5 * (log1p(x) - log1p(-x))


def asin(x: Expression) -> Expression:
    return 2.0 * atan(x / (1.0 + sqrt((1.0 - x) * (1.0 + x))))


def acos(x: Expression) -> Expression:
    below = x < 0.0
    a = where(below, -x, x)
    near = 2.0 * atan(sqrt((1.0 - a) / (1.0 + a)))
    return where(below, math.pi - near, near)


def tan(x: Expression) -> Expression:
    return sin(x) / cos(x)


def ceil(x: Expression) -> Expression:
    return -floor(-x)


def trunc(x: Expression) -> Expression:
    """The whole number next to x towards zero."""
    down = floor(abs(x))
    return where(x > 0, down, where(x < 0, -down, 0.0 * x))


def at_least(x: Expression, low: Expression) -> Expression:
    """The larger one of ``x`` and a bound, NaN if one of them is.

    Its derivative is PyTorch's of ``clamp``: ``x`` has all of it where both are equal, and neither
    has any where one is NaN.  Of ``maximum`` a constant bound wins.
    """
    return where(x >= low, x, where(x < low, low, 0.0 * (x + low)))


def at_most(x: Expression, high: Expression) -> Expression:
    """The smaller one of ``x`` and a bound, as :func:`at_least` has the larger one."""
    return where(x <= high, x, where(x > high, high, 0.0 * (x + high)))


def softplus(x: Expression) -> Expression:
    """``log(1 + exp(x))``, exact however far ``x`` is from 0, and so is its derivative."""
    above = x > 0.0
    return where(above, x, 0.0) + log1p(exp(where(above, -x, x)))


def root(x: Expression) -> Expression:
    """The square root of what is at least 0.  Its derivative at 0 is 0: so lengths of vectors have
    a subgradient at zero vectors, and deviations at equal numbers."""
    return where(x <= 0.0, 0.0, sqrt(x))


def substituted(expression: Expression, given: Mapping[int, Expression]) -> Expression:
    """The expression with others in the places of its arguments, by their indices."""
    made: list[Expression] = []
    for line in linearize(expression):
        if line.op == "argument":
            made.append(given[int(line.value or 0)])
        else:
            made.append(Expression(line.op, tuple(made[i] for i in line.operands), line.value))
    return made[-1]


#: What makes mean and variance of activations stay: Klambauer et al., arXiv:1706.02515.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def celu(x: Expression, alpha: float) -> Expression:
    return where(x > 0.0, x, alpha * expm1(x / alpha))


def selu(x: Expression) -> Expression:
    return where(x > 0.0, SELU_SCALE * x, SELU_SCALE * SELU_ALPHA * expm1(x))


def scaled_softplus(x: Expression, beta: float, threshold: float) -> Expression:
    return where(x * beta > threshold, x, log1p(exp(x * beta)) / beta)


def mish(x: Expression) -> Expression:
    return x * tanh(where(x > 20.0, x, log1p(exp(x))))


def log_sigmoid(x: Expression) -> Expression:
    below = where(x < 0.0, x, 0.0)
    return below - log1p(exp(where(x < 0.0, x, -x)))


def hardshrink(x: Expression, width: float) -> Expression:
    inside = (x >= -width) * (x <= width)
    return where(inside > 0.0, 0.0, x)


def softshrink(x: Expression, width: float) -> Expression:
    below = where(x < -width, x + width, x * 0.0)
    return where(x > width, x - width, below)


def threshold(x: Expression, most: float, value: float) -> Expression:
    return where(x <= most, value, x)


def glu(x: Expression, gate: Expression) -> Expression:
    return x * sigmoid(gate)
