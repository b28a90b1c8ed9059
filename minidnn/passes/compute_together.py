"""compute_together: element-wise operators outside of stacks become regions of one shape.

Training computes much with vectors over channels, and updates every parameter: by operators on
small values, of which each takes hardly longer than its launch, and on large ones, which are read
by several.

Handles: element-wise operators that no sequence has taken, whose operands have the result's shape
or one element; those that make each other's operands, read the same ones, or read what one node
makes, as long as the region takes few pointers.
Refuses: operators with vectors over channels, or operands that are repeated otherwise; everything
where the target computes them one by one, and under strategies that leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedElements
from minidnn.fusion.stacks import Groups, boundary
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Elementwise
from minidnn.passes.contract import contract
from minidnn.passes.infrastructure import Context, Pass

MOST_POINTERS = 128
"""Regions of more would be long to compile."""


def compute_together(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.computes_together:
        return graph
    found = [nodes for nodes in _groups(graph) if len(nodes) > 1]
    allowed = []
    for nodes in found:
        if not context.allow(f"compute {', '.join(node.name for node in nodes)} together"):
            break
        allowed.append((nodes, FusedElements))
    return contract(graph, allowed)


def _groups(graph: Graph) -> list[list[Node]]:
    """The operators to compute together, each in the graph's order."""
    groups = Groups(graph)
    taken = [node for node in graph.nodes if is_taken(node)]
    #: The last operator of a shape that read a value, or what a node made.
    readers: dict[tuple[Value | Node, tuple[int, ...]], Node] = {}
    for node in taken:
        shape = node.output.shape
        for value in node.inputs:
            if value.shape != shape or isinstance(value, Constant):
                continue
            for source in (value, *((value.producer,) if value.producer is not None else ())):
                for other in (readers.get((source, shape)), source):
                    if isinstance(other, Node) and is_taken(other):
                        _try_join(groups, other, node)
                readers[source, shape] = node
    found: dict[int, list[Node]] = {}
    for node in taken:
        found.setdefault(id(groups.of(node)), []).append(node)
    return list(found.values())


def _try_join(groups: Groups, one: Node, other: Node) -> None:
    if groups.of(one) is groups.of(other) or one.output.shape != other.output.shape:
        return
    nodes = sorted(
        (*groups.nodes_of(one), *groups.nodes_of(other)), key=groups.graph.position.__getitem__
    )
    inputs, outputs = boundary(groups.graph, nodes)
    if len(inputs) + len(outputs) <= MOST_POINTERS and groups.can_merge([one, other]):
        groups.merge([one, other])


def is_taken(node: Node) -> bool:
    """Whether it is computed element by element, of values of its result's shape or one element."""
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    shape = node.output.shape
    return all(value.shape == shape or value.type.size == 1 for value in node.inputs)


COMPUTE_TOGETHER = Pass("compute_together", compute_together, requires=("depth_first",))
