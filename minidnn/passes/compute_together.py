"""Element-wise operators outside of stacks become regions of one shape; small ones become one."""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedElements, FusedSequence
from minidnn.fusion.stacks import Groups, boundary
from minidnn.graph.ir import Constant, Graph, Node, State, Value
from minidnn.graph.operator import Elementwise
from minidnn.passes.contract import contract, flat
from minidnn.passes.infrastructure import Context, Pass

MOST_ELEMENTS = 1 << 20
MOST_POINTERS_AT_ONCE = 480
"""A launch hands over 4 KiB of arguments."""
_OPEN = 8
"""So many of the last regions may be joined."""


def launch_together(graph: Graph, context: Context) -> Graph:
    """Small element-wise regions that do not need each other become one.

    Training has hundreds of them: casts of weights, running statistics, factors of normalizations,
    the update of each parameter.  Most take hardly longer than their launch.

    Handles: element-wise nodes and regions of few elements, and casts and the like of states and of
    the graph's inputs, and of what is given as a result, as weights and their gradients are where
    somebody else has them.  Each joins the first region that it neither needs nor is needed by, as
    long as one launch can hand over all pointers.  Blocks are dealt out among the members, so that
    each element is computed as before.
    Refuses: large values, which would wait for others; members of which one reads a state that the
    other writes; everything where the target computes them one by one, and under strategies that
    leave layers apart.
    """
    if context.strategy in APART or not context.target.computes_together:
        return graph
    allowed = []
    for nodes in _launches(graph):
        if not context.allow(f"launch {', '.join(node.name for node in nodes)} together"):
            break
        allowed.append((nodes, lambda body: FusedElements(flat(body))))
    return contract(graph, allowed)


def _launches(graph: Graph) -> list[list[Node]]:
    """The members of each launch, in the graph's order."""
    groups = Groups(graph)
    written = {value: state for state, value in graph.updates.items()}
    found: list[list[Node]] = []
    for node in graph.nodes:
        if not _is_small(graph, node):
            continue
        for members in reversed(found[-_OPEN:]):
            if _fits(groups, written, members, node):
                groups.merge([members[0], node])
                members.append(node)
                break
        else:
            found.append([node])
    return [members for members in found if len(members) > 1]


def _fits(groups: Groups, written: Mapping[Value, State], members: list[Node], node: Node) -> bool:
    """Whether a node can be launched with others."""
    group, own = groups.of(members[0]), groups.of(node)
    if (group.before | group.after) & own.bits:
        return False
    inputs, outputs = boundary(groups.graph, [*members, node])
    if len(inputs) + len(outputs) > MOST_POINTERS_AT_ONCE:
        return False
    for one, others in ((node, members), *((each, [node]) for each in members)):
        becomes = {written[value] for value in one.outputs if value in written}
        if any(not becomes.isdisjoint(other.inputs) for other in others):
            return False
    return True


def _is_small(graph: Graph, node: Node) -> bool:
    op = node.op
    if node.outputs[0].type.size > MOST_ELEMENTS:
        return False
    if isinstance(op, FusedElements):
        return True
    if isinstance(op, FusedSequence):
        alike = all(isinstance(each.op, Elementwise) and is_taken(each) for each in op.body.nodes)
        return alike and (all(map(_is_given, node.tensors)) or _ends(graph, node))
    return is_taken(node)


def _is_given(value: Value) -> bool:
    """Whether a value is there before anything is computed, and no constant, which folds away."""
    return value.producer is None and not isinstance(value, Constant)


def _ends(graph: Graph, node: Node) -> bool:
    """Whether a node only gives results of the graph, which nothing within waits for."""
    return all(value in graph.results and not graph.readers[value] for value in node.outputs)


LAUNCH_TOGETHER = Pass("launch_together", launch_together, requires=("compute_together",))


MOST_POINTERS = 128
"""Regions of more would be long to compile."""


def compute_together(graph: Graph, context: Context) -> Graph:
    """Element-wise operators outside of stacks become regions of one shape.

    Training computes much with vectors over channels, and updates every parameter: by operators on
    small values, of which each takes hardly longer than its launch, and on large ones, which are
    read by several.

    Handles: element-wise operators that no sequence has taken, whose operands have the result's
    shape or one element; those that make each other's operands, read the same ones, or read what
    one node makes, as long as the region takes few pointers.
    Refuses: operators with vectors over channels, or operands that are repeated otherwise;
    everything where the target computes them one by one, and under strategies that leave layers
    apart.
    """
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
