"""Batch normalization with given statistics, and the scale and shift that it folds into."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.graph.expression import Expression, argument, fma, sqrt
from minidnn.graph.operator import Elementwise

__all__ = ["BatchNorm", "ScaleShift"]


@dataclass(frozen=True)
class BatchNorm(Elementwise):
    """``(x - mean) / sqrt(var + eps) * weight + bias`` per channel, with given statistics."""

    eps: float = 1e-5

    operand_names = ("input", "weight", "bias", "running_mean", "running_var")
    channel_operands = 4

    def __post_init__(self) -> None:
        self.require_number("eps", self.eps)
        self.require(self.eps >= 0, f"eps={self.eps!r}; valid is a number of at least 0")

    def expression(self) -> Expression:
        x, weight, bias, mean, var = map(argument, range(5))
        return fma((x - mean) / sqrt(var + self.eps), weight, bias)


@dataclass(frozen=True)
class ScaleShift(Elementwise):
    """``fma(x, scale, shift)`` per channel, to which a batch normalization is folded."""

    operand_names = ("input", "scale", "shift")
    channel_operands = 2

    def expression(self) -> Expression:
        return fma(argument(0), argument(1), argument(2))
