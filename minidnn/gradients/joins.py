"""Joins of channels that are kept between a graph and its gradient in place of what they join.

A join that is written anyway, as in a dense block, has what it joins in it: backwards that is read
where it lies, and nothing has to be joined a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Concat, Slice

#: What reads parts of values where they lie.
_READ_PARTS = ("elementwise", "reduction")


@dataclass(frozen=True)
class JoinedPart:
    """Channels of a join, from the first on."""

    whole: Value
    first: int

    def slice_of(self, value: Value) -> Slice:
        """What takes them, where they are a value."""
        return Slice((0, self.first, 0, 0), value.shape, (1, 1, 1, 1))


def parts_of_joins(
    graph: Graph, kept: Collection[Value], again: Collection[Node], later: Sequence[Node]
) -> dict[Value, JoinedPart]:
    """Where values lie in joins of channels that are better kept: all that these join is kept
    else, and is read backwards by nodes that read parts as well as wholes."""
    read = {v for node in later if node.op.kind not in _READ_PARTS for v in node.inputs}
    found: dict[Value, JoinedPart] = {}
    for node in reversed(graph.nodes):
        if node not in again or not _joins_channels(node) or node.output in found:
            continue
        whole, inside = _widest(graph, node).output, dict[Value, JoinedPart]()
        leaves = _spread(whole, 0, whole, inside)
        is_kept = len(leaves) == len(set(leaves)) and {*kept}.issuperset(leaves)
        if is_kept and all(map(inside.keys().isdisjoint, (found, read, graph.outputs))):
            found |= inside
    return found


def _joins_channels(node: Node | None) -> bool:
    return (
        node is not None
        and isinstance(node.op, Concat)
        and node.output.type.rank == 4
        and node.op.axis % 4 == 1
    )


def _widest(graph: Graph, node: Node) -> Node:
    """The join that begins with a join, or with one that begins with it."""
    while True:
        readers = (r for r in graph.readers[node.output] if _joins_channels(r))
        wider = next((r for r in readers if r.inputs[0] is node.output), None)
        if wider is None:
            return node
        node = wider


def _spread(value: Value, first: int, whole: Value, inside: dict[Value, JoinedPart]) -> list[Value]:
    """What is joined into a value that begins at a channel of a whole, and is no join itself;
    notes of all of that where it lies."""
    inside[value] = JoinedPart(whole, first)
    node = value.producer
    if node is None or not _joins_channels(node):
        return [value]
    leaves = []
    for operand in node.inputs:
        leaves += _spread(operand, first, whole, inside)
        first += operand.shape[1]
    return leaves


def in_joins(
    graph: Graph, kept: Sequence[Value], again: Collection[Node], known: Mapping[Value, JoinedPart]
) -> tuple[list[Value], set[Node], dict[Value, JoinedPart]]:
    """The values to keep and the nodes to compute again where some are parts of joins, and which
    parts of which joins are read."""
    every = [*kept, *(value for node in again for value in node.outputs)]
    order = {value: place for place, value in enumerate(graph.values)}
    every.sort(key=lambda value: order.get(value, len(order)))
    parts = {value: known[value] for value in every if value in known}
    wholes = {part.whole: None for part in parts.values()}
    keeps = {value: None for value in (*kept, *wholes) if value in wholes or value not in parts}
    found = sorted(keeps, key=lambda value: order.get(value, len(order)))
    again = {node for node in again if not any(value in parts for value in node.outputs)}
    return found, again, {v: part for v, part in parts.items() if part.whole is not v}
