"""fuse: which proposals of a rule become regions, and what is noted of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from minidnn.fusion.region import FusedElements, Region
from minidnn.fusion.stacks import Groups
from minidnn.fusion.target import Proposal, Rule, Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import apply
from minidnn.passes.fuse import fuse, fusion
from minidnn.passes.infrastructure import Context, run_passes
from tests.passes.build import assert_same, graph_of, ops_of, relu

X = (2, 3)


class Small(Target):
    """Computes up to three operators in one kernel."""

    def refuse_fusion(self, region: Region) -> str | None:
        return "it has more than 3 operators" if len(region.body.nodes) > 3 else None


def chain(length: int) -> Graph:
    """ReLUs one after the other."""

    def build(t, x):
        for _ in range(length):
            x = relu(x)
        return x

    return graph_of(build, X)


def proposal(nodes: Sequence[Node], apart: str = "by itself", outside: float = 0.0) -> Proposal:
    names = " ".join(node.name for node in nodes)
    return Proposal(nodes, FusedElements, names, nodes[-1], apart, 0.0, outside)


def grow(groups: Groups, target: Target) -> Iterator[Proposal]:
    """Proposes each node with the region of the node before it, and else alone with that node."""
    nodes = list(groups.graph.nodes)
    begin = 0
    for i in range(1, len(nodes)):
        yield proposal(nodes[begin : i + 1])
        if not groups.are_one(nodes[begin : i + 1]):
            begin = i


def fused(graph: Graph, rule: Rule, context: Context) -> Graph:
    result = fuse(graph, rule, context)
    assert_same(graph, result)
    return result


def bodies(graph: Graph) -> list[int]:
    """How many nodes each region has; 0 for other nodes."""
    return [len(n.op.body.nodes) if isinstance(n.op, Region) else 0 for n in graph.nodes]


def test_a_later_proposal_replaces_what_it_contains() -> None:
    context = Context(Small())
    assert bodies(fused(chain(8), grow, context)) == [3, 3, 2]
    assert context.notes == {
        "relu.3": "by itself: it has more than 3 operators",
        "relu.6": "by itself: it has more than 3 operators",
    }


@pytest.mark.parametrize(("fuel", "sizes"), [(0, [0] * 5), (1, [2, 0, 0, 0]), (2, [3, 0, 0])])
def test_fuel_ends_between_two_proposals(fuel: int, sizes: list[int]) -> None:
    context = Context(Small(), fuel=fuel)
    assert bodies(fused(chain(5), grow, context)) == sizes
    assert len(context.rewrites) == fuel


def test_nodes_with_another_path_between_them_stay_apart() -> None:
    def ends(groups: Groups, target: Target) -> Iterator[Proposal]:
        first, _, last = groups.graph.nodes
        yield proposal([first, last])
        yield proposal([first, last], apart="")

    def build(t, x):
        first = relu(x)
        return apply(ops.Add(), first, apply(ops.Tanh(), first))

    context = Context(Small())
    graph = graph_of(build, X)
    assert fused(graph, ends, context) is graph
    assert context.notes == {
        "add": "by itself: another path between them leads through other nodes"
    }


def test_what_takes_longer_inside_stays_outside() -> None:
    def priced(groups: Groups, target: Target) -> Iterator[Proposal]:
        a, b, c, d = groups.graph.nodes
        yield Proposal([a, b], FusedElements, "", b, "outside", inside=2e-6, outside=1e-6)
        yield Proposal([c, d], FusedElements, "", d, "outside", inside=1e-6, outside=1e-6)

    context = Context(Small())
    assert bodies(fused(chain(4), priced, context)) == [0, 0, 2]
    assert context.notes == {"relu.1": "outside: 2.0 us inside, 1.0 us outside"}


def test_regions_do_not_overlap() -> None:
    def overlapping(groups: Groups, target: Target) -> Iterator[Proposal]:
        a, b, c, _ = groups.graph.nodes
        yield proposal([a, b])
        yield proposal([b, c])

    context = Context(Small())
    assert bodies(fused(chain(4), overlapping, context)) == [2, 0, 0]
    assert context.notes == {"relu.2": "by itself: relu.1 is in another region"}


def test_a_rule_as_a_pass_is_off_under_some_strategies() -> None:
    step = fusion("grow", grow, unfused=("layers",))
    graph = chain(2)
    found = run_passes(graph, [step], Context(Small(), "contractions"), verify=True)
    assert ops_of(found) == ["FusedElements"]
    assert run_passes(graph, [step], Context(Small(), "layers"), verify=True) is graph
