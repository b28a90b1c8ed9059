"""Running a graph node by node."""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Identity
from minidnn.graph.types import TensorType

TYPE = TensorType((2, 3))


def chain(*operators: Operator, type: TensorType = TYPE) -> Graph:
    x = Value(type, "x")
    nodes: list[Node] = []
    for i, op in enumerate(operators):
        nodes.append(Node(op, [nodes[-1].output if nodes else x], f"n{i}"))
    return Graph([x], [nodes[-1].output], nodes, "chain")


def test_values_are_freed_after_their_last_use() -> None:
    graph = chain(*[ops.Tanh()] * 5)
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        nonlocal most
        alive.extend(map(weakref.ref, results))
        most = max(most, sum(ref() is not None for ref in alive))

    evaluate(graph, [np.ones((2, 3), np.float32)], observe=observe)
    assert len(alive) == 5
    assert most == 2, "a node's operand and its result"


def test_outputs_and_values_that_nobody_reads() -> None:
    x = Value(TYPE, "x")
    a = Node(ops.ReLU(), [x], "a")
    unread = Node(ops.Tanh(), [a.output], "unread")
    b = Node(ops.Add(), [a.output, x], "b")
    constant = Constant(TYPE, "k", np.full((2, 3), 7, np.float32))
    graph = Graph([x], [a.output, b.output, x, constant, a.output], [a, unread, b])
    given = np.array([[-1, 0, 2]] * 2, np.float32)
    first, second, third, fourth, fifth = evaluate(graph, [given])
    np.testing.assert_array_equal(first, [[0, 0, 2]] * 2)
    np.testing.assert_array_equal(second, [[-1, 0, 4]] * 2)
    np.testing.assert_array_equal(third, given)
    np.testing.assert_array_equal(fourth, constant.data)
    assert fifth is first


def test_another_dtype_reaches_every_value() -> None:
    x = Value(TYPE, "x")
    weight = Constant(TensorType((4, 3)), "w", np.full((4, 3), 0.1, np.float32))
    node = Node(ops.Linear(), [x, weight], "fc")
    graph = Graph([x], [node.output], [node])
    seen = []
    for dtype in ("float16", "float32", "float64"):
        (out,) = evaluate(
            graph, [np.ones((2, 3))], dtype, lambda n, r: seen.append(r[0].dtype.name)
        )
        assert out.dtype == dtype
    assert seen == ["float16", "float32", "float64"]
    assert evaluate(graph, [np.ones((2, 3))])[0].dtype == np.float32


def test_integers_stay_integers() -> None:
    graph = chain(ops.Flatten(0), type=TensorType((2, 3), "int64"))
    (out,) = evaluate(graph, [np.arange(6).reshape(2, 3)], dtype="float64")
    assert out.dtype == np.int64


def test_bfloat16_is_computed_in_float32() -> None:
    graph = chain(ops.ReLU(), type=TensorType((2, 3), "bfloat16"))
    assert evaluate(graph, [np.ones((2, 3))])[0].dtype == np.float32


def test_an_error_names_the_input() -> None:
    graph = chain(ops.ReLU())
    text = "graph 'chain' takes 1 inputs (x), got 2"
    with pytest.raises(GraphError, match=f"^{re.escape(text)}$"):
        evaluate(graph, [np.ones((2, 3))] * 2)
    text = "input 'x' has shape (3, 2); valid is (2, 3)"
    with pytest.raises(GraphError, match=f"^{re.escape(text)}$"):
        evaluate(graph, [np.ones((3, 2))])


@dataclass(frozen=True)
class Raising(Identity):
    error: str = "graph"

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        raise GraphError("no such thing") if self.error == "graph" else ZeroDivisionError("oops")


def test_an_error_names_the_node() -> None:
    graph = chain(ops.ReLU(), Raising())
    with pytest.raises(GraphError, match=r"^node 'n1' \(Raising\(\)\): no such thing$"):
        evaluate(graph, [np.ones((2, 3))])


def test_a_bug_in_an_operator_keeps_its_type_and_names_the_node() -> None:
    graph = chain(Raising("other"))
    with pytest.raises(ZeroDivisionError, match="oops") as raised:
        evaluate(graph, [np.ones((2, 3))])
    assert raised.value.__notes__ == ["while evaluating node 'n0' (Raising(error=other))"]
