"""Normalization with stored statistics."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import TRAINING, Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply

_CONDITION = "not training, statistics stored and known"


@takes("batch_norm.default", when=_CONDITION)
def batch_norm(call: Call) -> Any:
    if call["training"]:
        raise Refused(f"{TRAINING}, and takes the batch's own statistics")
    return _normalize(call)


@takes("_native_batch_norm_legit_no_training.default", when=_CONDITION)
def native_batch_norm(call: Call) -> Any:
    return (_normalize(call), None, None)


def _normalize(call: Call) -> Any:
    x = call.tensor("input")
    mean = call.optional_constant("running_mean")
    variance = call.optional_constant("running_var")
    if mean is None or variance is None:
        raise Refused("it has no stored statistics")
    weight, bias = call.optional_constant("weight"), call.optional_constant("bias")
    weight = call.filled("weight", mean.type, 1.0) if weight is None else weight
    bias = call.filled("bias", mean.type, 0.0) if bias is None else bias
    return apply(ops.BatchNorm(float(call.number("eps"))), x, weight, bias, mean, variance)
