"""Element-wise arithmetic: binary operations of tensors and numbers, clamping, and powers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidnn._torch_internals import VERSION
from minidnn.frontends.torch.aten.activations import formula
from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant, equal, where
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.scalar_functions import at_least, at_most
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype, rounded_to

Arithmetic = Callable[[Any, Any], Any]
#: A minimum or maximum of two expressions; those here differ in their gradients where both are
#: equal.
Limit = Callable[[Expression, Expression], Expression]

#: PyTorch 2.14 changed the gradient of clamping where a value equals its bound.  Before, all of it
#: flows to the value.  Since then, a bound that is a number blocks it, and a bound that is a tensor
#: gets half of it.  The rule of the installed version is followed.
IS_SHARED = VERSION >= (2, 14)
#: Plain extrema, which are cheaper, for graphs without gradients.
_EXTREMA: dict[str, Limit] = {"min": scalar.maximum, "max": scalar.minimum}
#: Extrema whose gradient, at a bound, is that of the value.
_THE_VALUES: dict[str, Limit] = {"min": at_least, "max": at_most}


def _binary(call: AtenCall, op: Elementwise, compute: Arithmetic, alpha: float = 1.0) -> Any:
    """``compute(self, alpha * other)``: the operator ``op`` for two tensors and alpha = 1, and a
    formula otherwise."""
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
    """The operands in the dtype of the result, to which PyTorch promotes them: constants are
    converted, and other operands of another dtype are refused."""
    expected = call.result.dtype
    originals = [call.tensor(name) for name in names]
    converted = tuple(_converted(v, expected) if isinstance(v, Constant) else v for v in originals)
    if {value.dtype for value in converted} != {expected}:
        raise Refused(
            f"operands have dtypes {', '.join(dict.fromkeys(v.dtype for v in originals))}"
        )
    return converted


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
        # Addition commutes, and passes expect a constant as the second operand.
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


takes("maximum.default", "max.other")(
    partial(_extremum, title="Maximum", body=scalar.maximum(argument(0), argument(1)))
)
takes("minimum.default", "min.other")(
    partial(_extremum, title="Minimum", body=scalar.minimum(argument(0), argument(1)))
)


def _added(call: AtenCall, title: str, compute: Arithmetic) -> Any:
    """``self + value * compute(tensor1, tensor2)``"""
    x, a, b = argument(0), argument(1), argument(2)
    value = float(call.number("value"))
    body = x + compute(a if value == 1.0 else value * a, b)
    tensors = operands(call, "self", "tensor1", "tensor2")
    return apply(ops.Formula(body, tensors=3, title=title), *tensors)


takes("addcmul.default")(partial(_added, title="Addcmul", compute=lambda a, b: a * b))
takes("addcdiv.default")(partial(_added, title="Addcdiv", compute=lambda a, b: a / b))


@takes("lerp.Scalar", "lerp.Tensor")
def lerp(call: AtenCall) -> Any:
    """Interpolates from the nearer end, as PyTorch does, so that both ends are exact."""
    start, end = argument(0), argument(1)
    if call.is_tensor("weight"):
        weight, names = argument(2), ["self", "end", "weight"]
    else:
        weight, names = constant(float(call.number("weight"))), ["self", "end"]
    difference = end - start
    body = where(abs(weight) < 0.5, start + weight * difference, end - difference * (1.0 - weight))
    return apply(ops.Formula(body, tensors=len(names), title="Lerp"), *operands(call, *names))


@takes("clamp.default", "clamp_min.default", "clamp_max.default", when="the bounds are numbers")
def clamp(call: AtenCall) -> Any:
    limits = _EXTREMA
    if call.trained:
        limits = {"min": _above, "max": _below} if IS_SHARED else _THE_VALUES
    body = argument(0)
    for name, limited in limits.items():
        if name in call.names and call[name] is not None:
            body = limited(body, constant(float(call.number(name))))
    return apply(ops.Formula(body, title="Clamp"), call.tensor("self"))


@takes("clamp.Tensor")
def clamp_between(call: AtenCall) -> Any:
    """Where the upper bound is below the lower one, the result is the upper bound."""
    names = [name for name in _EXTREMA if call.is_tensor(name)]
    limits = _THE_VALUES if call.trained and not IS_SHARED else _EXTREMA
    body = argument(0)
    if call.trained and IS_SHARED and len(names) == 2:
        body = _between(argument(0), argument(1), argument(2))
    else:
        for position, name in enumerate(names, 1):
            body = limits[name](body, argument(position))
    tensors = 1 + len(names)
    return apply(ops.Formula(body, tensors=tensors, title="Clamp"), *operands(call, "self", *names))


def _above(x: Expression, low: Expression) -> Expression:
    """``max(x, low)`` for a number ``low``; its gradient is 0 where both are equal or NaN."""
    return where(x > low, x, where(x <= low, low, 0.0 * (x + low)))


def _below(x: Expression, high: Expression) -> Expression:
    """``min(x, high)`` for a number ``high``, as :func:`_above` is the maximum."""
    return where(x < high, x, where(x >= high, high, 0.0 * (x + high)))


def _between(x: Expression, low: Expression, high: Expression) -> Expression:
    """``x`` clamped between two tensors.

    Where ``x`` equals one of two different bounds, it and the bound get half of the gradient each.
    Where bounds are NaN or in the wrong order, gradients are those of PyTorch.
    """
    of_low = where(low <= high, low, 0.0 * (x + high))  # NaN without a gradient
    of_high = where(low <= high, high, 0.0 * (x + low))
    at_a_bound = where(
        equal(x, low),
        0.5 * x + 0.5 * low,
        where(equal(x, high), 0.5 * x + 0.5 * high, x),
    )
    degenerate = where(equal(low, high), x, x + 0.0 * (low + high))
    inside = where(low < high, at_a_bound, degenerate)
    clamped = where(x < low, of_low, where(x > high, of_high, inside))
    return where(low > high, where(equal(x, x), high, x + high), clamped)


@takes("pow.Tensor_Scalar")
def power(call: AtenCall) -> Any:
    """Integer exponents up to 4 become products (in PyTorch, up to 3).  Negative ones become
    products of reciprocals, because the reciprocal of a product has no derivative where the product
    is 0 or infinite."""
    exponent = float(call.number("exponent"))
    if exponent == 0.5:
        return formula(call, "Sqrt", scalar.sqrt(argument(0)))
    if exponent.is_integer() and 1 <= abs(exponent) <= 4:
        base = argument(0) if exponent > 0 else 1.0 / argument(0)
        return formula(call, "Pow", math.prod([base] * abs(int(exponent)), start=constant(1.0)))
    if exponent == -0.5:
        return formula(call, "Pow", 1.0 / scalar.sqrt(argument(0)))
    return formula(call, "Pow", scalar.apply("pow", argument(0), exponent))


@takes("pow.Tensor_Tensor")
def power_of_tensors(call: AtenCall) -> Any:
    body = scalar.apply("pow", argument(0), argument(1))
    return apply(ops.Formula(body, tensors=2, title="Pow"), *operands(call, "self", "exponent"))


@takes("pow.Scalar")
def power_of_number(call: AtenCall) -> Any:
    body = scalar.apply("pow", constant(float(call.number("self"))), argument(0))
    return apply(ops.Formula(body, title="Pow"), *operands(call, "exponent"))
