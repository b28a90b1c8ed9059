"""fuse_rows: chains of operators along rows become regions that read and write each row once.

Layer normalization, softmax, their gradients and norms of rows are chains of element-wise operators
and reductions along the last axis.  Unfused, each operator reads all rows and writes them again.

Handles: element-wise operators, casts, views, reductions along the last axis, layer normalization
and softmax that read each other's results, all over the same number of rows of the same length; and
sums over all rows (column sums) of values that such a region reads or computes.
Refuses: chains without a reduction along rows, which ``depth_first`` computes; whatever the target
refuses (noted with its reason); everything under strategies that fuse no stacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from minidnn.fusion.rows import FusedRows, Role, RowShape, is_along_rows, is_column_sum, rows_of
from minidnn.fusion.stacks import Groups, boundary
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Constant, Graph, Node
from minidnn.graph.operator import Reshaping
from minidnn.passes.fuse import fusion

MOST_VALUES = 16
"""Values in full rows that a region reads and writes at most."""
MOST_SUMS = 3
"""Column sums of a region at most: a thread keeps a partial sum of each for every element of a row
that it computes."""


def fuse_rows(groups: Groups, target: Target) -> Iterator[Proposal]:
    """See the module."""
    for nodes in _Chains(groups).regions():
        yield Proposal(
            nodes,
            FusedRows,
            f"compute {', '.join(node.name for node in nodes)} row by row",
            nodes[-1],
            "its rows are stored in between",
        )


class _Chains:
    """Groups of nodes over the same rows, which grow from producer to reader.

    Attributes:
        rows: for each node that can be computed row by row, the number of its rows and their
            length.
    """

    def __init__(self, groups: Groups) -> None:
        self.graph = groups.graph
        self.groups = groups
        found = ((node, rows_of(node)) for node in self.graph.nodes)
        self.rows = {node: rows for node, rows in found if isinstance(rows, RowShape)}
        for node in self.rows:
            if not is_column_sum(node):
                for value in node.inputs:
                    self._merge(value.producer, node)
        for node in self.rows:
            if is_column_sum(node):
                self._add_sum(node)

    def regions(self) -> list[list[Node]]:
        """The groups that reduce rows and have other operators as well; each in the graph's
        order."""
        members: dict[int, list[Node]] = {}
        for node in self.rows:
            members.setdefault(id(self.groups.of(node)), []).append(node)
        regions = map(self._without_views, members.values())
        return [nodes for nodes in regions if _computes(nodes) > 1 and any(map(_reduces, nodes))]

    def _without_views(self, nodes: list[Node]) -> list[Node]:
        """A group without views that no node of it reads: outside of the region they copy
        nothing."""
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
        """The number and length of rows that nodes have in common; None if these differ."""
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
        """Adds a column sum, and the views before it, to a group that computes its operand or reads
        it."""
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
    """Whether a node makes its chain a region: it reduces along rows, as stacks cannot."""
    return is_along_rows(node) and not isinstance(node.inputs[0], Constant)


def _computes(nodes: list[Node]) -> int:
    """The number of nodes that are no views."""
    return sum(not isinstance(node.op, Reshaping) for node in nodes)


def no_sum_is_read_inside(graph: Graph) -> Iterator[str]:
    """A column sum is complete only after all rows, so that no node of its region may read it."""
    for node in graph.nodes:
        if isinstance(node.op, FusedRows):
            inner = node.op.body.nodes
            sums = {each.output for each in inner if is_column_sum(each)}
            if any(value in sums for each in inner for value in each.inputs):
                yield f"node {node.name!r} reads its own sums over rows"


FUSE_ROWS = fusion("fuse_rows", fuse_rows, ("absorb",), (no_sum_is_read_inside,))
