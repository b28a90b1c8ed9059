"""compose_variance: variances are put together from other operators.

Handles: variances that the target does not add up together with others: distances from the mean,
their squares, and the mean of these.
Refuses: nothing.
"""

from __future__ import annotations

from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Formula, Mul, Reduce, Sub, Variance, View
from minidnn.passes.infrastructure import Context, Pass


def compose_variance(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        reason = None
        if isinstance(node.op, Variance):
            reason = context.target.refuse_sums(node)
        if reason is None or not context.allow(f"compose {node.name}: {reason}"):
            rewriter.keep(node)
        else:
            rewriter.replace(node.output, _composed(rewriter, node))
    return rewriter.finish()


def _composed(rewriter: Rewriter, node: Node) -> Value:
    def apply(op: Operator, *operands: Value) -> Value:
        name = rewriter.fresh(f"{node.name}.{op.name.lower()}")
        return rewriter.add(op, operands, name, node.source).output

    assert isinstance(node.op, Variance)
    x, mean = (rewriter.value(value) for value in node.inputs)
    ones = tuple(1 for _ in x.shape[2:])
    # Halves lie apart from a mean in float32.
    minus: Operator = Sub()
    if x.dtype != mean.dtype:
        minus = Formula(argument(0) - argument(1), 2, title="Sub", compute=mean.dtype)
    apart = apply(minus, x, apply(View((1, x.shape[1], *ones)), mean))
    axes = (0, *range(2, x.type.rank))
    return apply(Reduce("mean", axes, dtype=node.op.dtype), apply(Mul(), apart, apart))


COMPOSE_VARIANCE = Pass("compose_variance", compose_variance)
