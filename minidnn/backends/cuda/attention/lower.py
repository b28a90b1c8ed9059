"""From regions of attention to tasks."""

from __future__ import annotations

from collections.abc import Sequence

from ....fusion.attention import FusedAttention, FusedAttentionGradient
from ....graph.ir import Node
from ..task import InWorkspace, Pointer, Task, at_offset
from .kernels import print_attention, print_attention_gradient, shares_bytes


def attention_tasks(node: Node) -> Sequence[Task]:
    """The kernels of attention, or of its gradient, and what they read and write."""
    op = node.op
    assert isinstance(op, (FusedAttention, FusedAttentionGradient))
    given: list[Pointer] = [at_offset(node.inputs[i], view.offset) for i, view in op.given]
    if isinstance(op, FusedAttention):
        launch = print_attention(op.shape, keeps_logs=len(node.outputs) > 1)
        place, view = op.written(op.node.outputs[0])
        result = at_offset(node.outputs[place], view.offset)
        return (Task(node, launch, (*given, result, node.outputs[-1])),)
    of_queries, of_keys = print_attention_gradient(op.shape)
    size, shares = shares_bytes(op.shape), InWorkspace(0)
    q, k, v, y, logs, g = given
    dq, dk, dv = (at_offset(node.outputs[i], view.offset) for i, view in op.results)
    return (
        Task(node, of_queries, (q, k, v, y, g, logs, shares, dq), (), size),
        Task(node, of_keys, (q, k, v, g, logs, shares, dk, dv), (), size),
    )
