"""Element-wise operators of two operands, and those that users describe themselves."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, argument
from minidnn.graph.operator import Elementwise

__all__ = ["Add", "Div", "Formula", "Mul", "Sub"]

#: Far more than anyone writes; a damaged file may declare 10**12.
_MOST_OPERANDS = 1000


@dataclass(frozen=True)
class Add(Elementwise):
    """``a + b``, broadcasting as NumPy does."""

    operand_names = ("a", "b")

    def expression(self) -> Expression:
        return argument(0) + argument(1)


@dataclass(frozen=True)
class Sub(Elementwise):
    """``a - b``, broadcasting as NumPy does."""

    operand_names = ("a", "b")

    def expression(self) -> Expression:
        return argument(0) - argument(1)


@dataclass(frozen=True)
class Mul(Elementwise):
    """``a * b``, broadcasting as NumPy does."""

    operand_names = ("a", "b")

    def expression(self) -> Expression:
        return argument(0) * argument(1)


@dataclass(frozen=True)
class Div(Elementwise):
    """``a / b``, broadcasting as NumPy does."""

    operand_names = ("a", "b")

    def expression(self) -> Expression:
        return argument(0) / argument(1)


@dataclass(frozen=True)
class Formula(Elementwise):
    """An element-wise operator that a user describes by a scalar expression.

    ``body`` takes ``tensors`` operands that broadcast, followed by ``channel_vectors``
    vectors with one element per channel.
    """

    body: Expression
    tensors: int = 1
    channel_vectors: int = 0
    title: str = "Formula"

    def __post_init__(self) -> None:
        self.require(
            self.tensors >= 1 and self.channel_vectors >= 0 and self.arity <= _MOST_OPERANDS,
            f"tensors={self.tensors}, channel_vectors={self.channel_vectors}; valid are at least "
            f"1 tensor and together at most {_MOST_OPERANDS}",
        )
        self.require(
            scalar.arguments(self.body) <= self.arity,
            f"the expression takes {scalar.arguments(self.body)} operands, "
            f"but {self.tensors} tensors and {self.channel_vectors} channel vectors are declared",
        )
        self.require(
            self.body is scalar.number(self.body),
            "the expression is a comparison; valid is a number: where(comparison, 1.0, 0.0)",
        )

    @property
    def name(self) -> str:
        return self.title

    @property
    def arity(self) -> int:
        return self.tensors + self.channel_vectors

    @property
    def channel_count(self) -> int:
        return self.channel_vectors

    @property
    def operand_names(self) -> tuple[str, ...]:  # type: ignore[override]
        vectors = (f"channel vector {i}" for i in range(self.channel_vectors))
        return (*(f"operand {i}" for i in range(self.tensors)), *vectors)

    def expression(self) -> Expression:
        return self.body

    def __str__(self) -> str:
        return f"{self.title}({self.body})"
