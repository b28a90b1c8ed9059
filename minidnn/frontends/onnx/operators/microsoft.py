"""Operators of ONNX Runtime's own domain, which it uses, with ONNX's, in networks it quantizes.

Most of them dequantize their operands, compute in float32 and quantize the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.operators.pooling import average_pool, global_average_pool
from minidnn.frontends.onnx.operators.quantization import product, requantized
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, exp, where
from minidnn.graph.ir import Constant, Value
from minidnn.graph.quantization import DEQUANTIZE, QUANTIZE, dequantized, quantized
from minidnn.graph.types import INT8_DTYPES

DOMAIN = "com.microsoft"

_family = Family("quantization")
CONVERTERS = _family.converters


def _number(call: OnnxCall, at: int) -> Value:
    """The dequantized operand ``at``; its scale and its zero point are the two operands after."""
    build, x, scale = call.build, call.operand(at), call.operand(at + 1)
    if x.dtype not in INT8_DTYPES or scale.dtype != "float32":
        raise call.refuse(
            f"its operand {at} is {x.dtype} by a scale in {scale.dtype}; valid are int8 and uint8 "
            "by float32"
        )
    operands = (_one(call, scale, "scale"), _zero(call, at + 2, x.dtype))
    return build.pointwise(DEQUANTIZE, dequantized, x, *operands, compute="float32")


def _rounded(call: OnnxCall, y: Value, at: int, dtype: str) -> Value:
    """A result quantized to ``dtype``, by the scale ``at`` and the zero point after it."""
    scale, zero = _one(call, call.operand(at), "scale"), _zero(call, at + 1, dtype)
    return call.build.pointwise(QUANTIZE, quantized, y, scale, zero, dtype=dtype)


def _like_operand(call: OnnxCall, y: Value) -> Value:
    """The result of an operator of one operand, quantized to the operand's dtype."""
    return _rounded(call, y, 3, call.operand(0).dtype)


def _zero(call: OnnxCall, at: int, dtype: str) -> Value:
    """A scalar zero point in float32, by default 0."""
    zero = call.optional(at)
    if zero is None:
        return call.build.filled((), 0, "float32")
    if call.build.dtype(zero) != dtype:
        raise GraphError(f"its zero point is {call.build.dtype(zero)}; valid is {dtype}")
    return call.build.cast(_one(call, zero, "zero point"), "float32")


def _one(call: OnnxCall, value: Value, what: str) -> Value:
    """An operand of a single element as a scalar."""
    if value.type.size != 1:
        raise call.refuse(f"its {what} has shape {value.shape}; valid is one number")
    return call.build.view(value, ())


def _add_binary(title: str, compute: Callable[[Expression, Expression], Expression]) -> None:
    """Registers a quantized element-wise operator of two operands."""

    def convert(call: OnnxCall) -> Value:
        result = call.build.pointwise(title, compute, _number(call, 0), _number(call, 3))
        return _rounded(call, result, 6, call.operand(0).dtype)

    _family.add(f"QLinear{title}", convert)


_add_binary("Add", lambda a, b: a + b)
_add_binary("Mul", lambda a, b: a * b)


@_family("QLinearSigmoid")
def _sigmoid(call: OnnxCall) -> Value:
    x = _number(call, 0)
    return _like_operand(call, call.build.pointwise("Sigmoid", lambda a: 1.0 / (1.0 + exp(-a)), x))


@_family("QLinearLeakyRelu")
def _leaky_relu(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 0.01)
    x = _number(call, 0)
    return _like_operand(
        call, call.build.pointwise("LeakyRelu", lambda a: where(a < 0.0, alpha * a, a), x)
    )


@_family("QLinearConcat")
def _concat(call: OnnxCall) -> Value:
    count, more = divmod(len(call) - 2, 3)
    if count < 1 or more:
        raise GraphError(f"it has {len(call)} inputs; valid are 2, and 3 for each operand")
    zero = call.optional(1)
    dtype = call.operand(2).dtype if zero is None else call.build.dtype(zero)
    parts = [_rounded(call, _number(call, 2 + 3 * i), 0, dtype) for i in range(count)]
    axis = call.axis(call.integer("axis", 1), parts[0].type.rank)
    return parts[0] if count == 1 else call.build.apply(ops.Concat(axis), *parts)


def _pooled(call: OnnxCall, pool: Callable[[OnnxCall, Value], Value]) -> Value:
    """The quantized result of pooling the dequantized operand."""
    if call.flag("channels_last"):
        raise call.refuse("its channels are the last axis")
    return _like_operand(call, pool(call, _number(call, 0)))


@_family("QLinearAveragePool")
def _average_pool(call: OnnxCall) -> Value:
    """Of one to three dimensions, with channels as axis 1."""
    return _pooled(call, average_pool)


@_family("QLinearGlobalAveragePool")
def _global_average_pool(call: OnnxCall) -> Value:
    """With channels as axis 1."""
    return _pooled(call, global_average_pool)


@_family("QGemm")
def _gemm(call: OnnxCall) -> Value:
    """By scales that are known."""
    build = call.build
    factors = (_transposed(call, 0, "transA"), call.optional(2), _transposed(call, 3, "transB"))
    sums = product(build, *factors, call.optional(5), call.optional(6))
    a, b = (call.known(at, "scale").astype(np.float32).reshape(-1) for at in (1, 4))
    scale = np.float32(call.number("alpha", 1.0)) * a * b
    if call.optional(7) is not None:
        scale = scale / call.known(7, "scale").astype(np.float32).reshape(-1)
        zero = call.optional(8)
        zero = build.filled((), 0, call.operand(0).dtype) if zero is None else zero
        return requantized(call, sums, scale, zero, None)
    factor = build.constant(scale.reshape(()) if scale.size == 1 else scale)
    return build.pointwise("Rescale", lambda s, f: s * f, sums, factor, compute="float32")


def _transposed(call: OnnxCall, at: int, flag: str) -> Value:
    """A matrix operand, transposed if the attribute ``flag`` says so."""
    value = call.operand(at)
    if value.type.rank != 2:
        raise GraphError(f"its operand {at} has shape {value.shape}; valid are two axes")
    if not call.flag(flag):
        return value
    if isinstance(value, Constant):
        return call.build.constant(np.ascontiguousarray(value.data.T))
    return call.build.transpose(value, (1, 0))
