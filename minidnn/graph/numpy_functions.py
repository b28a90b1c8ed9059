"""NumPy's universal functions of symbolic tensors, and ``np.where``.

A symbolic tensor's ``__array_ufunc__`` calls :func:`call_ufunc`, which records an element-wise
formula or an operator (:data:`UFUNCS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import expression
from minidnn.graph import scalar_functions as more
from minidnn.graph.expression import (
    Expression,
    atan,
    cos,
    equal,
    exp,
    expm1,
    floor,
    log,
    log1p,
    maximum,
    minimum,
    rint,
    sin,
    sqrt,
    tanh,
    where,
)
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Add, Div, MatMul, Mul, Sub
from minidnn.graph.symbolic import Body, Symbolic, apply, cast, described, pointwise


@dataclass(frozen=True)
class _Function:
    """An element-wise universal function.

    Attributes:
        title: the name of its nodes.
        body: its formula.
        fractions: whether it gives floating-point numbers for integers, too.
        truth: whether its result is a bool.
        op: an operator that is recorded in place of the formula where it fits.
    """

    title: str
    body: Body
    fractions: bool = False
    truth: bool = False
    op: Operator | None = None

    def __call__(self, *operands: Any) -> Any:
        dtype = "bool" if self.truth else None
        return pointwise(
            self.title, self.body, *operands, dtype=dtype, op=self.op, fractions=self.fractions
        )


def _same(x: Expression) -> Expression:
    return x


def _pow(a: Any, b: Expression) -> Expression:
    return expression.apply("pow", a, b)


def _power(a: Expression, b: Expression) -> Expression:
    is_square = b.op == "constant" and b.value == 2.0
    return a * a if is_square else _pow(a, b)


def _logical(title: str, body: Body) -> Callable[..., Any]:
    def function(*operands: Any) -> Any:
        return pointwise(title, body, *(_truth(each) for each in operands), dtype="bool")

    return function


def _bitwise(title: str, body: Body) -> Callable[..., Any]:
    logical = _logical(title, body)

    def function(*operands: Any) -> Any:
        for each in operands:
            dtype = str(np.asarray(each).dtype) if not isinstance(each, Symbolic) else each.dtype
            if dtype != "bool":
                raise GraphError(
                    f"{title} of {dtype}; valid is bool, as comparisons such as x > 0 give it"
                )
        return logical(*operands)

    return function


def _truth(operand: Any) -> Any:
    return cast(operand, "bool") if isinstance(operand, Symbolic) else np.asarray(operand) != 0


def _matmul(a: Any, b: Any) -> Any:
    owner = a if isinstance(a, Symbolic) else b
    values = [
        each if isinstance(each, Symbolic) else owner._constant(np.asarray(each), owner.dtype)
        for each in (a, b)
    ]
    return owner._record(MatMul(), *values)


def _invert(x: Expression) -> Expression:
    return 1.0 - x


def _and(a: Expression, b: Expression) -> Expression:
    return minimum(a, b)


def _xor(a: Expression, b: Expression) -> Expression:
    return abs(a - b)


#: The implementation of NumPy's universal functions for symbolic values.
UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: _Function("Add", lambda a, b: a + b, op=Add()),
    np.subtract: _Function("Sub", lambda a, b: a - b, op=Sub()),
    np.multiply: _Function("Mul", lambda a, b: a * b, op=Mul()),
    np.true_divide: _Function("Div", lambda a, b: a / b, True, op=Div()),
    np.power: _Function("Pow", _power),
    np.maximum: _Function("Maximum", maximum),
    np.minimum: _Function("Minimum", minimum),
    np.matmul: _matmul,
    np.positive: _Function("Identity", _same),
    np.negative: _Function("Neg", lambda x: -x),
    np.absolute: _Function("Abs", abs),
    np.fabs: _Function("Abs", abs, True),
    np.sign: _Function("Sign", more.sign),
    np.square: _Function("Square", lambda x: x * x),
    np.reciprocal: _Function("Reciprocal", lambda x: 1.0 / x, True),
    np.floor: _Function("Floor", floor, True),
    np.ceil: _Function("Ceil", more.ceil, True),
    np.trunc: _Function("Trunc", more.trunc, True),
    np.rint: _Function("Round", rint, True),
    np.sqrt: _Function("Sqrt", sqrt, True),
    np.exp: _Function("Exp", exp, True),
    np.exp2: _Function("Exp2", lambda x: _pow(2.0, x), True),
    np.expm1: _Function("Expm1", expm1, True),
    np.log: _Function("Log", log, True),
    np.log2: _Function("Log2", lambda x: log(x) * (1.0 / math.log(2.0)), True),
    np.log10: _Function("Log10", lambda x: log(x) * (1.0 / math.log(10.0)), True),
    np.log1p: _Function("Log1p", log1p, True),
    np.tanh: _Function("Tanh", tanh, True),
    np.sin: _Function("Sin", sin, True),
    np.cos: _Function("Cos", cos, True),
    np.tan: _Function("Tan", more.tan, True),
    np.arcsin: _Function("Asin", more.asin, True),
    np.arccos: _Function("Acos", more.acos, True),
    np.arctan: _Function("Atan", atan, True),
    np.sinh: _Function("Sinh", more.sinh, True),
    np.cosh: _Function("Cosh", more.cosh, True),
    np.arcsinh: _Function("Asinh", more.asinh, True),
    np.arccosh: _Function("Acosh", more.acosh, True),
    np.arctanh: _Function("Atanh", more.atanh, True),
    np.less: _Function("Less", lambda a, b: a < b, truth=True),
    np.less_equal: _Function("LessEqual", lambda a, b: a <= b, truth=True),
    np.greater: _Function("Greater", lambda a, b: a > b, truth=True),
    np.greater_equal: _Function("GreaterEqual", lambda a, b: a >= b, truth=True),
    np.equal: _Function("Equal", equal, truth=True),
    np.not_equal: _Function("NotEqual", lambda a, b: 1.0 - equal(a, b), truth=True),
    np.isnan: _Function("IsNaN", lambda x: 1.0 - equal(x, x), True, True),
    np.isinf: _Function("IsInf", lambda x: abs(x) >= math.inf, True, True),
    np.isfinite: _Function("IsFinite", lambda x: abs(x) < math.inf, True, True),
    np.logical_not: _logical("Not", _invert),
    np.logical_and: _logical("And", _and),
    np.logical_or: _logical("Or", maximum),
    np.logical_xor: _logical("Xor", _xor),
    np.invert: _bitwise("Not", _invert),
    np.bitwise_and: _bitwise("And", _and),
    np.bitwise_or: _bitwise("Or", maximum),
    np.bitwise_xor: _bitwise("Xor", _xor),
}


#: Universal functions that symbolic values lack, and what to write instead.
INSTEAD: dict[Any, str] = {
    np.floor_divide: "np.floor(a / b)",
    np.remainder: "a - b * np.floor(a / b)",
    np.hypot: "np.sqrt(a * a + b * b)",
    np.fmax: "np.maximum(a, b), which gives NaN where one of them is",
    np.fmin: "np.minimum(a, b), which gives NaN where one of them is",
}


def call_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Implements ``__array_ufunc__``, the hook that NumPy calls for operands that are no arrays.

    For a function that is not supported, GraphError says what to write instead.
    """
    name = f"np.{ufunc.__name__}"
    if method != "__call__":
        raise GraphError(
            f"{name}.{method} of a symbolic value; valid are x.sum(axis), x.prod(axis), "
            "x.max(axis), x.min(axis) and x.mean(axis)"
        )
    given = ", ".join(f"{key}=" for key in options if options[key] is not None)
    if given:
        raise GraphError(
            f"{name} of a symbolic value with {given}; valid are operands alone: layers describe "
            "and never compute, so nothing can be written into an array"
        )
    if ufunc in INSTEAD:
        raise GraphError(f"{name} is not known of symbolic values; write {INSTEAD[ufunc]}")
    if ufunc not in UFUNCS:
        known = ", ".join(sorted({each.__name__ for each in UFUNCS}))
        raise GraphError(
            f"{name} is not known of symbolic values; valid are np.{{{known}}}, layers of "
            "minidnn.layers, and functions of one's own by minidnn.layers.Elementwise"
        )
    return universal(ufunc, *inputs)


def universal(ufunc: Any, *operands: Any) -> Any:
    """Applies one of :data:`UFUNCS` to symbolic operands, arrays and numbers."""

    def on_values(ufunc: Any, *values: Any) -> Any:
        return UFUNCS[ufunc](*values)

    return apply(ufunc.__name__.capitalize(), universal, (ufunc, *operands), {}, on_values)


@described("Where")
def choose(condition: Any, a: Any, b: Any) -> Any:
    """``np.where``: ``a`` where the condition is not zero, else ``b``."""
    are_bool = (
        each.dtype == "bool" if isinstance(each, Symbolic) else np.asarray(each).dtype == np.bool_
        for each in (a, b)
    )
    return pointwise(
        "Where",
        lambda c, a, b: where(c > 0, a, b),
        _truth(condition),
        a,
        b,
        dtype="bool" if all(are_bool) else None,
    )
