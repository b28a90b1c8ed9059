"""repeat_inside: point-wise operators repeat along axes what they read, so that nothing else does.

Gradients of sums repeat a value along the axes that were summed over.

Handles: operands of point-wise operators that are repeated along axes (Expand) and come to the
result's shape by the operator's own broadcasting, because another operand has that shape.
Refuses: values whose rank changes.
"""

from __future__ import annotations

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Expand
from minidnn.passes.infrastructure import Context, Pass


def repeat_inside(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        given = [rewriter.value(value) for value in node.inputs]
        found = _unrepeated(node, given)
        if found != given and context.allow(f"{node.name} repeats its operands itself"):
            new = rewriter.add(node.op, found, node.name, node.source)
            rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _unrepeated(node: Node, given: list[Value]) -> list[Value]:
    """The operands before they were repeated."""
    if not isinstance(node.op, Elementwise):
        return given
    found = list(given)
    shape = node.output.shape
    count = len(found) - node.op.channel_count
    for i in range(count):
        others = [value.shape for j, value in enumerate(found[:count]) if j != i]
        while shape in others and (before := _repeated(found[i])) is not None:
            found[i] = before
    return found


def _repeated(value: Value) -> Value | None:
    """What a value repeats, if it does."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand):
        return None
    (before,) = node.inputs
    return before if before.type.rank == value.type.rank else None


REPEAT_INSIDE = Pass("repeat_inside", repeat_inside)
