"""What ``md.compile`` takes beside layers and graphs, and whose integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.graph.types import plain
from minidnn.layers.build import to_graph
from minidnn.weights import save_weights

REFERENCE: dict[str, Any] = {"device": "reference"}


def test_a_name_of_the_zoo() -> None:
    x = np.random.default_rng(0).standard_normal((2, 1, 8, 8), np.float32)
    expected = md.compile(models.digits(), x.shape, **REFERENCE)(x)
    np.testing.assert_array_equal(md.compile("digits", x.shape, **REFERENCE)(x), expected)
    assert md.compile("digits", **REFERENCE).graph.inputs[0].shape == (1, 1, 8, 8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["squeezenet1_1.DEFAULT", "SqueezeNet1_1_Weights.IMAGENET1K_V1"])
def test_a_name_with_published_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = models.squeezenet1_1(seed=5)
    path = tmp_path / "net.safetensors"
    save_weights(net.state_dict(), path)
    monkeypatch.setattr("minidnn.weights.download.fetch", lambda *given, **options: path)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)
    expected = md.compile(net, x.shape, **REFERENCE)(x)
    np.testing.assert_array_equal(md.compile(name, x.shape, **REFERENCE)(x), expected)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = md.Sequential(L.Conv2d(2, 3, 3), L.ReLU())
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5), np.float32)
    expected = md.compile(net, x.shape, **REFERENCE)(x)
    monkeypatch.chdir(tmp_path)
    md.save_graph(net, "net.safetensors", x.shape)
    md.save_graph(net, "graph", x.shape)
    paths: list[Any] = ["net.safetensors", tmp_path / "net.safetensors", "graph"]
    if pytest.importorskip("onnx"):
        md.save_onnx(net, "net.onnx", x.shape)
        paths += ["net.onnx", Path("net.onnx")]
    for path in paths:
        np.testing.assert_allclose(md.compile(path, **REFERENCE)(x), expected, rtol=1e-6)
    Path("digits").write_text("a file that has the name of a network")
    assert md.compile("digits", **REFERENCE).graph.inputs[0].shape == (1, 1, 8, 8)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("resnt18", "network='resnt18' is a str; did you mean 'resnet18'"),
        ("nothing-like-it", "network='nothing-like-it' is a str; valid are layers and graphs, or "),
        ("./net.pb", "network='./net.pb' is a str; there is no such file; valid are layers"),
        ("net.safetensors", "net.safetensors"),
        ("net.pth", r"it may hold weights, .*net.load_state_dict\(md.load_weights\(path\)\)"),
        ("resnet18.IMAGENET1K_V7", "versions of resnet18: DEFAULT, IMAGENET1K_V1"),
        ("digits.IMAGENET1K_V1", "IMAGENET1K_V1"),
    ],
)
def test_what_is_neither_a_name_nor_a_file(
    network: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.pth").write_bytes(b"x")
    with pytest.raises(md.MiniDNNError, match=message):
        md.compile(network, **REFERENCE)


Int = np.int64


@pytest.mark.parametrize(
    "shape",
    [
        (Int(1), Int(3), np.uint8(8), 8),
        [np.int32(1), 3, 8, 8],
        np.array([1, 3, 8, 8]),
        [(Int(1), 3, 8, 8)],
        (np.array([1, 3, 8, 8], np.uint16),),
    ],
)
def test_shapes_have_numpys_ints(shape: Any) -> None:
    fuel: Any = Int(3)
    for network in (md.Sequential(L.ReLU()), to_graph(L.ReLU(), (1, 3, 8, 8))):
        exe = md.compile(network, shape, fuel=fuel, **REFERENCE)
        (size,) = {value.shape for value in exe.graph.inputs}
        assert size == (1, 3, 8, 8) and {type(n) for n in size} == {int}


LAYERS: list[tuple[Callable[[Any], md.Layer], tuple[int, ...]]] = [
    (lambda i: L.Conv2d(i(4), i(8), i(3), i(2), i(1), i(1), i(2)), (1, 4, 9, 9)),
    (lambda i: L.Conv2d(4, 8, np.array([3, 1]), padding=(i(1), 0)), (1, 4, 9, 9)),
    (lambda i: L.Conv1d(i(4), i(8), i(3), stride=i(2)), (1, 4, 9)),
    (lambda i: L.Linear(i(4), i(8)), (1, 4)),
    (lambda i: L.MaxPool2d(i(3), i(2), i(1)), (1, 4, 9, 9)),
    (lambda i: L.AvgPool2d((i(3), 3), divisor_override=i(2)), (1, 4, 9, 9)),
    (lambda i: L.AdaptiveAvgPool2d((i(3), None)), (1, 4, 9, 9)),
    (lambda i: L.BatchNorm2d(i(4)), (1, 4, 9, 9)),
    (lambda i: L.GroupNorm(i(2), i(4)), (1, 4, 9, 9)),
    (lambda i: L.LayerNorm((i(9), i(9))), (1, 4, 9, 9)),
    (lambda i: L.ZeroPad2d((i(1), i(0), i(2), i(1))), (1, 4, 9, 9)),
    (lambda i: L.Reshape(i(2), i(-1)), (1, 4, 9, 9)),
    (lambda i: L.Flatten(i(2), i(3)), (1, 4, 9, 9)),
    (lambda i: L.Softmax(i(1)), (1, 4, 9, 9)),
    (lambda i: L.PReLU(i(4)), (1, 4, 9, 9)),
    (lambda i: md.Model(x := md.Input((i(4),)), L.Linear(4, 2)(x)), (1, 4)),
    (lambda i: models.squeezenet1_1(num_classes=i(7), seed=i(3)), (1, 3, 64, 64)),
]


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_layers_take_numpys_ints(
    make: Callable[[Any], md.Layer], shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Of every width: the same network as Python's ints make, which can be saved."""
    expected = str(to_graph(make(int), shape))
    for kind in (np.int64, np.int8):
        graph = to_graph(make(kind), shape)
        assert str(graph) == expected
    md.save_graph(graph, tmp_path / "graph.safetensors")


@pytest.mark.parametrize("wrong", [np.float32(3), np.bool_(True), np.array([1.5]), np.int64(0)])
def test_other_numbers_of_numpy_stay_errors(wrong: Any) -> None:
    for make in (lambda: L.Conv2d(3, wrong, 3), lambda: L.Conv2d(3, 3, wrong)):
        with pytest.raises(md.GraphError, match="valid is an int"):
            make()
    with pytest.raises(md.GraphError):
        md.compile(L.ReLU(), (1, wrong), **REFERENCE)


def test_plain_leaves_the_rest_as_it_is() -> None:
    thing = object()
    assert plain({"a": [np.int8(1), (np.int64(2), thing)], "b": None}) == {
        "a": [1, (2, thing)],
        "b": None,
    }
    assert plain(thing) is thing and plain("12") == "12" and plain(np.array(7)) == 7
