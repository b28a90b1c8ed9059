"""What a whole graph takes: nodes, operations, bytes of weights."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a graph's nodes, bodies of regions included."""

    nodes: int
    #: Scalar operations of one run; a multiply-add counts as 2.
    operations: int
    constants: int
    #: Elements of the constants, and what they take in memory; shared ones count once.
    elements: int
    bytes: int


def operations(node: Node) -> int:
    """Scalar operations of one run of a node."""
    inputs = tuple(value.type for value in node.inputs)
    return node.op.operations(inputs, tuple(value.type for value in node.outputs))


def totals(graph: Graph) -> Totals:
    """The totals of a graph.  A region counts by the nodes of its body."""
    nodes, found = 0, 0
    constants = dict.fromkeys(graph.constants)
    pending = list(graph.nodes)
    while pending:
        node = pending.pop()
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph):
            pending.extend(body.nodes)
            constants.update(dict.fromkeys(body.constants))
        else:
            nodes += 1
            found += operations(node)
    elements = sum(constant.type.size for constant in constants)
    size = sum(constant.type.bytes for constant in constants)
    return Totals(nodes, found, len(constants), elements, size)
