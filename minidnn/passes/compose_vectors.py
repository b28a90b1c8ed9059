"""compose_vectors: point-wise operators on small values become one where one alone reads another.

Training computes much with vectors over channels and with single numbers: running statistics, what
gradients of normalizations are made of.  Each of these operators takes no time but its launch.

Handles: operators on values of rank 0 and 1 that one such operator reads, both computed in the
dtype of the value between them, so that no bit changes.
Refuses: other ranks, of which depth_first makes sequences; half precision, in which a value between
is rounded; everything under the strategies that leave layers apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from minidnn.fusion.collapse import APART
from minidnn.graph.expression import Expression, argument, linearize
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Formula
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.simplify import drop_dead

MOST_OPERANDS = 16
"""More pointers are slow to hand over, and a formula of more reads more than it saves."""

_EXACT = ("float32", "float64")
"""What is computed in them is not rounded when it is stored."""

_Composed = tuple[Expression, Sequence[Value]]


def compose_vectors(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    rewriter = Rewriter(graph)
    #: By the new graph's values what each is computed of, and how.
    known: dict[Value, _Composed] = {}
    for node in graph.nodes:
        if not _is_small(node):
            rewriter.keep(node)
            continue
        body, operands = _composed(graph, node, rewriter, known)
        if list(operands) == [rewriter.value(v) for v in node.inputs] or not context.allow(
            f"{node.name} takes what it alone reads"
        ):
            rewriter.keep(node)
        else:
            dtype = node.output.dtype
            op = Formula(body, len(operands), 0, node.op.name, dtype, _computed_in(node))
            new = rewriter.add(op, operands, node.name, node.source)
            rewriter.replace(node.output, new.output)
        if _computed_in(node) == node.output.dtype:
            known[rewriter.value(node.output)] = body, operands
    found = rewriter.finish()
    return graph if found is graph else drop_dead(found, context)


def _is_small(node: Node) -> bool:
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    return node.output.type.rank < 2 and _computed_in(node) in _EXACT


def _computed_in(node: Node) -> str | None:
    assert isinstance(node.op, Elementwise)
    return node.op.computed_in([value.dtype for value in node.inputs])


def _composed(
    graph: Graph, node: Node, rewriter: Rewriter, known: dict[Value, _Composed]
) -> _Composed:
    """A node's formula with those of the operands that it alone reads in it."""
    operands: dict[Value, None] = {}
    parts: list[Expression | None] = []
    given = [rewriter.value(value) for value in node.inputs]
    for old, value in zip(node.inputs, given, strict=True):
        before = known.get(value)
        taken = before is not None and graph.only_reader(old) is node
        if before is None or not taken or value.dtype != _computed_in(node):
            parts.append(None)
            operands[value] = None
            continue
        operands.update(dict.fromkeys(before[1]))
        parts.append(before[0])
    assert isinstance(node.op, Elementwise)
    if len(operands) > MOST_OPERANDS or all(part is None for part in parts):
        return node.op.expression(), given
    places = {value: argument(i) for i, value in enumerate(operands)}
    found = []
    for value, part in zip(given, parts, strict=True):
        inner = known[value][1] if part is not None else ()
        found.append(places[value] if part is None else _with(part, [places[v] for v in inner]))
    return _with(node.op.expression(), found), list(operands)


def _with(expression: Expression, arguments: Sequence[Expression]) -> Expression:
    """An expression with others in the place of its arguments."""
    values: list[Expression] = []
    for line in linearize(expression):
        operands = tuple(values[i] for i in line.operands)
        if line.op == "argument":
            values.append(arguments[int(line.value or 0)])
        else:
            values.append(Expression(line.op, operands, line.value))
    return values[-1]


COMPOSE_VECTORS = Pass("compose_vectors", compose_vectors, requires=("simplify",))
