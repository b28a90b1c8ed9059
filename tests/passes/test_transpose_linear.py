"""transpose_linear: transposes of rows change their places with linear layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import transpose_linear
from tests.passes.build import ops_of

ROWS = ops.Transpose((1, 0, 2))


@dataclass(frozen=True)
class InPlace(Target):
    transposes_products = True


def graph_of(*operators: Operator, wanted: int | None = None) -> Graph:
    """A chain; linear layers have weights of their own, and the result of one node is an output."""
    inputs = [Value(TensorType((2, 5, 8)), "x")]
    nodes: list[Node] = []
    value = inputs[0]
    for i, op in enumerate(operators):
        more = []
        if isinstance(op, ops.Linear):
            more = [Value(TensorType((12, value.shape[-1])), f"w{i}")]
            inputs += more
        nodes.append(Node(op, [value, *more], f"n{i}"))
        value = nodes[-1].output
    outputs = [value] if wanted is None else [value, nodes[wanted].output]
    return Graph(inputs, outputs, nodes, "rows")


def after(graph: Graph, context: Context | None = None) -> list[str]:
    found = transpose_linear(graph, context or Context(InPlace()))
    check(found)
    random = np.random.default_rng(0)
    given = [random.standard_normal(value.shape) for value in graph.inputs]
    exact = evaluate(graph, given, "float64")
    for one, other in zip(evaluate(found, given, "float64"), exact, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    return ops_of(found)


def test_a_transpose_comes_behind_a_layer_that_is_only_seen() -> None:
    linear, shape = ops.Linear(), ops.View((5, 2, 3, 4))
    assert after(graph_of(ROWS, linear, shape)) == ["Linear", "Transpose", "View"]
    assert after(graph_of(ROWS, linear, ops.ReLU())) == ["Transpose", "Linear", "ReLU"]
    assert after(graph_of(ROWS, linear, shape, wanted=1))[0] == "Transpose"
    moves = ops.Transpose((0, 2, 1))
    assert after(graph_of(moves, ops.Linear(), ops.View((16, 12)))) == [
        "Transpose",
        "Linear",
        "View",
    ]


def test_a_transpose_comes_in_front_of_a_layer_that_reads_a_view() -> None:
    seen, linear, back = ops.View((10, 8)), ops.Linear(), ops.View((2, 5, 12))
    found = after(graph_of(seen, linear, back, ROWS))
    assert found == ["View", "View", "Transpose", "Linear"]
    for graph in (
        graph_of(ops.ReLU(), ops.Linear(), ROWS),
        graph_of(seen, linear, back, ROWS, wanted=1),
        graph_of(seen, linear, ops.View((2, 5, 4, 3)), ops.Transpose((1, 0, 2, 3))),
    ):
        assert after(graph) == ops_of(graph)


def test_targets_fuel_and_strategies() -> None:
    graph = graph_of(ROWS, ops.Linear(), ops.View((10, 12)))
    for context in (Context(Target()), Context(InPlace(), "layers"), Context(InPlace(), fuel=0)):
        assert transpose_linear(graph, context) is graph
