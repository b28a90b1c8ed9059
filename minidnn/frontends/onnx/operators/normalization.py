"""Normalizations: batch, layer, instance, group and local response, and softmax."""

from __future__ import annotations

from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder, broadcasts_to
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.library import LONGEST_TABLE
from minidnn.graph import operators as ops
from minidnn.graph.expression import apply, equal, fma, sqrt
from minidnn.graph.ir import Constant, Value
from minidnn.graph.window import WindowAxis, average_window

_family = Family("normalization")
CONVERTERS = _family.converters


@_family("BatchNormalization")
def _batch_norm(call: OnnxCall) -> Value | tuple[Value, ...]:
    build, x = call.build, call.operand(0)
    eps = call.number("epsilon", 1e-5)
    momentum = call.number("momentum", 0.9)
    training = call.flag("training_mode")
    if call.opset < 7 and not call.flag("is_test"):
        raise call.refuse("it computes statistics (is_test=0); they must be stored")
    # Before opset 9 each element of a sample may have statistics of its own (spatial=0).
    spatial = call.opset >= 9 or call.flag("spatial", True)
    if x.type.rank < 1:
        raise GraphError(f"input has shape {x.shape}; valid is (N, C, ...)")
    x_shape = x.shape
    if x.type.rank == 1:  # "single dimension input of size N in which case C is assumed to be 1"
        x = build.view(x, (*x_shape, 1))
    vectors = [call.operand(i) for i in range(1, 5)]
    valid = x.shape[1:2] if spatial else x.shape[1:]
    for name, vector in zip(("scale", "B", "mean", "var"), vectors, strict=True):
        if vector.shape != valid:
            raise GraphError(f"{name} has shape {vector.shape}; valid is {valid}")
    if training:
        out, *running = _by_own_statistics(call, x, vectors, eps, momentum)
        return (build.view(out, x_shape), *running)
    if spatial and all(isinstance(vector, Constant) for vector in vectors):
        return build.view(build.apply(ops.BatchNorm(eps), x, *vectors), x_shape)
    return build.view(_normalized_by(build, x, vectors, eps), x_shape)


def _normalized_by(build: Builder, x: Value, vectors: list[Value], eps: float) -> Value:
    """Batch normalization as a formula of values: ``vectors`` are scale, shift, mean, variance."""
    return build.pointwise(
        "BatchNormalization",
        lambda x, scale, shift, mean, var: fma((x - mean) / sqrt(var + eps), scale, shift),
        x,
        *(_per_channel(build, vector, x) for vector in vectors),
    )


def _by_own_statistics(
    call: OnnxCall, x: Value, vectors: list[Value], eps: float, momentum: float
) -> tuple[Value, ...]:
    """Batch normalization as in training, by the batch's own mean and variance.

    Returns the output, and the running mean and variance after their update.
    """
    build = call.build
    axes = (0, *range(2, x.type.rank))
    mean = build.apply(ops.Reduce("mean", axes, False), x)
    centre = _per_channel(build, mean, x)
    squares = build.pointwise("Square", lambda a, b: (a - b) * (a - b), x, centre)
    variance = build.apply(ops.Reduce("mean", axes, False), squares)
    out = _normalized_by(build, x, [*vectors[:2], mean, variance], eps)
    running = [
        build.pointwise("Moved", lambda a, b: a * momentum + b * (1.0 - momentum), old, new)
        for old, new in zip(vectors[2:], (mean, variance), strict=True)
    ]
    return (out, *running)


def _per_channel(build: Builder, vector: Value, x: Value) -> Value:
    """Views numbers per channel of ``x``, or per element of a sample, so that they broadcast."""
    return build.view(vector, (*vector.shape, *(1,) * (x.type.rank - 1 - vector.type.rank)))


@_family("LayerNormalization")
def _layer_norm(call: OnnxCall) -> tuple[Value, ...]:
    build, x = call.build, call.operand(0)
    axis = call.axis(call.integer("axis", -1), x.type.rank)
    eps = call.number("epsilon", 1e-5)
    call.integer("stash_type", 1)
    op = ops.LayerNorm(x.type.rank - axis, eps)
    scale, bias = call.operand(1), call.optional(2)
    parameters = [value for value in (scale, bias) if value is not None]
    for value in parameters:
        if not broadcasts_to(value.shape, x.shape):
            raise GraphError(f"shape {value.shape} does not broadcast to the input's {x.shape}")
    if all(value.shape == x.shape[axis:] for value in parameters):
        out = build.apply(op, x, *parameters)
    else:
        out = build.pointwise("Mul", lambda a, b: a * b, build.apply(op, x), scale)
        if bias is not None:
            out = build.pointwise("Add", lambda a, b: a + b, out, bias)
    if not call.wants(1) and not call.wants(2):
        return (out,)
    axes = tuple(range(axis, x.type.rank))
    mean = build.apply(ops.Reduce("mean", axes, True), x)
    squares = build.pointwise("Square", lambda a, b: (a - b) * (a - b), x, mean)
    variance = build.apply(ops.Reduce("mean", axes, True), squares)
    inverse = build.pointwise("InvStdDev", lambda a: 1.0 / sqrt(a + eps), variance)
    return (out, build.cast(mean, "float32"), build.cast(inverse, "float32"))


