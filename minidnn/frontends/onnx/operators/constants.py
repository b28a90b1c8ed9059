"""Constants: literals, shapes, ranges; and branches that a constant condition chooses."""

from __future__ import annotations

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.library import check_shape
from minidnn.graph.ir import Value

_family = Family("constants and shapes")
_control = Family("control flow")


@_family("Constant")
def _constant(call: OnnxCall) -> Value:
    """Not of texts, and not sparse."""
    tensor = call.tensor("value")
    number, numbers = call.has("value_float"), call.has("value_floats")
    if tensor is not None:
        array = tensor
    elif number:
        array = np.array(call.number("value_float", 0.0), np.float32)
    elif numbers:
        array = np.array(call.floats("value_floats"), np.float32)
    elif call.has("value_int"):
        array = np.array(call.integer("value_int", 0), np.int64)
    elif call.has("value_ints"):
        array = np.array(call.ints("value_ints"), np.int64)
    else:
        raise call.refuse("it has no value of numbers")
    return call.build.constant(array)


@_family("ConstantOfShape")
def _constant_of_shape(call: OnnxCall) -> Value:
    shape = call.known_ints(0, "shape")
    value = call.tensor("value")
    if value is None:
        value = np.zeros(1, np.float32)
    if value.size != 1:
        raise GraphError(f"value has shape {value.shape}; valid is one element")
    return call.build.filled(shape or (), value.reshape(-1)[0], str(value.dtype))


@_family("Shape")
def _shape(call: OnnxCall) -> Value:
    shape = call.operand(0).shape
    rank = len(shape)
    end = call.integer("end", rank) if call.has("end") else rank
    part = shape[slice(call.integer("start", 0), end)]
    return call.build.constant(np.array(part, np.int64))


@_family("Size")
def _size(call: OnnxCall) -> Value:
    return call.build.constant(np.array(call.operand(0).type.size, np.int64))


@_family("Range")
def _range(call: OnnxCall) -> Value:
    start, limit, delta = (
        call.known(i, what) for i, what in enumerate(("start", "limit", "delta"))
    )
    call.integer("stash_type", 1)  # the least precision to compute in; no less is used here
    if start.size != 1 or limit.size != 1 or delta.size != 1 or not delta.reshape(-1)[0]:
        raise GraphError("start, limit and delta must be single numbers, and delta not 0")
    first, last, step = (array.reshape(-1)[0] for array in (start, limit, delta))
    with np.errstate(all="ignore"):
        # Python's numbers do not overflow.
        steps = (last.item() - first.item()) / step.item()
    if not np.isfinite(steps):
        raise GraphError(f"from {first} to {last} by {step} it has no end")
    count = max(0, -int(-steps // 1))
    check_shape("the range", (count,))
    call.build.filled((count,), 0, str(start.dtype))
    return call.build.constant((first + np.arange(count) * step).astype(start.dtype))


@_control("If")
def _if(call: OnnxCall) -> tuple[Value, ...]:
    """With a condition that is known: the other branch is not looked at."""
    condition = call.known(0, "condition")
    if condition.size != 1:
        raise GraphError(f"its condition has shape {condition.shape}; valid is one bool")
    branches = {name: call.subgraph(f"{name}_branch") for name in ("then", "else")}
    return call.inline(branches["then" if condition.reshape(-1)[0] else "else"])


CONVERTERS = _family.converters | _control.converters
