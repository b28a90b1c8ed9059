"""Arithmetic of two operands, of which one may be a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype, rounded_to

Arithmetic = Callable[[Any, Any], Any]


def _binary(call: AtenCall, op: Elementwise, compute: Arithmetic, alpha: float = 1.0) -> Any:
    """``compute(self, alpha * other)``; numbers go into a formula."""
    if call.is_tensor("other"):
        x, other = operands(call, "self", "other")
        if alpha == 1.0:
            return apply(op, x, other)
        body = compute(argument(0), alpha * argument(1))
        return apply(ops.Formula(body, tensors=2, title=op.name), x, other)
    x = call.tensor("self")
    number = alpha * float(call.number("other"))
    return apply(ops.Formula(compute(argument(0), constant(number)), title=op.name), x)


def operands(call: AtenCall, *names: str) -> tuple[Value, ...]:
    """Operands in the dtype of the result, to which PyTorch converts them first: a constant is
    converted here."""
    expected = call.result.dtype
    given = [call.tensor(name) for name in names]
    found = tuple(_converted(v, expected) if isinstance(v, Constant) else v for v in given)
    if {value.dtype for value in found} != {expected}:
        raise Refused(f"operands have dtypes {', '.join(dict.fromkeys(v.dtype for v in given))}")
    return found


def _converted(value: Constant, dtype: str) -> Constant:
    if value.dtype == dtype:
        return value

    def data() -> np.ndarray:
        if dtype in FLOATS:
            return rounded_to(dtype, value.data)
        return value.data.astype(numpy_dtype(dtype))

    type = TensorType(value.shape, dtype)
    return current_trace().constant((value, dtype), f"{value.name}.{dtype}", type, data)


@takes("add.Tensor", "add.Scalar")
def add(call: AtenCall) -> Any:
    alpha = float(call.number("alpha"))
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant) and alpha == 1.0:
        # A sum is the same either way, and a constant in the second place is what is expected.
        return apply(ops.Add(), *reversed(operands(call, "self", "other")))
    return _binary(call, ops.Add(), lambda a, b: a + b, alpha)


@takes("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def sub(call: AtenCall) -> Any:
    return _binary(call, ops.Sub(), lambda a, b: a - b, float(call.number("alpha")))


@takes("rsub.Scalar", "rsub.Tensor")
def rsub(call: AtenCall) -> Any:
    alpha = float(call.number("alpha"))
    if call.is_tensor("other"):
        body = argument(1) - alpha * argument(0)
        return apply(ops.Formula(body, tensors=2, title="Sub"), *operands(call, "self", "other"))
    x = call.tensor("self")
    body = float(call.number("other")) - alpha * argument(0)
    return apply(ops.Formula(body, title="Sub"), x)


@takes("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def mul(call: AtenCall) -> Any:
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant):
        return apply(ops.Mul(), *reversed(operands(call, "self", "other")))
    return _binary(call, ops.Mul(), lambda a, b: a * b)


@takes(
    "div.Tensor",
    "div.Scalar",
    "divide.Tensor",
    "divide.Scalar",
    "true_divide.Tensor",
    "true_divide.Scalar",
)
def div(call: AtenCall) -> Any:
    return _binary(call, ops.Div(), lambda a, b: a / b)


def _extremum(call: AtenCall, title: str, body: Any) -> Any:
    return apply(ops.Formula(body, tensors=2, title=title), *operands(call, "self", "other"))


@takes("maximum.default", "max.other")
def maximum(call: AtenCall) -> Any:
    return _extremum(call, "Maximum", scalar.maximum(argument(0), argument(1)))


@takes("minimum.default", "min.other")
def minimum(call: AtenCall) -> Any:
    return _extremum(call, "Minimum", scalar.minimum(argument(0), argument(1)))


@takes("addcmul.default")
def addcmul(call: AtenCall) -> Any:
    return _added(call, "Addcmul", lambda a, b: a * b)


@takes("addcdiv.default")
def addcdiv(call: AtenCall) -> Any:
    return _added(call, "Addcdiv", lambda a, b: a / b)


def _added(call: AtenCall, title: str, compute: Arithmetic) -> Any:
    """``self + value * compute(tensor1, tensor2)``"""
    x, a, b = argument(0), argument(1), argument(2)
    value = float(call.number("value"))
    body = x + compute(a if value == 1.0 else value * a, b)
    three = operands(call, "self", "tensor1", "tensor2")
    return apply(ops.Formula(body, tensors=3, title=title), *three)


@takes("lerp.Scalar", "lerp.Tensor")
def lerp(call: AtenCall) -> Any:
    """From the nearer end, as PyTorch computes it, so that both ends are met."""
    start, end = argument(0), argument(1)
    if call.is_tensor("weight"):
        weight, names = argument(2), ["self", "end", "weight"]
    else:
        weight, names = constant(float(call.number("weight"))), ["self", "end"]
    apart = end - start
    body = scalar.where(abs(weight) < 0.5, start + weight * apart, end - apart * (1.0 - weight))
    return apply(ops.Formula(body, tensors=len(names), title="Lerp"), *operands(call, *names))
