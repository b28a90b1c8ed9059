"""Rewrites of reductions and of the broadcasts that their gradients need.

``sum_columns`` turns sums over all axes but the last into sums of a matrix's columns;
``share_sums`` reduces each operand of a concatenation once; ``repeat_inside`` leaves broadcasting
to the point-wise operators that read an expanded value.
"""

from __future__ import annotations

from dataclasses import replace

from minidnn.fusion.collapse import NO_STACKS
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise, Operator
from minidnn.graph.operators import Concat, Expand, Reduce, Transpose, Variance, View
from minidnn.graph.types import FLOATS
from minidnn.passes.infrastructure import Context, Pass


def sum_columns(graph: Graph, context: Context) -> Graph:
    """Sums over all axes but the last become sums of the columns of a matrix.

    Gradients of biases and of normalizations' weights are such sums.  As sums of a matrix they can
    be computed by a sweep over channels, or in the kernel of the rows that they are sums of.

    Handles: sums over all axes but the last, of values of rank 3 or more; and sums over all axes
    but the second, of a transpose that moves the last axis there: its operand is summed instead.
    Refuses: other sums; targets that say so; everything under strategies that fuse no stacks.
    """
    if context.strategy in NO_STACKS or not context.target.adds_columns:
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
    """The value that a node sums over all axes but the last; None if it computes something else."""
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
    producer = value.producer
    if kept == [1] and producer is not None and isinstance(producer.op, Transpose):
        return producer.inputs[0] if producer.op.dims[1] == rank - 1 else None
    return None


SUM_COLUMNS = Pass("sum_columns", sum_columns)


_Sums = tuple[Operator, ...]
"""The operators that reduce a value: a reduction, or a variance and the mean that it is around."""


def share_sums(graph: Graph, context: Context) -> Graph:
    """A reduction of a concatenation becomes the concatenation of its operands' reductions.

    Each layer of a dense block normalizes all channels so far, by their mean and variance.  The
    layers before have computed those of all but the newest channels, so that a layer need only read
    these.
    Handles: reductions and variances of concatenations, over other axes than the concatenated one;
    operands that are concatenations themselves are taken apart.  Results that are known are used
    again, and the reduction reads the one operand whose result is not known.
    Refuses: concatenations with several operands whose results are not known: one sweep would
    become several; variances around another value than the concatenation's mean.
    """
    sharing = _Sharing(graph, context)
    for node in graph.nodes:
        sharing.add(node)
    return sharing.rewriter.finish()


class _Sharing:
    """Rewrites a graph node by node, and remembers which reductions are known."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.context = context
        self.rewriter = Rewriter(graph)
        #: Results of the new graph, by the operators and the operand in the old graph.
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
        unknown = [part for part in parts if (sums, part) not in self.known]
        if len(parts) == 1 or len(unknown) > 1:
            return False
        read = f"{unknown[0].name} alone" if unknown else "nothing"
        return self.context.allow(f"read {read} for {name}")

    def _parts(self, sums: _Sums, x: Value) -> list[Value]:
        """The operands that a value concatenates, through concatenations whose reduction is not
        known; the value itself if it is no such concatenation."""
        concat = x.producer
        if (sums, x) in self.known or concat is None or not _keeps_axis(sums, concat):
            return [x]
        return [part for value in concat.inputs for part in self._parts(sums, value)]

    def _found(self, sums: _Sums, x: Value, node: Node, name: str = "") -> Value:
        """The reduction of a value in the new graph.  Nodes that are added for it are named
        ``name``, or after ``node``."""
        known = self.known.get((sums, x))
        if known is not None:
            return known
        concat = x.producer
        if concat is not None and _keeps_axis(sums, concat):
            operands = [self._found(sums, value, node) for value in concat.inputs]
            op: Operator = Concat(_concat_axis(sums, concat))
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


def _keeps_axis(sums: _Sums, concat: Node) -> bool:
    """Whether a node concatenates values along an axis that the reduction keeps."""
    if not isinstance(concat.op, Concat):
        return False
    axis = concat.op.axis % concat.output.type.rank
    if isinstance(sums[0], Variance):
        return axis == 1
    assert isinstance(sums[0], Reduce)
    return axis not in sums[0].dims


def _concat_axis(sums: _Sums, concat: Node) -> int:
    """The axis along which the operands' reductions are concatenated."""
    op = sums[0]
    assert isinstance(concat.op, Concat)
    axis = concat.op.axis % concat.output.type.rank
    if isinstance(op, Variance):
        return 0
    assert isinstance(op, Reduce)
    return axis if op.keepdim else axis - sum(dim < axis for dim in op.dims)


SHARE_SUMS = Pass("share_sums", share_sums)


def repeat_inside(graph: Graph, context: Context) -> Graph:
    """Point-wise operators broadcast their operands, so that no Expand is computed for them.

    Gradients of sums repeat a value along the axes that were summed over.

    Handles: operands of point-wise operators that are the result of an Expand, where the operator's
    own broadcasting gives the same shape because another operand has it.
    Refuses: values whose rank changes.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        operands = [rewriter.value(value) for value in node.inputs]
        unrepeated = _unrepeated(node, operands)
        if unrepeated != operands and context.allow(f"{node.name} repeats its operands itself"):
            new = rewriter.add(node.op, unrepeated, node.name, node.source)
            rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _unrepeated(node: Node, given: list[Value]) -> list[Value]:
    """The operands of a node, with operands of Expands in place of Expands that are not needed."""
    if not isinstance(node.op, Elementwise):
        return given
    operands = list(given)
    shape = node.output.shape
    count = len(operands) - node.op.channel_count
    for i in range(count):
        others = [value.shape for j, value in enumerate(operands[:count]) if j != i]
        while shape in others and (before := _repeated(operands[i])) is not None:
            operands[i] = before
    return operands


def _repeated(value: Value) -> Value | None:
    """The operand of the Expand that makes a value, if it has the same rank; None otherwise."""
    node = value.producer
    if node is None or not isinstance(node.op, Expand):
        return None
    (before,) = node.inputs
    return before if before.type.rank == value.type.rank else None


REPEAT_INSIDE = Pass("repeat_inside", repeat_inside)
