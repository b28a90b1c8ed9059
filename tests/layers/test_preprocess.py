"""Pictures as the input of a network: torchvision's bits, on every device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.layers.build import to_graph
from minidnn.pictures import IMAGENET_MEAN, IMAGENET_STD
from tests.devices import unavailable

DEVICES = ("reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def pictures(*shape: int) -> np.ndarray:
    """Pixels among which every byte is."""
    x = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    x.reshape(-1)[: min(x.size, 256)] = np.arange(min(x.size, 256))
    return x


def run(net: md.Layer, x: np.ndarray, device: str) -> np.ndarray:
    if (reason := unavailable(device)) is not None:
        pytest.skip(reason)
    y = md.compile(net, x.shape, device=device)(x)
    return np.asarray(y)


@pytest.mark.together
@pytest.mark.parametrize("device", DEVICES)
def test_the_bits_of_torchvision(device: str) -> None:
    torch = pytest.importorskip("torch")
    x = pictures(2, 9, 17, 3)
    mean, std = (torch.tensor(n)[:, None, None] for n in (IMAGENET_MEAN, IMAGENET_STD))
    # to_tensor, then normalize, of torchvision.transforms.functional
    expected = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().float().div(255)
    expected = expected.sub_(mean).div_(std).numpy()
    y = run(md.Sequential(L.Preprocess(IMAGENET_MEAN, IMAGENET_STD), L.Identity()), x, device)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.together
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"layout": "NCHW"},
        {"mean": 3.5, "std": [2.0, -0.5, 1.0], "scale": 7},
        {"mean": (np.float32(1), 0, 2), "scale": np.float64(1)},
        {"dtype": "float32", "scale": 1.0, "mean": [0.5]},
    ],
)
def test_arguments(device: str, arguments: dict[str, Any]) -> None:
    x = pictures(3, 5, 3, 3).astype(arguments.get("dtype", "uint8"))
    each = {"mean": 0.0, "std": 1.0, "scale": 255.0, "layout": "NHWC", **arguments}
    channels = x.astype(np.float64)
    if each["layout"] == "NCHW":
        channels = channels.transpose(0, 2, 3, 1)
    expected = (channels / each["scale"] - np.array(each["mean"])) / np.array(each["std"])
    y = run(L.Preprocess(**arguments), x, device)
    np.testing.assert_allclose(y, expected.transpose(0, 3, 1, 2), rtol=1e-6, atol=1e-6)


@pytest.mark.together(2)
@pytest.mark.parametrize("device", DEVICES)
def test_a_network_behind_it_gives_what_it_gives_for_prepared_pictures(device: str) -> None:
    net = md.Sequential(L.Conv2d(3, 5, 3, stride=2, padding=1), L.ReLU(), L.MaxPool2d(2))
    whole = md.Sequential(L.Preprocess(IMAGENET_MEAN, IMAGENET_STD), net)
    x = pictures(2, 15, 13, 3)
    prepared = (x / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    expected = run(net, prepared.transpose(0, 3, 1, 2).astype(np.float32), "reference")
    np.testing.assert_allclose(run(whole, x, device), expected, rtol=1e-5, atol=1e-5)


def test_pixels_are_computed_with_in_one_kernel() -> None:
    exe = md.compile(
        md.Sequential(L.Preprocess(0.5, 0.5), L.Conv2d(3, 4, 3)), (1, 8, 8, 3), device="reference"
    )
    names = [node.op.name for node in exe.graph.nodes]
    assert names[:2] == ["Transpose", "Preprocess"] and len(names) == 3
    assert exe.graph.nodes[1].inputs[0].dtype == "uint8"
    (x,) = exe.random_inputs()
    assert x.dtype == np.uint8 and x.max() > 200


def test_in_a_model_the_input_says_its_dtype() -> None:
    x = md.Input((8, 6, 3), dtype="uint8")
    last = L.Conv2d(3, 2, 3)
    net, same = md.Model(x, last(L.Preprocess()(x))), md.Sequential(L.Preprocess(), last)
    image = pictures(1, 8, 6, 3)
    np.testing.assert_array_equal(run(net, image, "reference"), run(same, image, "reference"))
    with pytest.raises(md.GraphError, match=r"input is float32\[.*\]; valid is uint8, as md.Input"):
        L.Preprocess()(md.Input((8, 6, 3)))


def test_it_is_saved_with_the_network(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    net = md.Sequential(L.Preprocess(IMAGENET_MEAN, IMAGENET_STD), L.Conv2d(3, 4, 3, padding=1))
    x = pictures(2, 7, 9, 3)
    graph, expected = to_graph(net, x.shape), run(net, x, "reference")
    md.save_onnx(graph, tmp_path / "net.onnx")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(tmp_path / "net.onnx", options)
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    assert "mean" not in " ".join(net.state_dict())  # weights of the network alone fit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "nhwc"}, "layout='nhwc'; valid are 'NHWC' and 'NCHW'"),
        ({"dtype": "int8"}, "dtype='int8'; valid are 'uint8' and 'float32'"),
        ({"mean": "a"}, "mean='a'; valid is a finite number, or one for each channel"),
        ({"mean": [[1.0]]}, r"mean=\[\[1.0\]\]; valid is a finite number"),
        ({"std": [1, 0, 1]}, r"std=\[1, 0, 1\], scale=255.0; valid are numbers other than 0"),
        ({"std": float("nan")}, "std=nan; valid is a finite number, or one for each channel"),
        ({"scale": [255.0]}, r"scale=\[255.0\]; valid is a finite number$"),
        ({"mean": [1, 2], "std": [1, 2, 3]}, "mean has 2 numbers and std 3; valid is one, or one"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(md.GraphError, match=message):
        L.Preprocess(**arguments)


def test_wrong_pictures() -> None:
    net = md.Sequential(L.Preprocess(IMAGENET_MEAN, IMAGENET_STD))
    with pytest.raises(
        md.GraphError, match="node '0': Preprocess: pictures have 8 channels in lay"
    ):
        md.compile(net, (1, 3, 8, 8), device="reference")
    with pytest.raises(md.GraphError, match="rank 3; valid is rank 4"):
        md.compile(net, (8, 8, 3), device="reference")
    exe = md.compile(net, (1, 8, 8, 3), device="reference")
    with pytest.raises(md.GraphError, match=r"has dtype float32; valid is uint8$"):
        exe(np.zeros((1, 8, 8, 3), np.float32))


def test_bytes_are_only_moved_and_cast() -> None:
    from minidnn.graph import expression as scalar
    from minidnn.graph import operators as ops

    with pytest.raises(md.GraphError, match="dtype='int16'; valid are float16, "):
        ops.Formula(scalar.argument(0), dtype="int16")
    with pytest.raises(md.GraphError, match="uint8"):
        md.compile(md.Model(x := md.Input((3,), dtype="uint8"), L.ReLU()(x)), (1, 3))
