"""Operators with graphs of their own."""

from __future__ import annotations

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import OnnxCall
from minidnn.frontends.onnx.operators.registry import Family
from minidnn.graph.ir import Value

_family = Family("control flow")
CONVERTERS = _family.converters


@_family("If")
def _if(call: OnnxCall) -> tuple[Value, ...]:
    """With a condition that is known: the other branch is not looked at."""
    condition = call.known(0, "condition")
    if condition.size != 1:
        raise GraphError(f"its condition has shape {condition.shape}; valid is one bool")
    branches = {name: call.subgraph(f"{name}_branch") for name in ("then", "else")}
    return call.inline(branches["then" if condition.reshape(-1)[0] else "else"])
