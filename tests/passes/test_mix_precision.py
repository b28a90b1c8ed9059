"""mix_precision: products in half precision between states in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.target import Target
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Contraction, Elementwise
from minidnn.graph.operators import (
    Conv2dInputGradient,
    Conv2dWeightGradient,
    LayerNorm,
    LogSoftmax,
    MatMul,
    Reduce,
    ReLU,
    Sigmoid,
)
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.mix_precision import mix_precision, mixed
from minidnn.passes.pipeline import optimize
from minidnn.training.step import Objective, step_graph

PRODUCTS = (Contraction, Conv2dInputGradient, Conv2dWeightGradient, MatMul)
SHAPE = (4, 3, 8, 8)


@dataclass(frozen=True)
class Narrow(Target):
    dtype: str = "float16"

    @property
    def storage(self) -> str:
        return self.dtype


class Network(md.Layer):
    def __init__(self) -> None:
        self.conv = L.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = L.BatchNorm2d(8)
        self.relu, self.pool = L.ReLU(), L.MaxPool2d(2)
        self.head = L.Sequential(L.Flatten(), L.Linear(128, 5))

    def forward(self, x: Any) -> Any:
        y = self.pool(self.relu(self.norm(self.conv(x))))
        return self.head(y + self.relu(y))


def step(network: md.Layer | None = None) -> Graph:
    loss = md.losses.CrossEntropy()
    optimizer = md.optim.SGD(0.1, momentum=0.9, clip_norm=1.0)
    return step_graph(network or Network(), SHAPE, Objective(loss, loss.metrics), optimizer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_a_half_and_what_is_not(dtype: str) -> None:
    given = step()
    graph = mix_precision(given, Context(Narrow(dtype=dtype)))
    check(graph)
    assert [v.type for v in graph.inputs] == [v.type for v in given.inputs]
    assert [v.type for v in graph.outputs] == [v.type for v in given.outputs]
    assert {s.name: v.dtype for s, v in graph.updates.items()} == {
        s.name: s.dtype for s in given.states
    }
    for node in graph.nodes:
        if isinstance(node.op, PRODUCTS):
            assert {v.dtype for v in (*node.inputs, *node.outputs)} == {dtype}, node
        if isinstance(node.op, (Reduce, LogSoftmax)):
            assert node.output.dtype == "float32", node
        if node.name.startswith("optimizer"):
            assert node.output.dtype == "float32", node
    named = {node.name: node for node in graph.nodes}
    assert [named[name].output.dtype for name in ("relu", "pool")] == [dtype] * 2
    # A state is rounded once, for the product and for its gradient.
    (rounded,) = [
        n for n in graph.nodes if n.inputs[0].name == "head.1.weight" and n.op.name == "Cast"
    ]
    assert len(graph.readers[rounded.output]) == 2


def test_statistics_are_of_float32_sums() -> None:
    """What only sums read stays float32: the square of 300 is no float16."""
    graph = mix_precision(step(), Context(Narrow()))
    found = 0
    for node in graph.nodes:
        source = node.inputs[0]
        computed = source.producer is not None and isinstance(source.producer.op, Elementwise)
        if isinstance(node.op, Reduce) and computed and graph.readers[source] == (node,):
            assert source.dtype == "float32", node
            found += 1
    assert found >= 4


def test_numbers_are_near_those_in_float32() -> None:
    random = np.random.default_rng(0)
    network = Network()
    arrays: list[np.ndarray] = [
        random.standard_normal(SHAPE, np.float32),
        random.integers(0, 5, 4),
        np.array(0.1, np.float32),
    ]
    given = step(network)
    wide: dict[str, np.ndarray] = {}
    narrow: dict[str, np.ndarray] = {}
    right = evaluate(given, arrays, "float64", states=wide)
    found = evaluate(optimize(given, Context(Narrow(), stored=True)), arrays, states=narrow)
    np.testing.assert_allclose(found[0], right[0], rtol=3e-3)
    assert wide.keys() == narrow.keys()
    for name, array in narrow.items():
        assert array.dtype == next(s for s in given.states if s.name == name).data.dtype
        np.testing.assert_allclose(array, wide[name], rtol=0.02, atol=3e-3, err_msg=name)


def test_evaluation_with_states_computes_in_halves_too() -> None:
    given = to_graph(Network(), SHAPE, states=True)
    graph = mix_precision(given, Context(Narrow()))
    assert graph.outputs[0].dtype == "float32"
    assert {v.dtype for n in graph.nodes if isinstance(n.op, PRODUCTS) for v in n.inputs} == {
        "float16"
    }


def test_what_is_left_alone() -> None:
    training, inference = step(), to_graph(Network(), SHAPE)
    assert mix_precision(training, Context(Target())) is training
    assert mix_precision(training, Context(Narrow(dtype="float32"))) is training
    assert mix_precision(training, Context(Narrow(), fuel=0)) is training
    assert mix_precision(inference, Context(Narrow())) is inference


def test_inputs_and_outputs_in_halves() -> None:
    """Of a graph that is a piece of a network: what the others make in halves is given so, and what
    they read in halves is wanted so."""
    with tracing("piece") as trace:
        x = trace.input(TensorType((8, 8)), "x")
        bias = trace.input(TensorType((8,)), "bias")
        y = apply(ReLU(), x) + bias
        total = apply(Reduce("sum", (1,)), y)
        product = apply(MatMul(), apply(Sigmoid(), y), y)
        given = trace.graph([apply(ReLU(), x), y, total, product])
    outputs = [*given.outputs, y]
    given = Graph(given.inputs, outputs, given.nodes, given.name)
    graph = mixed(given, "float16", given.inputs, [True, False, None, None, None])
    check(graph)
    assert [v.dtype for v in graph.inputs] == ["float16", "float16"]
    halves = ["float16", "float32", "float32", "float16", "float16"]
    assert [v.dtype for v in graph.outputs] == halves
    (vectors,) = [node for node in graph.nodes if node.inputs[0].name == "bias"]
    assert vectors.op.name == "Cast"  # formulas read vectors in float32
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(v.shape).astype(np.float16) for v in given.inputs]
    right = evaluate(given, arrays, "float64")
    for one, other in zip(evaluate(graph, arrays), right, strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)
    plain = mixed(given, "float16")
    assert [v.dtype for v in (*plain.inputs, *plain.outputs)] == ["float32"] * 7


class Attention(md.Layer):
    """Softmax between two products, and a normalization of rows."""

    def __init__(self) -> None:
        self.project, self.norm = L.Linear(8, 8), L.LayerNorm(8)
        self.softmax, self.out = L.Softmax(-1), L.Linear(192, 5)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.project(x))
        scores = self.softmax((y @ y.transpose(0, 1, 3, 2)) * 0.5)
        return self.out((scores @ y).reshape(4, 192))


def test_softmax_and_normalizations_are_float32() -> None:
    graph = mix_precision(step(Attention()), Context(Narrow()))
    check(graph)
    for node in graph.nodes:
        if node.op.name in ("Softmax", "LayerNorm"):
            assert {v.dtype for v in (*node.inputs, *node.outputs)} == {"float32"}


class Tokens(md.Layer):
    """Normalized pixels, which two products read: as they are, and in another shape."""

    def __init__(self) -> None:
        self.conv, self.norm = L.Conv2d(3, 8, 1), L.LayerNorm(8)
        self.head, self.beside = L.Linear(8, 4), L.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        rows = self.beside(y.reshape(-1, 8)).reshape(y.shape[0], 64, 4)
        return self.head(y).reshape(y.shape[0], 64, 4) + rows


def test_values_are_rounded_once_for_readers_of_other_shapes() -> None:
    graph = to_graph(Tokens().initialize(0), SHAPE, states=True)
    found = mix_precision(graph, Context(Narrow()))
    (normal,) = (node.output for node in found.nodes if isinstance(node.op, LayerNorm))
    (reader,) = found.readers[normal]
    assert reader.op.name == "Cast" and reader.output.dtype == "float16"
    assert all(found.readers[v] or v in found.results for n in found.nodes for v in n.outputs)
