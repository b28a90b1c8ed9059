"""Python arithmetic on symbolic values, for values of a graph and for a user's symbols alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.operator import Operator


class Arithmetic:
    """Adds ``+ - * / **`` and negation; a subclass says how an operator is recorded."""

    __slots__ = ()
    # NumPy arrays must leave ``array * value`` to this class instead of looping over elements.
    __array_ufunc__ = None

    def _record(self, op: Operator, *operands: Arithmetic) -> Arithmetic:
        raise NotImplementedError

    def _binary(self, name: str, other: Any, swapped: bool = False) -> Any:
        from minidnn.graph import operators

        if isinstance(other, Arithmetic):
            operands = (other, self) if swapped else (self, other)
            return self._record(getattr(operators, name)(), *operands)
        if _is_number(other):
            x, number = argument(0), constant(float(other))
            a, b = (number, x) if swapped else (x, number)
            return self._formula(name, _SCALAR[name](a, b))
        raise GraphError(
            f"cannot compute {name} of a symbolic value and {other!r:.100} "
            f"({type(other).__name__}); valid are symbolic values and numbers"
        )

    def _formula(self, title: str, body: Expression) -> Any:
        from minidnn.graph import operators

        return self._record(operators.Formula(body, title=title), self)

    def __add__(self, other: Any) -> Any:
        return self._binary("Add", other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("Add", other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._binary("Sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("Sub", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._binary("Mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary("Mul", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary("Div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("Div", other, swapped=True)

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


_SCALAR = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
}
