"""Operations that join elements along axes."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply


@takes("softmax.int", "_softmax.default", when="no other dtype is asked for")
def softmax(call: Call) -> Any:
    return _along(call, ops.Softmax(call["dim"]))


@takes("log_softmax.int", "_log_softmax.default", when="no other dtype is asked for")
def log_softmax(call: Call) -> Any:
    return _along(call, ops.LogSoftmax(call["dim"]))


def _along(call: Call, op: Any) -> Any:
    x = call.tensor("self")
    if call.result.dtype != x.dtype:
        raise Refused(f"it makes {call.result.dtype} of {x.dtype}")
    return apply(op, x)


@takes("mean.dim", when="over rows and columns of a tensor of 4 axes")
def mean(call: Call) -> Any:
    x = call.tensor("self")
    axes = sorted(axis % x.type.rank for axis in call["dim"] or ())
    if x.type.rank != 4 or axes != [2, 3] or call.result.dtype != x.dtype:
        raise Refused(f"dim={call['dim']} of {x.type}; known are the last two axes of four")
    pooled = apply(ops.AdaptiveAvgPool2d((1, 1)), x)
    return pooled if call["keepdim"] else apply(ops.Flatten(1), pooled)
