"""Quantization: QuantizeLinear and DequantizeLinear, and contractions of int8 and uint8.

A quantized element is an integer that stands for ``(integer - zero point) * scale``.  Contractions
accumulate products in int32; the zero point of the input is an attribute of the contraction, and
that of the weight is subtracted from the weight.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.operators.contraction import (
    convolution,
    matmul,
    narrow,
    spatial_rank,
    wide,
)
from minidnn.frontends.onnx.operators.windows import spatial_axes
from minidnn.frontends.onnx.tensors import dtype_of
from minidnn.graph import operators as ops
from minidnn.graph.expression import maximum, minimum, rint, where
from minidnn.graph.ir import Constant, Value
from minidnn.graph.quantization import DEQUANTIZE, PER_CHANNEL, QUANTIZE, dequantized, quantized
from minidnn.graph.types import INT8_DTYPES, TensorType, numpy_dtype

_family = Family("quantization")
CONVERTERS = _family.converters


@_family("DequantizeLinear")
def _dequantize(call: OnnxCall) -> Value:
    """int16, uint16 and 4 bits of constants alone, float8 not at all."""
    build, x = call.build, call.operand(0)
    scale, zero = _steps(call, x)
    output_type = call.integer("output_dtype", 0)
    scale_dtype = call.operand(1).dtype
    dtype = dtype_of(output_type, "attribute 'output_dtype'") if output_type else scale_dtype
    if isinstance(x, Constant) and isinstance(scale, Constant) and isinstance(zero, Constant):
        return _dequantized_constant(build, x, scale, zero, scale_dtype, dtype)
    operands = [build.cast(value, "float32") for value in (scale, zero)]
    out = build.pointwise(DEQUANTIZE, dequantized, x, *operands, compute="float32")
    return build.cast(out, dtype)


def _dequantized_constant(
    build: Builder, x: Constant, scale: Constant, zero: Constant, kind: str, dtype: str
) -> Value:
    """A dequantized constant, computed when it is first read.

    Of int8 and uint8 to float32, the builder keeps the operands, so that a pass can read the bytes
    instead.
    """
    build.spend(DEQUANTIZE, x.type.size * numpy_dtype(dtype).itemsize)
    shape = np.broadcast_shapes(x.shape, zero.shape, scale.shape)
    compute = partial(_numbers_of, x, scale, zero, kind, dtype)
    value = build.later(TensorType(shape, dtype), compute)
    if x.dtype not in INT8_DTYPES or dtype != "float32" or kind != "float32":
        return value
    scalar_shape = (1,) * x.type.rank
    operands = [
        build.constant(
            operand.data.astype(np.float32).reshape(
                scalar_shape if operand.shape == () else operand.shape
            )
        )
        for operand in (scale, zero)
    ]
    return build.keep(value, PER_CHANNEL, x, *operands)


def _numbers_of(x: Constant, scale: Constant, zero: Constant, kind: str, dtype: str) -> np.ndarray:
    """The dequantized array: computed in the scale's dtype ``kind``, and then cast, as in ONNX."""
    steps = x.data.astype(np.int64) - zero.data.astype(np.int64)
    with np.errstate(over="ignore"):
        return (steps.astype(kind) * scale.data.astype(kind)).astype(numpy_dtype(dtype))


@_family("QuantizeLinear")
def _quantize(call: OnnxCall) -> Value:
    """Of float32 to int8 and uint8."""
    build, x = call.build, call.operand(0)
    zero = call.optional(2)
    output_type = call.integer("output_dtype", 0)
    dtype = dtype_of(output_type, "attribute 'output_dtype'") if output_type else "uint8"
    dtype = dtype if zero is None else build.dtype(zero)
    call.integer("saturate", 1)
    if dtype not in INT8_DTYPES or x.dtype != "float32" or call.operand(1).dtype != "float32":
        raise call.refuse(
            f"it makes {dtype} of {x.dtype} by a scale in {call.operand(1).dtype}; valid are int8 "
            "and uint8 of float32 by float32"
        )
    if call.integer("precision", 0) not in (0, 1):
        raise call.refuse("it asks for another precision; valid is float32")
    scale, zero = _steps(call, x)
    operands = (x, scale, build.cast(zero, "float32"))
    return build.pointwise(QUANTIZE, quantized, *operands, dtype=dtype)


