"""store_summed: what is stored and added up is computed where it is added up.

In training this is the gradient of a residual sum: the normalization before it adds it up, and
others read it, too.

Handles: values that sweeps of sums read, made by point-wise operators of values that are stored in
any case; the sweep computes them and stores them on the way, so that it need not read them.  All
sweeps over such a value that can be one become one.
Refuses: values that what reads them could be computed with; whatever would need more tensors than
a thread holds at a time; everything where the target's sums store nothing, and under strategies
that leave layers apart.
"""

from __future__ import annotations

from minidnn.fusion.collapse import APART
from minidnn.fusion.region import FusedSums
from minidnn.fusion.stacks import Groups, boundary, why_not_fusable
from minidnn.graph.ir import Graph, Node, Value
from minidnn.passes.contract import contract, flat
from minidnn.passes.infrastructure import Context, Pass
from minidnn.passes.sum_together import is_pointwise

MOST_TENSORS = 6
"""That a sweep reads and writes."""


def store_summed(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy in APART or not context.target.stores_summed:
        return graph
    groups = Groups(graph)
    stored: set[Value] = set()
    found = []
    for node in graph.nodes:
        if not isinstance(node.op, FusedSums) or len(groups.nodes_of(node)) > 1:
            continue
        for value in node.inputs:
            if value.shape != node.op.shape or not (nodes := _together(groups, value, stored)):
                continue
            if not context.allow(f"compute {value.name} where it is added up"):
                break
            groups.merge(nodes)
            stored.add(value)
            found.append((nodes, lambda body: FusedSums(flat(body))))
            break
    return contract(graph, found)


def _together(groups: Groups, value: Value, stored: set[Value]) -> list[Node]:
    """What makes a value and the sweeps over it; nothing if they had better stay apart."""
    graph = groups.graph
    nodes = _made_by(graph, value, stored)
    if not nodes or any(len(groups.nodes_of(node)) > 1 for node in nodes):
        return []
    added = False
    kinds: set[bool] = set()  # a sweep adds up planes or channels
    for reader in graph.readers[value]:
        if _adds(reader, value) and len(groups.nodes_of(reader)) == 1:
            assert isinstance(reader.op, FusedSums)
            if {reader.op.by_plane} | kinds != {reader.op.by_plane}:
                continue
            wider = [*nodes, reader]
            if _tensors(graph, wider, value) <= MOST_TENSORS and groups.can_merge(wider):
                nodes, added = wider, True
                kinds.add(reader.op.by_plane)
    sums = {node for node in nodes if isinstance(node.op, FusedSums)}
    behind = 0
    for each in sums:
        behind |= groups.of(each).after
    others = [reader for reader in graph.readers[value] if reader not in sums]
    is_read = bool(others) or value in graph.results
    if not added or not is_read or not all(_is_apart(graph, other, behind) for other in others):
        return []
    return sorted(nodes, key=graph.position.__getitem__)


def _made_by(graph: Graph, value: Value, stored: set[Value]) -> list[Node]:
    """The point-wise nodes that make a value of such as are stored in any case."""
    found: dict[Node, None] = {}
    pending = [value]
    while pending:
        node = pending.pop().producer
        if node is None or not is_pointwise(node):
            return []
        found[node] = None
        for operand in node.inputs:
            if operand.shape == value.shape and not _is_stored(graph, operand, stored):
                pending.append(operand)
    inside = (node.output for node in found if node.output is not value)
    loose = any(reader not in found for each in inside for reader in graph.readers[each])
    return [] if loose else list(found)


def _is_stored(graph: Graph, value: Value, stored: set[Value]) -> bool:
    if value in stored or value in graph.results or value.producer not in graph.position:
        return True
    nodes = (value.producer, *graph.readers[value])
    return any(node is not None and why_not_fusable(node) for node in nodes)


def _is_apart(graph: Graph, node: Node | None, behind: int) -> bool:
    """Whether a node, or what alone reads its result, cannot be computed before the sums are."""
    while node is not None:
        if why_not_fusable(node) or behind >> graph.position[node] & 1:
            return True
        node = graph.only_reader(node.output)
    return False


def _adds(node: Node, value: Value) -> bool:
    return isinstance(node.op, FusedSums) and node.op.shape == value.shape


def _tensors(graph: Graph, nodes: list[Node], value: Value) -> int:
    read, _ = boundary(graph, sorted(nodes, key=graph.position.__getitem__))
    return 1 + sum(each.shape == value.shape for each in read)


STORE_SUMMED = Pass("store_summed", store_summed, requires=("sum_together",))
