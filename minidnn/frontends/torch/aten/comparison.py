"""Comparisons, logical operations of bools, and selection by a condition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minidnn.frontends.torch.aten.arithmetic import operands
from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant, number
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply

Compare = Callable[[Expression, Expression], Expression]
_ONE_DTYPE = "both operands have one dtype"


def _compared(call: AtenCall, title: str, compare: Compare) -> Any:
    x, other = argument(0), argument(1)
    values = [call.tensor("self")]
    if call.is_tensor("other"):
        values.append(call.tensor("other"))
        if values[0].dtype != values[1].dtype:
            raise Refused(f"operands have dtypes {values[0].dtype}, {values[1].dtype}")
    else:
        other = constant(float(call.number("other")))
    return _as_bool(title, compare(x, other), *values)


def _as_bool(title: str, body: Expression, *values: Value) -> Value:
    op = ops.Formula(number(body), tensors=len(values), title=title, dtype="bool")
    return apply(op, *values)


def _equal(a: Expression, b: Expression) -> Expression:
    return (a <= b) * (a >= b)


#: The names of each comparison, its title, and what it computes.
_COMPARISONS: tuple[tuple[tuple[str, ...], str, Compare], ...] = (
    (("gt", "greater"), "Greater", lambda a, b: a > b),
    (("ge", "greater_equal"), "GreaterOrEqual", lambda a, b: a >= b),
    (("lt", "less"), "Less", lambda a, b: a < b),
    (("le", "less_equal"), "LessOrEqual", lambda a, b: a <= b),
    (("eq",), "Equal", _equal),
    (("ne", "not_equal"), "NotEqual", lambda a, b: 1.0 - _equal(a, b)),
)
for _names, _title, _compare in _COMPARISONS:
    _overloads = [f"{name}.{kind}" for name in _names for kind in ("Scalar", "Tensor")]
    takes(*_overloads, when=_ONE_DTYPE)(partial(_compared, title=_title, compare=_compare))


@takes("isnan.default")
def isnan(call: AtenCall) -> Any:
    x = argument(0)
    return _as_bool("IsNaN", 1.0 - _equal(x, x), call.tensor("self"))


_OF_BOOLS = "its operands are bools"


def _logical(call: AtenCall, title: str, combine: Compare) -> Any:
    return _as_bool(title, combine(argument(0), argument(1)), *_bools(call, "self", "other"))


def _bools(call: AtenCall, *names: str) -> list[Value]:
    values = [call.tensor(name) for name in names]
    dtypes = {value.dtype for value in values}
    if dtypes != {"bool"}:
        raise Refused(f"operands have dtypes {', '.join(sorted(dtypes))}; known are bools")
    return values


#: Logical operations of two operands: the title of each, and what it computes of 0 and 1.
_LOGICAL: dict[str, tuple[str, Compare]] = {
    "and": ("And", scalar.minimum),
    "or": ("Or", scalar.maximum),
    "xor": ("Xor", lambda a, b: abs(a - b)),
}
for _name, (_title, _combine) in _LOGICAL.items():
    _overloads = [f"logical_{_name}.default", f"bitwise_{_name}.Tensor", f"__{_name}__.Tensor"]
    takes(*_overloads, when=_OF_BOOLS)(partial(_logical, title=_title, combine=_combine))


@takes("logical_not.default", "bitwise_not.default", when=_OF_BOOLS)
def logical_not(call: AtenCall) -> Any:
    return _as_bool("Not", 1.0 - argument(0), *_bools(call, "self"))


@takes("where.self", "where.ScalarOther", "where.ScalarSelf", when=_ONE_DTYPE)
def where(call: AtenCall) -> Any:
    return _chosen(call, "condition", "self", "other")


@takes("masked_fill.Scalar", "masked_fill.Tensor", when=_ONE_DTYPE)
def masked_fill(call: AtenCall) -> Any:
    return _chosen(call, "mask", "value", "self")


def _chosen(call: AtenCall, condition: str, true: str, false: str) -> Any:
    """Selects ``true`` where ``condition`` holds and ``false`` elsewhere; both may be numbers."""
    (mask,) = _bools(call, condition)
    names = [name for name in (true, false) if call.is_tensor(name)]
    arguments = {name: argument(position) for position, name in enumerate(names, 1)}
    choices = [
        arguments[name] if name in arguments else constant(float(call.number(name)))
        for name in (true, false)
    ]
    dtype = call.result.dtype
    body = scalar.where(argument(0) > 0.0, *choices)
    op = ops.Formula(body, tensors=1 + len(names), title="Where", dtype=dtype)
    return apply(op, mask, *operands(call, *names))
