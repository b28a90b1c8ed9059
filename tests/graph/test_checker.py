"""Each rule of the checker, violated once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.checker import RULES, check, complaints
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.types import TensorType

TYPE = TensorType((2, 3))


def chain(*names: str) -> tuple[Value, list[Node]]:
    x = Value(TYPE, "x")
    nodes: list[Node] = []
    for name in names:
        nodes.append(Node(ops.ReLU(), [nodes[-1].output if nodes else x], name))
    return x, nodes


def same_node_names() -> Graph:
    x, nodes = chain("a", "a")
    return Graph([x], [nodes[1].output], nodes)


def same_constant_names() -> Graph:
    x = Value(TYPE, "x")
    two = [Constant(TYPE, "w", np.zeros((2, 3), np.float32)) for _ in range(2)]
    a = Node(ops.Add(), two, "a")
    return Graph([x], [a.output], [a])


def read_too_early() -> Graph:
    x, (a, b) = chain("a", "b")
    return Graph([x], [b.output], [b, a])


def computed_twice() -> Graph:
    x, (a,) = chain("a")
    return Graph([x], [a.output], [a, a])


def wrong_producer() -> Graph:
    x, (a, b) = chain("a", "b")
    b.output.producer = a
    return Graph([x], [b.output], [a, b])


def output_never_computed() -> Graph:
    x, (a, b) = chain("a", "b")
    return Graph([x], [b.output], [a])


def input_is_computed() -> Graph:
    x, (a,) = chain("a")
    return Graph([x, a.output], [x], [])


def input_twice() -> Graph:
    x, (a,) = chain("a")
    return Graph([x, x], [a.output], [a])


def output_names() -> Graph:
    x, (a,) = chain("a")
    return Graph([x], [a.output], [a], output_names=["one", "two"])


def type_does_not_follow() -> Graph:
    x, (a,) = chain("a")
    a.output.type = TensorType((2, 4))
    return Graph([x], [a.output], [a])


def operands_do_not_fit() -> Graph:
    x, (a,) = chain("a")
    x.type = TensorType((2, 3), "bool")
    return Graph([x], [a.output], [a])


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (same_node_names, "two nodes are named 'a'"),
        (same_constant_names, "two inputs, constants or states are named 'w'"),
        (read_too_early, "node 'b' reads %a: float32[2, 3] before anything computes it"),
        (computed_twice, "%a: float32[2, 3] is computed twice"),
        (wrong_producer, "%b: float32[2, 3] does not name node 'b' as its producer"),
        (output_never_computed, "the graph's output %b: float32[2, 3] is never computed"),
        (
            input_is_computed,
            "the graph's input %a: float32[2, 3] is computed, a constant or a state",
        ),
        (input_twice, "an input is listed twice"),
        (output_names, "2 output names for 1 outputs"),
        (type_does_not_follow, "node 'a': outputs (%a: float32[2, 4],) are not of types"),
        (operands_do_not_fit, "node 'a': ReLU(): operands have dtypes bool; valid is one of"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_rule(make: Callable[[], Graph], complaint: str) -> None:
    found = complaints(make())
    assert any(complaint in line for line in found), found
    with pytest.raises(GraphError, match=r"^graph 'graph' is not legal:\n  "):
        check(make())


def test_all_complaints_are_reported_at_once() -> None:
    x, (a, b) = chain("a", "a")
    graph = Graph([x, x], [b.output], [b, a])
    with pytest.raises(GraphError) as raised:
        check(graph)
    assert str(raised.value).splitlines() == [
        "graph 'graph' is not legal:",
        "  two nodes are named 'a'",
        "  two inputs, constants or states are named 'x'",
        "  node 'a' reads %a: float32[2, 3] before anything computes it",
        "  an input is listed twice",
    ]


def test_legal_graphs() -> None:
    x, nodes = chain("a", "b", "c")
    constant = Constant(TYPE, "k", np.zeros((2, 3), np.float32))
    check(Graph([x], [nodes[2].output, nodes[0].output, x, constant], nodes))
    check(Graph([x], [x], []))


def test_a_rule_is_a_function_of_the_graph_alone() -> None:
    graph = same_node_names()
    assert [complaints(graph) for _ in range(2)] == [["two nodes are named 'a'"]] * 2
    assert len(RULES) == len(set(RULES))
