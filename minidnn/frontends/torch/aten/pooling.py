"""Pooling over rows and columns."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import Call, takes
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply


@takes("max_pool2d.default", when="there is a batch axis")
def max_pool2d(call: Call) -> Any:
    kernel = call.pair("kernel_size")
    op = ops.MaxPool2d(
        kernel,
        call.pair("stride") if call["stride"] else kernel,
        call.pair("padding"),
        call.pair("dilation"),
        bool(call["ceil_mode"]),
    )
    return apply(op, call.tensor("self"))


@takes("max_pool2d_with_indices.default", when="nobody reads the indices")
def max_pool2d_with_indices(call: Call) -> Any:
    return (max_pool2d(call), None)


@takes("avg_pool2d.default", when="there is a batch axis")
def avg_pool2d(call: Call) -> Any:
    kernel = call.pair("kernel_size")
    op = ops.AvgPool2d(
        kernel,
        call.pair("stride") if call["stride"] else kernel,
        call.pair("padding"),
        bool(call["ceil_mode"]),
        bool(call["count_include_pad"]),
        call["divisor_override"],
    )
    return apply(op, call.tensor("self"))


@takes("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", when="there is a batch axis")
def adaptive_avg_pool2d(call: Call) -> Any:
    return apply(ops.AdaptiveAvgPool2d(call.pair("output_size")), call.tensor("self"))
