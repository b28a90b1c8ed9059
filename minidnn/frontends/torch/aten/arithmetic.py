"""Arithmetic of two operands, of which one may be a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype, rounded_to

Arithmetic = Callable[[Any, Any], Any]


def _binary(call: Call, op: Elementwise, compute: Arithmetic, alpha: float = 1.0) -> Any:
    """``compute(self, alpha * other)``; numbers go into a formula."""
    if call.is_tensor("other"):
        x, other = _operands(call)
        if alpha == 1.0:
            return apply(op, x, other)
        body = compute(argument(0), alpha * argument(1))
        return apply(ops.Formula(body, tensors=2, title=op.name), x, other)
    x = call.tensor("self")
    number = alpha * float(call.number("other"))
    return apply(ops.Formula(compute(argument(0), constant(number)), title=op.name), x)


def _operands(call: Call) -> tuple[Value, Value]:
    """Both operands in the dtype of the result, to which PyTorch converts them first: a constant
    is converted here."""
    expected = call.result.dtype
    given = call.tensor("self"), call.tensor("other")
    x, other = (_converted(v, expected) if isinstance(v, Constant) else v for v in given)
    if {x.dtype, other.dtype} != {expected}:
        raise Refused(f"operands have dtypes {', '.join(dict.fromkeys(v.dtype for v in given))}")
    return x, other


def _converted(value: Constant, dtype: str) -> Constant:
    if value.dtype == dtype:
        return value

    def data() -> np.ndarray:
        if dtype in FLOATS:
            return rounded_to(dtype, value.data)
        return value.data.astype(numpy_dtype(dtype))

    return Constant(TensorType(value.shape, dtype), f"{value.name}.{dtype}", data)


@takes("add.Tensor", "add.Scalar")
def add(call: Call) -> Any:
    alpha = float(call.number("alpha"))
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant) and alpha == 1.0:
        # A sum is the same either way, and a constant in the second place is what is expected.
        return apply(ops.Add(), *reversed(_operands(call)))
    return _binary(call, ops.Add(), lambda a, b: a + b, alpha)


@takes("sub.Tensor", "sub.Scalar")
def sub(call: Call) -> Any:
    return _binary(call, ops.Sub(), lambda a, b: a - b, float(call.number("alpha")))


@takes("rsub.Scalar", "rsub.Tensor")
def rsub(call: Call) -> Any:
    alpha = float(call.number("alpha"))
    if call.is_tensor("other"):
        body = argument(1) - alpha * argument(0)
        return apply(ops.Formula(body, tensors=2, title="Sub"), *_operands(call))
    x = call.tensor("self")
    body = float(call.number("other")) - alpha * argument(0)
    return apply(ops.Formula(body, title="Sub"), x)


@takes("mul.Tensor", "mul.Scalar")
def mul(call: Call) -> Any:
    if call.is_tensor("other") and isinstance(call.tensor("self"), Constant):
        return apply(ops.Mul(), *reversed(_operands(call)))
    return _binary(call, ops.Mul(), lambda a, b: a * b)


@takes("div.Tensor", "div.Scalar")
def div(call: Call) -> Any:
    return _binary(call, ops.Div(), lambda a, b: a / b)


def _extremum(call: Call, title: str, body: Any) -> Any:
    return apply(ops.Formula(body, tensors=2, title=title), *_operands(call))


@takes("maximum.default")
def maximum(call: Call) -> Any:
    return _extremum(call, "Maximum", scalar.maximum(argument(0), argument(1)))


@takes("minimum.default")
def minimum(call: Call) -> Any:
    return _extremum(call, "Minimum", scalar.minimum(argument(0), argument(1)))
