"""turn_rows: linear layers take rows in the order in which they lie.

A linear layer computes each row for itself.  Where batch and tokens change places in front of
attention's projections, and back behind the last one, both moves can be where the attention between
them reads and writes matrices in any order.
Handles: a Transpose of rows in front of a linear layer whose result is only seen in other shapes
and orders: it comes behind the layer.  One behind a linear layer whose operand is such a view comes
in front of it.
Refuses: a Transpose that moves features; everything under strategies that leave layers apart, and
where products do not read matrices where they lie.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.fusion.strided import is_view
from minidnn.graph.ir import Graph, Node, Rewriter, drop_unread
from minidnn.graph.operator import Operator, Reshaping
from minidnn.graph.operators import Linear, Transpose, View
from minidnn.passes.infrastructure import Context, Pass


def turn_rows(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.turns_products:
        return graph
    return rows_turned(graph, context)


def rows_turned(graph: Graph, context: Context) -> Graph:
    """The same for any target and strategy."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        before, behind = _in_front(graph, node), _linear_before(graph, node)
        if before is not None and context.allow(f"{before.name} behind {node.name}"):
            _put_behind(rewriter, node, before)
        elif behind is not None and context.allow(f"{node.name} before {behind[-1].name}"):
            _put_before(rewriter, node, behind)
        else:
            rewriter.keep(node)
    return drop_unread(rewriter.finish()) if rewriter.changes else graph


def _turns_rows(node: Node | None) -> bool:
    op = None if node is None else node.op
    return isinstance(op, Transpose) and op.dims[-1] == len(op.dims) - 1


def _in_front(graph: Graph, node: Node) -> Node | None:
    """The Transpose in front of a linear layer that may come behind it."""
    move = node.inputs[0].producer if isinstance(node.op, Linear) else None
    if move is None or not _turns_rows(move) or node.output in graph.results:
        return None
    return move if all(map(is_view, graph.readers[node.output])) else None


def _linear_before(graph: Graph, node: Node) -> list[Node] | None:
    """The linear layer in front of a Transpose, and other shapes between them, where it may come in
    front of them."""
    if not _turns_rows(node):
        return None
    found: list[Node] = []
    value, reader = node.inputs[0], node
    while (made := value.producer) is not None and graph.only_reader(value) is reader:
        found.insert(0, made)
        if isinstance(made.op, Linear):
            before = made.inputs[0].producer
            rows = [each.output.shape[-1] for each in found]
            return found if before is not None and is_view(before) and len({*rows}) == 1 else None
        if not isinstance(made.op, Reshaping):
            return None
        value, reader = made.inputs[0], made
    return None


def _put_behind(rewriter: Rewriter, node: Node, move: Node) -> None:
    operands = [move.inputs[0], *node.inputs[1:]]
    name = rewriter.fresh(f"{node.name}.rows")
    made = rewriter.add(node.op, list(map(rewriter.value, operands)), name, node.source)
    turned = rewriter.add(move.op, [made.output], node.name, move.source)
    rewriter.replace(node.output, turned.output)


def _put_before(rewriter: Rewriter, move: Node, between: list[Node]) -> None:
    linear = between[0]
    value = rewriter.value(linear.inputs[0])
    features = value.shape[-1]
    shaped: Operator = View((*move.inputs[0].shape[:-1], features))
    for op in (shaped, move.op):
        name = rewriter.fresh(f"{linear.name}.{op.name.lower()}")
        value = rewriter.add(op, [value], name, move.source).output
    operands = [value, *map(rewriter.value, linear.inputs[1:])]
    made = rewriter.add(linear.op, operands, move.name, linear.source)
    rewriter.replace(move.output, made.output)


TURN_ROWS = Pass("turn_rows", turn_rows)
