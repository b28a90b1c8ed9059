"""From regions of attention to tasks."""

from __future__ import annotations

from collections.abc import Sequence

from ....fusion.attention import FusedAttention, FusedAttentionGradient
from ....graph.ir import Node
from ..task import InWorkspace, Task, pointer_to
from .kernels import print_attention, print_attention_gradient, shares_bytes


def attention_tasks(node: Node) -> Sequence[Task]:
    """The kernels of attention, or of its gradient, and what they read and write."""
    op, given = node.op, list(map(pointer_to, node.inputs))
    if isinstance(op, FusedAttention):
        launch = print_attention(op.shape, keeps_logs=len(node.outputs) > 1)
        return (Task(node, launch, (*given, node.outputs[0], node.outputs[-1])),)
    assert isinstance(op, FusedAttentionGradient)
    of_queries, of_keys = print_attention_gradient(op.shape)
    size, shares = shares_bytes(op.shape), InWorkspace(0)
    q, k, v, y, g, logs = given
    dq, dk, dv = node.outputs
    return (
        Task(node, of_queries, (q, k, v, y, g, logs, shares, dq), (), size),
        Task(node, of_keys, (q, k, v, g, logs, shares, dk, dv), (), size),
    )
