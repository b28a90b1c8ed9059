"""launch_together: small element-wise regions that do not need each other become one."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.fusion.region import FusedElements
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, State, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.passes.compute_together import COMPUTE_TOGETHER, LAUNCH_TOGETHER, MOST_POINTERS_AT_ONCE
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, conv, graph_of, ops_of, run
from tests.passes.test_compute_together import ONE, PAIR, Together, one, pair


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    context = context or Context(Together())
    result = run(before, DEPTH_FIRST, COMPUTE_TOGETHER, LAUNCH_TOGETHER, context=context)
    assert_same(before, result)
    return result


def members_of(graph: Graph) -> list[list[list[str]]]:
    """What each member of each region computes."""
    regions = [node.op for node in graph.nodes if isinstance(node.op, FusedElements)]
    return [[[node.op.name for node in nodes] for nodes in op.members] for op in regions]


def test_regions_of_several_shapes_are_one_launch() -> None:
    def build(t: Any, x: Any, y: Any, s: Any) -> Any:
        return [one(pair(x, s)), one(y), pair(y, y), one(s)]

    (members,) = members_of(after(build, (5,), (7,), ()))
    assert sorted(members) == [["One"], ["One", "Pair"], ["Pair", "One"]]


def test_what_needs_another_is_launched_behind_it() -> None:
    def build(t: Any, x: Any, y: Any, z: Any) -> Any:
        total = apply(ops.Reduce("sum", (0,)), one(x))
        return [pair(y, total), one(z)]

    found = after(build, (5,), (7,), (9,))
    assert members_of(found) == [[["Pair"], ["One"]]]
    assert sorted(ops_of(found)) == ["FusedElements", "One", "Reduce"]


def test_pointers_are_bounded() -> None:
    def build(t: Any, *given: Any) -> Any:
        return [one(x) for x in given]

    shapes = [(n + 1,) for n in range(MOST_POINTERS_AT_ONCE // 2 + 5)]
    assert [len(members) for members in members_of(after(build, *shapes))] == [
        MOST_POINTERS_AT_ONCE // 2,
        5,
    ]


def test_large_values_and_what_sequences_compute_are_left_alone() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        return [one(x), one(y), conv(t, one(conv(t, y, 3)), 2)]

    assert members_of(after(build, (1 << 21,), (1, 3, 4, 4))) == []


def test_sequences_of_what_is_given_are_members() -> None:
    """Weights that somebody else has are inputs."""

    def build(t: Any, x: Any, y: Any) -> Any:
        return [one(x), one(y), conv(t, one(conv(t, y, 3)), 2)]

    found = after(build, (5, 3, 3, 3), (1, 3, 4, 4))
    assert members_of(found) == [[["One"], ["One"]]]
    assert "FusedSequence" in ops_of(found)  # of the convolution's result


def test_fuel_strategies_and_targets() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        return [one(x), one(y)]

    assert members_of(after(build, (5,), (7,))) == [[["One"], ["One"]]]
    for context in (Context(Together(), fuel=0), Context(Together(), strategy="layers"), Context()):
        assert ops_of(after(build, (5,), (7,), context=context)) == ["One", "One"]


def test_a_state_is_not_written_where_another_member_reads_it() -> None:
    """A rate that changes while weights of another shape are updated by it."""
    rate, other = (
        State(TensorType(()), name, np.ones((), np.float32)) for name in ("rate", "other")
    )
    x, y = Value(TensorType((5,)), "x"), Value(TensorType((5,)), "y")
    nodes = [Node(PAIR, [x, rate], "reads"), Node(ONE, [other], "writes"), Node(ONE, [y], "apart")]
    graph = Graph(
        [x, y], [nodes[0].output, nodes[2].output], nodes, updates={rate: nodes[1].output}
    )
    found = run(graph, LAUNCH_TOGETHER, context=Context(Together()))
    assert members_of(found) == [[["One"], ["One"]]]
    assert sorted(ops_of(found)) == ["FusedElements", "Pair"]


def test_what_reads_the_same_values_is_one_member() -> None:
    """Then a state may be written over: each of its elements is read before."""

    def build(t: Any, x: Any, y: Any) -> Any:
        return [one(x), pair(x, x), one(y)]

    (members,) = members_of(after(build, (5,), (5,)))
    assert sorted(members) == [["One"], ["One", "Pair"]]


def test_sequences_of_results_are_members() -> None:
    """Gradients of weights are somebody else's, too; what is read again is left alone."""

    def build(t: Any, x: Any, y: Any) -> Any:
        made, read = conv(t, x, 3), conv(t, y, 3)
        again = one(read)
        return [one(made), one(one(made)), again, conv(t, again, 2)]

    found = after(build, (1, 3, 4, 4), (1, 3, 5, 5))
    assert len(members_of(found)) == 1
    assert "FusedSequence" in ops_of(found)
