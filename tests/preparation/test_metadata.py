"""A preparation of pictures: what it checks, and that every kind of file keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.preparation import KEY, PictureError

onnx = pytest.importorskip("onnx")

OWN = md.Preparation(
    36, 32, 3, (0.1, 0.2, 0.3), (0.4, 1 / 3, 0.6), ("cat", "dög", "a\nb"), "bicubic"
)
SHAPE = (2, 3, 32, 32)
#: For all batches in a range.
ANY = (md.Dim("n", 1, 2), 3, 32, 32)


@pytest.fixture(scope="module")
def net() -> md.Sequential:
    return md.Sequential(L.Conv2d(3, 3, 32), L.Flatten())


def save(
    kind: str, net: Any, path: Path, preparation: md.Preparation | None, shape: Any = SHAPE
) -> None:
    if kind == "weights":
        md.save_weights(net.state_dict(), path, {"other": "text"}, preparation=preparation)
    elif kind == "graph":
        md.save_graph(net, path, shape, preparation=preparation)
    else:
        md.save_onnx(net, path, shape, preparation=preparation)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("weights", None), ("graph", SHAPE), ("graph", ANY), ("onnx", SHAPE), ("onnx", ANY)],
)
def test_files_keep_it(kind: str, shape: Any, net: Any, tmp_path: Path) -> None:
    path = tmp_path / ("net.onnx" if kind == "onnx" else "net.safetensors")
    save(kind, net, path, OWN, shape)
    assert md.load_preparation(path) == OWN
    # Other programs read it with their own means.
    if kind == "onnx":
        found = {each.key: each.value for each in onnx.load(path).metadata_props}
        onnx.checker.check_model(str(path))
    else:
        with safetensors.safe_open(path, "np") as file:
            found = file.metadata()
    assert json.loads(found[KEY])["classes"] == ["cat", "dög", "a\nb"]
    save(kind, net, path, None, shape)
    assert md.load_preparation(path) is None
    if kind != "weights":
        with pytest.raises(md.GraphError, match=r"makes pictures of \(3, 30, 30\), and network"):
            save(kind, net, path, md.Preparation(30, 30), shape)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [SHAPE, ANY])
def test_a_compiled_file_keeps_it(shape: Any, net: Any, tmp_path: Path) -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    path = tmp_path / "net.mdx"
    exe = md.compile(net, shape, device="cpu")
    exe.save(path, preparation=OWN)
    assert md.load_preparation(path) == OWN
    np.testing.assert_array_equal(md.load(path)(*exe.random_inputs()), exe(*exe.random_inputs()))
    with pytest.raises(md.GraphError, match=r"preparation makes pictures of \(3, 30, 30\)"):
        exe.save(path, preparation=md.Preparation(30, 30))


def test_files_of_torch_have_none(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    assert md.load_preparation(tmp_path / "a.pth") is None
    with pytest.raises(md.WeightsError, match=r"none\.safetensors"):
        md.load_preparation(tmp_path / "none.safetensors")


def test_defaults_are_those_of_torchvision_and_none() -> None:
    colour, grey = md.Preparation(8, 8), md.Preparation(8, 8, 1)
    assert (colour.mean, colour.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (grey.mean, grey.std) == ((0.0,), (1.0,))
    assert md.Preparation(8, 8, mean=(1, 2, 3)).std == (1.0, 1.0, 1.0)


def test_another_size_has_its_margin_in_proportion() -> None:
    assert OWN.resized(64) == replace(OWN, resize=72, crop=64)
    assert md.Preparation(8, 8).resized(3).resize == 3


def test_its_text() -> None:
    assert str(OWN) == (
        "32x32 of 36, mean 0.1 0.2 0.3, deviation 0.4 0.333333 0.6, bicubic, 3 classes"
    )
    assert str(md.Preparation(8, 8, 1)) == "8x8, grey, mean 0, deviation 1"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resize": 31}, "crop=32 is larger than resize=31"),
        ({"crop": 0}, "crop=0; valid is an integer of at least 1"),
        ({"resize": 36.0}, "resize=36.0; valid is an integer"),
        ({"resize": True}, "resize=True; valid is an integer"),
        ({"interpolation": "cubic"}, "interpolation='cubic'; valid are 'bilinear'"),
        ({"channels": 2}, "channels=2; valid are 3"),
        ({"mean": [0.1, 0.2]}, "mean=[0.1, 0.2]; valid are 3 finite numbers, one"),
        ({"std": [1.0, 0.0, 1.0]}, "std=[1.0, 0.0, 1.0]; valid are 3 finite numbers other than 0"),
        ({"std": [1.0, True, 1.0]}, "std=[1.0, True, 1.0]; valid"),
        ({"classes": []}, "classes=[]; valid are names"),
        ({"classes": "cat"}, "classes='cat'; valid are names"),
        ({"classes": ["cat", 3]}, "classes=['cat', 3]; valid are names"),
    ],
)
def test_what_is_not_valid(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    fields = asdict(OWN) | change
    with pytest.raises(PictureError) as error:
        md.Preparation(**fields)
    assert text in str(error.value)
    md.save_weights({}, tmp_path / "w.safetensors", {KEY: json.dumps(fields)})
    with pytest.raises(md.WeightsError) as damaged:
        md.load_preparation(tmp_path / "w.safetensors")
    assert text in str(damaged.value) and "w.safetensors" in str(damaged.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not valid JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "it is []; valid is an object with resize, crop"),
        ('{"resize": 8}', "valid is an object with resize, crop"),
        (json.dumps({**asdict(OWN), "more": 1}), "valid is an object with resize, crop"),
        (json.dumps({**asdict(OWN), "mean": None}), "mean is None; valid is a list of numbers"),
        (json.dumps({**asdict(OWN), "mean": [float("nan")] * 3}), "NaN is not JSON"),
        ('{"resize": 8, "resize": 9}', "a key appears twice"),
    ],
)
def test_damaged_texts(text: str, message: str, net: Any, tmp_path: Path) -> None:
    md.save_weights({}, tmp_path / "w.safetensors", {KEY: text})
    with pytest.raises(md.WeightsError, match=r"w\.safetensors") as error:
        md.load_preparation(tmp_path / "w.safetensors")
    assert message in str(error.value)
    md.save_onnx(net, tmp_path / "net.onnx", SHAPE)
    model = onnx.load(tmp_path / "net.onnx")
    model.metadata_props.add(key=KEY, value=text)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(md.GraphError, match=r"net\.onnx.*minidnn\.preparation") as refused:
        md.load_preparation(tmp_path / "net.onnx")
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", ["weights", "graph", "onnx"])
def test_what_is_no_preparation_is_refused(kind: str, net: Any, tmp_path: Path) -> None:
    other: Any = {"crop": 32}
    path = tmp_path / ("net.onnx" if kind == "onnx" else "net.safetensors")
    with pytest.raises(md.GraphError, match=r"preparation=\{'crop': 32\} is a dict; valid is"):
        save(kind, net, path, other)
    if kind != "weights":
        with pytest.raises(md.GraphError, match=r"makes pictures of \(3, 8, 8\), and network"):
            save(kind, net, path, md.Preparation(8, 8))
    with pytest.raises(md.GraphError, match="load_preparation: path=3 is a int"):
        md.load_preparation(3)  # type: ignore[arg-type]
