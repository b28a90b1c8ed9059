"""Horizontal fusion of element-wise operators outside of stacks, so that launches are few.

``compute_together`` makes regions of operators of one shape that share values; ``launch_together``
merges small regions of any shape into one launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from minidnn.fusion.region import FusedElements, FusedSequence
from minidnn.fusion.stacks import Groups, boundary
from minidnn.fusion.target import Proposal, Target
from minidnn.graph.ir import Constant, Graph, Node, State, Value
from minidnn.graph.operator import Elementwise
from minidnn.passes.fuse import flat, fusion

MOST_ELEMENTS = 1 << 20
"""Elements of a result that is launched together with others."""
MOST_POINTERS_AT_ONCE = 480
"""Pointers of one launch, whose arguments have 4 KiB."""
_OPEN = 8
"""The number of the latest launches that a node may still be added to."""


def launch_together(groups: Groups, target: Target) -> Iterator[Proposal]:
    """Small element-wise regions that do not depend on each other become one launch.

    Training has hundreds of them: casts of weights, running statistics, coefficients of
    normalizations, the update of each parameter.  Most take hardly longer than their launch.

    Handles: element-wise nodes and regions of few elements; and sequences of element-wise nodes,
    such as casts, that read only states and inputs of the graph, or that only compute results of
    the graph, as for weights and gradients that the caller owns.  Each is added to the latest
    launch that has no dependence on it, as long as the launch can pass all pointers.  Thread blocks
    are divided among the members, so that each element is computed as before.
    Refuses: large values, which would wait for others; two members of which one reads a state that
    the other writes; everything where the target computes them one by one, and under strategies
    that fuse no stacks.
    """
    if target.computes_together:
        for nodes in _launches(groups):
            rewrite = f"launch {', '.join(node.name for node in nodes)} together"
            yield Proposal(nodes, lambda body: FusedElements(flat(body)), rewrite, nodes[-1])


def _launches(groups: Groups) -> list[list[Node]]:
    """The members of each launch with several, in the graph's order."""
    graph = groups.graph
    written = {value: state for state, value in graph.updates.items()}
    launches: list[list[Node]] = []
    for node in graph.nodes:
        if not _is_small(graph, node):
            continue
        for members in reversed(launches[-_OPEN:]):
            if _fits(groups, written, members, node):
                groups.merge([members[0], node])
                members.append(node)
                break
        else:
            launches.append([node])
    return [members for members in launches if len(members) > 1]


def _fits(groups: Groups, written: Mapping[Value, State], members: list[Node], node: Node) -> bool:
    """Whether a node can be added to the members of a launch."""
    group, new = groups.of(members[0]), groups.of(node)
    if (group.before | group.after) & new.bits:
        return False
    inputs, outputs = boundary(groups.graph, [*members, node])
    if len(inputs) + len(outputs) > MOST_POINTERS_AT_ONCE:
        return False
    for writer, readers in ((node, members), *((each, [node]) for each in members)):
        written_states = {written[value] for value in writer.outputs if value in written}
        if any(not written_states.isdisjoint(reader.inputs) for reader in readers):
            return False
    return True


def _is_small(graph: Graph, node: Node) -> bool:
    op = node.op
    if node.outputs[0].type.size > MOST_ELEMENTS:
        return False
    if isinstance(op, FusedElements):
        return True
    if isinstance(op, FusedSequence):
        is_elementwise = all(
            isinstance(each.op, Elementwise) and is_same_shape_elementwise(each)
            for each in op.body.nodes
        )
        return is_elementwise and (all(map(_is_given, node.tensors)) or _ends(graph, node))
    return is_same_shape_elementwise(node)


def _is_given(value: Value) -> bool:
    """Whether a value is an input or a state; constants are folded."""
    return value.producer is None and not isinstance(value, Constant)


def _ends(graph: Graph, node: Node) -> bool:
    """Whether all results of a node are results of the graph, and no node reads them."""
    return all(value in graph.results and not graph.readers[value] for value in node.outputs)


LAUNCH_TOGETHER = fusion("launch_together", launch_together, ("compute_together",))


MOST_POINTERS = 128
"""Inputs and outputs of a region; with more it would take long to compile."""


def compute_together(groups: Groups, target: Target) -> Iterator[Proposal]:
    """Element-wise operators outside of stacks become regions of one shape.

    Training computes much with vectors over channels, and updates every parameter.  Operators on
    small values take hardly longer than their launch; large values are read by several operators.

    Handles: element-wise operators in no sequence, whose operands have the result's shape or one
    element.  A region has operators of one shape that compute each other's operands, or read the
    same values, or results of the same node, as long as it has few pointers.
    Refuses: operators with vectors over channels or other broadcast operands; everything where the
    target computes them one by one, and under strategies that fuse no stacks.
    """
    if target.computes_together:
        for nodes in _groups(groups):
            rewrite = f"compute {', '.join(node.name for node in nodes)} together"
            yield Proposal(nodes, FusedElements, rewrite, nodes[-1])


def _groups(groups: Groups) -> list[list[Node]]:
    """Groups of several operators to compute together; each group is in the graph's order."""
    operators = [node for node in groups.graph.nodes if is_same_shape_elementwise(node)]
    #: The last operator of a shape that read a value, or a result of a node.
    readers: dict[tuple[Value | Node, tuple[int, ...]], Node] = {}
    for node in operators:
        shape = node.output.shape
        for value in node.inputs:
            if value.shape != shape or isinstance(value, Constant):
                continue
            for source in (value, *((value.producer,) if value.producer is not None else ())):
                for other in (readers.get((source, shape)), source):
                    if isinstance(other, Node) and is_same_shape_elementwise(other):
                        _try_join(groups, other, node)
                readers[source, shape] = node
    members: dict[int, list[Node]] = {}
    for node in operators:
        members.setdefault(id(groups.of(node)), []).append(node)
    return [nodes for nodes in members.values() if len(nodes) > 1]


def _try_join(groups: Groups, one: Node, other: Node) -> None:
    """Merges the groups of two operators if both have one shape, and few pointers together."""
    if groups.of(one) is groups.of(other) or one.output.shape != other.output.shape:
        return
    nodes = sorted(
        (*groups.nodes_of(one), *groups.nodes_of(other)), key=groups.graph.position.__getitem__
    )
    inputs, outputs = boundary(groups.graph, nodes)
    if len(inputs) + len(outputs) <= MOST_POINTERS and groups.can_merge([one, other]):
        groups.merge([one, other])


def is_same_shape_elementwise(node: Node) -> bool:
    """Whether a node is element-wise on values that have its result's shape or one element."""
    if not isinstance(node.op, Elementwise) or node.op.channel_count:
        return False
    shape = node.output.shape
    return all(value.shape == shape or value.type.size == 1 for value in node.inputs)


COMPUTE_TOGETHER = fusion("compute_together", compute_together, ("depth_first",))