def _steps(call: OnnxCall, x: Value) -> tuple[Value, Value]:
    """The scale and the zero point of a node, as they broadcast with its input.

    They are per tensor, per channel along ``axis``, or per block along it.
    """
    build, scale, zero = call.build, call.operand(1), call.optional(2)
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    both_scalar = zero is not None and zero.type.size == scale.type.size == 1
    if zero is not None and zero.shape != scale.shape and not both_scalar:
        raise GraphError(
            f"its zero point has shape {zero.shape}; valid is {scale.shape}, as its scale"
        )
    zero = build.filled(scale.shape, 0, scale.dtype) if zero is None else zero
    if scale.type.size == 1 and not block:
        return build.view(scale, ()), build.view(zero, ())
    axis = call.axis(axis, x.type.rank)
    if block:
        repeated = partial(_repeated, call, x.shape, axis, block)
        return repeated(scale, "scale"), repeated(zero, "zero point")
    if scale.shape != x.shape[axis : axis + 1]:
        raise GraphError(
            f"its scale has shape {scale.shape}; valid is (), or ({x.shape[axis]},) for axis "
            f"{axis} of its input {x.shape}"
        )
    broadcast_shape = (1,) * axis + scale.shape + (1,) * (x.type.rank - 1 - axis)
    return build.view(scale, broadcast_shape), build.view(zero, broadcast_shape)


def _repeated(
    call: OnnxCall, shape: tuple[int, ...], axis: int, block: int, value: Value, what: str
) -> Value:
    """Constant scales or zero points per block along an axis, each repeated over its block."""
    array = call.data(value, what)
    blocks = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
    if block < 1 or array.shape != blocks:
        raise GraphError(
            f"its scale has shape {array.shape} with block_size={block}; valid is {blocks} for "
            f"axis {axis} of its input {shape}"
        )
    return call.build.constant(np.repeat(array, block, axis).take(range(shape[axis]), axis))


@_family("DynamicQuantizeLinear")
def _dynamic(call: OnnxCall) -> tuple[Value, ...]:
    build, x = call.build, call.operand(0)
    axes = tuple(range(x.type.rank))
    if not x.type.size or not axes:
        raise call.refuse(f"its input is {x.type}, which has no range")
    largest, smallest = (build.apply(ops.Reduce(how, axes), x) for how in ("max", "min"))
    scale = build.pointwise(
        "Scale",
        lambda a, b: _range(maximum(a, 0.0) - minimum(b, 0.0)) / 255.0,
        *(largest, smallest),
    )
    zero = build.pointwise(
        "ZeroPoint",
        lambda b, s: rint(minimum(maximum((0.0 - minimum(b, 0.0)) / s, 0.0), 255.0)),
        *(smallest, scale),
        dtype="uint8",
    )
    zero_float = build.cast(zero, "float32")
    return build.pointwise(QUANTIZE, quantized, x, scale, zero_float, dtype="uint8"), scale, zero


def _range(size: Any) -> Any:
    """The range of values, 1 if it is empty, so that the scale is not 0."""
    return where(size > 0.0, size, 1.0)


@_family("ConvInteger")
def _conv_integer(call: OnnxCall) -> Value:
    """Of one and two dimensions."""
    x, weight = call.operand(0), call.operand(1)
    return _convolved(call, x, call.optional(2), weight, call.optional(3), None)


@_family("QLinearConv")
def _qlinear_conv(call: OnnxCall) -> Value:
    """Of one and two dimensions, by scales that are known."""
    x, weight, bias = call.operand(0), call.operand(3), call.optional(8)
    sums = _convolved(call, x, call.operand(2), weight, call.operand(5), bias)
    return requantized(call, sums, _rescaling(call), call.operand(7), weight.shape[0])


def _convolved(
    call: OnnxCall,
    x: Value,
    x_zero: Value | None,
    weight: Value,
    weight_zero: Value | None,
    bias: Value | None,
) -> Value:
    """The convolution of integers less their zero points, with a bias, in int32."""
    build, spatial = call.build, spatial_rank(call, x, weight)
    axes = spatial_axes(call, x.shape[2:], weight.shape[2:])
    groups = call.integer("group", 1)
    zero, x = _with_zero(build, x, x_zero)
    weight = _without_zero(build, weight, weight_zero, 0)
    out = convolution(build, wide(build, x), wide(build, weight), bias, axes, groups, zero)
    return narrow(build, out, spatial)


@_family("MatMulInteger")
def _matmul_integer(call: OnnxCall) -> Value:
    a, b = call.operand(0), call.operand(1)
    return product(call.build, a, call.optional(2), b, call.optional(3))


@_family("QLinearMatMul")
def _qlinear_matmul(call: OnnxCall) -> Value:
    """By scales that are known."""
    a, b = call.operand(0), call.operand(3)
    sums = product(call.build, a, call.operand(2), b, call.operand(5))
    return requantized(call, sums, _rescaling(call), call.operand(7), None)


