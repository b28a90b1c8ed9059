"""Values, nodes and graphs; rewriting; order; text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, fresh
from minidnn.graph.types import TensorType

TYPE = TensorType((2, 3, 4, 5))


def diamond() -> tuple[Graph, dict[str, Node]]:
    """a = relu(x); b = tanh(a); c = sigmoid(a); d = b + c"""
    x = Value(TYPE, "x")
    a = Node(ops.ReLU(), [x], "a")
    b = Node(ops.Tanh(), [a.output], "b")
    c = Node(ops.Sigmoid(), [a.output], "c")
    d = Node(ops.Add(), [b.output, c.output], "d")
    nodes = {node.name: node for node in (a, b, c, d)}
    return Graph([x], [d.output], nodes.values(), "diamond"), nodes


def test_readers_values_and_positions() -> None:
    graph, n = diamond()
    (x,) = graph.inputs
    assert graph.values == (x, *(n[name].output for name in "abcd"))
    assert graph.readers[n["a"].output] == (n["b"], n["c"])
    assert graph.readers[n["d"].output] == ()
    assert graph.only_reader(n["b"].output) is n["d"]
    assert graph.only_reader(n["a"].output) is None
    assert all(graph.is_read(node.output) for node in n.values()), "the last one is the result"
    assert not Graph([x], [n["a"].output], list(n.values())).is_read(n["d"].output)
    assert graph.position[n["c"]] == 2
    assert graph.node("c") is n["c"]
    text = "^graph 'diamond' has no node 'b2'; valid are its 4 nodes' names, such as 'b', "
    with pytest.raises(GraphError, match=text):
        graph.node("b2")


def test_a_value_read_twice_has_one_reader() -> None:
    x = Value(TYPE, "x")
    a = Node(ops.ReLU(), [x], "a")
    twice = Node(ops.Mul(), [a.output, a.output], "twice")
    graph = Graph([x], [twice.output, a.output], [a, twice])
    assert graph.readers[a.output] == (twice,)
    assert graph.only_reader(a.output) is None, "it is an output of the graph too"


def test_constants() -> None:
    asked = []

    def data() -> np.ndarray:
        asked.append(1)
        return np.ones((2, 3), np.float32)

    lazy = Constant(TensorType((2, 3)), "w", data)
    assert not asked
    assert lazy.data is lazy.data
    assert asked == [1]
    wrong = Constant(TensorType((2, 3)), "w", np.ones((3, 2), np.float32))
    text = "constant w: data is float32[3, 2], but its type is float32[2, 3]"
    with pytest.raises(GraphError, match=re.escape(text)):
        _ = wrong.data
    wrong = Constant(TensorType((2,)), "w", np.ones(2))
    with pytest.raises(GraphError, match="data is float64"):
        _ = wrong.data


def test_an_error_names_the_node() -> None:
    text = "node 'sum': Add(): shapes (2, 3), (2, 4) do not broadcast; valid are equal sizes, or 1"
    with pytest.raises(GraphError, match=re.escape(text)):
        Node(ops.Add(), [Value(TensorType((2, 3)), "a"), Value(TensorType((2, 4)), "b")], "sum")


# Rewriting


def test_nothing_changed_gives_the_same_graph() -> None:
    graph, _ = diamond()
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewriter.keep(node)
    assert rewriter.finish() is graph


def test_nodes_whose_operands_stayed_are_kept() -> None:
    graph, n = diamond()
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.name == "b":
            new = rewriter.add(ops.ReLU6(), [rewriter.value(node.inputs[0])], rewriter.fresh("b"))
            rewriter.replace(node.output, new.output)
        else:
            rewriter.keep(node)
    after = rewriter.finish()
    check(after)
    assert after.node("a") is n["a"]
    assert after.node("c") is n["c"]
    assert after.node("d") is not n["d"]
    assert [str(node.op) for node in after.nodes] == ["ReLU()", "ReLU6()", "Sigmoid()", "Add()"]
    assert [node.name for node in after.nodes] == ["a", "b.1", "c", "d"]
    # The old graph is as it was.
    check(graph)
    assert [node.name for node in graph.nodes] == ["a", "b", "c", "d"]
    assert n["d"].inputs[0] is n["b"].output


def test_replacing_reaches_outputs_and_drops_nodes() -> None:
    graph, n = diamond()
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.name == "d":
            rewriter.replace(node.output, rewriter.value(n["a"].output))
        elif node.name == "a":
            rewriter.keep(node)
    after = rewriter.finish()
    check(after)
    assert after.nodes == (n["a"],)
    assert after.outputs == (n["a"].output,)


def test_a_node_keeps_its_source() -> None:
    graph, n = diamond()
    rewriter = Rewriter(graph)
    new = rewriter.add(ops.ReLU6(), graph.inputs, rewriter.fresh("a"), source="block.act")
    rewriter.replace(n["a"].output, new.output)
    rewriter.keep(n["b"])
    after = rewriter._nodes
    assert [(node.name, node.source) for node in after] == [("a.1", "block.act"), ("b", "b")]


def test_fresh_names() -> None:
    rewriter = Rewriter(diamond()[0])
    assert [rewriter.fresh(name) for name in ("a", "a", "new", "new", "a.1")] == [
        "a.1",
        "a.2",
        "new",
        "new.1",
        "a.1.1",
    ]
    used = {"a"}
    assert [fresh("a", used, "_") for _ in range(2)] == ["a_1", "a_2"] and "a_2" in used


def test_types_must_agree() -> None:
    graph, n = diamond()
    other = Value(TensorType((1,)), "other")
    text = "cannot replace %a: float32[2, 3, 4, 5] by %other: float32[1]: the types differ"
    with pytest.raises(GraphError, match=re.escape(text)):
        Rewriter(graph).replace(n["a"].output, other)


# Text


def test_text() -> None:
    x = Value(TensorType((1, 3, 8, 8)), "image")
    weight = Constant(TensorType((2, 3, 3, 3)), "stem.weight", np.zeros((2, 3, 3, 3), np.float32))
    conv = Node(ops.Conv2d(padding=((1, 1), (0, 0))), [x, weight], "stem")
    act = Node(ops.LeakyReLU(0.2), [conv.output], "act")
    graph = Graph([x], [conv.output, act.output], [conv, act], "net", ["features", "out"])
    expected = """\
