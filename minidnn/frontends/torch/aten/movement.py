"""Operations that only move elements, or do nothing."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


@takes(
    "contiguous.default",
    "clone.default",
    "detach.default",
    "alias.default",
    "lift_fresh_copy.default",
    "_to_copy.default",
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "type_as.default",
    when="dtype and device stay what they are",
)
def same(call: Call) -> Any:
    x = call.tensor("self")
    before, after = call.node.all_input_nodes[0].meta["val"], call.node.meta["val"]
    if before.device != after.device:
        raise Refused(f"it moves the tensor from {before.device} to {after.device}")
    if call.result != x.type:
        raise Refused(f"it makes {call.result} of {x.type}")
    return apply(ops.Identity(), x)


def _reshaped(x: Value, shape: tuple[int, ...]) -> Any:
    if not shape or not x.shape or x.shape[0] != shape[0]:
        raise Refused(f"it makes {shape} of {x.shape}; known is what keeps the first axis")
    return apply(ops.Reshape(shape[1:]), x)


@takes("flatten.using_ints")
def flatten(call: Call) -> Any:
    x = call.tensor("self")
    if not x.shape:
        raise Refused("the tensor has no axes")
    return apply(ops.Flatten(call["start_dim"], call["end_dim"]), x)


@takes(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "unflatten.int",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
    when="the first axis keeps its size",
)
def reshape(call: Call) -> Any:
    return _reshaped(call.tensor("self"), call.result.shape)


@takes("cat.default", "concat.default")
def cat(call: Call) -> Any:
    values = call.tensors("tensors")
    return apply(ops.Concat(call.axis("dim", values[0].type.rank)), *values)