def product(
    build: Builder,
    a: Value,
    a_zero: Value | None,
    b: Value,
    b_zero: Value | None,
    bias: Value | None = None,
) -> Value:
    """Returns the matrix product of integers less their zero points, plus a bias, in int32."""
    if a_zero is not None and a_zero.type.size > 1:  # one for each row
        a_zero = build.view(a_zero, (*a_zero.shape, 1)) if a_zero.type.rank == 1 else a_zero
    right = _without_zero(build, b, b_zero, None)
    zero, left = _with_zero(build, a, a_zero)

    is_linear = isinstance(right, Constant) and right.type.rank == 2
    fuses_bias = is_linear and isinstance(bias, Constant) and bias.shape == right.shape[1:]

    def multiply(build: Builder, a: Value, b: Value) -> Value:
        if isinstance(b, Constant) and b.type.rank == 2:
            terms = [bias] if fuses_bias and bias is not None else []
            return build.apply(ops.Linear(zero), a, build.transpose(b, (1, 0)), *terms)
        shifted = build.pointwise("WithoutZero", lambda x: x - float(zero), a, dtype="int32")
        return build.apply(ops.MatMul(), shifted if zero else a, b)

    sums = matmul(build, left, right, multiply)
    if bias is None or fuses_bias:
        return sums
    return build.pointwise("Add", lambda a, b: a + b, sums, bias, dtype="int32")


def _with_zero(build: Builder, x: Value, zero: Value | None) -> tuple[int, Value]:
    """Returns the zero point of an input as a number, and the input.

    A zero point that is no constant scalar is subtracted, in int32, and 0 returned.
    """
    if zero is None:
        return 0, x
    if isinstance(zero, Constant) and zero.type.size == 1:
        return int(zero.data.reshape(-1)[0]), x
    shape = () if zero.type.size == 1 else zero.shape
    zero_view = build.view(zero, shape)
    return 0, build.pointwise("WithoutZero", lambda a, z: a - z, x, zero_view, dtype="int32")


def _without_zero(build: Builder, x: Value, zero: Value | None, axis: int | None) -> Value:
    """Returns a weight less its zero points: int8 if it is constant and they fit, else int32.

    ``axis`` is the axis along which zero points are; None for the last.
    """
    if zero is None:
        shape: tuple[int, ...] = ()
    elif zero.type.size == 1:
        shape = ()
    elif axis is None or zero.type.rank > 1:
        shape = zero.shape
    else:
        shape = zero.shape + (1,) * (x.type.rank - 1 - axis)
    if isinstance(x, Constant) and (zero is None or isinstance(zero, Constant)):
        difference = x.data.astype(np.int32)
        if isinstance(zero, Constant):
            difference = difference - zero.data.astype(np.int32).reshape(shape)
        fits = not difference.size or (difference.min() >= -128 and difference.max() <= 127)
        return build.constant(difference.astype(np.int8 if fits else np.int32))
    if zero is None:
        return x
    zero_view = build.view(zero, shape)
    return build.pointwise("WithoutZero", lambda a, z: a - z, x, zero_view, dtype="int32")


def _rescaling(call: OnnxCall) -> np.ndarray:
    """The factors from accumulators to the result: input scale * weight scale / output scale.

    All three must be constants.
    """
    x, weight, y = (call.known(i, "scale").astype(np.float32) for i in (1, 4, 6))
    with np.errstate(all="ignore"):
        factors = np.asarray(x.reshape(-1) * weight.reshape(-1) / y.reshape(-1), np.float32)
    return factors


def requantized(
    call: OnnxCall, sums: Value, scale: np.ndarray, zero: Value, channels: int | None
) -> Value:
    """Returns int32 accumulators requantized to the result's dtype: that of its zero point.

    ``scale`` are the factors, one or one per channel; ``channels`` is the number of channels along
    axis 1, None if they are along the last axis.
    """
    build = call.build
    dtype = build.dtype(zero)
    if scale.size != 1:
        width = sums.shape[-1] if channels is None else channels
        if scale.size != width:
            raise GraphError(f"its scales are {scale.size}; valid are 1 and {width}")
        scale = scale.reshape((-1,) + (1,) * (sums.type.rank - 2 if channels else 0))
    else:
        scale = scale.reshape(())
    factor, zero_float = build.constant(scale), build.cast(build.view(zero, ()), "float32")
    return build.pointwise(
        call.kind,
        lambda a, f, z: rint(a * f) + z,
        *(sums, factor, zero_float),
        dtype=dtype,
        compute="float32",
    )
