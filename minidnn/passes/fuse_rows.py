"""fuse_rows: chains over the same rows become regions whose rows are read and written once.

Layer normalization, softmax, their gradients and norms of rows are chains of element-wise operators
and reductions along the last axis.  One by one, each of them reads all rows and writes them again.

Handles: element-wise operators, casts, views, reductions along the last axis, layer normalization
and softmax, where one computes what another reads, all over the same number of rows of the same
length; and sums over all rows of what such a region reads or computes.
Refuses: chains without a reduction along rows, which depth_first computes; whatever the target
refuses (noted with its reason); everything under strategies that leave layers apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from minidnn.fusion.collapse import APART
from minidnn.fusion.rows import FusedRows, Role, RowShape, is_along_rows, is_column_sum, rows_of
from minidnn.fusion.stacks import Groups, boundary
from minidnn.graph.ir import Constant, Graph, Node
from minidnn.graph.operator import Reshaping
from minidnn.passes.contract import contract
from minidnn.passes.infrastructure import Context, Pass

MOST_VALUES = 16
"""Values with an element for each of the rows that a region reads and writes at most."""
MOST_SUMS = 3
"""Sums over rows, of which a thread keeps one number for each element of a row that it has."""


def fuse_rows(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART:
        return graph
    allowed = []
    for nodes in _Chains(graph).regions():
        region = FusedRows(Graph(*boundary(graph, nodes), nodes, nodes[-1].name))
        if (reason := context.target.refuse_rows(region)) is not None:
            context.notes[nodes[-1].name] = f"its rows are stored in between: {reason}"
        elif not context.allow(f"compute {', '.join(node.name for node in nodes)} row by row"):
            break
        else:
            allowed.append((nodes, FusedRows))
    return contract(graph, allowed)


class _Chains:
    """Groups of a graph's nodes over the same rows, grown along what they read."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.groups = Groups(graph)
        found = ((node, rows_of(node)) for node in graph.nodes)
        self.rows = {node: rows for node, rows in found if isinstance(rows, RowShape)}
        for node in self.rows:
            if not is_column_sum(node):
                for value in node.inputs:
                    self._merge(value.producer, node)
        for node in self.rows:
            if is_column_sum(node):
                self._add_sum(node)

    def regions(self) -> list[list[Node]]:
        """The groups that reduce rows, and do more than that; each in the graph's order."""
        found: dict[int, list[Node]] = {}
        for node in self.rows:
            found.setdefault(id(self.groups.of(node)), []).append(node)
        regions = map(self._without_views, found.values())
        return [nodes for nodes in regions if _computes(nodes) > 1 and any(map(_reduces, nodes))]

    def _without_views(self, nodes: list[Node]) -> list[Node]:
        """A group without the views that none of it reads: outside of it they move nothing."""
        kept: dict[Node, None] = {}
        for node in reversed(nodes):
            read = any(
                reader in kept for value in node.outputs for reader in self.graph.readers[value]
            )
            if read or not isinstance(node.op, Reshaping):
                kept[node] = None
        return list(kept)[::-1]

    def _merge(self, producer: Node | None, node: Node) -> bool:
        """Merges the groups of two nodes, if they are over the same rows."""
        if producer not in self.rows or producer is None or is_column_sum(producer):
            return False
        if self.groups.of(producer) is self.groups.of(node):
            return True
        nodes = (*self.groups.nodes_of(producer), *self.groups.nodes_of(node))
        rows = self._common(nodes)
        if rows is None or not self._fits(nodes, rows):
            return False
        if not self.groups.can_merge([producer, node]):
            return False
        self.groups.merge([producer, node])
        return True

    def _common(self, nodes: tuple[Node, ...]) -> RowShape | None:
        """The rows of some nodes; None if they differ."""
        rows: RowShape | None = self.rows[nodes[0]]
        for node in nodes[1:]:
            rows = rows.merged(self.rows[node]) if rows is not None else None
        return rows

    def _fits(self, nodes: tuple[Node, ...], rows: RowShape) -> bool:
        position = self.graph.position
        inputs, outputs = boundary(self.graph, sorted(nodes, key=position.__getitem__))
        if any(rows.role(value.type) is None for value in inputs):
            return False
        wide = [v for v in (*inputs, *outputs) if rows.role(v.type) is Role.ROW]
        return len(wide) <= MOST_VALUES and sum(map(is_column_sum, nodes)) <= MOST_SUMS

    def _add_sum(self, node: Node) -> None:
        """Adds a sum over rows, and views of these in front of it, to a region that computes the
        rows, or reads them."""
        chain = [node]
        while not isinstance(chain[-1].inputs[0], Constant):
            (value,) = chain[-1].inputs
            for other in (value.producer, *self.graph.readers[value]):
                known = other is not None and other in self.rows and self._reduces(other)
                if known and self._merge(other, chain[-1]):
                    for viewed, reader in pairwise(reversed(chain)):
                        self._merge(viewed, reader)
                    return
            view = value.producer
            if view not in self.rows or view is None or not isinstance(view.op, Reshaping):
                return
            chain.append(view)

    def _reduces(self, node: Node) -> bool:
        return any(map(_reduces, self.groups.nodes_of(node)))


def _reduces(node: Node) -> bool:
    """Whether it makes a chain a region: more than element-wise operators, which stacks have."""
    return is_along_rows(node) and not isinstance(node.inputs[0], Constant)


def _computes(nodes: list[Node]) -> int:
    """How many nodes do more than to give a value another shape."""
    return sum(not isinstance(node.op, Reshaping) for node in nodes)


def no_sum_is_read_inside(graph: Graph) -> Iterator[str]:
    """Sums over rows are known when all rows are computed."""
    for node in graph.nodes:
        if isinstance(node.op, FusedRows):
            inner = node.op.body.nodes
            sums = {each.output for each in inner if is_column_sum(each)}
            if any(value in sums for each in inner for value in each.inputs):
                yield f"node {node.name!r} reads its own sums over rows"


FUSE_ROWS = Pass("fuse_rows", fuse_rows, ("absorb",), (no_sum_is_read_inside,))
