"""Arithmetic of two operands, of which one may be a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.trace import apply

Arithmetic = Callable[[Any, Any], Any]


def _binary(call: Call, op: Elementwise, compute: Arithmetic, alpha: float = 1.0) -> Any:
    """``compute(self, alpha * other)``; numbers go into a formula."""
    x = call.tensor("self")
    if call.is_tensor("other"):
        other = call.tensor("other")
        _same_dtype(call, x, other)
        if alpha == 1.0:
            return apply(op, x, other)
        body = compute(argument(0), alpha * argument(1))
        return apply(ops.Formula(body, tensors=2, title=op.name), x, other)
    number = alpha * float(call.number("other"))
    return apply(ops.Formula(compute(argument(0), constant(number)), title=op.name), x)


def _same_dtype(call: Call, *values: Value) -> None:
    """PyTorch would convert operands of other dtypes first."""
    dtypes = list(dict.fromkeys(value.dtype for value in (*values,)))
    if dtypes != [call.result.dtype]:
        raise Refused(f"operands have dtypes {', '.join(dtypes)}")


@takes("add.Tensor", "add.Scalar")
def add(call: Call) -> Any:
    alpha = float(call.number("alpha"))
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant) and alpha == 1.0:
        # A sum is the same either way, and a constant in the second place is what is expected.
        _same_dtype(call, call.tensor("self"), call.tensor("other"))
        return apply(ops.Add(), call.tensor("other"), call.tensor("self"))
    return _binary(call, ops.Add(), lambda a, b: a + b, alpha)


@takes("sub.Tensor", "sub.Scalar")
def sub(call: Call) -> Any:
    return _binary(call, ops.Sub(), lambda a, b: a - b, float(call.number("alpha")))


@takes("rsub.Scalar", "rsub.Tensor")
def rsub(call: Call) -> Any:
    alpha = float(call.number("alpha"))
    x = call.tensor("self")
    if call.is_tensor("other"):
        other = call.tensor("other")
        _same_dtype(call, x, other)
        body = argument(1) - alpha * argument(0)
        return apply(ops.Formula(body, tensors=2, title="Sub"), x, other)
    body = float(call.number("other")) - alpha * argument(0)
    return apply(ops.Formula(body, title="Sub"), x)


@takes("mul.Tensor", "mul.Scalar")
def mul(call: Call) -> Any:
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant):
        _same_dtype(call, call.tensor("self"), call.tensor("other"))
        return apply(ops.Mul(), call.tensor("other"), call.tensor("self"))
    return _binary(call, ops.Mul(), lambda a, b: a * b)


@takes("div.Tensor", "div.Scalar")
def div(call: Call) -> Any:
    return _binary(call, ops.Div(), lambda a, b: a / b)


def _extremum(call: Call, title: str, body: Any) -> Any:
    x, other = call.tensor("self"), call.tensor("other")
    _same_dtype(call, x, other)
    return apply(ops.Formula(body, tensors=2, title=title), x, other)


@takes("maximum.default")
def maximum(call: Call) -> Any:
    return _extremum(call, "Maximum", scalar.maximum(argument(0), argument(1)))


@takes("minimum.default")
def minimum(call: Call) -> Any:
    return _extremum(call, "Minimum", scalar.minimum(argument(0), argument(1)))
