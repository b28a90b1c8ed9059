"""Activations that are no operators of their own, as scalar expressions; all as in PyTorch."""

from __future__ import annotations

from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, where

#: What makes mean and variance of activations stay: Klambauer et al., arXiv:1706.02515.
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def celu(x: Expression, alpha: float) -> Expression:
    return where(x > 0.0, x, alpha * scalar.expm1(x / alpha))


def selu(x: Expression) -> Expression:
    return where(x > 0.0, SELU_SCALE * x, SELU_SCALE * SELU_ALPHA * scalar.expm1(x))


def softplus(x: Expression, beta: float, threshold: float) -> Expression:
    return where(x * beta > threshold, x, scalar.log1p(scalar.exp(x * beta)) / beta)


def mish(x: Expression) -> Expression:
    return x * scalar.tanh(where(x > 20.0, x, scalar.log1p(scalar.exp(x))))


def log_sigmoid(x: Expression) -> Expression:
    below = where(x < 0.0, x, 0.0)
    return below - scalar.log1p(scalar.exp(where(x < 0.0, x, -x)))


def hardshrink(x: Expression, width: float) -> Expression:
    inside = (x >= -width) * (x <= width)
    return where(inside > 0.0, 0.0, x)


def softshrink(x: Expression, width: float) -> Expression:
    below = where(x < -width, x + width, x * 0.0)
    return where(x > width, x - width, below)


def threshold(x: Expression, most: float, value: float) -> Expression:
    return where(x <= most, value, x)


def glu(x: Expression, gate: Expression) -> Expression:
    return x * scalar.sigmoid(gate)
