"""Batch, layer, group, instance and RMS normalization."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, sqrt
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType

_STATISTICS = ("running_mean", "running_var")
_CONDITION = "statistics stored and known, or of the batch in training"


@takes("batch_norm.default", when=_CONDITION)
def batch_norm(call: AtenCall) -> Any:
    if not call["training"]:
        return _normalize(call)
    if not call.trained:
        raise Refused(f"{TRAINING}, and takes the batch's own statistics")
    if any(call.optional(name) is not None for name in _STATISTICS):
        raise Refused("it writes to its statistics, which are no results of it")
    return _normalize_by_batch(call)[0]


@takes("_native_batch_norm_legit_no_training.default", when=_CONDITION)
def native_batch_norm(call: AtenCall) -> Any:
    return (_normalize(call), None, None)


def _normalize(call: AtenCall) -> Any:
    mean = call.optional_weight("running_mean")
    variance = call.optional_weight("running_var")
    if mean is None or variance is None:
        raise Refused("it has no stored statistics")
    return _by_statistics(call, mean, variance)


def _by_statistics(call: AtenCall, mean: Value, variance: Value) -> Value:
    op = ops.BatchNorm(float(call.number("eps")))
    return apply(op, call.tensor("input"), *_scale_and_shift(call, mean.type), mean, variance)


def _scale_and_shift(call: AtenCall, type: TensorType) -> tuple[Value, Value]:
    """The weight and the bias, with ones and zeros of this type in place of an absent one."""
    weight, bias = call.optional_weight("weight"), call.optional_weight("bias")
    return (
        call.filled("weight", type, 1.0) if weight is None else weight,
        call.filled("bias", type, 0.0) if bias is None else bias,
    )


@takes("_native_batch_norm_legit_functional.default", when=_CONDITION)
def functional_batch_norm(call: AtenCall) -> Any:
    """Returns the new running statistics as further results."""
    if not call["training"]:
        unchanged = [call.tensor(name) for name in _STATISTICS]
        return (_normalize(call), None, None, *unchanged)
    if not call.trained:
        raise Refused(f"{TRAINING}, and takes the batch's own statistics")
    return _normalize_by_batch(call)


def _normalize_by_batch(call: AtenCall) -> tuple[Any, ...]:
    """Normalizes by the statistics of the batch, and updates the running statistics, if there are
    any.

    The running variance gets the unbiased estimate, and the normalization uses the biased one.
    """
    x: Any = call.tensor("input")
    axes = (0, *range(2, x.type.rank))
    count = prod(x.shape[axis] for axis in axes)
    if count == 1:
        raise Refused(f"input has shape {x.shape}, which is one value for each statistic")
    mean = apply(ops.Reduce("mean", axes), x)
    var = apply(ops.Variance(), x, mean)
    factor = float(call.number("momentum"))
    running = []
    for name, new, scale in zip(_STATISTICS, (mean, var), (1.0, count / (count - 1)), strict=True):
        body = argument(0) * (1.0 - factor) + argument(1) * (scale * factor)
        formula = ops.Formula(body, tensors=2, title="Moved")
        old = call.optional(name)
        running.append(None if old is None else apply(formula, old, new))
    return (_by_statistics(call, mean, var), None, None, *running)


@takes("layer_norm.default", when="weight and bias are known")
def layer_norm(call: AtenCall) -> Any:
    return _layer_norm(call)


@takes("native_layer_norm.default", when="weight and bias are known, nobody reads the statistics")
def native_layer_norm(call: AtenCall) -> Any:
    return (_layer_norm(call), None, None)


def _layer_norm(call: AtenCall) -> Any:
    weight, bias = call.optional_weight("weight"), call.optional_weight("bias")
    if weight is None and bias is not None:
        raise Refused("it has a bias, but no weight")
    operands = [value for value in (weight, bias) if value is not None]
    op = ops.LayerNorm(len(call["normalized_shape"]), float(call.number("eps")))
    return apply(op, call.tensor("input"), *operands)


@takes("group_norm.default", when="weight and bias are known")
def group_norm(call: AtenCall) -> Any:
    return _normalize_groups(call, call["num_groups"])


@takes("instance_norm.default", when="no statistics are stored, weight and bias are known")
def instance_norm(call: AtenCall) -> Any:
    if not call["use_input_stats"] or call.optional("running_mean") is not None:
        raise Refused("it has stored statistics")
    return _normalize_groups(call, call.tensor("input").shape[1])


def _normalize_groups(call: AtenCall, groups: int) -> Any:
    """Normalizes each group of channels of each image by its own statistics, and then applies the
    weight and bias of each channel."""
    op = ops.GroupNorm(groups, float(call.number("eps")))
    vector = call.optional_weight("weight") or call.optional_weight("bias")
    if vector is None:
        return apply(op, call.tensor("input"))
    return apply(op, call.tensor("input"), *_scale_and_shift(call, vector.type))


@takes("rms_norm.default", when="the weight is known")
def rms_norm(call: AtenCall) -> Any:
    """Divides by the root mean square over the last axes, and multiplies by the weight."""
    x, weight = call.tensor("input"), call.optional_weight("weight")
    if x.dtype in ("float16", "bfloat16"):
        raise Refused(f"it is of {x.dtype}, for which PyTorch has sums of more digits")
    eps = float(np.finfo(x.dtype).eps) if call["eps"] is None else float(call.number("eps"))
    axes = tuple(range(x.type.rank - len(call["normalized_shape"]), x.type.rank))
    squares = apply(ops.Formula(argument(0) * argument(0), title="Squares"), x)
    mean = apply(ops.Reduce("mean", axes, keepdim=True), squares)
    body = argument(0) * (1.0 / sqrt(argument(1) + eps))
    if weight is None:
        return apply(ops.Formula(body, tensors=2, title="RMSNorm"), x, mean)
    body = body * argument(2)
    return apply(ops.Formula(body, tensors=3, title="RMSNorm"), x, mean, weight)
