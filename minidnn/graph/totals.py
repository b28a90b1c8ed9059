"""Totals of a graph, for reports and pictures: nodes, operations, and bytes of constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a graph's nodes, bodies of regions included."""

    nodes: int
    #: Scalar operations of one run; a multiply-add counts as 2.
    operations: int
    constants: int
    #: Elements of all constants, and their bytes; shared constants count once.
    elements: int
    bytes: int


def inner_nodes(node: Node) -> tuple[Node, ...]:
    """The nodes of a region's body; none for any other node."""
    body = getattr(node.op, "body", None)
    return tuple(body.nodes) if isinstance(body, Graph) else ()


def with_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields each node, a region followed by the nodes of its body."""
    for node in nodes:
        yield node
        yield from with_bodies(inner_nodes(node))


def operations(node: Node) -> int:
    """The number of scalar operations of one run of a node."""
    inputs = tuple(value.type for value in node.inputs)
    return node.op.operations(inputs, tuple(value.type for value in node.outputs))


def totals(graph: Graph) -> Totals:
    """The totals of a graph.  A region counts by the nodes of its body."""
    nodes, operation_count = 0, 0
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
            operation_count += operations(node)
    elements = sum(constant.type.size for constant in constants)
    byte_count = sum(constant.type.bytes for constant in constants)
    return Totals(nodes, operation_count, len(constants), elements, byte_count)
