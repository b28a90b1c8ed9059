"""Graphs for all sizes in ranges: what a file says of one size is what the network gives for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.sizes.polynomial import SizePolynomial, SizeSamples
from minidnn.sizes.sized_graph import SizedGraph, dims_from_json
from minidnn.storage import write_graph
from minidnn.weights._file import MappedFile
from minidnn.weights.safetensors import read_metadata

BATCH = md.Dim("batch", 1, 9)


def network() -> L.Sequential:
    return L.Sequential(
        L.Conv2d(3, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU(), L.Flatten(), L.Linear(64, 5)
    ).initialize(3)


class Tokens(torch.nn.Module):
    """A token for each image, and views that join the batch with another axis."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token = torch.nn.Parameter(torch.randn(1, 1, 6))
        self.linear = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        rows = self.linear(joined.reshape(-1, 6)).reshape(x.shape[0], x.shape[1] + 1, 4)
        return rows.softmax(-1).sum(1)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", ["layer", "graph", "executable", "file"])
def test_what_is_saved_for_a_range_compiles_for_it(kind: str, tmp_path: Path) -> None:
    net: Any = network()
    saved, shape = net, (BATCH, 3, 4, 4)
    path = tmp_path / "any.safetensors"
    md.save_graph(saved, path, shape)
    assert "Sequential: input: float32(batch, 3, 4, 4); " in repr(md.load_graph(path))
    first = path.read_bytes()
    if kind == "graph":
        md.save_graph(md.load_graph(path), path)
    elif kind == "executable":
        md.save_graph(md.compile(net, shape, device="reference"), path)
    elif kind == "file":
        md.save_graph(path, path)
    assert path.read_bytes() == first
    exe = md.compile(path, device="reference")
    assert isinstance(exe, DynamicExecutable) and exe.dims == (BATCH,)
    for rows in (1, 2, 7, 9):
        x = numbers(rows, 3, 4, 4)
        expected = md.compile(net, x.shape, device="reference")(x)
        np.testing.assert_allclose(exe(x), expected, rtol=1e-5, atol=1e-6)
        fixed = md.compile(path, x.shape, device="reference")
        np.testing.assert_array_equal(fixed(x), expected)
    with pytest.raises(GraphError, match=r"axis 0, 'batch', is 10; valid are 1 to 9"):
        md.compile(path, (10, 3, 4, 4), device="reference")


def test_a_narrower_range_may_be_compiled(tmp_path: Path) -> None:
    path = tmp_path / "any.safetensors"
    md.save_graph(network(), path, (BATCH, 3, 4, 4))
    exe = md.compile(path, (md.Dim("rows", 2, 4), 3, 4, 4), device="reference")
    assert exe(numbers(3, 3, 4, 4)).shape == (3, 5)
    with pytest.raises(GraphError, match="valid are 1 to 9"):
        md.compile(path, (md.Dim("rows", 2, 12), 3, 4, 4), device="reference")


def test_what_pytorch_gives_for_all_sizes(tmp_path: Path) -> None:
    """Also where a batch of 1 becomes other nodes than one of more."""
    module, path = Tokens().eval(), tmp_path / "tokens.safetensors"
    md.save_graph(module, path, (BATCH, md.Dim("length", 2, 8), 6))
    assert any(array.shape == (1, 1, 6) for array in md.load_weights(path).values())
    exe = md.compile(path, device="reference")
    for rows, many in ((1, 5), (3, 5), (1, 2), (4, 8)):
        x = numbers(rows, many, 6)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(exe(x), expected, rtol=1e-5, atol=1e-6)


def test_sizes_of_planes(tmp_path: Path) -> None:
    side = md.Dim("side", 8, 40, multiple=4)
    net = L.Sequential(L.Conv2d(3, 4, 3, stride=2, padding=1), L.AvgPool2d(2), L.Flatten())
    path = tmp_path / "planes.safetensors"
    md.save_graph(net.initialize(0), path, (BATCH, 3, side, side))
    exe = md.compile(path, device="reference")
    x = numbers(2, 3, 12, 12)
    np.testing.assert_array_equal(exe(x), md.compile(net, x.shape, device="reference")(x))
    # The name says that both are one size.
    with pytest.raises(GraphError, match="'side' is 12 along"):
        exe(numbers(2, 3, 12, 16))


def _of(*nodes: Node, rows: int, output: Value | None = None) -> Graph:
    first = nodes[0].inputs[0]
    return Graph([first], [output or nodes[-1].output], nodes, "made")


def _traced(make: Any, dim: md.Dim = BATCH) -> SizedGraph:
    return SizedGraph.traced(lambda sizes: make(sizes[dim.name]), (dim,))


