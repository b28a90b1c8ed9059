"""Activations: element-wise operators of one operand.

The formulas are those of PyTorch's ``torch.nn`` activations.  NaN stays NaN in all of them.
To add one, write its formula here and its layer in ``minidnn/layers/activations.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minidnn.graph.expression import (
    Expression,
    clip,
    erf,
    exp,
    expm1,
    maximum,
    sigmoid,
    tanh,
    where,
)
from minidnn.graph.operator import Activation

__all__ = [
    "ELU",
    "GELU",
    "Dropout",
    "Hardsigmoid",
    "Hardswish",
    "Identity",
    "LeakyReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Tanh",
]


@dataclass(frozen=True)
class Identity(Activation):
    """``x``"""

    def formula(self, x: Expression) -> Expression:
        return x


@dataclass(frozen=True)
class Dropout(Activation):
    """``x``: dropout does nothing at inference."""

    p: float = 0.5

    def __post_init__(self) -> None:
        self.require_number("p", self.p)
        self.require(0.0 <= self.p <= 1.0, f"p={self.p!r}; valid is a probability from 0 to 1")

    def formula(self, x: Expression) -> Expression:
        return x


@dataclass(frozen=True)
class ReLU(Activation):
    """``max(x, 0)``"""

    def formula(self, x: Expression) -> Expression:
        return maximum(x, 0.0)


@dataclass(frozen=True)
class ReLU6(Activation):
    """``min(max(x, 0), 6)``"""

    def formula(self, x: Expression) -> Expression:
        return clip(x, 0.0, 6.0)


@dataclass(frozen=True)
class LeakyReLU(Activation):
    """``x`` where ``x > 0``, else ``negative_slope * x``"""

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        self.require_number("negative_slope", self.negative_slope)

    def formula(self, x: Expression) -> Expression:
        return where(x > 0.0, x, x * self.negative_slope)


@dataclass(frozen=True)
class ELU(Activation):
    """``x`` where ``x > 0``, else ``alpha * (exp(x) - 1)``"""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        self.require_number("alpha", self.alpha)

    def formula(self, x: Expression) -> Expression:
        return where(x > 0.0, x, self.alpha * expm1(x))


@dataclass(frozen=True)
class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``"""

    def formula(self, x: Expression) -> Expression:
        return sigmoid(x)


@dataclass(frozen=True)
class Tanh(Activation):
    """``tanh(x)``"""

    def formula(self, x: Expression) -> Expression:
        return tanh(x)


@dataclass(frozen=True)
class GELU(Activation):
    """``x * Phi(x)``, exactly or by the tanh approximation (Hendrycks and Gimpel 2016)."""

    approximate: str = "none"

    def __post_init__(self) -> None:
        self.require(
            self.approximate in ("none", "tanh"),
            f"approximate={self.approximate!r}; valid are 'none' and 'tanh'",
        )

    def formula(self, x: Expression) -> Expression:
        if self.approximate == "tanh":
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
            return 0.5 * x * (1.0 + tanh(inner))
        return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


@dataclass(frozen=True)
class SiLU(Activation):
    """``x * sigmoid(x)``"""

    def formula(self, x: Expression) -> Expression:
        return x / (1.0 + exp(-x))


@dataclass(frozen=True)
class Hardswish(Activation):
    """``x * min(max(x + 3, 0), 6) / 6``"""

    def formula(self, x: Expression) -> Expression:
        return x * clip(x + 3.0, 0.0, 6.0) / 6.0


@dataclass(frozen=True)
class Hardsigmoid(Activation):
    """``min(max(x + 3, 0), 6) / 6``"""

    def formula(self, x: Expression) -> Expression:
        return clip(x + 3.0, 0.0, 6.0) / 6.0
