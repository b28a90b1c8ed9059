"""A loaded graph is the graph that was saved, to the last bit."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minidnn import layers as L
from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import Expression, argument, constant
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Activation, Operator
from minidnn.graph.registry import fields_of, read_operator, register, write_operator
from minidnn.graph.storage import from_document, to_document
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import optimize
from minidnn.saving import save_graph
from minidnn.storage import write_graph
from minidnn.weights import load_weights
from tests.storage.sample import Region, Tile, load_fixed, nested, net

OPERATORS = [
    ops.Conv2d((2, 1), ((0, 1), (2, 3)), (1, 2), 4),
    ops.Linear(),
    ops.BatchNorm(1e-3),
    ops.ScaleShift(),
    ops.LeakyReLU(1 / 3),
    ops.LeakyReLU(-0.0),
    ops.ELU(1),
    ops.GELU("tanh"),
    ops.Dropout(0.25),
    ops.RandomDrop(0.25, 3, True),
    ops.MaxPool2d((3, 2), (2, 1), (1, 0), (2, 1), True),
    ops.AvgPool2d((3, 3), (1, 1), (1, 1), False, False, 7),
    ops.AvgPool2d((3, 3), (1, 1)),
    ops.AdaptiveAvgPool2d((None, 3)),
    ops.Flatten(2, -2),
    ops.Reshape((4, -1)),
    ops.Concat(-1),
    ops.Softmax(1),
    ops.LogSoftmax(),
    ops.Formula(argument(0) / argument(1) + constant(0.1), 1, 1, "mine"),
    ops.Formula(argument(0) * constant(float("inf"))),
    *(kind() for kind in (ops.Add, ops.Sub, ops.Mul, ops.Div, ops.ReLU, ops.ReLU6, ops.SiLU)),
    *(kind() for kind in (ops.Sigmoid, ops.Tanh, ops.Hardswish, ops.Hardsigmoid, ops.Identity)),
]


def no_graph(_: object) -> Graph:
    raise AssertionError("no graph is expected here")


@pytest.mark.parametrize("operator", OPERATORS, ids=str)
def test_operators_come_back_equal(operator: Operator) -> None:
    found = read_operator(write_operator(operator, no_graph), no_graph)
    assert found == operator and type(found) is type(operator) and str(found) == str(operator)


def test_the_attributes_of_every_operator_can_be_saved() -> None:
    concrete = [
        kind for kind in vars(ops).values() if isinstance(kind, type) and issubclass(kind, Operator)
    ]
    assert len(concrete) > 20
    for kind in concrete:
        assert list(fields_of(kind)) == [field.name for field in dataclasses.fields(kind)]
        assert register(kind) is kind  # known already


def same(a: Graph, b: Graph) -> None:
    """Both graphs are alike in everything that can be seen."""
    assert str(a) == str(b)
    assert (a.name, a.output_names) == (b.name, b.output_names)
    assert [node.source for node in a.nodes] == [node.source for node in b.nodes]
    assert [value.name for value in a.values] == [value.name for value in b.values]
    for one, two in zip(a.constants, b.constants, strict=True):
        assert one.type == two.type and one.data.tobytes() == two.data.tobytes()


@pytest.mark.parametrize("make", [net, nested])
def test_a_loaded_graph_is_the_same(make, tmp_path: Path) -> None:
    graph = make()
    save_graph(graph, tmp_path / "a.safetensors")
    loaded = load_fixed(tmp_path / "a.safetensors")
    check(loaded)
    same(graph, loaded)
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].shape).astype(np.float32)
    for expected, got in zip(evaluate(graph, [x]), evaluate(loaded, [x]), strict=True):
        assert expected.dtype == got.dtype and expected.tobytes() == got.tobytes()
    save_graph(loaded, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_attributes_of_every_kind_come_back(tmp_path: Path) -> None:
    graph = nested(1)
    save_graph(graph, tmp_path / "g")
    (before,) = (node.op for node in graph.nodes if isinstance(node.op, Region))
    (after,) = (node.op for node in load_fixed(tmp_path / "g").nodes if isinstance(node.op, Region))
    same(before.body, after.body)
    for field in dataclasses.fields(Region):
        if field.name not in ("body", "scale"):
            assert getattr(before, field.name) == getattr(after, field.name)
    assert np.isnan(after.scale)


def body_of(node: Node) -> Graph:
    assert isinstance(node.op, Region)
    return node.op.body


def test_constants_are_shared_as_before(tmp_path: Path) -> None:
    save_graph(nested(2), tmp_path / "g")
    loaded = load_fixed(tmp_path / "g")
    outer_region, outer_after = loaded.nodes
    inner_region, inner_after, _ = body_of(outer_region).nodes
    shared = body_of(inner_region).nodes[1].inputs[1]
    assert shared is inner_after.inputs[1] is inner_after.inputs[2]
    other = outer_after.inputs[1]
    assert other is not shared and other.name == shared.name == "scale"
    assert list(load_weights(tmp_path / "g")) == ["scale", "scale#1"]


def test_weights_stand_under_their_names(tmp_path: Path) -> None:
    graph = net()
    save_graph(graph, tmp_path / "g")
    weights = load_weights(tmp_path / "g")
    assert list(weights) == [constant.name for constant in graph.constants]
    safetensors = pytest.importorskip("safetensors.numpy")
    theirs = safetensors.load_file(tmp_path / "g")
    for weight in graph.constants:  # an independent reader of the format
        np.testing.assert_array_equal(theirs[weight.name], weight.data)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["squeezenet1_1", "densenet121"])
def test_what_the_passes_made_comes_back(name: str, tmp_path: Path) -> None:
    network = getattr(models, name)(num_classes=10)
    graph = optimize(to_graph(network, (1, 3, 64, 64)))
    regions = [node.op for node in graph.nodes if hasattr(node.op, "body")]
    assert regions
    save_graph(graph, tmp_path / "a")
    loaded = load_fixed(tmp_path / "a")
    same(graph, loaded)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32)
    for expected, got in zip(evaluate(graph, [x]), evaluate(loaded, [x]), strict=True):
        assert expected.tobytes() == got.tobytes()
    save_graph(loaded, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64"])
def test_dtypes_of_constants(dtype: str, tmp_path: Path) -> None:
    type = TensorType((2, 3), dtype)
    data = np.arange(6).reshape(2, 3).astype("float32" if dtype == "bfloat16" else dtype)
    save_graph(Graph([], [Constant(type, "w", data)], []), tmp_path / "g")
    (found,) = load_fixed(tmp_path / "g").outputs
    assert found.type == type and isinstance(found, Constant)
    assert found.data.tobytes() == data.tobytes() and found.data.dtype == data.dtype


def test_an_expression_with_shared_parts_stays_small() -> None:
    x: Expression = argument(0)
    for _ in range(200):
        x = x * x + x
    written = write_operator(ops.Formula(x), no_graph)
    assert len(str(written)) < 20_000
    assert read_operator(written, no_graph) == ops.Formula(x)


def test_numbers_of_numpy_become_plain() -> None:
    scale, rows = np.float32(0.1), np.int64(3)
    region = Region(nested(0), tiles=(Tile(rows),), scale=scale)  # type: ignore[arg-type]
    written = write_operator(region, lambda graph: None)["Region"]
    assert (written["scale"], written["tiles"]) == (
        float(scale),
        [{"Tile": {"rows": 3, "columns": None}}],
    )
    assert type(written["scale"]) is float


def test_a_field_with_a_default_may_be_absent() -> None:
    assert read_operator({"Concat": {}}, no_graph) == ops.Concat()


def test_others_may_register_an_operator() -> None:
    @dataclasses.dataclass(frozen=True)
    class Halve(Activation):
        by: int = 2

        def formula(self, x: Expression) -> Expression:
            return x / self.by

    x = Value(TensorType((1, 2)), "x")
    node = Node(Halve(), [x], "halve")
    graph = Graph([x], [node.output], [node])
    with pytest.raises(
        GraphError, match=r"cannot save graph 'graph': node 'halve' \(Halve\): .*register\(Halve\)"
    ):
        to_document(graph)
    assert register(Halve) is Halve
    assert register(Halve) is Halve
    document, _ = to_document(graph)
    assert from_document(document, {}).nodes[0].op == Halve()

    with pytest.raises(GraphError, match="there is another operator named 'ReLU'"):
        register(type("ReLU", (ops.ReLU,), {}))
    with pytest.raises(GraphError, match="valid is a frozen dataclass derived from Operator"):
        register(dict)  # type: ignore[arg-type]


def test_an_operator_with_an_attribute_that_cannot_be_saved_is_refused_at_once() -> None:
    @dataclasses.dataclass(frozen=True)
    class Calls(Activation):
        function: type

        def formula(self, x: Expression) -> Expression:
            return x

    with pytest.raises(GraphError, match=r"Calls\.function: .*type.* cannot be saved; valid are"):
        register(Calls)
    with pytest.raises(GraphError, match="unknown operator 'Calls'"):
        read_operator({"Calls": {}}, no_graph)


def test_what_does_not_fit_its_annotation_is_refused(tmp_path: Path) -> None:
    body = nested(0)
    region = Region(body, tiles=(Tile(1), Tile(True)))  # a bool is no int
    node = Node(region, body.inputs, "region")
    message = r"node 'region' \(Region\): tiles: rows: True \(bool\); valid is an int of 64 bits"
    with pytest.raises(GraphError, match=message):
        save_graph(Graph(body.inputs, node.outputs, [node]), tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_graph_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    with pytest.raises(GraphError, match=r"is a ReLU; valid is a Graph, such as .*to_graph\("):
        write_graph(L.ReLU(), path)  # type: ignore[arg-type]
    assert not path.exists()


def test_an_illegal_graph_is_not_saved(tmp_path: Path) -> None:
    x = Value(TensorType((1, 2)), "x")
    node = Node(ops.ReLU(), [Value(TensorType((1, 2)), "stray")], "relu")
    with pytest.raises(GraphError, match="is not legal"):
        save_graph(Graph([x], [node.output], [node]), tmp_path / "g")


SCRIPT = """
import sys
from minidnn.saving import save_graph
from tests.storage.sample import nested, net
save_graph(net(), sys.argv[1] + "/net")
save_graph(nested(), sys.argv[1] + "/nested")
"""


def test_files_are_the_same_from_process_to_process(root: Path, tmp_path: Path) -> None:
    digests = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        subprocess.run(command, check=True, cwd=root, env=environment)
        digests.append(
            [hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in ("net", "nested")]
        )
    assert digests[0] == digests[1]


def test_layouts_of_older_files_are_ignored() -> None:
    document, constants = to_document(net())
    arrays = {key: constant.data for key, constant in constants.items()}
    older = {"layouts": [[0, "NHWC", 0]], "placements": [[1, 2, 0]]}
    document["graph"].update(older)
    again, _ = to_document(from_document(document, arrays))
    assert again["graph"] == {k: v for k, v in document["graph"].items() if k not in older}
