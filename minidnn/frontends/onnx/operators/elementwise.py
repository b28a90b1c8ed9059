"""Element-wise operators of two or more operands, and casts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Body
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.tensors import dtype_of
from minidnn.graph import operators as ops
from minidnn.graph.expression import (
    Expression,
    apply,
    equal,
    exp,
    floor,
    fma,
    maximum,
    minimum,
    where,
)
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import INT8_DTYPES, INTEGERS

_family = Family("element-wise with broadcasting")
CONVERTERS = _family.converters


def _operands(call: OnnxCall) -> tuple[Value, Value]:
    """The two operands; before opset 7 the second is aligned at the first one's ``axis``."""
    a, b = call.operand(0), call.operand(1)
    if call.opset >= 7:
        return a, b
    axis = call.integer("axis", a.type.rank - b.type.rank)
    if call.flag("broadcast"):
        trailing = a.type.rank - axis - b.type.rank
        b = call.build.view(b, (*b.shape, *(1,) * max(trailing, 0)))
    return a, b


def _binary(name: str, body: Body, op: Operator | None = None, dtype: str | None = None) -> None:
    """Registers an operator of two operands, with a named graph operator if there is one."""

    def convert(call: OnnxCall) -> Value:
        a, b = _operands(call)
        return call.build.pointwise(call.kind, body, a, b, dtype=dtype, op=op)

    _family.add(name, convert)


_binary("Add", lambda a, b: a + b, ops.Add())
_binary("Sub", lambda a, b: a - b, ops.Sub())
_binary("Mul", lambda a, b: a * b, ops.Mul())
_binary("Div", lambda a, b: a / b, ops.Div())
_binary("Less", lambda a, b: a < b, dtype="bool")
_binary("LessOrEqual", lambda a, b: a <= b, dtype="bool")
_binary("Greater", lambda a, b: a > b, dtype="bool")
_binary("GreaterOrEqual", lambda a, b: a >= b, dtype="bool")
_binary("Equal", equal, dtype="bool")
_binary("And", minimum, dtype="bool")
_binary("Or", maximum, dtype="bool")
_binary("Xor", lambda a, b: abs(a - b), dtype="bool")


@_family("PRelu")
def _prelu(call: OnnxCall) -> Value:
    x, slope = call.operand(0), call.operand(1)
    if call.opset < 7 and slope.type.rank == 1 and slope.type.size > 1:  # one for each channel
        slope = call.build.view(slope, (*slope.shape, *(1,) * (x.type.rank - 2)))
    return call.build.pointwise("PRelu", lambda x, a: where(x > 0.0, x, x * a), x, slope)


@_family("SwiGLU")
def _swiglu(call: OnnxCall) -> Value:
    gate, x = call.operand(0), call.operand(1)
    if gate.shape != x.shape:
        raise GraphError(f"operands have shapes {gate.shape} and {x.shape}; valid are equal ones")
    alpha = call.number("alpha", 1.0)
    return call.build.pointwise("SwiGLU", lambda a, b: a / (1.0 + exp(-alpha * a)) * b, gate, x)


@_family("Not")
def _not(call: OnnxCall) -> Value:
    return call.build.pointwise("Not", lambda a: 1.0 - a, call.operand(0), dtype="bool")


def _variadic(name: str, combine: Callable[[Expression, Expression], Expression]) -> None:
    """Registers an operator that combines any number of operands from left to right."""

    def convert(call: OnnxCall) -> Value:
        return call.build.pointwise(
            call.kind, lambda *operands: functools.reduce(combine, operands), *call.all
        )

    _family.add(name, convert)


_variadic("Max", maximum)
_variadic("Min", minimum)
_variadic("Sum", lambda a, b: a + b)


@_family("Mean")
def _mean(call: OnnxCall) -> Value:
    count = len(call.all)
    return call.build.pointwise(
        "Mean", lambda *values: functools.reduce(lambda a, b: a + b, values) / count, *call.all
    )


@_family("Pow")
def _pow(call: OnnxCall) -> Value:
    base, exponent = _operands(call)
    if {base.dtype, exponent.dtype} == set(INTEGERS):
        exponent = call.build.cast(exponent, base.dtype)
    if isinstance(exponent, Constant) and exponent.type.size == 1:
        power = float(exponent.data.reshape(-1)[0])
        if power in (2.0, 3.0) and exponent.type.rank <= base.type.rank:
            return call.build.pointwise("Pow", lambda x: x * x if power == 2.0 else x * x * x, base)
    return call.build.pointwise(
        "Pow", lambda a, b: apply("pow", a, b), base, exponent, dtype=base.dtype
    )


@_family("Mod")
def _mod(call: OnnxCall) -> Value:
    """Of floating-point numbers exact for quotients below 2^24."""
    a, b = call.operand(0), call.operand(1)
    remainder = _integer_remainder if a.dtype in INTEGERS else _float_rest
    if not call.flag("fmod"):
        return call.build.pointwise("Mod", lambda a, b: _signed_like(remainder(a, b), b), a, b)
    return call.build.pointwise("Mod", remainder, a, b)


def _integer_remainder(a: Expression, b: Expression) -> Expression:
    """The remainder with the dividend's sign: integer division truncates."""
    return a - (a / b) * b


def _signed_like(rest: Expression, b: Expression) -> Expression:
    """The remainder with the divisor's sign, of one with the dividend's."""
    opposed = (rest < 0) * (b > 0) + (rest > 0) * (b < 0)
    return where(opposed > 0, rest + b, rest)


def _float_rest(a: Expression, b: Expression) -> Expression:
    """The remainder with the dividend's sign, by one fused multiply-add and so without rounding.

    It is corrected where the rounded quotient was one too large or too small.
    """
    size, divisor = abs(a), abs(b)
    remainder = fma(-floor(size / divisor), divisor, size)
    remainder = where(remainder < 0.0, remainder + divisor, remainder)
    remainder = where(remainder >= divisor, remainder - divisor, remainder)
    remainder = where(divisor >= math.inf, size + size * 0.0, remainder)
    return where(a < 0.0, -remainder, remainder)


@_family("Where")
def _where(call: OnnxCall) -> Value:
    condition, a, b = (call.operand(i) for i in range(3))
    return call.build.pointwise(
        "Where", lambda c, a, b: where(c > 0, a, b), condition, a, b, dtype=a.dtype
    )


@_family("Cast")
def _cast(call: OnnxCall) -> Value:
    """Among float16, float32, float64, int32, int64, bool, int8 and uint8, but not to int8 or uint8
    from another of the integers."""
    to = call.integer("to", 0)
    call.integer("saturate", 1)
    call.text("round_mode", "up")
    return _converted(call, call.operand(0), dtype_of(to, "attribute 'to'"))


@_family("CastLike")
def _cast_like(call: OnnxCall) -> Value:
    """As Cast."""
    call.integer("saturate", 1)
    call.text("round_mode", "up")
    return _converted(call, call.operand(0), call.operand(1).dtype)


def _converted(call: OnnxCall, x: Value, dtype: str) -> Value:
    """A value cast to a dtype; integers to int8 or uint8 are refused, since they would wrap."""
    if dtype in INT8_DTYPES and x.dtype != dtype and x.dtype in (*INTEGERS, *INT8_DTYPES):
        raise call.refuse(f"it makes {dtype} of {x.dtype}, which would wrap; valid is a float")
    return call.build.cast(x, dtype)
