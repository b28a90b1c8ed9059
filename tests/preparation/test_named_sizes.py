"""Files that leave the size of pictures open: they are prepared at the size that the file says."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.cli import main
from minidnn.cli.serve import sources_of
from minidnn.frontends.onnx.model import read_model
from minidnn.frontends.onnx.shapes import named_shapes
from minidnn.pictures import read_picture
from minidnn.serving.model import load

CLASSES = ("red", "green", "blue")
OWN = md.Preparation(16, 12, 3, classes=CLASSES)
BATCH, SIDE = md.Dim("n", 1, 4), md.Dim("side", 8, 40)
REFERENCE = ("--device", "reference")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A network for pictures of any size."""
    net = md.Sequential(L.Conv2d(3, 3, 1), L.AdaptiveAvgPool2d(1), L.Flatten())
    md.save_graph(net, tmp_path / "net.safetensors", (BATCH, 3, SIDE, SIDE), preparation=OWN)
    return tmp_path / "net.safetensors"


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    image = pytest.importorskip("PIL.Image")
    random, found = np.random.default_rng(0), []
    (tmp_path / "pictures").mkdir()
    for number in range(5):
        found.append(tmp_path / "pictures" / f"{number}.png")
        image.fromarray(random.integers(0, 256, (20, 18, 3), np.uint8)).save(found[-1])
    return found


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_commands_take_its_size(
    ending: str,
    file: Path,
    pictures: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / f"again.{ending}"
    assert main(["export", str(file), str(path)]) == 0
    assert "with n 1 to 4, side 8 to 40" in capsys.readouterr().out
    if ending == "onnx":
        assert main(["export", str(path), str(path)]) == 0  # the ranges stay
        assert named_shapes(read_model(path)) == {"input": (BATCH, 3, SIDE, SIDE)}
        capsys.readouterr()
    assert md.load_preparation(path) == OWN

    x = np.concatenate([read_picture(each, OWN) for each in pictures])
    scores = np.asarray(md.compile(file, x[:4].shape, device="reference")(x[:4]))
    labels = [CLASSES[i] for i in scores.argmax(1)]
    network = ("--network", path, "--json", "--top", 1, "--batch", 2, *REFERENCE)
    assert main(["classify", *map(str, (*pictures, *network))]) == 0
    told = json.loads(capsys.readouterr().out)["pictures"]
    assert [each["classes"][0]["label"] for each in told][:4] == labels

    monkeypatch.setattr("minidnn.batch.on_ray.started", nullcontext)
    run = "minidnn.batch.on_ray.run_on_ray"
    monkeypatch.setattr(run, lambda ray, resources, worker, parts: map(worker, parts))
    given = ("--input", tmp_path / "pictures", "--output", tmp_path / "out", "--batch", 3)
    more = ("--format", "jsonl", "--scores", *REFERENCE)
    assert main(["batch", *map(str, (path, *given, *more))]) == 0
    (part,) = (tmp_path / "out").glob("part-*.jsonl")
    rows = sorted(map(json.loads, part.read_text().splitlines()), key=lambda row: row["file"])
    found = np.array([row["scores"] for row in rows])
    np.testing.assert_allclose(found[:4], scores, rtol=1e-4, atol=1e-5)

    options = argparse.Namespace(
        models=[f"net={path}"], device="reference", precision=None, threads=None, size=None
    )
    (source,) = sources_of(options, print)
    model = load(source, 4)
    assert model.inputs[0].shape == (3, 12, 12) and model.preparation == OWN
    (result,) = model.run([[x[:3]]], [3])[0]
    np.testing.assert_allclose(result, scores[:3], rtol=1e-4, atol=1e-5)
