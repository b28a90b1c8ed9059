"""Convolutions and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder, broadcasts_to, is_integer
from minidnn.frontends.onnx.call import Family, NotConverted, OnnxCall
from minidnn.frontends.onnx.operators.windows import SpatialAxes, spatial_axes
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Value
from minidnn.graph.transposed import MOST_PHASES, transposed_convolution
from minidnn.graph.types import INTEGERS

_family = Family("contractions")
CONVERTERS = _family.converters

#: The most elements of the tensor of all products in a matrix product of int32 or int64.
_MOST_INTEGER_PRODUCTS = 1 << 26


@_family("Conv")
def _conv(call: OnnxCall) -> Value:
    """Of one and two dimensions."""
    x, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    spatial = spatial_rank(call, x, weight)
    axes = spatial_axes(call, x.shape[2:], weight.shape[2:])
    groups = call.integer("group", 1)
    if call.build.dequantized(x):
        weight = call.build.unfolded(weight)
    out = convolution(call.build, wide(call.build, x), wide(call.build, weight), bias, axes, groups)
    return narrow(call.build, out, spatial)


def spatial_rank(call: OnnxCall, x: Value, weight: Value) -> int:
    """Returns the number of spatial axes, 1 or 2, of a convolution's operands."""
    spatial = x.type.rank - 2
    if spatial not in (1, 2):
        raise call.refuse(f"it is of {spatial} dimensions; valid are 1 and 2")
    if weight.type.rank != x.type.rank:
        raise GraphError(f"operands have shapes {x.shape} and {weight.shape}, of different rank")
    return spatial


def wide(build: Builder, x: Value) -> Value:
    """Views (N, C, L) as (N, C, 1, L); values of rank 4 stay."""
    return x if x.type.rank == 4 else build.view(x, (*x.shape[:2], 1, x.shape[2]))


def narrow(build: Builder, x: Value, spatial: int) -> Value:
    """Undoes :func:`wide` on a result with ``spatial`` axes."""
    return x if spatial == 2 else build.view(x, (*x.shape[:2], x.shape[3]))


