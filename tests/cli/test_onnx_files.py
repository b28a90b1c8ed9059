"""The commands on ONNX files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from minidnn.cli import main
from tests.onnx.models import model, moves, network, node, save

PIL = pytest.importorskip("PIL.Image")


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return save(network(), tmp_path / "net.onnx")


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    assert main([str(argument) for argument in arguments]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def test_explain(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "explain", net, "--batch", 4, "--device", "reference")
    assert "Conv2d(Conv_0) + ReLU" in out and "4x4x8x8" in out


def test_sizes_of_a_file_are_its_own(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = run(capsys, "explain", net, "--size", 9, "--device", "reference", code=2)
    assert "shape (1, 3, 9, 9) for input 'x'; valid is (N, 3, 16, 16)" in err


def test_what_a_file_leaves_open_is_told_in_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = model([node("Relu", "x")], [("x", ["N", 3, "H", "W"])])
    path = save(wide, tmp_path / "wide.onnx")
    for command in ("explain", "compare", "bisect", "bench"):
        _, err = run(capsys, command, path, code=2)
        assert "open (x: (N, 3, H, W)); --size gives rows and columns" in err
        assert "shape=" not in err
    decided = model([node("Expand", "x s")], [("x", [2, 3])])
    decided.graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [3]))
    _, err = run(capsys, "explain", save(decided, tmp_path / "decided.onnx"), code=2)
    assert "(no option gives constants: minidnn.load_onnx does, in Python)" in err
    _, err = run(capsys, "explain", path, "--shape", "1x3x4x4", code=2)
    assert "wide.onnx' takes --batch and --size" in err


def test_bisect(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "bisect", net)
    assert "after all 6 rewrites the result deviates by" in out
    out, _ = run(capsys, "bisect", save(moves(), tmp_path / "moves.onnx"))
    assert "the tolerance is 1e-06" in out


def test_compare(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "compare", net, "--device", "reference", "--batch", 2)
    assert out.startswith("10 layers in ONNX Runtime ") and "y (output, (2, 5))" in out
    out, _ = run(capsys, "compare", net, "--device", "reference", "--json")
    found = json.loads(out)
    assert found["equal"] and found["first"] is None
    assert [layer["name"] for layer in found["layers"]][:3] == ["c1", "n1", "r1"]
    out, _ = run(
        capsys, "compare", net, "--device", "reference", "--tolerance", 1e-12, "--layers", code=1
    )
    assert "the first layer that differs is c1 (Conv, (1, 4, 8, 8)): " in out


def test_compare_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def small(): return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU())\n"
        "ready = nn.Softmax(1)\n"
        "import torch\n"
        "exported = torch.export.export(ready, (torch.ones(2, 3),)).module()\n"
        "number = 3\n"
        "def broken(): raise RuntimeError('no such weights')\n"
        "class Picky(nn.Module):\n"
        "    def forward(self, x): raise ValueError('not this one')\n"
        "picky = nn.Sequential(nn.ReLU(), Picky())\n"
    )
    monkeypatch.chdir(tmp_path)
    common = ("--device", "reference")
    out, _ = run(capsys, "compare", "my_nets:small", "--shape", "2x3x8x9", *common)
    assert out.startswith("3 layers in PyTorch ") and "(output, (2, 2, 6, 7))" in out
    out, _ = run(capsys, "compare", "my_nets:ready", "--shape", "2x3", *common, "--json")
    assert json.loads(out)["equal"]
    run(capsys, "compare", "my_nets:exported", "--shape", "2x3", *common)
    out, _ = run(
        *(capsys, "compare", "my_nets:small", "--shape", "1x3x8x8", *common),
        *("--tolerance", 1e-12),
        code=1,
    )
    assert "the first layer that differs is 0:conv2d (conv2d.default, (1, 2, 6, 6)): " in out
    for named, text in (
        ("my_nets:none", "my_nets:none cannot be had: module 'my_nets' has no attribute 'none'"),
        ("other_nets:small", "other_nets:small cannot be had: No module named 'other_nets'"),
        ("my_nets:broken", "my_nets:broken cannot be had: no such weights"),
        ("my_nets:number", "my_nets:number is of type int; valid is a torch.nn.Module"),
    ):
        _, err = run(capsys, "compare", named, "--shape", "1x3", *common, code=2)
        assert text in err
    for arguments, text in (
        (("my_nets:picky", "--shape", "1x3"), "picky fails on --shape 1x3: ValueError: not this"),
        (("my_nets:small", "--shape", "1x4x8x8"), "small fails on --shape 1x4x8x8: RuntimeError: "),
        (("my_nets:ready", "--shape", "1x3", "2"), "fails on --shape 1x3 2: TypeError: "),
        (("net.words",), "MODEL 'net.words'; valid are an ONNX file (.onnx) and package.module:na"),
        (("my_nets:", "--shape", "1x3"), "MODEL 'my_nets:'; valid are an ONNX file (.onnx) and "),
    ):
        _, err = run(capsys, "compare", *arguments, *common, code=2)
        assert text in err and "internal error" not in err
    _, err = run(capsys, "compare", "my_nets:small", *common, code=2)
    assert "a PyTorch module needs --shape" in err
    _, err = run(capsys, "compare", "net.onnx", "--shape", "1x3", *common, code=2)
    assert "--shape is for PyTorch modules" in err


@pytest.mark.parametrize(
    "by",
    [
        pytest.param("torchvision.models:squeezenet1_1", marks=pytest.mark.full),
        "of_theirs:small",
    ],
)
def test_compare_networks_of_torchvision(by: str, tmp_path: Path, root: Path) -> None:
    """In a process where nobody has imported it, beside whichever PyTorch there is."""
    pytest.importorskip("torch")
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    (tmp_path / "of_theirs.py").write_text(
        "import torchvision\ndef small(): return torchvision.models.squeezenet1_1()\n"
    )
    command = ["compare", by, "--shape", "1x3x32x32", "--device", "reference"]
    done = subprocess.run(
        [sys.executable, "-m", "minidnn", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("66 layers in PyTorch "), done.stderr
    assert done.returncode == 0


def test_classify(net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 18, 3), np.uint8)
        PIL.fromarray(pixels).save(tmp_path / f"{i}.png")
    pictures = [tmp_path / f"{i}.png" for i in range(3)]
    common = ("--network", net, "--device", "reference", "--json")
    out, _ = run(capsys, "classify", *pictures, *common)
    found = json.loads(out)
    assert found["weights"] == str(net) and found["crop"] == 16
    for picture in found["pictures"]:
        assert sum(c["probability"] for c in picture["classes"]) == pytest.approx(1.0)
    # With a batch of its own, picture after picture.
    single = model(
        [node("GlobalAveragePool", "x", "g"), node("Flatten", "g")],
        [("x", [1, 3, 16, 16])],
        [("y", [1, 3])],
    )
    path = save(single, tmp_path / "single.onnx")
    out, _ = run(capsys, "classify", *pictures, "--network", path, "--device", "reference")
    assert out.count(" %  class ") == 9
    # The same network in a graph file.
    graph = tmp_path / "single.safetensors"
    run(capsys, "export", path, graph)
    again, _ = run(capsys, "classify", *pictures, "--network", graph, "--device", "reference")
    assert again == out


@pytest.mark.parametrize("opset", [11, 21])
def test_probabilities_stay_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], opset: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    PIL.fromarray(pixels).save(tmp_path / "x.png")
    found = []
    for last in ("Softmax", "Identity"):
        net = model(
            [
                node("GlobalAveragePool", "x", "g"),
                node(last, "g", "s", **({"axis": 1} if last == "Softmax" else {})),
                node("Flatten", "s"),
            ],
            [("x", [1, 3, 16, 16])],
            [("y", [1, 3])],
            opset=opset,
        )
        path = save(net, tmp_path / f"{last}.onnx")
        out, _ = run(
            capsys, "classify", tmp_path / "x.png", "--network", path, "--device", "reference",
            "--json",
        )  # fmt: skip
        (picture,) = json.loads(out)["pictures"]
        found.append([(each["class"], each["probability"]) for each in picture["classes"]])
    assert [each for each, _ in found[0]] == [each for each, _ in found[1]]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_classify_refuses(tmp_path: Path, net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "x.png"
    picture.touch()
    _, err = run(capsys, "classify", picture, "--network", net, "--weights", "random", code=2)
    assert "--weights, --key, --prefix: the file" in err
    path = save(moves(), tmp_path / "moves.onnx")
    _, err = run(capsys, "classify", picture, "--network", path, code=2)
    assert "valid are one input of square pictures (N, C, S, S) and one output" in err
    for last, sizes in (
        (node("ArgMax", "x", axis=1, keepdims=0), [1, 3, 8, 8]),  # classes themselves
        (node("Relu", "x"), [1, 3, 8, 8]),  # numbers for each pixel
        (node("Relu", "x"), [0, 3, 8, 8]),
        (node("Relu", "x"), [2, 3, 8, 8]),
    ):
        made = model([last], [("x", sizes)])
        if last.op_type == "ArgMax":
            made.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
        path = save(made, tmp_path / "other.onnx")
        _, err = run(capsys, "classify", picture, "--network", path, code=2)
        assert "and one output (N, classes), of floating-point numbers" in err
    run(capsys, "export", path, graph := tmp_path / "other.safetensors")
    for arguments, text in (
        (("--size", 9), "--size 9: the graph file"),
        (("--prefix", "x."), "--weights, --key, --prefix: the file"),
        ((), "and one output (N, classes)"),
    ):
        _, err = run(capsys, "classify", picture, "--network", graph, *arguments, code=2)
        assert text in err
    _, err = run(capsys, "classify", picture, "--network", tmp_path / "missing.onnx", code=2)
    assert "missing.onnx" in err
