"""view_channels: numbers of channels get the rank of what they scale, so that stacks take them.

NumPy's rules repeat a value of shape (C, 1, 1) over images.  As layer scales have it, it is an
operand of another rank, which no stack computes with.

Handles: operands of element-wise operators on (N, C, H, W) that have the shape (C, 1, 1): they are
seen as (1, C, 1, 1).
Refuses: other operands of fewer axes; everything under strategies that leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import View
from minidnn.passes.infrastructure import Context, Pass


def view_channels(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    rewriter = Rewriter(graph)
    known: dict[Value, Value] = {}
    for node in graph.nodes:
        found = [i for i, value in enumerate(node.inputs) if _is_of_channels(node, value)]
        if not found or not context.allow(f"{node.name} takes numbers of channels in its rank"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in node.inputs]
        for i in found:
            given = operands[i]
            if given not in known:
                name = rewriter.fresh(f"{given.name}.channels")
                made = rewriter.add(View((1, *given.shape)), [given], name, node.source)
                known[given] = made.output
            operands[i] = known[given]
        new = rewriter.add(node.op, operands, node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


def _is_of_channels(node: Node, value: Value) -> bool:
    """Whether an operand has a number for each channel, and an axis less than the result."""
    if not isinstance(node.op, Elementwise) or node.output.type.rank != 4:
        return False
    return value.shape == (node.output.shape[1], 1, 1)


VIEW_CHANNELS = Pass("view_channels", view_channels)
