"""What can be compiled can be saved, and what was saved can be compiled."""

from __future__ import annotations

import copy
import gc
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.backends.backend import get_backend
from minidnn.errors import GraphError, UnsupportedError, WeightsError
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.devices import unavailable

SHAPE = (2, 3, 9, 7)
DEVICES = [
    pytest.param(
        device,
        marks=pytest.mark.skipif(
            unavailable(device) is not None, reason="the device cannot be used here"
        ),
    )
    for device in ("reference", "cpu")
]


def network() -> L.Sequential:
    net = L.Sequential(
        L.Conv2d(3, 16, 3, padding=1),
        L.BatchNorm2d(16),
        L.ReLU(),
        L.MaxPool2d(2),
        L.Conv2d(16, 5, 2, bias=False),
        L.BatchNorm2d(5, affine=False),
        L.Flatten(),
        L.Linear(5 * 3 * 2, 4),
    )
    return net.initialize(3)


def module() -> torch.nn.Module:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def _context(device: str) -> Context:
    return Context(get_backend(device).target("float32", {}), "model")


def numbers() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["layer", "graph", "executable", "module", "file"])
def test_what_can_be_compiled_can_be_saved(kind: str, device: str, tmp_path: Path) -> None:
    kept = net = module() if kind == "module" else network()
    saved: Any = net
    shape: Any = SHAPE
    if kind == "graph":
        saved, shape = to_graph(net, SHAPE), None  # type: ignore[arg-type]
    elif kind == "executable":
        saved, shape = md.compile(net, SHAPE, device=device), None
    elif kind == "file":
        md.save_graph(net, tmp_path / "first.safetensors", SHAPE)
        saved, shape = tmp_path / "first.safetensors", None
    path = tmp_path / "net.of any name"
    md.save_graph(saved, path, shape)
    x = numbers()
    expected = md.compile(kept, SHAPE, device=device)(x)
    for again in (path, str(path), md.load_graph(path)):
        np.testing.assert_array_equal(md.compile(again, device=device)(x), expected)
    if kind in ("layer", "executable"):
        assert path.read_bytes() == _saved(to_graph(net, SHAPE), tmp_path)  # type: ignore[arg-type]


def _saved(graph: Any, folder: Path) -> bytes:
    md.save_graph(graph, folder / "other")
    return (folder / "other").read_bytes()


