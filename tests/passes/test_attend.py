"""attend: softmax between two products, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from minidnn.fusion.attention import (
    AttentionGradientShape,
    AttentionShape,
    FeatureRows,
    FusedAttention,
    FusedAttentionGradient,
)
from minidnn.fusion.target import Target
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.passes.attend import attend
from minidnn.passes.infrastructure import Context
from minidnn.passes.simplify import SIMPLIFY
from minidnn.passes.turn_products import TURN_PRODUCTS
from tests.cuda.products import attention_graph, chain, with_gradients
from tests.passes.build import ops_of, run

SIZE = (2, 5, 7, 3, 16)
DTYPE = "float16"


@dataclass(frozen=True)
class Attending(Target):
    turns_products = True
    forward: str | None = None
    backward: str | None = None

    def refuse_attention(self, shape: AttentionShape) -> str | None:
        return self.forward

    def refuse_attention_gradient(self, shape: AttentionGradientShape) -> str | None:
        return self.backward


def after(graph: Graph, context: Context | None = None) -> Graph:
    context = context or Context(Attending())
    before = run(graph, SIMPLIFY, TURN_PRODUCTS, context=context)
    context.running = "attend"
    found = attend(before, context)
    check(found)
    random = np.random.default_rng(0)
    given = [random.standard_normal(value.shape) for value in graph.inputs]
    exact = evaluate(graph, given, "float64")
    for one, wanted in zip(evaluate(found, given, "float64"), exact, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=2e-2, atol=2e-2)
    return found


def regions(graph: Graph) -> list[str]:
    return [name for name in ops_of(graph) if name.startswith("Fused")]


def refused(graph: Graph, context: Context | None = None) -> str:
    """Why nothing becomes of the softmax."""
    context = context or Context(Attending())
    found = after(graph, context)
    assert {*regions(found)} <= {"FusedProduct"}
    (note,) = context.notes.values()
    assert note.startswith("scores lie in memory: ")
    return note.removeprefix("scores lie in memory: ")


def test_inference() -> None:
    found = after(attention_graph(*SIZE, DTYPE))
    assert regions(found) == ["FusedAttention"]
    (node,) = (node for node in found.nodes if isinstance(node.op, FusedAttention))
    assert isinstance(node.op, FusedAttention)
    shape = node.op.shape
    assert len(node.outputs) == 1 and shape.batch == (2, 3) and shape.dtype == DTYPE
    assert (shape.queries, shape.keys, shape.size) == (5, 7, 16)
    assert shape.q == shape.y == FeatureRows(48, (240, 16)) and shape.k == FeatureRows(
        48, (336, 16)
    )


def test_training() -> None:
    found = after(with_gradients(attention_graph(*SIZE, DTYPE)))
    assert regions(found) == ["FusedAttention", "FusedAttentionGradient"]
    forward, backward = (node for node in found.nodes if node.op.name.startswith("Fused"))
    assert backward.inputs[3] is forward.outputs[0] and backward.inputs[5] is forward.outputs[1]
    assert forward.outputs[1].type == TensorType((2, 3, 5, 1), "float32")
    op = backward.op
    assert isinstance(op, FusedAttentionGradient)
    lines = op.shape
    assert lines.attention.y == lines.g == lines.dq == FeatureRows(48, (240, 16))
    assert lines.dk == lines.dv == FeatureRows(48, (336, 16))


def test_factors_of_the_products() -> None:
    """Those that are powers of two come into the regions."""
    found = after(with_gradients(attention_graph(*SIZE, DTYPE)))
    forward, backward = (node.op for node in found.nodes if node.op.name.startswith("Fused"))
    assert isinstance(forward, FusedAttention) and forward.shape.factor == 0.25
    assert isinstance(backward, FusedAttentionGradient)
    assert backward.shape.factors == (0.25, 0.25, 1.0)


def attention(
    between: Sequence[Operator] = (), behind: Sequence[Operator] = (), dim: int = -1
) -> tuple[list[Value], list[Node], list[Value]]:
    """Inputs, nodes, and scores, weights and result, with something in front of and behind the
    softmax."""
    inputs = [Value(TensorType((2, 5, 8), DTYPE), name) for name in "qkv"]
    nodes: list[Node] = []
    keys = chain(nodes, inputs[1], [ops.Transpose((0, 2, 1))])
    nodes.append(Node(ops.MatMul(), [inputs[0], keys], "scores"))
    scores = nodes[-1].output
    weights = chain(nodes, scores, [*between, ops.Softmax(dim), *behind])
    nodes.append(Node(ops.MatMul(), [weights, inputs[2]], "context"))
    return inputs, nodes, [scores, weights, nodes[-1].output]


@pytest.mark.parametrize("kept", [0, 1])
def test_scores_and_weights_that_are_wanted(kept: int) -> None:
    inputs, nodes, values = attention()
    reason = refused(Graph(inputs, [values[2], values[kept]], nodes))
    assert reason == ("something else reads them", "its result is wanted")[kept]


def test_what_is_computed_between() -> None:
    mask = ops.Formula(argument(0) + 1.0, title="Mask")
    for options, reason in (
        ({"between": [mask]}, "no product of halves makes them"),
        ({"behind": [mask]}, "no product with values reads its result"),
        ({"dim": 1}, "it is along another axis"),
        ({"behind": [ops.Transpose((0, 2, 1))]}, "its weights are transposed"),
    ):
        inputs, nodes, values = attention(**options)
        assert refused(Graph(inputs, values[2:], nodes)) == reason


def test_other_dtypes() -> None:
    graph = attention_graph(*SIZE, "float32")
    assert refused(graph) == "no product of halves makes them"


def test_gradients_for_some() -> None:
    graph = attention_graph(*SIZE, DTYPE)
    for of in (graph.inputs[:1], graph.inputs[:2], graph.inputs[2:]):
        back = pullback(graph, of)
        both = Graph(back.inputs, (*graph.outputs, *back.outputs), back.nodes)
        assert refused(both)
    assert "its weights are transposed" in refused(pullback(graph, graph.inputs))


def test_targets_fuel_and_strategies() -> None:
    graph = with_gradients(attention_graph(*SIZE, DTYPE))
    assert refused(graph, Context(Attending(forward="it is odd"))) == "it is odd"
    assert refused(graph, Context(Attending(backward="it is odd"))) == "it is odd"
    inference = attention_graph(*SIZE, DTYPE)
    assert regions(after(inference, Context(Attending(backward="it is odd")))) == ["FusedAttention"]
    assert attend(graph, Context(Attending(), "layers")) is graph
    assert attend(graph, Context(Attending(), fuel=0)) is graph
