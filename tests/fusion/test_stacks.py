"""Stacks are convex and can be contracted together: against paths searched one by one."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from minidnn.fusion.operations import lower
from minidnn.fusion.stacks import (
    Groups,
    boundary,
    channel_frame,
    find_stacks,
    is_tensor_operand,
    why_not_fusable,
)
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operators import Concat
from minidnn.graph.trace import apply
from tests.fusion.graphs import graphs
from tests.passes.build import conv, graph_of, join, max_pool, relu, scale
from tests.sampling import IS_FULL

SOME = settings(max_examples=150 if IS_FULL else 75, derandomize=True, database=None, deadline=None)


def successors(graph: Graph, unit_of: dict[Node, int]) -> dict[int, set[int]]:
    """The graph of units: which units read results of which."""
    found: dict[int, set[int]] = {unit: set() for unit in unit_of.values()}
    for node in graph.nodes:
        for value in node.inputs:
            if value.producer in unit_of and unit_of[value.producer] != unit_of[node]:
                found[unit_of[value.producer]].add(unit_of[node])
    return found


def has_cycle(edges: dict[int, set[int]]) -> bool:
    """Kahn's algorithm: whether taking away units that wait for nothing leaves some."""
    waiting = Counter(target for targets in edges.values() for target in targets)
    ready = [unit for unit in edges if not waiting[unit]]
    done = 0
    while ready:
        done += 1
        for target in edges[ready.pop()]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return done < len(edges)


def reachable(graph: Graph, start: set[Node]) -> set[Node]:
    """Nodes that a path of one step or more leads to."""
    found: set[Node] = set()
    pending = list(start)
    while pending:
        for value in pending.pop().outputs:
            for reader in graph.readers[value]:
                if reader not in found:
                    found.add(reader)
                    pending.append(reader)
    return found


def units(graph: Graph, groups: list[list[Node]]) -> dict[Node, int]:
    unit_of = {node: i for i, nodes in enumerate(groups) for node in nodes}
    for node in graph.nodes:
        unit_of.setdefault(node, len(groups) + graph.position[node])
    return unit_of


def check_stacks(graph: Graph) -> int:
    stacks = find_stacks(graph)
    members = [node for stack in stacks for node in stack]
    assert len(members) == len(set(members)), "stacks are disjoint"
    for node in graph.nodes:
        if why_not_fusable(node) is None and not isinstance(node.op, Concat):
            assert node in members, "every fusable node is in a stack"
    for stack in stacks:
        inside = set(stack)
        assert stack == [node for node in graph.nodes if node in inside], "in the graph's order"
        leaves = reachable(graph, inside) - inside
        assert not reachable(graph, leaves) & inside, "a path leaves a stack and comes back"
        assert channel_frame(stack) is not None
        lower(stack, boundary(graph, stack)[1])
        assert len(components(graph, stack)) == 1, "stacks are connected"
    assert not has_cycle(successors(graph, units(graph, stacks)))
    return sum(len(stack) > 2 for stack in stacks)


def components(graph: Graph, stack: list[Node]) -> set[int]:
    label = {node: i for i, node in enumerate(stack)}
    for _ in stack:
        for node in stack:
            for i, value in enumerate(node.inputs):
                if value.producer in label and is_tensor_operand(node, i):
                    low = min(label[node], label[value.producer])
                    label[node] = label[value.producer] = low
    return set(label.values())


@given(graphs())
@SOME
def test_stacks_of_random_graphs(graph: Graph) -> None:
    check_stacks(graph)


@given(graphs())
@SOME
def test_merging_is_allowed_exactly_when_no_cycle_comes_of_it(graph: Graph) -> None:
    random = np.random.default_rng(len(graph.nodes))
    groups = Groups(graph)
    unit_of = {node: i for i, node in enumerate(graph.nodes)}
    for _ in range(20):
        a, b = (graph.nodes[int(i)] for i in random.integers(len(graph.nodes), size=2))
        if unit_of[a] == unit_of[b]:
            continue
        merged = {n: unit_of[a] if unit_of[n] == unit_of[b] else unit_of[n] for n in graph.nodes}
        legal = not has_cycle(successors(graph, merged))
        assert groups.can_merge([a, b]) == legal
        if legal:
            groups.merge([a, b])
            unit_of = merged
            together = [node for node in graph.nodes if unit_of[node] == unit_of[a]]
            assert groups.nodes_of(a) == groups.nodes_of(b) == together


