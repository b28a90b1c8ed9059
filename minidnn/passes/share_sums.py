"""Sums are computed once, sums over all axes but the last as sums of a matrix's columns, and what
gradients of sums repeat along axes is repeated by what reads it.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.fusion.collapse import APART
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Concat, Expand, Reduce, Transpose, Variance, View
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass


def sum_columns(graph: Graph, context: Context) -> Graph:
    """Sums over all axes but the last become sums of the columns of a matrix.

    Gradients of biases and of normalizations' weights are such sums.  As a matrix's, they are
    computed by what adds up channels, or together with the rows that they are sums of.

    Handles: sums over all axes but the last of values of three axes or more; and over all but the
    second of what a transpose has put there from behind, which is not read then.
    Refuses: other sums; targets that say so; everything under strategies that leave layers apart.
    """
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


_Sums = tuple[Operator, ...]
"""What is computed of a value: a reduction, or a variance and the mean that it is around."""


def share_sums(graph: Graph, context: Context) -> Graph:
    """What is added up of a join is joined of what is added up of its operands.

    Each layer of a dense block normalizes all channels so far, by their mean and variance.  Those
    of the channels before are known from the layer before, so that a layer need only read its own.
    Handles: reductions and variances of joins, over other axes than the joined one; operands that
    are joins themselves are taken apart.  What is known of all operands but one is read, and the
    reduction reads that one.
    Refuses: joins of which more than one operand would be read anew, as nothing else is known of
    them: one sweep would become several; variances around what is no mean of the join.
    """
    sharing = _Sharing(graph, context)
    for node in graph.nodes:
        sharing.add(node)
    return sharing.rewriter.finish()


class _Sharing:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.context = context
        self.rewriter = Rewriter(graph)
        #: By what is computed, and of which of the graph's values: the new graph's.
        self.known: dict[tuple[_Sums, Value], Value] = {}

    def add(self, node: Node) -> None:
        sums = _sums_of(node)
        if sums is None:
            self.rewriter.keep(node)
            return
        x = node.inputs[0]
        if (sums, x) in self.known or not self._is_shared(sums, x, node.name):
            self.rewriter.keep(node)
        else:
            self.rewriter.replace(node.output, self._found(sums, x, node, node.name))
        self.known.setdefault((sums, x), self.rewriter.value(node.output))

    def _is_shared(self, sums: _Sums, x: Value, name: str) -> bool:
        parts = self._parts(sums, x)
        new = [part for part in parts if (sums, part) not in self.known]
        if len(parts) == 1 or len(new) > 1:
            return False
        read = f"{new[0].name} alone" if new else "nothing"
        return self.context.allow(f"read {read} for {name}")

    def _parts(self, sums: _Sums, x: Value) -> list[Value]:
        """What a value joins, as far as it has to be taken apart."""
        join = x.producer
        if (sums, x) in self.known or join is None or not _is_along(sums, join):
            return [x]
        return [part for value in join.inputs for part in self._parts(sums, value)]

    def _found(self, sums: _Sums, x: Value, node: Node, name: str = "") -> Value:
        """What is computed of a value, by nodes that are named after one of the graph."""
        known = self.known.get((sums, x))
        if known is not None:
            return known
        join = x.producer
        if join is not None and _is_along(sums, join):
            operands = [self._found(sums, value, node) for value in join.inputs]
            op: Operator = Concat(_joined_axis(sums, join))
        else:
            op, *mean = sums
            operands = [self.rewriter.value(x)]
            operands += [self._found((each,), x, node) for each in mean]
        name = name or self.rewriter.fresh(f"{node.name}.new")
        self.known[sums, x] = self.rewriter.add(op, operands, name, node.source).output
        return self.known[sums, x]


def _sums_of(node: Node) -> _Sums | None:
    if isinstance(node.op, Reduce):
        return (node.op,)
    if not isinstance(node.op, Variance):
        return None
    mean = node.inputs[1].producer
    if mean is None or not isinstance(mean.op, Reduce) or mean.inputs[0] is not node.inputs[0]:
        return None
    return node.op, mean.op


def _is_along(sums: _Sums, join: Node) -> bool:
    """Whether a node joins values along an axis that is not added up."""
    if not isinstance(join.op, Concat):
        return False
    axis = join.op.axis % join.output.type.rank
    if isinstance(sums[0], Variance):
        return axis == 1
    assert isinstance(sums[0], Reduce)
    return axis not in sums[0].dims


def _joined_axis(sums: _Sums, join: Node) -> int:
    """The axis along which the results are joined."""
    op = sums[0]
    assert isinstance(join.op, Concat)
    axis = join.op.axis % join.output.type.rank
    if isinstance(op, Variance):
        return 0
    assert isinstance(op, Reduce)
    return axis if op.keepdim else axis - sum(dim < axis for dim in op.dims)


SHARE_SUMS = Pass("share_sums", share_sums)


def repeat_inside(graph: Graph, context: Context) -> Graph:
    """Point-wise operators repeat along axes what they read, so that nothing else does.

    Gradients of sums repeat a value along the axes that were summed over.

    Handles: operands of point-wise operators that are repeated along axes (Expand) and come to the
    result's shape by the operator's own broadcasting, because another operand has that shape.
    Refuses: values whose rank changes.
    """
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
