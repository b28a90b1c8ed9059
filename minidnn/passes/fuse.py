"""Fusion: nodes become regions, each of which is one kernel.

A *rule* proposes regions one after another.  A proposal is accepted if the target does not refuse
the region, none of its nodes is in another region, contracting them makes no cycle, and they take
no longer inside than outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from minidnn.fusion.collapse import NO_STACKS, Strategy
from minidnn.fusion.region import MakeRegion, Region
from minidnn.fusion.stacks import Groups, boundary
from minidnn.fusion.target import Proposal, Rule
from minidnn.graph.ir import Graph, Node, Rewriter, Value
from minidnn.passes.infrastructure import Context, Fact, Pass


@dataclass(frozen=True, eq=False)
class _Contracted:
    """Nodes of a graph, and the region that replaces them, with its operands and its results."""

    nodes: Sequence[Node]
    region: Region
    inputs: Sequence[Value]
    outputs: Sequence[Value]


def fusion(
    name: str,
    rule: Rule,
    requires: tuple[str, ...] = (),
    ensures: tuple[Fact, ...] = (),
    unfused: Sequence[Strategy] = NO_STACKS,
) -> Pass:
    """Returns the pass that fuses by a rule, except under the strategies ``unfused``."""

    def run(graph: Graph, context: Context) -> Graph:
        return graph if context.strategy in unfused else fuse(graph, rule, context)

    return Pass(name, run, requires, ensures)


def fuse(graph: Graph, rule: Rule, context: Context) -> Graph:
    """The graph with a region for each proposal of a rule that is accepted."""
    groups = Groups(graph)
    chosen: dict[Node, _Contracted] = {}
    for proposal in rule(groups, context.target):
        found = _contracted(graph, proposal.nodes, proposal.make)
        reason = context.target.refuse_fusion(found.region) or _why_not(proposal, groups, chosen)
        if reason is not None:
            if proposal.apart:
                context.notes[proposal.about.name] = f"{proposal.apart}: {reason}"
            continue
        if not context.allow(proposal.rewrite):
            break
        groups.merge(proposal.nodes)
        chosen |= dict.fromkeys(proposal.nodes, found)
    return _replaced(graph, chosen)


def _why_not(proposal: Proposal, groups: Groups, chosen: Mapping[Node, _Contracted]) -> str | None:
    """Why a region that the target can compute is not made; None if it is."""
    for node in proposal.nodes:
        if node in chosen and not {*chosen[node].nodes} <= {*proposal.nodes}:
            return f"{node.name} is in another region"
    if not groups.can_merge(proposal.nodes):
        return "another path between them leads through other nodes"
    if proposal.inside > proposal.outside:
        return f"{proposal.inside * 1e6:.1f} us inside, {proposal.outside * 1e6:.1f} us outside"
    return None


def contract(graph: Graph, groups: Sequence[tuple[Sequence[Node], MakeRegion]]) -> Graph:
    """The graph with each group of nodes replaced by one region.

    ``groups``: the nodes of each group, and the function that makes the region of their graph.
    They are disjoint, and contracting them makes no cycle.  A region is named after the last of
    its nodes.
    """
    found = (_contracted(graph, nodes, make) for nodes, make in groups)
    return _replaced(graph, {node: each for each in found for node in each.nodes})


def _contracted(graph: Graph, nodes: Sequence[Node], make: MakeRegion) -> _Contracted:
    inputs, outputs = boundary(graph, nodes)
    region = make(Graph(inputs, outputs, nodes, name=nodes[-1].name))
    return _Contracted(nodes, region, inputs, outputs)


def _replaced(graph: Graph, chosen: Mapping[Node, _Contracted]) -> Graph:
    """The graph with regions in place of nodes."""
    if not chosen:
        return graph
    rewriter = Rewriter(graph)
    for last in _ordered(graph, {node: each.nodes for node, each in chosen.items()}):
        if last not in chosen:
            rewriter.keep(last)
            continue
        contracted = chosen[last]
        operands = [rewriter.value(value) for value in contracted.inputs]
        source = ", ".join(dict.fromkeys(node.source for node in contracted.nodes))
        node = rewriter.add(contracted.region, operands, last.name, source)
        for old, new in zip(contracted.outputs, node.outputs, strict=True):
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


def _ordered(graph: Graph, units: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """The last node of each unit, in a topological order of the units that is as close to the
    graph's order as possible.

    ``units``: the nodes that are contracted together, by each of them; others are by themselves.
    """
    last = {node: units.get(node, (node,))[-1] for node in graph.nodes}
    unfinished: dict[Node, set[Node]] = {node: set() for node in last.values()}
    readers: dict[Node, list[Node]] = {node: [] for node in last.values()}
    for node, unit in last.items():
        for value in node.inputs:
            before = last.get(value.producer) if value.producer is not None else None
            if before is not None and before is not unit and before not in unfinished[unit]:
                unfinished[unit].add(before)
                readers[before].append(unit)
    position = graph.position
    ready = sorted(position[unit] for unit, before in unfinished.items() if not before)
    order = []
    while ready:
        unit = graph.nodes[heappop(ready)]
        order.append(unit)
        for reader in readers[unit]:
            unfinished[reader].discard(unit)
            if not unfinished[reader]:
                heappush(ready, position[reader])
    if len(order) != len(unfinished):
        stuck = ", ".join(unit.name for unit, before in unfinished.items() if before)
        raise AssertionError(
            f"groups that end with {stuck} wait for each other; Groups.can_merge says which may be"
        )
    return order
