"""Contracts groups of nodes into regions; all passes that fuse use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from minidnn.fusion.region import Region
from minidnn.fusion.stacks import boundary
from minidnn.graph.ir import Graph, Node, Rewriter

MakeRegion = Callable[[Graph], Region]


def contract(graph: Graph, groups: Sequence[tuple[Sequence[Node], MakeRegion]]) -> Graph:
    """The graph with each group of nodes replaced by one region node.

    ``groups``: the nodes of each group, and the function that makes the region of their graph.
    They are disjoint, and contracting them makes no cycle.  A region is named after the last of
    its nodes.
    """
    rewriter = Rewriter(graph)
    makers = {id(nodes): make for nodes, make in groups}
    for unit in _ordered(graph, [nodes for nodes, _ in groups]):
        make = makers.get(id(unit))
        if make is None:
            rewriter.keep(unit[0])
            continue
        inputs, outputs = boundary(graph, unit)
        region = make(Graph(inputs, outputs, unit, name=unit[-1].name))
        operands = [rewriter.value(value) for value in inputs]
        node = rewriter.add(region, operands, unit[-1].name, _source(unit))
        for old, new in zip(outputs, node.outputs, strict=True):
            rewriter.replace(old, new)
    return rewriter.finish()


def flat(body: Graph) -> Graph:
    """A body with the nodes of its regions inlined."""
    rewriter = Rewriter(body)
    for node in body.nodes:
        if not isinstance(node.op, Region):
            rewriter.keep(node)
            continue
        inner = node.op.body
        values = dict(zip(inner.inputs, map(rewriter.value, node.inputs), strict=True))
        for each in inner.nodes:
            operands = [values.get(value, value) for value in each.inputs]
            new = rewriter.add(each.op, operands, rewriter.fresh(each.name), each.source)
            values |= dict(zip(each.outputs, new.outputs, strict=True))
        for old, result in zip(node.outputs, inner.outputs, strict=True):
            rewriter.replace(old, values[result])
    return rewriter.finish()


def _source(nodes: Sequence[Node]) -> str:
    return ", ".join(dict.fromkeys(node.source for node in nodes))


def _ordered(graph: Graph, groups: Sequence[Sequence[Node]]) -> list[Sequence[Node]]:
    """The groups, and a group of one for every other node, in a topological order that is as close
    to the graph's order as possible."""
    unit_of: dict[Node, Sequence[Node]] = {node: nodes for nodes in groups for node in nodes}
    units = {id(u): u for u in (unit_of.setdefault(node, (node,)) for node in graph.nodes)}
    unfinished: dict[int, set[int]] = {key: set() for key in units}
    readers: dict[int, list[int]] = {key: [] for key in units}
    for key, unit in units.items():
        for node in unit:
            for value in node.inputs:
                if value.producer is not None and value.producer in unit_of:
                    before = id(unit_of[value.producer])
                    if before != key and before not in unfinished[key]:
                        unfinished[key].add(before)
                        readers[before].append(key)
    position = {key: graph.position[unit[-1]] for key, unit in units.items()}
    ready: list[tuple[int, int]] = []
    for key in units:
        if not unfinished[key]:
            heappush(ready, (position[key], key))
    order = []
    while ready:
        _, key = heappop(ready)
        order.append(units[key])
        for reader in readers[key]:
            unfinished[reader].discard(key)
            if not unfinished[reader]:
                heappush(ready, (position[reader], reader))
    if len(order) != len(units):
        stuck = ", ".join(units[key][-1].name for key in units if unfinished[key])
        raise AssertionError(
            f"groups that end with {stuck} wait for each other; Groups.can_merge says which may be"
        )
    return order
