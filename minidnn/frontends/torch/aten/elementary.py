"""Elementary functions, powers and rounding, element by element."""

from __future__ import annotations

import math
from typing import Any

from minidnn.frontends.torch.aten.activations import formula, sqrt
from minidnn.frontends.torch.aten.arithmetic import operands
from minidnn.frontends.torch.aten.call import AtenCall, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.trace import apply


@takes("pow.Tensor_Scalar")
def power(call: AtenCall) -> Any:
    """Whole exponents to 4 are products, as in PyTorch those to 3 are, of inverses if they are
    negative: the inverse of a product has no derivative where the product is 0 or infinite."""
    exponent = float(call.number("exponent"))
    if exponent == 0.5:
        return sqrt(call)
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


@takes("exp2.default")
def exp2(call: AtenCall) -> Any:
    return formula(call, "Exp2", scalar.apply("pow", constant(2.0), argument(0)))


@takes("log2.default")
def log2(call: AtenCall) -> Any:
    return formula(call, "Log2", scalar.log(argument(0)) * (1 / math.log(2)))


@takes("log10.default")
def log10(call: AtenCall) -> Any:
    return formula(call, "Log10", scalar.log(argument(0)) * (1 / math.log(10)))


@takes("sin.default")
def sin(call: AtenCall) -> Any:
    return formula(call, "Sin", scalar.sin(argument(0)))


@takes("cos.default")
def cos(call: AtenCall) -> Any:
    return formula(call, "Cos", scalar.cos(argument(0)))


@takes("atan.default")
def atan(call: AtenCall) -> Any:
    return formula(call, "Atan", scalar.atan(argument(0)))


@takes("floor.default")
def floor(call: AtenCall) -> Any:
    return formula(call, "Floor", scalar.floor(argument(0)))


@takes("ceil.default")
def ceil(call: AtenCall) -> Any:
    return formula(call, "Ceil", -scalar.floor(-argument(0)))


@takes("round.default")
def rounded(call: AtenCall) -> Any:
    return formula(call, "Round", scalar.rint(argument(0)))


@takes("trunc.default")
def trunc(call: AtenCall) -> Any:
    return formula(call, "Trunc", _towards_zero(argument(0)))


def _towards_zero(x: Expression) -> Expression:
    return scalar.where(x < 0.0, -scalar.floor(-x), scalar.floor(x))


@takes("sign.default")
def sign(call: AtenCall) -> Any:
    """Of NaN it is 0, as in PyTorch."""
    x = argument(0)
    return formula(
        call, "Sign", scalar.where(x > 0.0, constant(1.0), scalar.where(x < 0.0, -1.0, 0.0))
    )
