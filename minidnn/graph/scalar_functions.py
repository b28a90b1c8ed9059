"""Functions composed of the scalar operations, and substitution of expressions for arguments.

There are signs, rounding, clamping, the trigonometric and hyperbolic functions that are no scalar
operations, and activations that are no operators of their own; all are as in PyTorch.
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
    """The sign of ``x``: zeros and NaN stay as they are; the derivative is 0 everywhere."""
    return where(x > 0, 1.0, where(x < 0, -1.0, 0.0 * x))


def odd(x: Expression, y: Expression) -> Expression:
    """The odd function of ``x`` that is ``y`` for positive ``x``.

    ``y`` is a function of ``|x|`` with derivative 1 at 0.  A zero keeps its sign, and NaN stays
    NaN, in the derivative, too.
    """
    return where(x > 0, y, where(x < 0, -y, x * (1.0 + x)))


#: Above it exp(x) may overflow in float32 where half of it does not.
_HIGH = 80.0
#: Above it x^2 + 1 rounds to x^2, which may overflow.
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
    """``x`` rounded towards zero."""
    down = floor(abs(x))
    return where(x > 0, down, where(x < 0, -down, 0.0 * x))


def at_least(x: Expression, low: Expression) -> Expression:
    """The larger one of ``x`` and a bound, NaN if one of them is.

    Its derivative is that of PyTorch's ``clamp``: where both are equal, ``x`` gets all of the
    gradient, and where one is NaN, neither gets any.  In ``maximum``, a constant bound wins.
    """
    return where(x >= low, x, where(x < low, low, 0.0 * (x + low)))


def at_most(x: Expression, high: Expression) -> Expression:
    """The smaller one of ``x`` and a bound, with the derivative of :func:`at_least`."""
    return where(x <= high, x, where(x > high, high, 0.0 * (x + high)))


def softplus(x: Expression) -> Expression:
    """``log(1 + exp(x))``, accurate with its derivative however far ``x`` is from 0."""
    above = x > 0.0
    return where(above, x, 0.0) + log1p(exp(where(above, -x, x)))


def root(x: Expression) -> Expression:
    """The square root of a number of at least 0, whose derivative at 0 is defined as 0.

    So norms have a subgradient at zero vectors, and standard deviations at equal numbers.
    """
    return where(x <= 0.0, 0.0, sqrt(x))


def substituted(expression: Expression, given: Mapping[int, Expression]) -> Expression:
    """The expression with argument ``i`` replaced by the expression ``given[i]``."""
    results: list[Expression] = []
    for line in linearize(expression):
        if line.op == "argument":
            results.append(given[int(line.value or 0)])
        else:
            results.append(
                Expression(line.op, tuple(results[i] for i in line.operands), line.value)
            )
    return results[-1]


#: The constants that preserve mean and variance of activations: Klambauer et al., arXiv:1706.02515.
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