net(%image: float32[1, 3, 8, 8]) {
  %stem: float32[1, 2, 8, 6] = Conv2d(padding=((1, 1), (0, 0)))(%image, @stem.weight)
  %act: float32[1, 2, 8, 6] = LeakyReLU(negative_slope=0.2)(%stem)
  return features: %stem, out: %act
}"""
    assert str(graph) == expected


PROGRAM = """
import json
import minidnn as md
from minidnn import layers as L, scalar
from minidnn.graph.expression import to_json
from minidnn.layers.build import to_graph

x, y = md.Input((3, 8, 8), name="x"), md.Input((4, 8, 8), name="y")
a = L.BatchNorm2d(4)(L.Conv2d(3, 4, 3, padding="same")(x))
b = L.Elementwise(lambda u, v: scalar.where(u > v, u * v, u / 3), name="gate")(a, y)
c = L.Concat()(a, b, y * 2 + 1)
model = md.Model({"x": x, "y": y}, {"pooled": L.MaxPool2d(2)(c), "mean": L.AdaptiveAvgPool2d(1)(b)})
graph = to_graph(model, {"y": (2, 4, 8, 8), "x": (2, 3, 8, 8)})
print(graph, model, graph.values, sep="\\n")
print({name: array.tobytes().hex() for name, array in model.state_dict().items()})
print([to_json(n.op.expression()) for n in graph.nodes if n.op.kind == "elementwise"])
"""


def test_text_and_weights_are_the_same_in_every_process(root: Path) -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert "pooled: %maxpool2d" in outputs[0]
