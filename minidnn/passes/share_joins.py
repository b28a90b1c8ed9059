"""share_joins: a join that begins with what another one joins reads that one's result.

Networks are written in both ways: DenseNet's layers join all values so far (torchvision), or the
join before and one value more (the zoo's).  In the second, a value is an operand of one join only,
which can lie in one buffer with those that it begins with, and what computes a join's rows has two
operands to read instead of dozens.
Handles: joins along the same axis, the other one being computed before; the longest such beginning
counts.  Joins of the very same values become one.
Refuses: joins that share other operands than the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operators import Concat
from minidnn.passes.infrastructure import Context, Pass

#: Joins by axis and operands, in the graph as it was.
_Known = Mapping[tuple[int, tuple[Value, ...]], Node]


def share_joins(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            begin = _begin(node, known)
            if begin is not None and context.allow(f"begin {node.name} with {begin.name}"):
                _begin_with(rewriter, node, begin)
            else:
                rewriter.keep(node)
            known.setdefault((_axis(node), node.inputs), node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _axis(node: Node) -> int:
    assert isinstance(node.op, Concat)
    return node.op.axis % node.output.type.rank


def _begin(node: Node, known: _Known) -> Node | None:
    """The join of the most operands with which ``node`` begins."""
    for count in range(len(node.inputs), 1, -1):
        found = known.get((_axis(node), node.inputs[:count]))
        if found is not None:
            return found
    return None


def _begin_with(rewriter: Rewriter, node: Node, begin: Node) -> None:
    first = rewriter.value(begin.output)
    rest = [rewriter.value(value) for value in node.inputs[len(begin.inputs) :]]
    if rest:
        first = rewriter.add(node.op, [first, *rest], node.name, node.source).output
    rewriter.replace(node.output, first)


def no_joins_twice(graph: Graph) -> Iterator[str]:
    known: dict[tuple[int, tuple[Value, ...]], Node] = {}
    for node in graph.nodes:
        if isinstance(node.op, Concat):
            begin = _begin(node, known)
            if begin is not None:
                yield f"the join {node.name!r} begins with what {begin.name!r} joins"
            known[_axis(node), node.inputs] = node


SHARE_JOINS = Pass("share_joins", share_joins, requires=("simplify",), ensures=(no_joins_twice,))
