"""States and updates in graphs: what is legal, and how they are shown, traced and saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.checker import check, complaints
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, State, Value
from minidnn.graph.storage import from_document, to_document
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.states.build import BUILDERS, Build, graph_of, momentum, running_mean, state, swap

TYPE = TensorType((2, 3))


def a_state(name: str = "s", type: TensorType = TYPE) -> State:
    return State(type, name, np.zeros(type.shape, np.float32))


def relu_of(value: Value) -> Node:
    return Node(ops.ReLU(), [value], "relu")


def test_text_shows_states_and_what_they_become() -> None:
    text = str(graph_of(swap, (1, 3, 4, 5)))
    assert "= Add()(%x, $a)\n" in text
    assert "  $a <- $b\n  $b <- $a\n  return" in text


def test_what_is_never_computed() -> None:
    x, s = Value(TYPE, "x"), a_state()
    node, other = relu_of(x), Node(ops.ReLU(), [x], "other")
    graph = Graph([x], [node.output], [node], updates={s: other.output})
    assert complaints(graph) == [
        "%other: float32[2, 3], which state 's' becomes, is never computed"
    ]


def test_what_does_not_fit() -> None:
    x, s, t = Value(TYPE, "x"), a_state(), a_state("t", TensorType((3, 2)))
    node = relu_of(x)
    graph = Graph([x], [node.output], [node], updates={t: node.output})
    assert complaints(graph) == ["state 't' is float32[3, 2] and would become %relu: float32[2, 3]"]
    no_state = Graph([x], [node.output], [node], updates={x: node.output})  # type: ignore[dict-item]
    assert complaints(no_state) == ["%x: float32[2, 3] is updated, but is no state"]
    twice = Graph([x], [x], [], updates={s: x, a_state(): x})
    assert complaints(twice) == ["two inputs, constants or states are named 's'"]


def test_bodies_have_no_states() -> None:
    s = a_state()
    node = relu_of(s)
    body = Graph([], [node.output], [node])

    class Region(ops.Identity):
        def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
            return (TYPE,)

    op = Region()
    object.__setattr__(op, "body", body)
    region = Node(op, [], "region")
    found = complaints(Graph([], [region.output], [region]))
    assert found == ["node 'region': its body has states, which must be the node's operands"]


def test_a_trace_takes_one_update_of_each_state() -> None:
    def twice(trace, x):
        s = state(trace, "s", (2, 3))
        trace.update(s, x)
        trace.update(s, x + s)
        return x

    with pytest.raises(GraphError, match=r"state 's' becomes %x: .* already; valid is one update"):
        graph_of(twice, (2, 3))

    def other(trace, x):
        trace.update(state(trace, "s", (3, 2)), x)
        return x

    with pytest.raises(GraphError, match=r"'s' cannot become %x: .*; valid is a float32\[3, 2\]"):
        graph_of(other, (2, 3))


def test_a_state_that_only_an_update_names_belongs_to_the_graph() -> None:
    def build(trace, x):
        trace.update(state(trace, "last", x.shape), x)
        return x

    graph = graph_of(build)
    check(graph)
    assert [s.name for s in graph.states] == ["last"]
    assert list(graph.results) == [graph.inputs[0]]


@pytest.mark.parametrize("build", BUILDERS)
def test_what_is_saved_is_loaded(build: Build) -> None:
    graph = graph_of(build)
    document, stored = to_document(graph)
    arrays = {k: v.data for k, v in stored.items()}
    loaded = from_document(document, arrays)
    assert str(loaded) == str(graph)
    assert to_document(loaded)[0] == document


def test_files_of_optimized_graphs_with_states(tmp_path: Path) -> None:
    graph = optimize(graph_of(momentum), Context(stored=True), verify=True)
    path = tmp_path / "g.safetensors"
    md.save_graph(graph, path)
    loaded = md.load_graph(path)
    assert isinstance(loaded, Graph)
    assert to_document(loaded)[0] == to_document(graph)[0]
    assert [s.name for s in loaded.states] == ["w", "v"]


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([["count", 0], ["count", 0]], "updates: 'count'; valid are states, each of them once"),
        ([["one", 0]], "updates: 'one'; valid are states, each of them once"),
        ([[0, 0]], r"updates: \[0, 0\]; valid is \[state, value\]"),
        ([["count", 99]], "updates: operand 99; valid is"),
        ([["count", 0]], "state 'count' is int64"),
        (7, "updates"),
    ],
)
def test_documents_whose_updates_are_wrong(updates: object, message: str) -> None:
    document, stored = to_document(graph_of(running_mean))
    document["graph"]["updates"] = updates
    arrays = {k: v.data for k, v in stored.items()}
    with pytest.raises(GraphError, match=message):
        from_document(document, arrays)
    document["constants"]["one"]["state"] = "yes"
    with pytest.raises(GraphError, match="constant 'one': state is 'yes'; valid is true"):
        from_document(document, arrays)


def test_parameters_are_states_in_graphs_that_ask_for_it() -> None:
    net = L_net()
    graph = to_graph(net, (1, 3, 8, 8), states=True)
    check(graph)
    plain = to_graph(net, (1, 3, 8, 8))
    assert [s.name for s in graph.states] == [c.name for c in plain.constants]
    assert not graph.constants and not plain.states
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    assert np.array_equal(evaluate(graph, [x])[0], evaluate(plain, [x])[0])


def L_net() -> L.Layer:
    body = L.Sequential(L.Conv2d(3, 8, 3, padding=1), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2))
    return L.Sequential(body, L.Flatten(), L.Linear(128, 5)).initialize(3)


@pytest.mark.parametrize("build", BUILDERS)
def test_states_that_nothing_updates_are_frozen_first(build: Build) -> None:
    graph = optimize(graph_of(build), verify=True)
    assert set(graph.states) == set(graph.updates), "all of them are updated"
    frozen = optimize(to_graph(L_net(), (1, 3, 8, 8), states=True), verify=True)
    assert not frozen.states
    assert str(frozen) == str(optimize(to_graph(L_net(), (1, 3, 8, 8)), verify=True))
    assert optimize(graph_of(build), Context(stored=True)).states


def test_onnx_has_no_states(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"state 'mean'.*ONNX has none"):
        md.save_onnx(graph_of(running_mean), tmp_path / "g.onnx")


def test_an_operand_of_a_body_is_the_state_outside() -> None:
    """Regions get states as operands, also what they read channel by channel."""

    def build(trace, x):
        scale, shift = state(trace, "scale", (3,)), state(trace, "shift", (3,))
        y = apply(ops.ReLU(), apply(ops.ScaleShift(), x, scale, shift))
        return apply(ops.MaxPool2d((2, 2), (2, 2)), y)

    graph = graph_of(build)
    fused = optimize(graph, Context(stored=True), verify=True)
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    assert len(fused.nodes) == 1 and not fused.nodes[0].op.body.states  # type: ignore[attr-defined]
    assert np.array_equal(evaluate(graph, [x])[0], evaluate(fused, [x])[0])


def test_a_parameter_in_another_shape() -> None:
    net = L.Sequential(L.Conv1d(3, 4, 3)).initialize(2)
    graph = to_graph(net, (2, 3, 9), states=True)
    check(graph)
    assert [s.name for s in graph.states] == ["0.weight", "0.bias"]
    x = np.random.default_rng(0).standard_normal((2, 3, 9)).astype(np.float32)
    assert np.array_equal(evaluate(graph, [x])[0], evaluate(to_graph(net, (2, 3, 9)), [x])[0])