def test_what_does_not_follow_from_sizes_is_refused() -> None:
    """With the name of the node."""

    def square(rows: int) -> Graph:
        x = Value(TensorType((rows * rows, 2)), "x")
        return _of(Node(ops.View((rows * rows * 2,)), [x], "all"), rows=rows)

    with pytest.raises(GraphError, match=r"has the integer 4 for .*, 81 for"):
        _traced(square)

    def jump(rows: int) -> Graph:
        x = Value(TensorType((rows, 4)), "x")
        return _of(Node(ops.Slice((0, rows // 5), (rows, 2), (1, 1)), [x], "cut"), rows=rows)

    with pytest.raises(GraphError, match=r"node 'cut' \(Slice\) has the integer 0 for"):
        _traced(jump)

    def other(rows: int) -> Graph:
        x = Value(TensorType((rows, 4)), "x")
        return _of(Node(ops.ReLU() if rows < 4 else ops.Tanh(), [x], "act"), rows=rows)

    with pytest.raises(GraphError, match=r"node 'act' \(ReLU\) is another for other sizes"):
        _traced(other)

    def mask(rows: int) -> Graph:
        x = Value(TensorType((rows, 4)), "x")
        ramp = np.arange(rows, dtype=np.float32).reshape(rows, 1)
        constant = Constant(TensorType(ramp.shape), "ramp", ramp)
        return _of(Node(ops.Add(), [x, constant], "sum"), rows=rows)

    with pytest.raises(GraphError, match=r"constant 'ramp', which node 'sum' \(Add\) reads,"):
        _traced(mask)


def test_files_say_more(tmp_path: Path) -> None:
    """What others keep beside a graph and its ranges."""
    sized = md.load_graph(_any_file(tmp_path))
    write_graph(sized, tmp_path / "more.safetensors", {"about": "it"})
    said = read_metadata(MappedFile(tmp_path / "more.safetensors"))
    assert said["about"] == "it" and json.loads(said["minidnn.sizes"]) == [["batch", 1, 9, 1]]
    assert repr(md.load_graph(tmp_path / "more.safetensors")) == repr(sized)


def _any_file(folder: Path) -> Path:
    path = folder / "any.safetensors"
    md.save_graph(network(), path, (BATCH, 3, 4, 4))
    return path


def test_a_graph_has_its_own_size(tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    graph = to_graph(network(), (2, 3, 4, 4))
    with pytest.raises(GraphError, match="names sizes, and graph 'Sequential' has its own"):
        md.save_graph(graph, path, (BATCH, 3, 4, 4))
    md.save_graph(graph, path)
    with pytest.raises(GraphError, match=r"save_graph\(network, path, shape\) with a minidnn\.Dim"):
        md.compile(path, (BATCH, 3, 4, 4))
    # One size is no range.
    md.save_graph(network(), tmp_path / "again", (md.Dim("batch", 2, 2), 3, 4, 4))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=1), "version 1; valid is 2"),
        (
            lambda d: d["graph"]["inputs"][0][1][1].__setitem__(0, 3),
            "no input has the size 'batch'",
        ),
        (
            lambda d: d["graph"]["inputs"][0][1][1].__setitem__(0, {"$size": [[[1, "rows"]], 1]}),
            r"the size \[\[\[\.\.\.\]\], 1\]; valid is .* names of \['batch'\]",
        ),
        (
            lambda d: d["graph"]["inputs"][0][1][1].__setitem__(0, {"$size": [[[1, "batch"]], 7]}),
            "is no integer for the sizes",
        ),
        (
            lambda d: d["graph"]["inputs"][0][1][1].__setitem__(0, {"$size": [[[-1, "batch"]], 1]}),
            "with sizes of 0 or more",
        ),
        (
            lambda d: d["graph"]["inputs"][0][1][1].__setitem__(0, {"$size": [[[2, "batch"]], 1]}),
            r"input 'input': axis 0 is 2\*batch; valid are numbers and names",
        ),
    ],
)
def test_hostile_sizes_are_refused(change: Any, message: str) -> None:
    x = Value(TensorType((3, 4)), "input")
    made = _traced(
        lambda rows: _of(
            Node(ops.ReLU(), [Value(TensorType((rows, 4)), "input")], "act"), rows=rows
        )
    )
    assert x.shape == made.at({"batch": 3}).inputs[0].shape
    document = json.loads(json.dumps(made.document))
    change(document)
    with pytest.raises(GraphError, match=message):
        SizedGraph(document, made.arrays, made.dims)


@pytest.mark.parametrize("said", [None, [["a", 1, 2]], [["a", 1, 2, 1]] * 2, [[1, 1, 2, 1]]])
def test_hostile_ranges_are_refused(said: Any) -> None:
    with pytest.raises(GraphError, match="named sizes: "):
        dims_from_json(said)


def test_polynomials_of_several_sizes() -> None:
    dims = (md.Dim("n", 2, 9), md.Dim("h", 4, 64, multiple=4), md.Dim("w", 3, 3))
    samples = SizeSamples(dims)

    def found(rule: Any) -> SizePolynomial | None:
        return samples.polynomial([rule(**point) for point in samples.points])

    random = np.random.default_rng(0)
    for _ in range(20):
        a, b, c, d = map(int, random.integers(-5, 6, 4))

        def rule(n: int, h: int, w: int, k: tuple[int, ...] = (a, b, c, d)) -> int:
            return k[0] * n * h + k[1] * n + k[2] * h // 4 + k[3]

        made = found(rule)
        for n, h in ((3, 8), (5, 60), (9, 64)):
            assert made is not None
            assert made.value({"n": n, "h": h, "w": 3}) == rule(n, h, 3)
        assert made is not None
        assert SizePolynomial.from_json(json.loads(json.dumps(made.to_json())), "nhw") == made
    assert found(lambda n, h, w: n * n) is None
    assert found(lambda n, h, w: h // 8) is None
    assert str(found(lambda n, h, w: n * h // 2 + 1)) == "(2 + n*h)/2"
