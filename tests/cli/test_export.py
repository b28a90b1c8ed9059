"""``minidnn export`` and ``minidnn list``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import models
from minidnn.backends.backend import backend_names
from minidnn.cli import main
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.weights import KNOWN_WEIGHTS


def export(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[str, str]:
    assert main(["export", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


RANDOM = "minidnn export: the weights are random; --weights default takes published ones\n"


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_the_network_with_its_weights(
    ending: str, squeezenet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the size that is asked for; and an export of an export is the same network."""
    pytest.importorskip("onnx")
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 96), np.float32)
    net = models.squeezenet1_1(weights=squeezenet)
    expected = md.compile(net, x.shape, device="reference")(x)
    path, again = tmp_path / f"net.{ending}", tmp_path / "again.onnx"
    size = ("--batch", 2, "--size", "64x96")
    out, err = export(capsys, "squeezenet1_1", path, "--weights", squeezenet, *size)
    megabytes = path.stat().st_size / 1e6
    assert out == f"{path}: SqueezeNet for input: float32[2, 3, 64, 96], {megabytes:.1f} MB\n"
    assert err == ""
    export(capsys, path, again)
    for written in (path, again):
        y = md.compile(written, device="reference")(x)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_other_engines_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = tmp_path / "digits.onnx"
    out, err = export(capsys, "digits", path, "--weights", "default", "--batch", 3)
    assert err == "" and "float32[3, 1, 8, 8]" in out
    x = np.random.default_rng(0).standard_normal((3, 1, 8, 8), np.float32)
    session = ort.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    expected = md.compile(models.digits(weights="DEFAULT"), x.shape, device="reference")(x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_all_batches_in_a_range(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written of a file for a range is for it, too."""
    pytest.importorskip("onnx")
    first, path = tmp_path / "first.onnx", tmp_path / f"any.{ending}"
    out, _ = export(capsys, "digits", first, "--weights", "default", "--batch", "1:6")
    assert "input: float32[batch, 1, 8, 8] with batch 1 to 6, " in out
    out, _ = export(capsys, first, path)
    assert "with batch 1 to 6, " in out
    exe = md.compile(path, device="reference")
    assert isinstance(exe, DynamicExecutable)
    for rows in (1, 3, 6):
        x = np.random.default_rng(0).standard_normal((rows, 1, 8, 8), np.float32)
        expected = md.compile(models.digits(weights="DEFAULT"), x.shape, device="reference")(x)
        np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)
    out, _ = export(capsys, path, tmp_path / "two.safetensors", "--batch", 2)
    assert "float32[2, 1, 8, 8], " in out
    out, _ = export(capsys, path, tmp_path / "few.safetensors", "--batch", "2:4")
    assert "with batch 2 to 4, " in out
    if ending == "safetensors":
        _, err = export(capsys, path, tmp_path / "no.safetensors", "--batch", 9, code=2)
        assert "batch=9; valid are 1 to 6" in err
        export(capsys, path, tmp_path / "one.safetensors", "--batch", 1)
        one = tmp_path / "one.safetensors"
        _, err = export(capsys, one, tmp_path / "no.safetensors", "--batch", "1:4", code=2)
        assert "--batch 1:4: the file" in err and "has its own size; valid are" in err


def test_random_weights_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.safetensors"
    assert export(capsys, "squeezenet1_1", path)[1] == RANDOM
    assert export(capsys, "squeezenet1_1", path, "--weights", "random")[1] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits", "net.pb"), "FILE 'net.pb': valid are names that end in .onnx, .safetensors or"),
        (("digits", "net.onnx", "--isa", "avx2"), "--isa avx2: 'net.onnx' is no compiled network"),
        (("digits", "net.safetensors", "--opset", 20), "--opset 20: 'net.safetensors' is no ONNX"),
        (("digit", "net.safetensors"), "name='digit': no such network; did you mean 'digits'"),
        (("none.onnx", "net.safetensors"), "none.onnx"),
        (
            ("a.safetensors", "b.onnx", "--weights", "c"),
            "--weights, --key, --prefix: 'a.safetensors' has",
        ),
        (("resnet18", "b.onnx", "--batch", "1:4", "--shape", "1x2"), "valid beside a range is --s"),
        (("resnet18", "b.safetensors", "--weights", "resnet34"), "are those of resnet34, not of"),
        (("digits", "no/such/folder/net.safetensors"), "No such file or directory"),
    ],
)
def test_what_cannot_be_written(
    arguments: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    out, err = export(capsys, *arguments, code=2)
    assert out == "" and message in err
    assert list(tmp_path.iterdir()) == []


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found["networks"]] == models.list_models()
    listed = [(n["name"], version) for n in found["networks"] for version in n["weights"]]
    assert sorted(listed) == sorted((known.network, known.version) for known in KNOWN_WEIGHTS)
    devices = {entry.pop("name"): entry for entry in found["devices"]}
    assert sorted(devices) == backend_names()
    assert devices["reference"] == {"usable": True, "precisions": ["float32", "float64"]}
    for device in devices.values():
        assert device["usable"] or device["reason"]
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) < 50
    words = set(text.replace(",", " ").split())
    for name in (*models.list_models(), *devices, *found["commands"], ".onnx", ".safetensors"):
        assert name in words, name