def names(graph: Graph) -> list[list[str]]:
    return [[node.name for node in stack] for stack in find_stacks(graph)]


X = (1, 4, 8, 8)


def test_a_residual_block_after_folding_is_one_stack() -> None:
    def build(t, x):
        y = relu(scale(t, max_pool(x)))
        return apply(ops.Add(), y, apply(ops.Tanh(), max_pool(y)))

    graph = graph_of(build, X)
    assert names(graph) == [["maxpool2d", "scaleshift", "relu", "maxpool2d.1", "tanh", "add"]]
    assert check_stacks(graph) == 1


def test_reasons() -> None:
    def build(t, x, row):
        apply(ops.Softmax(1), x)
        apply(ops.Concat(2), x, x)
        conv(t, x, 2)
        flat = apply(ops.Reshape((4 * 64,)), x)
        relu(flat)
        apply(ops.Add(), relu(row), x)
        return apply(ops.Flatten(), x)

    graph = graph_of(build, X, (8,))
    reasons = {node.name: why_not_fusable(node) for node in graph.nodes}
    assert reasons == {
        "softmax": "Softmax is a reduction operator",
        "concat": "it concatenates along axis 2, not along channels",
        "conv2d": "Conv2d is a contraction operator",
        "reshape": "Reshape is a movement operator",
        "relu": None,
        "relu.1": "its output of rank 1 has no channels",
        "add": "operand %relu.1: float32[8] broadcasts over planes in a way that patches cannot",
        "flatten": "Flatten is a movement operator",
    }


def test_the_common_axis_of_channels() -> None:
    def build(t, x, y):
        a, b = relu(x), scale(t, y)
        return relu(join(a, join(b, a), b))

    graph = graph_of(build, X, (1, 3, 8, 8))
    assert channel_frame(graph.nodes) is None
    frame = channel_frame([n for n in graph.nodes if n.name in ("relu", "scaleshift", "concat")])
    assert frame is not None
    assert {v.name: place for v, place in frame.items()} == {
        "relu": 3,
        "scaleshift": 0,
        "concat": 0,
    }
    assert check_stacks(graph) >= 0


def test_a_join_is_in_a_stack_only_if_nothing_outside_reads_it() -> None:
    """Also when all its readers are fusable, but in another stack."""

    def build(t, x):
        a, b = relu(x), scale(t, x)
        return apply(ops.Add(), join(a, b), join(b, a))

    graph = graph_of(build, X)
    for stack in find_stacks(graph):
        for node in stack:
            assert not isinstance(node.op, Concat)


def test_a_long_chain_takes_no_more_for_each_node() -> None:
    def build(t, x):
        for _ in range(3000):
            x = relu(x)
        return x

    graph = graph_of(build, X)
    begun = time.process_time()
    (stack,) = find_stacks(graph)
    assert time.process_time() - begun < 2  # 0.2 s; 10 s where each node looks at all before it
    assert stack == list(graph.nodes)


@pytest.mark.parametrize(
    ("more", "stacks"),
    [
        (0, [["maxpool2d"], ["relu", "tanh", "add"]]),  # two tensors stored: the window's, the sum
        (1, [["maxpool2d", "add", "tanh"], ["add.1"]]),  # else its reader would read two more
    ],
)
def test_a_chain_from_a_stored_tensor_on_is_computed_where_less_is_moved(
    more: int, stacks: list[list[str]]
) -> None:
    """Softmax needs all that the window gives, and what reads it cannot be computed with that."""

    def build(t, x, other):
        y = max_pool(x)
        first = apply(ops.Add(), y, other) if more else relu(y)
        return apply(ops.Add(), apply(ops.Tanh(), first), apply(ops.Softmax(1), y))

    graph = graph_of(build, X, X)
    assert names(graph) == stacks