@_family("InstanceNormalization")
def _instance_norm(call: OnnxCall) -> Value:
    x = call.operand(0)
    eps = call.number("epsilon", 1e-5)
    return _normalized(call, x, x.shape[1] if x.type.rank > 1 else 0, eps)


@_family("GroupNormalization")
def _group_norm(call: OnnxCall) -> Value:
    x = call.operand(0)
    groups, eps = call.integer("num_groups", 0), call.number("epsilon", 1e-5)
    call.integer("stash_type", 1)
    if x.type.rank < 2 or groups < 1 or x.shape[1] % groups:
        raise GraphError(f"num_groups={groups} of an input {x.shape}")
    return _normalized(call, x, groups, eps)


def _normalized(call: OnnxCall, x: Value, groups: int, eps: float) -> Value:
    """Group normalization with scale and shift per channel; operands per group are expanded."""
    build = call.build
    if x.type.rank < 3 or groups < 1:
        raise GraphError(f"input has shape {x.shape}; valid is (N, C, ...)")
    vectors = []
    for i in (1, 2):
        vector = call.operand(i)
        if vector.shape == (groups,) != x.shape[1:2]:  # one for each group, before opset 21
            per_group = build.view(vector, (groups, 1))
            per_group = build.expand(per_group, (groups, x.shape[1] // groups))
            vector = build.view(per_group, x.shape[1:2])
        if vector.shape != x.shape[1:2]:
            raise GraphError(f"operand {i} has shape {vector.shape}; valid is {x.shape[1:2]}")
        vectors.append(vector)
    return build.apply(ops.GroupNorm(groups, eps), x, *vectors)


@_family("LRN")
def _lrn(call: OnnxCall) -> Value:
    build, x = call.build, call.operand(0)
    alpha, beta = call.number("alpha", 1e-4), call.number("beta", 0.75)
    bias, size = call.number("bias", 1.0), call.integer("size", 0)
    if x.type.rank < 2 or not 1 <= size <= 1 << 16:
        raise GraphError(f"size={size} of an input {x.shape}; valid is (N, C, ...), 1 to 65536")
    squares = build.pointwise("Square", lambda a: a * a, x)
    channels = build.view(squares, (x.shape[0], 1, x.shape[1], prod(x.shape[2:])))
    across_channels = WindowAxis(size, 1, ((size - 1) // 2, size - 1 - (size - 1) // 2))
    window = average_window(across_channels, WindowAxis(1), True, size)
    mean = build.view(build.apply(ops.Pool2d(window), channels), x.shape)
    return build.pointwise("LRN", lambda a, m: a / apply("pow", bias + alpha * m, beta), x, mean)


@_family("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: OnnxCall) -> Value:
    x = call.operand(0)
    rank = x.type.rank
    if call.opset >= 13:
        return _along(call, x, call.axis(call.integer("axis", -1), rank))
    axis = call.axis(call.integer("axis", 1), rank)
    # Before opset 13 all axes from that one on are flattened into one.
    flat = call.build.view(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    return call.build.view(_along(call, flat, 1), x.shape)


def _along(call: OnnxCall, x: Value, axis: int) -> Value:
    """Softmax, LogSoftmax or Hardmax (one at the first maximum) along an axis."""
    build = call.build
    if not x.type.size:
        return x
    if call.kind != "Hardmax":
        kind = ops.Softmax if call.kind == "Softmax" else ops.LogSoftmax
        return build.apply(kind(axis), x)
    if x.shape[axis] > LONGEST_TABLE:
        raise call.refuse(f"axis {axis} of its input {x.shape} is longer than {LONGEST_TABLE}")
    largest = build.apply(ops.ArgMax(axis, True), x)
    shape = [size if d == axis else 1 for d, size in enumerate(x.shape)]
    indices = build.constant(np.arange(x.shape[axis]).reshape(shape))
    is_largest = build.pointwise("Equal", equal, largest, indices, dtype="bool")
    return build.cast(is_largest, x.dtype)
