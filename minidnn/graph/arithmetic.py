"""Python arithmetic on symbolic values, for values of a graph and for a user's symbols alike."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.operator import Operator
from minidnn.graph.operators.arithmetic import Add, Div, Formula, Mul, Sub

_Binary = Callable[[Expression, Expression], Expression]


class Arithmetic:
    """Adds ``+ - * / **`` and negation; a subclass says how an operator is recorded."""

    __slots__ = ()
    # NumPy arrays must leave ``array * value`` to this class instead of looping over elements.
    __array_ufunc__ = None

    def _record(self, op: Operator, *operands: Arithmetic) -> Arithmetic:
        raise NotImplementedError

    def _binary(self, op: Operator, compute: _Binary, other: Any, swapped: bool = False) -> Any:
        if isinstance(other, Arithmetic):
            operands = (other, self) if swapped else (self, other)
            return self._record(op, *operands)
        if _is_number(other):
            x, number = argument(0), constant(float(other))
            a, b = (number, x) if swapped else (x, number)
            return self._formula(op.name, compute(a, b))
        raise GraphError(
            f"cannot compute {op.name} of a symbolic value and {other!r:.100} "
            f"({type(other).__name__}); valid are symbolic values and numbers"
        )

    def _formula(self, title: str, body: Expression) -> Any:
        return self._record(Formula(body, title=title), self)

    def __add__(self, other: Any) -> Any:
        return self._binary(Add(), operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._binary(Add(), operator.add, other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._binary(Sub(), operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary(Sub(), operator.sub, other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary(Mul(), operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary(Mul(), operator.mul, other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary(Div(), operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary(Div(), operator.truediv, other, swapped=True)

    def __neg__(self) -> Any:
        return self._formula("Neg", -argument(0))

    def __pow__(self, exponent: Any) -> Any:
        if not _is_number(exponent):
            raise GraphError(
                f"exponent {exponent!r:.100} of ** is a {type(exponent).__name__}; "
                "valid is a number"
            )
        return self._formula("Pow", argument(0) ** float(exponent))


def _is_number(value: object) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating))
    return number and not isinstance(value, bool)
