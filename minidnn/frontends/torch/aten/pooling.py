"""Pooling in one, two and three dimensions, by operators of two."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.rearranged import adaptive_max
from minidnn.graph.trace import apply


@takes("max_pool2d.default", when="there is a batch axis")
def max_pool2d(call: AtenCall) -> Any:
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
def max_pool2d_with_indices(call: AtenCall) -> Any:
    return (max_pool2d(call), None)


@takes("avg_pool2d.default", when="there is a batch axis")
def avg_pool2d(call: AtenCall) -> Any:
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


@takes("max_pool1d.default", when="there is a batch axis")
def max_pool1d(call: AtenCall) -> Any:
    (kernel,), (padding,), (dilation,) = call["kernel_size"], call["padding"], call["dilation"]
    (stride,) = call["stride"] or [kernel]
    op = ops.MaxPool2d(
        (1, kernel), (1, stride), (0, padding), (1, dilation), bool(call["ceil_mode"])
    )
    return apply(ops.View(call.result.shape), apply(op, _row(call)))


@takes("avg_pool1d.default", when="there is a batch axis")
def avg_pool1d(call: AtenCall) -> Any:
    (kernel,), (padding,) = call["kernel_size"], call["padding"]
    (stride,) = call["stride"] or [kernel]
    op = ops.AvgPool2d(
        (1, kernel),
        (1, stride),
        (0, padding),
        bool(call["ceil_mode"]),
        bool(call["count_include_pad"]),
    )
    return apply(ops.View(call.result.shape), apply(op, _row(call)))


def _row(call: AtenCall) -> Value:
    """The operand with its vectors as images of one row."""
    x = call.tensor("self")
    if x.type.rank != 3:
        raise Refused(f"input has shape {x.shape}; known is one with a batch axis")
    return apply(ops.View((*x.shape[:2], 1, x.shape[2])), x)


@takes("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default", when="there is a batch axis")
def adaptive_avg_pool2d(call: AtenCall) -> Any:
    return apply(ops.AdaptiveAvgPool2d(call.pair("output_size")), call.tensor("self"))


@takes("adaptive_avg_pool1d.default", when="there is a batch axis")
def adaptive_avg_pool1d(call: AtenCall) -> Any:
    (size,) = call["output_size"]
    pooled = apply(ops.AdaptiveAvgPool2d((1, size)), _row(call))
    return apply(ops.View(call.result.shape), pooled)


_NO_INDICES = "there is a batch axis, nobody reads the indices"


@takes("adaptive_max_pool2d.default", when=_NO_INDICES)
def adaptive_max_pool2d(call: AtenCall) -> Any:
    x = call.tensor("self")
    if x.type.rank != 4:
        raise Refused(f"input has shape {x.shape}; known is one with a batch axis")
    return (adaptive_max(x, call.pair("output_size")), None)


@takes("adaptive_max_pool1d.default", when=_NO_INDICES)
def adaptive_max_pool1d(call: AtenCall) -> Any:
    (size,) = call["output_size"]
    pooled = adaptive_max(_row(call), (1, size))
    return (apply(ops.View(call.result.shape), pooled), None)


@takes("avg_pool3d.default", when="there is a batch axis, and no padding")
def avg_pool3d(call: AtenCall) -> Any:
    """Averages over rows and columns first, and then along the depth."""
    x, kernel = call.tensor("self"), call.ints("kernel_size", 3)
    unpadded = call.ints("padding", 3) == (0, 0, 0) and not call["ceil_mode"]
    if x.type.rank != 5 or not unpadded or call["divisor_override"] is not None:
        raise Refused(
            f"input {x.shape}, padding={call['padding']}, ceil_mode={call['ceil_mode']}, "
            f"divisor_override={call['divisor_override']}; known is none, and a batch axis"
        )
    stride = call.ints("stride", 3) if call["stride"] else kernel
    batch, channels, depth, rows, columns = x.shape
    pooled = x
    if (kernel[1:], stride[1:]) != ((1, 1), (1, 1)):
        images = apply(ops.View((batch, channels * depth, rows, columns)), x)
        pooled = apply(ops.AvgPool2d((kernel[1], kernel[2]), (stride[1], stride[2])), images)
        rows, columns = pooled.shape[2:]
    if (kernel[0], stride[0]) != (1, 1):
        images = apply(ops.View((batch, channels, depth, rows * columns)), pooled)
        pooled = apply(ops.AvgPool2d((kernel[0], 1), (stride[0], 1)), images)
    return apply(ops.View(call.result.shape), pooled)
