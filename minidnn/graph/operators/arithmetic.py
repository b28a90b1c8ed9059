"""Element-wise operators of two operands, and :class:`Formula`, which computes any expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression as scalar
from minidnn.graph.expression import Expression, argument
from minidnn.graph.operator import Elementwise, computed_in
from minidnn.graph.types import (
    FLOATS,
    INT8_DTYPES,
    INTEGERS,
    ITEMSIZE,
    numpy_dtype,
    rounded_to,
    saturated,
)

__all__ = ["Add", "Div", "Formula", "Mul", "Sub"]

#: The most operands of a formula: far more than anyone writes, while a damaged file may declare
#: 10**12.
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
    """An element-wise operator that computes a scalar expression.

    ``body`` takes ``tensors`` operands that broadcast, followed by ``channel_vectors``
    vectors with one element per channel.  It is computed in :func:`computed_in` of the operands'
    dtypes, where a bool is 1 or 0.  The result is converted to ``dtype``, if one is given:
    conversion to integers truncates, int8 and uint8 saturate, and bool is whether the result is not
    zero.  So comparisons, choices, casts and quantization are formulas, too.

    ``compute`` is a floating-point dtype to compute in instead: operands may then have several
    dtypes that are no wider, and without ``dtype`` the result is of ``compute``.
    """

    body: Expression
    tensors: int = 1
    channel_vectors: int = 0
    title: str = "Formula"
    dtype: str | None = None
    compute: str | None = None

    def __post_init__(self) -> None:
        self.require(
            self.tensors >= 1 and self.channel_vectors >= 0 and self.arity <= _MOST_OPERANDS,
            f"tensors={self.tensors}, channel_vectors={self.channel_vectors}; valid are at least "
            f"1 tensor and together at most {_MOST_OPERANDS}",
        )
        if not isinstance(self.body, Expression):
            raise GraphError(f"{self.title}: body={self.body!r:.80}; valid is a scalar expression")
        self.require(
            scalar.arguments(self.body) <= self.arity,
            f"the expression takes {scalar.arguments(self.body)} operands, "
            f"but {self.tensors} tensors and {self.channel_vectors} channel vectors are declared",
        )
        self.require(
            self.dtype is None or self.dtype in ITEMSIZE,
            f"dtype={self.dtype!r}; valid are {', '.join(ITEMSIZE)} and None",
        )
        self.require(
            self.compute in (None, "float32", "float64"),
            f"compute={self.compute!r}; valid are 'float32', 'float64' and None",
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

    def computed_in(self, dtypes: Sequence[str]) -> str | None:
        return self.compute or super().computed_in(dtypes)

    def result_dtype(self, dtypes: Sequence[str]) -> str:
        if self.compute is not None:
            wider = [d for d in dtypes if d in FLOATS and ITEMSIZE[d] > ITEMSIZE[self.compute]]
            if wider:
                raise self.fail(
                    f"operands have dtypes {', '.join(dict.fromkeys(dtypes))}; valid are those no "
                    f"wider than {self.compute}, which it is computed in"
                )
            return self.dtype or self.compute
        computed = computed_in(dtypes)
        if computed is None:
            raise self.fail(
                f"operands have dtypes {', '.join(dict.fromkeys(dtypes))}; valid is one "
                f"floating-point dtype among them at most, and one of {', '.join(INTEGERS)}"
            )
        self.require_integers(computed)
        return self.dtype or computed

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        # Operands of several floating-point dtypes, or of wider ones, occur in float64 oracles
        # only.
        dtypes = [str(array.dtype) for array in inputs]
        computed = "float64" if "float64" in dtypes else self.computed_in(dtypes) or "float64"
        operands = tuple(array.astype(computed, copy=False) for array in inputs)
        (result,) = super().reference(*operands)
        if self.dtype is None:
            return (result,)
        with np.errstate(all="ignore"):
            if self.dtype == "bfloat16":
                return (rounded_to(self.dtype, result),)
            if self.dtype in INT8_DTYPES:
                return (saturated(self.dtype, result),)
            return (result.astype(numpy_dtype(self.dtype)),)

    def __str__(self) -> str:
        return f"{self.title}({self.body}{f' as {self.dtype}' if self.dtype else ''})"