def convolution(
    build: Builder,
    x: Value,
    weight: Value,
    bias: Value | None,
    axes: SpatialAxes,
    groups: int,
    zero: int = 0,
) -> Value:
    """Returns a convolution of (N, C, H, W).

    A constant weight makes a Conv2d; others make im2col (Unfold2d) and a matrix product.  ``zero``
    is the zero point of an integer input.
    """
    op = ops.Conv2d(axes.strides, axes.pads, axes.dilations, groups, zero)
    if build.is_known(weight) and (bias is None or isinstance(bias, Constant)):
        return build.apply(op, x, weight, *(() if bias is None else (bias,)))
    if build.is_known(weight):
        return biased(build, build.apply(op, x, weight), bias)
    (top, bottom), (left, right) = axes.pads
    # Checks the types and attributes, and gives the type of the result.
    (type,) = op.infer(x.type, weight.type)
    batch, _, *size = type.shape
    if zero:
        x = build.pointwise("WithoutZero", lambda a: a - float(zero), x, dtype="int32")
    padded = build.apply(ops.Pad((0, 0, top, left), (0, 0, bottom, right)), x)
    out, per_group, *kernel = weight.shape
    unfold = ops.Unfold2d((kernel[0], kernel[1]), axes.strides, axes.dilations)
    reduction_size = per_group * prod(kernel)
    columns = build.view(build.apply(unfold, padded), (batch, groups, reduction_size, prod(size)))
    rows = build.view(weight, (1, groups, out // groups, reduction_size))
    product = build.apply(ops.MatMul(), rows, columns)
    return biased(build, build.view(product, type.shape), bias)


def biased(build: Builder, x: Value, bias: Value | None) -> Value:
    """Returns ``x`` with a bias, one number per channel, if there is one."""
    if bias is None:
        return x
    if bias.shape != x.shape[1:2]:
        raise GraphError(f"bias has shape {bias.shape}; valid is {x.shape[1:2]}")
    return build.pointwise(
        "Bias", lambda a, b: a + b, x, build.view(bias, (*bias.shape, 1, 1)), op=ops.Add()
    )


@_family("ConvTranspose")
def _conv_transpose(call: OnnxCall) -> Value:
    """Of one and two dimensions, with a product of strides of at most 2^20."""
    x, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    spatial = spatial_rank(call, x, weight)
    groups = call.integer("group", 1)
    build = call.build
    sizes, kernel = x.shape[2:], weight.shape[2:]
    window = spatial_axes(call, sizes, kernel, transposed=True)
    phases = prod(window.strides)
    if phases > MOST_PHASES:
        raise call.refuse(f"strides {window.strides} make {phases} phases; known are {MOST_PHASES}")

    def convolve(op: ops.Conv2d, x: Value, weight: Value, bias: Value | None) -> Value:
        axes = SpatialAxes(op.stride, op.padding, op.dilation)
        return convolution(build, x, weight, bias, axes, op.groups)

    out = transposed_convolution(
        wide(build, x),
        wide(build, weight),
        bias,
        stride=window.strides,
        cut=window.pads,
        dilation=window.dilations,
        groups=groups,
        apply=build.apply,
        convolve=convolve,
    )
    return narrow(build, out, spatial)


@_family("MatMul")
def _matmul(call: OnnxCall) -> Value:
    """Of integers with at most 2^26 products, which are all made before they are added."""
    a, b = call.operand(0), call.operand(1)
    return matmul(call.build, a, b, product)


def matmul(
    build: Builder, a: Value, b: Value, product: Callable[[Builder, Value, Value], Value]
) -> Value:
    """Returns NumPy's matmul of operands of any rank from 1; ``product`` gets rank 2 or more."""
    if a.type.rank == 0 or b.type.rank == 0:
        raise GraphError(f"operands have shapes {a.shape} and {b.shape}; valid is rank 1 or more")
    left = build.view(a, (1, *a.shape)) if a.type.rank == 1 else a
    right = build.view(b, (*b.shape, 1)) if b.type.rank == 1 else b
    out = product(build, left, right)
    shape = list(out.shape)
    if b.type.rank == 1:
        shape.pop()
    if a.type.rank == 1:
        shape.pop(-1 if b.type.rank == 1 else -2)
    return build.view(out, shape)


def product(build: Builder, a: Value, b: Value) -> Value:
    """Returns ``a @ b``: a Linear if ``b`` is a constant matrix, else a MatMul."""
    if a.dtype in INTEGERS:
        return _integer_product(build, a, b)
    (type,) = ops.MatMul().infer(a.type, b.type)
    if a.shape[-1] == 0:  # empty sums
        return build.filled(type.shape, 0, type.dtype)
    if isinstance(b, Constant) and b.type.rank == 2 and not isinstance(a, Constant):
        transposed = build.transpose(b, (1, 0))
        weight = build.unfolded(transposed) if build.dequantized(a) else transposed
        return build.apply(ops.Linear(), a, weight)
    return build.apply(ops.MatMul(), a, b)


def _integer_product(build: Builder, a: Value, b: Value) -> Value:
    """Returns ``a @ b`` of int32 or int64, for which there are no contraction kernels: the tensor
    of all products, then a sum over its reduction axis."""
    left = build.view(a, (*a.shape, 1))
    right = build.view(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    shape = np.broadcast_shapes(left.shape, right.shape)
    if a.shape[-1] != b.shape[-2]:
        raise GraphError(f"operands have shapes {a.shape} and {b.shape}, which do not fit")
    if prod(shape) > _MOST_INTEGER_PRODUCTS:
        raise NotConverted(f"its operands are {a.dtype} and make {prod(shape)} products")
    products = build.pointwise("Mul", lambda x, y: x * y, left, right, op=ops.Mul())
    return build.apply(ops.Reduce("sum", (len(shape) - 2,)), products)


@_family("Gemm")
def _gemm(call: OnnxCall) -> Value:
    """Of integers as MatMul, with alpha and beta that are integers, too."""
    build, a, b, c = call.build, call.operand(0), call.operand(1), call.optional(2)
    alpha, beta = call.number("alpha", 1.0), call.number("beta", 1.0)
    if call.opset < 7:
        call.flag("broadcast")
    if call.flag("transA"):
        a = build.transpose(a, (1, 0))
    is_transposed = call.flag("transB")
    shape = b.shape[::-1] if is_transposed else b.shape
    if a.type.rank != 2 or b.type.rank != 2 or a.shape[1] != shape[0]:
        raise GraphError(f"operands have shapes {a.shape} and {shape}; valid are matrices")
    if a.dtype in INTEGERS and not (is_integer(alpha) and is_integer(beta)):
        raise call.refuse(f"its operands are {a.dtype} with alpha={alpha}, beta={beta}")
    out_shape = (a.shape[0], shape[1])
    if c is not None and not broadcasts_to(c.shape, out_shape):
        raise GraphError(f"C has shape {c.shape}, which does not broadcast to {out_shape}")
    bias = _scaled(build, c, beta)
    if _is_weight(a, b, shape):
        weight = _scaled(build, b, alpha) or b
        weight = weight if is_transposed else build.transpose(weight, (1, 0))
        if build.dequantized(a):
            weight = build.unfolded(weight)
        vector = _as_bias(bias, shape[1])
        if vector is not None:
            return build.apply(ops.Linear(), a, weight, build.constant(vector))
        out = build.apply(ops.Linear(), a, weight)
    else:
        out = product(build, a, build.transpose(b, (1, 0)) if is_transposed else b)
        out = _scaled(build, out, alpha) or out
    if bias is None:
        return out
    return build.pointwise("Add", lambda x, y: x + y, out, bias, op=ops.Add())


def _is_weight(a: Value, b: Value, shape: Sequence[int]) -> bool:
    """Whether a product with ``b``, of ``shape`` once transposed, can be a Linear."""
    is_constant = isinstance(b, Constant) and not isinstance(a, Constant)
    return is_constant and a.dtype not in INTEGERS and shape[0] > 0


def _scaled(build: Builder, x: Value | None, factor: float) -> Value | None:
    """A value times a factor; None for None."""
    if x is None or factor == 1.0:
        return x
    return build.pointwise("Scale", lambda a: a * factor, x)


def _as_bias(c: Value | None, features: int) -> np.ndarray | None:
    """A constant addend as a bias, one number per feature; None if its rows may differ."""
    if not isinstance(c, Constant) or prod(c.shape[:-1]) != 1:
        return None
    return np.array(np.broadcast_to(c.data.reshape(c.shape[-1:]), (features,)))
