"""store_halves: what is stored in half precision, and what stays float32 on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.stacks import mixes_floats
from minidnn.fusion.target import Target
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Add, Conv2d, Formula, Linear
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.reduce_precision import reduce_precision


@dataclass(frozen=True)
class Halves(Target):
    """Keeps inputs and outputs in float32, and computes sums and what is behind them together."""

    @property
    def storage(self) -> str:
        return "bfloat16"

    @property
    def keeps_interface(self) -> bool:
        return True

    def refuse_mixed(self, node: Node) -> str | None:
        return None if mixes_floats(node) else super().refuse_mixed(node)


def stored(network: md.Layer | Graph, shape: tuple[int, ...] = (2, 4, 6, 6)) -> Graph:
    graph = network if isinstance(network, Graph) else to_graph(network, shape)
    found = reduce_precision(graph, Context(Halves()))
    check(found)
    assert [value.type for value in found.inputs] == [value.type for value in graph.inputs]
    assert [value.type for value in found.outputs] == [value.type for value in graph.outputs]
    return found


def dtypes(graph: Graph) -> dict[str, str]:
    return {node.op.name: node.output.dtype for node in graph.nodes}


def test_sums_are_rounded_once_behind_what_is_computed_with_them() -> None:
    graph = stored(L.Sequential(L.Conv2d(4, 4, 3), L.ReLU(), L.MaxPool2d(2), L.Conv2d(4, 2, 1)))
    assert [(node.op.name, node.output.dtype) for node in graph.nodes] == [
        ("Cast", "bfloat16"),
        ("Conv2d", "float32"),
        ("ReLU", "bfloat16"),
        ("MaxPool2d", "bfloat16"),
        ("Conv2d", "float32"),
    ]
    for node in graph.nodes:
        if isinstance(node.op, Conv2d):
            assert [value.dtype for value in node.inputs] == ["bfloat16", "bfloat16", "float32"]


def test_residuals_are_added_to_sums_that_were_not_rounded() -> None:
    graph = stored(residual())
    add = next(node for node in graph.nodes if node.op.name == "Add")
    assert sorted(value.dtype for value in add.inputs) == ["bfloat16", "float32"]
    assert add.output.dtype == "float32"  # ReLU alone reads it, and is computed with it


def residual() -> Graph:
    """A convolution of a convolution, its input added, ReLU, and a convolution."""
    x = Value(TensorType((2, 4, 6, 6)), "x")
    first = L.Conv2d(4, 4, 3, padding=1)
    graph = to_graph(L.Sequential(first, L.ReLU(), L.Conv2d(4, 4, 1)), (2, 4, 6, 6))
    conv, relu, last = graph.nodes
    given = Node(conv.op, [x, *conv.inputs[1:]], "given")
    one = Node(conv.op, [given.output, *conv.inputs[1:]], "one")
    add = Node(Add(), [one.output, given.output], "add")
    rest = Node(relu.op, [add.output], "rest")
    end = Node(last.op, [rest.output, *last.inputs[1:]], "end")
    return Graph([x], [end.output], [given, one, add, rest, end], "residual")


def test_what_several_read_is_stored_and_what_no_contraction_reads_stays_float32() -> None:
    graph = stored(L.Sequential(L.Conv2d(4, 4, 1), L.SiLU(), L.AvgPool2d(2), L.Flatten()))
    assert {value.dtype for node in graph.nodes[1:] for value in node.outputs} == {"float32"}
    x = Value(TensorType((2, 4, 6, 6)), "x")
    conv = to_graph(L.Conv2d(4, 4, 1), (2, 4, 6, 6)).nodes[0]
    one = Node(conv.op, [x, *conv.inputs[1:]], "one")
    two, three = (Node(conv.op, [one.output, *conv.inputs[1:]], name) for name in ("two", "three"))
    found = stored(Graph([x], [two.output, three.output], [one, two, three], "two readers"))
    assert [node.output.dtype for node in found.nodes] == [
        *("bfloat16", "bfloat16", "float32", "float32"),
    ]


def test_graphs_without_contractions_store_halves() -> None:
    graph = stored(L.Sequential(L.LeakyReLU(0.3), L.MaxPool2d(2), L.LeakyReLU(0.5)))
    assert [node.output.dtype for node in graph.nodes] == ["bfloat16", "bfloat16", "float32"]
    first = graph.nodes[0].op
    assert isinstance(first, Formula) and first.compute == "float32"  # 0.3 is no half


def test_halves_lose_no_more_than_their_rounding() -> None:
    net = L.Sequential(L.Linear(8, 16), L.GELU(), L.Linear(16, 4))
    graph = to_graph(net, (3, 8))
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    (exact,), (found,) = evaluate(graph, [x], "float64"), evaluate(stored(graph), [x])
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() <= 2.0**-6 * np.abs(exact).max()


@pytest.mark.parametrize("op", [Conv2d(dtype="float32"), Linear(dtype="float32")])
def test_sums_of_float32_have_no_other_dtype(op: Conv2d | Linear) -> None:
    shapes = ((1, 4, 3, 3), (2, 4, 1, 1)) if isinstance(op, Conv2d) else ((1, 4), (2, 4))
    with pytest.raises(md.GraphError, match="dtype='float32'; valid are None and, of float16"):
        op.infer(*(TensorType(shape) for shape in shapes))
    (result,) = op.infer(*(TensorType(shape, "bfloat16") for shape in shapes))
    assert result.dtype == "float32"
