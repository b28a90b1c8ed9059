"""The rule of what draws random numbers, which draws the same again."""

from __future__ import annotations

from collections.abc import Sequence

from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


@rule(ops.RandomDrop)
def random_drop(call: Backward) -> Sequence[Value | None]:
    return [apply(call.op, call.gradient, *call.inputs[1:]), None, None]
