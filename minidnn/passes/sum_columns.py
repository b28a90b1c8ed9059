"""sum_columns: sums over all axes but the last become sums of the columns of a matrix.

Gradients of biases and of normalizations' weights are such sums.  As a matrix's, they are computed
by what adds up channels, or together with the rows that they are sums of.

Handles: sums over all axes but the last of values of three axes or more; and over all but the
second of what a transpose has put there from behind, which is not read then.
Refuses: other sums; targets that say so; everything under strategies that leave layers apart.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operators import Reduce, Transpose, View
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass


def sum_columns(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.adds_columns:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        value = _summed(node)
        if value is None or not context.allow(f"{node.name} adds up columns of a matrix"):
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Reduce)
        shape = (value.type.size // value.shape[-1], value.shape[-1])
        name = rewriter.fresh(f"{node.name}.rows")
        rows = rewriter.add(View(shape), [rewriter.value(value)], name, node.source)
        op = replace(node.op, dims=(0,))
        new = rewriter.add(op, [rows.output], node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


def _summed(node: Node) -> Value | None:
    """The value of whose last axis a node keeps the sums; None if it computes something else."""
    op = node.op
    if not isinstance(op, Reduce) or op.how != "sum" or op.keepdim:
        return None
    (value,) = node.inputs
    rank = value.type.rank
    if rank < 3 or value.dtype not in FLOATS or not value.type.size:
        return None
    kept = [axis for axis in range(rank) if axis not in op.dims]
    if kept == [rank - 1]:
        return value
    before = value.producer
    if kept == [1] and before is not None and isinstance(before.op, Transpose):
        return before.inputs[0] if before.op.dims[1] == rank - 1 else None
    return None


SUM_COLUMNS = Pass("sum_columns", sum_columns)
