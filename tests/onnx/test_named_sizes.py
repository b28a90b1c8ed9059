"""ONNX files with open sizes: ONNX Runtime gives the network's results for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.export.model import write_onnx
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.sizes.sized_graph import SizedGraph

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

BATCH = md.Dim("batch", 1, 16)
SIDE = md.Dim("side", 8, 32, multiple=4)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    return np.asarray(y)


NETWORKS: dict[str, tuple[Any, tuple[Any, ...], list[tuple[int, ...]]]] = {
    "planes": (
        lambda: L.Sequential(
            L.Conv2d(3, 8, 3, padding=1), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2), L.Flatten(),
            L.Linear(128, 4),
        ),
        (BATCH, 3, 8, 8),
        [(1, 3, 8, 8), (3, 3, 8, 8), (8, 3, 8, 8), (16, 3, 8, 8)],
    ),
    "groups": (
        lambda: L.Sequential(L.Conv2d(3, 8, 3, padding=1), L.GroupNorm(2, 8), L.ReLU()),
        (BATCH, 3, 8, 8),
        [(1, 3, 8, 8), (3, 3, 8, 8)],
    ),
    "sides": (
        lambda: L.Sequential(
            L.Conv2d(3, 8, 3, stride=2, padding=1), L.ReLU(), L.AdaptiveAvgPool2d(1), L.Flatten(),
            L.Linear(8, 4),
        ),
        (BATCH, 3, SIDE, SIDE),
        [(1, 3, 8, 8), (3, 3, 12, 12), (8, 3, 32, 32)],
    ),
    "reshapes": (
        lambda: L.Sequential(L.Conv2d(3, 4, 1), L.Reshape(2, -1), L.Softmax(-1)),
        (BATCH, 3, SIDE, 8),
        [(1, 3, 8, 8), (3, 3, 12, 8), (8, 3, 28, 8)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_another_engine_gives_the_same_for_all_sizes(name: str, tmp_path: Path) -> None:
    make, shape, shapes = NETWORKS[name]
    net, path = make().initialize(1), tmp_path / "net.onnx"
    md.save_onnx(net, path, shape)
    (declared,) = onnx.load(path).graph.input
    sizes = [each.dim_param or each.dim_value for each in declared.type.tensor_type.shape.dim]
    assert sizes == [getattr(each, "name", each) for each in shape]
    exe = md.compile(path, device="reference")
    assert isinstance(exe, DynamicExecutable)
    assert set(exe.dims) == {each for each in shape if isinstance(each, md.Dim)}
    for each in shapes:
        x = numbers(*each)
        expected = md.compile(net, each, device="reference")(x)
        np.testing.assert_allclose(run(path, x), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)


def test_shapes_that_are_computed(tmp_path: Path) -> None:
    """Where a reshape has several open sizes, and where something is repeated for each image."""

    def make(sizes: Any) -> Graph:
        rows, side = sizes["batch"], sizes["side"]
        x = Value(TensorType((rows, side, 6)), "x")
        token = Constant(TensorType((1, 1, 6)), "token", numbers(1, 1, 6))
        repeated = Node(ops.Expand((rows, 1, 6)), [token], "repeated")
        joined = Node(ops.Concat(1), [repeated.output, x], "joined")
        flat = Node(ops.View((rows * (side + 1), 6)), joined.outputs, "flat")
        parts = Node(ops.View((rows, side + 1, 2, 3)), flat.outputs, "parts")
        last = Node(
            ops.Slice((0, 1, 0, 0), (rows, side // 4, 2, 3), (1, 4, 1, 1)), parts.outputs, "last"
        )
        return Graph([x], last.outputs, [repeated, joined, flat, parts, last], "made")

    sized, path = SizedGraph.traced(make, (BATCH, SIDE)), tmp_path / "made.onnx"
    md.save_onnx(sized, path)
    (output,) = onnx.load(path).graph.output
    assert output.type.tensor_type.shape.dim[1].dim_param == "side/4"
    for rows, side in ((1, 8), (3, 16), (8, 32)):
        x = numbers(rows, side, 6)
        graph = make({"batch": rows, "side": side})
        np.testing.assert_array_equal(run(path, x), md.compile(graph, device="reference")(x))


def test_no_rows_are_no_results(tmp_path: Path) -> None:
    make, shape, _ = NETWORKS["planes"]
    md.save_onnx(make().initialize(0), tmp_path / "net.onnx", shape)
    assert run(tmp_path / "net.onnx", numbers(0, 3, 8, 8)).shape == (0, 4)


def test_models_say_more_and_have_nothing_unused(tmp_path: Path) -> None:
    sized = SizedGraph.traced(
        lambda sizes: to_graph(NETWORKS["planes"][0]().initialize(0), (sizes["batch"], 3, 8, 8)),
        (BATCH,),
    )
    write_onnx(sized, tmp_path / "net.onnx", metadata={"about": "it"})
    model = onnx.load(tmp_path / "net.onnx")
    said = {each.key: each.value for each in model.metadata_props}
    assert said == {"about": "it", "minidnn.sizes": '[["batch", 1, 16, 1]]'}
    read = {name for node in model.graph.node for name in node.input}
    assert {each.name for each in model.graph.initializer} <= read


def test_what_cannot_be_said_is_refused(tmp_path: Path) -> None:
    """With the name of the node; and there is no file."""
    net = L.Sequential(L.Conv2d(3, 8, 3), L.GroupNorm(2, 8)).initialize(0)
    text = r"node '1' \(GroupNorm\) cannot be written to ONNX for named sizes: the constant"
    with pytest.raises(UnsupportedError, match=text):
        md.save_onnx(net, tmp_path / "net.onnx", (BATCH, 3, SIDE, SIDE))
    net = L.Sequential(L.Conv2d(3, 8, 3), L.AdaptiveAvgPool2d(3)).initialize(0)
    text = r"node '1' \(AdaptiveAvgPool2d\) cannot be written to ONNX for named sizes"
    with pytest.raises(UnsupportedError, match=text):
        md.save_onnx(net, tmp_path / "net.onnx", (BATCH, 3, SIDE, SIDE))
    assert not list(tmp_path.iterdir())


def test_ranges_of_a_file_that_make_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    make, shape, _ = NETWORKS["planes"]
    md.save_onnx(make().initialize(0), path, shape)
    for said, text in (
        ("[[", "its property 'minidnn.sizes': "),
        ('[["rows", 1, 4, 1]]', r"names \['rows'\], and input 'input' has the size 'batch'"),
    ):
        model = onnx.load(path)
        model.metadata_props[0].value = said
        onnx.save(model, tmp_path / "other.onnx")
        with pytest.raises(GraphError, match=text):
            md.compile(tmp_path / "other.onnx", device="reference")
        md.compile(tmp_path / "other.onnx", (2, 3, 8, 8), device="reference")