def test_onnx_files_take_the_same_arguments(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net, x = network(), numbers()
    expected = md.compile(net, SHAPE, device="reference")(x)
    exe = md.compile(net, SHAPE, device="reference")
    for given, shape in ((net, SHAPE), (to_graph(net, SHAPE), None), (exe, None)):
        md.save_onnx(given, tmp_path / "net.onnx", shape)
        found = md.compile(tmp_path / "net.onnx", device="reference")(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        md.save_graph(tmp_path / "net.onnx", tmp_path / "again.safetensors")
        again = md.compile(tmp_path / "again.safetensors", device="reference")(x)
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("device", DEVICES)
def test_an_executable_of_weights_that_are_gone(device: str, tmp_path: Path) -> None:
    """It is saved with the numbers that it computes with, or not at all."""
    net, path = network(), tmp_path / "net.safetensors"
    exe = md.compile(net, SHAPE, device=device)
    expected = exe(numbers())
    net.load_state_dict({name: array + 1 for name, array in net.state_dict().items()}, strict=False)
    gc.collect()
    try:
        md.save_graph(exe, path)
    except GraphError as error:
        text = r"constant 0\.weight: .* was let go; .* minidnn\.save_graph\(network, path, shape\)"
        assert device == "cpu" and re.search(text, str(error))
        assert not path.exists()
    else:
        np.testing.assert_array_equal(md.compile(path, device=device)(numbers()), expected)


def test_a_callers_graph_is_not_kept_alive(tmp_path: Path) -> None:
    graph: Any = to_graph(network(), SHAPE)
    exe = md.compile(graph, device="reference")
    md.save_graph(exe, tmp_path / "a")
    del graph
    gc.collect()
    text = (
        r"the one that was compiled is gone; valid is minidnn\.save_graph\(network, path, shape\)"
    )
    with pytest.raises(GraphError, match=text):
        md.save_graph(exe, tmp_path / "b")


def test_what_an_executables_refusal_says_works(tmp_path: Path) -> None:
    net = network()
    exe = md.compile(net, SHAPE, device="reference")
    for refused in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UnsupportedError) as caught:
            refused(exe)
    assert "minidnn.save_graph(network, path, shape)" in str(caught.value)
    assert "minidnn.compile(path)" in str(caught.value)
    md.save_graph(net, tmp_path / "net.safetensors", SHAPE)
    found = md.compile(tmp_path / "net.safetensors", device="reference")(numbers())
    np.testing.assert_array_equal(found, exe(numbers()))


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_that_was_optimized_for_another_device(device: str, tmp_path: Path) -> None:
    """It runs there, or the error names its node and what to save instead."""
    net, path, other = network(), tmp_path / "net", "reference" if device == "cpu" else "cpu"
    if unavailable(other) is not None:
        pytest.skip(f"there is no {other}")
    exe = md.compile(net, SHAPE, device=other)
    md.save_graph(optimize(to_graph(net, SHAPE), _context(other)), path)
    expected = exe(numbers())
    try:
        found = md.compile(path, device=device)(numbers())
    except UnsupportedError as error:
        text = (
            r"device 'cpu' cannot run this network:\n  node '3' \(FusedSequence.*\): schedule .* "
            r"stage inputs\ngraph 'Sequential' was optimized .* save_graph\(executable, path\)"
        )
        assert device == "cpu" and re.search(text, str(error))
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    md.save_graph(exe if device == "cpu" else net, path, None if device == "cpu" else SHAPE)
    found = md.compile(path, device=device)(numbers())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimized", [False, True])
def test_graphs_can_be_pickled(optimized: bool) -> None:
    """However deep they are: a value's producer is not followed."""
    deep = to_graph(L.Sequential(*(L.Conv2d(3, 3, 1) for _ in range(700))), (1, 3, 2, 2))
    for graph in (to_graph(network(), SHAPE), deep):
        graph = optimize(graph) if optimized else graph
        _ = graph.readers, graph.values  # which are found anew
        twin = pickle.loads(pickle.dumps(graph))
        check(twin)
        assert str(twin) == str(graph)
        x = np.random.default_rng(0).standard_normal(graph.inputs[0].shape).astype(np.float32)
        for one, two in zip(evaluate(graph, [x]), evaluate(twin, [x]), strict=True):
            np.testing.assert_array_equal(one, two)
        assert copy.deepcopy(graph) is graph


def test_arguments_in_another_order(tmp_path: Path) -> None:
    net, path = network(), tmp_path / "x"
    for save in (md.save_graph, md.save_onnx):
        text = rf"^{save.__name__}: path is a Sequential; valid is .* what is saved comes first: "
        with pytest.raises(GraphError, match=text):
            save(path, net, SHAPE)  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match=r"^save_weights: tensors is a str and path a dict; "):
        md.save_weights(str(path), net.state_dict())  # type: ignore[arg-type]
    assert not path.exists()
    with pytest.raises(GraphError, match="load_graph: path=5 is a int; valid is a path"):
        md.load_graph(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("save", "name", "text"),
    [
        (md.save_graph, "net.ONNX", "has the name of an ONNX file, which save_onnx writes; valid"),
        (md.save_onnx, "net.safetensors", r"valid is a name that ends in \.onnx, by which "),
        (md.save_onnx, "net", r"path='.*net'; valid is a name that ends in \.onnx"),
    ],
)
def test_names_of_the_other_kind(save: Any, name: str, text: str, tmp_path: Path) -> None:
    """What is saved can be compiled: compile knows ONNX files by their names."""
    with pytest.raises(GraphError, match=text):
        save(network(), tmp_path / name, SHAPE)
    assert not (tmp_path / name).exists()


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    net, path = network(), tmp_path / "x"
    exe = md.compile(net, SHAPE, device="reference")
    with pytest.raises(GraphError, match=r"save_graph: shape=\(1, 3, 8, 8\) of an executable, whi"):
        md.save_graph(exe, path, (1, 3, 8, 8))
    with pytest.raises(GraphError, match="shape=None; valid is the input's shape with the batch"):
        md.save_graph(net, path)
    assert not path.exists()
    md.save_graph(net, path, SHAPE)
    with pytest.raises(GraphError, match=r"shape=\(1, 3, 9, 7\), but the graph's inputs have shap"):
        md.compile(path, (1, 3, 9, 7), device="reference")
    md.compile(path, SHAPE, device="reference")


def test_files_that_hold_no_graph(tmp_path: Path) -> None:
    md.save_weights(network().state_dict(), tmp_path / "w")
    for name in ("w", "w.safetensors"):
        (tmp_path / "w").rename(tmp_path / name)
        with pytest.raises(GraphError, match=r"holds weights, but no graph .*; valid is"):
            md.compile(tmp_path / name, SHAPE, device="reference")
        (tmp_path / name).rename(tmp_path / "w")
    with pytest.raises(WeightsError, match=r"nothing\.safetensors': cannot be read: No such"):
        md.compile(tmp_path / "nothing.safetensors", device="reference")
    for path in (tmp_path, tmp_path / "nothing", "a\0b"):
        with pytest.raises(GraphError, match=r"valid are layers and graphs, .* save_graph wrote"):
            md.compile(path, SHAPE, device="reference")
