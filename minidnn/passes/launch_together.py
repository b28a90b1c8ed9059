"""launch_together: small element-wise regions that do not need each other become one.

Training has hundreds of them: casts of weights, running statistics, factors of normalizations, the
update of each parameter.  Most take hardly longer than their launch.

Handles: element-wise nodes and regions of few elements; casts and the like of states and of the
graph's inputs, and of what is given as a result, as weights and their gradients are where somebody
else has them.  Each joins the first region that it neither needs nor is needed by, as long as one
launch can hand over all pointers.  Blocks are dealt
out among the members, so that each element is computed as before.
Refuses: large values, which would wait for others; members of which one reads a state that the
other writes; everything where the target computes them one by one, and under strategies that leave
layers apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedElements, FusedSequence
from minidnn.fusion.stacks import Groups, boundary
from minidnn.graph.ir import Constant, Graph, Node, State, Value
from minidnn.graph.operator import Elementwise
from minidnn.passes.compute_together import is_taken
from minidnn.passes.contract import contract, flat
from minidnn.passes.infrastructure import Context, Pass

MOST_ELEMENTS = 1 << 20
MOST_POINTERS = 480
"""A launch hands over 4 KiB of arguments."""
_OPEN = 8
"""So many of the last regions may be joined."""


def launch_together(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.computes_together:
        return graph
    allowed = []
    for nodes in _groups(graph):
        if not context.allow(f"launch {', '.join(node.name for node in nodes)} together"):
            break
        allowed.append((nodes, lambda body: FusedElements(flat(body))))
    return contract(graph, allowed)


def _groups(graph: Graph) -> list[list[Node]]:
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
    if len(inputs) + len(outputs) > MOST_POINTERS:
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
