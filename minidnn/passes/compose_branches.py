"""compose_branches: point-wise operators that branch off one value and meet again become one.

Files spell activations out: SiLU is a sigmoid and a product with what the sigmoid read.  A
contraction takes what follows it into its kernel, but only one operator after another.

Handles: an operator that reads a value by several ways, of which each is that value itself or a
chain of point-wise operators of one operand, all of one shape and computed in the dtype of their
results, so that no bit changes.  Nothing else reads what lies between.
Refuses: vectors over channels, half precision, in which values between are rounded; everything
under the strategies that leave layers apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.fusion.collapse import APART
from minidnn.graph.expression import Expression, argument
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Formula
from minidnn.graph.substitution import substituted
from minidnn.passes.infrastructure import Context, Pass

_EXACT = ("float32", "float64")
"""What is computed in them is not rounded when it is stored."""

#: Values that one value is computed of, the nearest first, and the nodes on the way from each.
_Ways = dict[Value, tuple[Node, ...]]


def compose_branches(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    ways: dict[Value, _Ways] = {}
    meetings: dict[Node, tuple[Value, tuple[Node, ...]]] = {}
    inside: set[Node] = set()
    for node in graph.nodes:
        if not _is_plain(node):
            continue
        found = _root(graph, node, ways)
        if found is None:
            continue
        root, between = found
        ways[node.output] = {root: (*between, node)}
        for further, nodes in ways.get(root, {}).items():
            ways[node.output][further] = (*nodes, *between, node)
        if len(node.inputs) > 1 and between and context.allow(f"{node.name} takes its branches"):
            meetings[node] = root, between
            inside.update(between)
    if not meetings:
        return graph
    return _composed(graph, meetings, inside)


def _is_plain(node: Node) -> bool:
    """Whether a node computes each element of elements at one place, and rounds nothing."""
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    exact = node.output.dtype in _EXACT
    return exact and all(value.type == node.output.type for value in node.inputs)


def _root(
    graph: Graph, node: Node, ways: Mapping[Value, _Ways]
) -> tuple[Value, tuple[Node, ...]] | None:
    """The nearest value of which all operands are computed, and the nodes between, in order."""
    each = [{value: (), **ways.get(value, {})} for value in dict.fromkeys(node.inputs)]
    for root in each[-1]:
        if any(root not in others for others in each):
            continue
        between = {inner for others in each for inner in others[root]}
        if all(_reads_only(graph, inner, between | {node}) for inner in between):
            return root, tuple(sorted(between, key=graph.position.__getitem__))
    return None


def _reads_only(graph: Graph, inner: Node, nodes: set[Node]) -> bool:
    """Whether nobody but these nodes reads a node's result."""
    return inner.output not in graph.results and nodes.issuperset(graph.readers[inner.output])


def _composed(
    graph: Graph, meetings: Mapping[Node, tuple[Value, tuple[Node, ...]]], inside: set[Node]
) -> Graph:
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in inside:
            continue
        if node not in meetings:
            rewriter.keep(node)
            continue
        root, between = meetings[node]
        known: dict[Value, Expression] = {root: argument(0)}
        for inner in (*between, node):
            assert isinstance(inner.op, Elementwise)
            given = {i: known[value] for i, value in enumerate(inner.inputs)}
            known[inner.output] = substituted(inner.op.expression(), given)
        op = Formula(known[node.output], title="+".join(n.op.name for n in (*between, node)))
        new = rewriter.add(op, [rewriter.value(root)], node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


COMPOSE_BRANCHES = Pass("compose_branches", compose_branches, requires=("simplify",))
