"""attend: softmax between two products, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minidnn.fusion.attention import (
    FeatureRows,
    FusedAttention,
    FusedAttentionGradient,
)
from minidnn.fusion.region import Region
from minidnn.fusion.target import Target
from minidnn.gradients.reverse import pullback
from minidnn.graph import operators as ops
from minidnn.graph.attention_patterns import compose_attention
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.passes.attend import attend
from minidnn.passes.infrastructure import Context
from minidnn.passes.simplify import SIMPLIFY
from tests.cuda.products import (
    attention_graph,
    chain,
    factor,
    packed_graph,
    with_gradients,
)
from tests.passes.build import ops_of, run

SIZE = (2, 5, 7, 3, 16)
DTYPE = "float16"


@dataclass(frozen=True)
class Attending(Target):
    transposes_products = True
    forward: str | None = None
    backward: str | None = None

    def refuse_fusion(self, region: Region) -> str | None:
        match region:
            case FusedAttention():
                return self.forward
            case FusedAttentionGradient():
                return self.backward
        return super().refuse_fusion(region)


def after(graph: Graph, context: Context | None = None) -> Graph:
    context = context or Context(Attending())
    before = run(graph, SIMPLIFY, context=context)
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
    assert {*forward.outputs} <= {*backward.inputs}
    assert forward.outputs[1].type == TensorType((2, 3, 5, 1), "float32")
    op = backward.op
    assert isinstance(op, FusedAttentionGradient)
    lines = op.shape
    assert lines.attention.y == lines.g == lines.dq == FeatureRows(48, (240, 16))
    assert lines.dk == lines.dv == FeatureRows(48, (336, 16))


SCALE = factor(0.3)


def attention(
    between: Sequence[Operator] = (),
    behind: Sequence[Operator] = (),
    dim: int = -1,
    keys: Sequence[Operator] = (),
) -> tuple[list[Value], list[Node], list[Value]]:
    """Inputs, nodes, and scores, weights and result, with something in front of and behind the
    softmax."""
    inputs = [Value(TensorType((2, 5, 8), DTYPE), name) for name in "qkv"]
    nodes: list[Node] = []
    turned = chain(nodes, inputs[1], [*keys, ops.Transpose((0, 2, 1))])
    nodes.append(Node(ops.MatMul(), [inputs[0], turned], "scores"))
    scores = nodes[-1].output
    weights = chain(nodes, scores, [*between, ops.Softmax(dim), *behind])
    nodes.append(Node(ops.MatMul(), [weights, inputs[2]], "context"))
    return inputs, nodes, [scores, weights, nodes[-1].output]


def no_attention(graph: Graph, context: Context | None = None) -> Graph:
    """What becomes of a graph in which nothing is attention."""
    context = context or Context(Attending())
    found = after(graph, context)
    assert regions(found) == [] and context.notes == {}
    return found


@pytest.mark.parametrize("kept", [0, 1])
def test_scores_and_weights_that_are_wanted(kept: int) -> None:
    inputs, nodes, values = attention()
    no_attention(Graph(inputs, [values[2], values[kept]], nodes))


def test_what_is_computed_between() -> None:
    mask = ops.Formula(argument(0) + 1.0, title="Mask")
    options: Sequence[dict[str, Any]] = (
        {"between": [mask]},
        {"behind": [mask]},
        {"behind": [SCALE]},
        {"dim": 1},
        {"behind": [ops.Transpose((0, 2, 1))]},
    )
    for each in options:
        inputs, nodes, values = attention(**each)
        no_attention(Graph(inputs, values[2:], nodes))


def test_scales_are_one() -> None:
    """Those of queries, keys and scores, whatever they are."""
    inputs, nodes, values = attention(between=[SCALE], keys=[SCALE])
    found = after(Graph(inputs, values[2:], nodes))
    (node,) = found.nodes
    assert isinstance(node.op, FusedAttention) and node.op.shape.factor == pytest.approx(0.09)


def test_gradients_for_some() -> None:
    """All three are computed; what nobody wants is not read."""
    graph, _ = compose_attention(attention_graph(*SIZE, DTYPE))
    for of in (graph.inputs[:1], graph.inputs[:2], graph.inputs[2:]):
        back = pullback(graph, of)
        both = Graph(back.inputs, (*graph.outputs, *back.outputs), back.nodes)
        assert regions(after(both)) == ["FusedAttention", "FusedAttentionGradient"]


def test_slices_of_one_value_are_read_and_written_where_they_lie() -> None:
    found = after(with_gradients(packed_graph(2, 5, 3, 16, DTYPE)))
    assert regions(found) == ["FusedAttention", "FusedAttentionGradient"]
    assert {*ops_of(found)} <= {"FusedAttention", "FusedAttentionGradient", "View"}
    forward, backward = (node for node in found.nodes if node.op.name.startswith("Fused"))
    assert len(forward.inputs) == 1 and len(backward.outputs) == 1
    assert isinstance(forward.op, FusedAttention)
    assert isinstance(backward.op, FusedAttentionGradient)
    shape, lines = forward.op.shape, backward.op.shape
    parts = [FeatureRows(2 * 3 * 48, (3 * 48, 16), i * 48) for i in range(3)]
    assert [shape.q, shape.k, shape.v] == [lines.dq, lines.dk, lines.dv] == parts
    assert shape.y == FeatureRows(2 * 48, (48, 16))


def test_slices_that_do_not_lie_at_multiples_of_16_bytes_are_copied() -> None:
    found = after(with_gradients(packed_graph(2, 5, 3, 12, DTYPE)))
    assert "MatMul" in ops_of(found) or "Transpose" in ops_of(found)


def test_targets_fuel_and_strategies() -> None:
    graph = with_gradients(attention_graph(*SIZE, DTYPE))
    context = Context(Attending(forward="it is odd"))
    assert regions(after(graph, context)) == ["FusedAttentionGradient"]
    assert list(context.notes.values()) == ["scores are stored in memory: it is odd"]
    context = Context(Attending(backward="it is odd"))
    assert regions(after(graph, context)) == ["FusedAttention"]
    for plain in (Context(Attending(), "layers"), Context(Attending(), fuel=0), Context(Target())):
        found = after(graph, plain)
        assert regions(found) == [] and "Attention" not in ops_of(found)
        assert ops_of(found).count("Softmax") == 1
    inference = attention_graph(*SIZE, DTYPE)
    assert regions(after(inference, Context(Attending(), "layers"))) == []
    assert "MatMul" in ops_of(after(inference, Context(Attending(), "layers")))
