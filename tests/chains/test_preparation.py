"""From pictures over training to int8: each command prepares as the file before it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import minidnn as md
from minidnn.pictures import read_picture
from tests.chains.conftest import CLASSES, REFERENCE, SAYS, SIZE, Run, share_right


def test_training_says_how_it_prepared(trained: Path) -> None:
    wanted = md.Preparation(SIZE, SIZE, channels=1, classes=tuple(CLASSES))
    for path in (trained, trained.with_name("checkpoint.safetensors")):
        assert md.load_preparation(path) == wanted


def test_weights_are_classified_as_they_were_trained(trained: Path, classify: Any) -> None:
    """Without what the file says, the network's own size shows it nothing of the stripes."""
    network = ("--network", "digits", "--weights", trained)
    found, err = classify(*network)
    assert found > 0.9 and err == f"minidnn classify: {SAYS}\n"
    assert classify(*network, "--size", SIZE)[0] == found
    poor, err = classify(*network, "--size", 8, "--mean", "0.1", "--std", "0.9")
    assert poor < 0.6
    assert "as the file says, but for --size, --mean, --std: 8x8, grey, mean 0.1, dev" in err
    labelled, err = classify(*network, "--labels", "none")
    assert labelled == 0 and "but for --labels: 16x16, grey, mean 0, deviation 1\n" in err


@pytest.mark.usefixtures("in_a_loop")
def test_batch_prepares_as_classify_does(
    trained: Path, pictures: Path, run: Run, tmp_path: Path
) -> None:
    given = ("--input", pictures, "--format", "jsonl", *REFERENCE, "--top", 1)
    weights = ("digits", "--weights", trained, *given)
    _, err = run("batch", *weights, "--output", tmp_path / "out")
    assert err.count(f"minidnn batch: {SAYS}\n") == 1
    assert share_right(tmp_path / "out") > 0.9
    # The same command goes on; other means are another run.
    changed = ("--mean", "0.5", "--output", tmp_path / "mean")
    run("batch", *weights, *changed)
    run("batch", *weights, *changed)
    _, err = run("batch", *weights, "--output", tmp_path / "mean", code=2)
    assert "is of another run: mean was [0.5]" in err


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_what_is_exported_says_it_again(
    ending: str, trained: Path, classify: Any, run: Run, tmp_path: Path
) -> None:
    """For pictures of the size that the weights were trained for, and once more."""
    first, second = tmp_path / f"first.{ending}", tmp_path / "second.onnx"
    out, err = run("export", "digits", first, "--weights", trained, "--batch", 4)
    assert "input: float32[4, 1, 16, 16]" in out and f"minidnn export: {SAYS}\n" in err
    run("export", first, second)
    for path in (first, second):
        assert md.load_preparation(path) == md.load_preparation(trained)
        found, err = classify("--network", path)
        assert found > 0.9 and SAYS in err
    run("export", "digits", first, "--weights", trained, "--size", 12, "--labels", "none")
    assert md.load_preparation(first) == md.Preparation(12, 12, channels=1)
    _, err = run("export", "digits", first, "--weights", trained, "--size", "16x12")
    assert md.load_preparation(first) is None and "nothing says how pictures are prepared" in err


def test_from_weights_to_int8_in_onnx(
    trained: Path, pictures: Path, classify: Any, run: Run, tmp_path: Path
) -> None:
    """Accuracy is told; ONNX Runtime computes the same; the file is exported as others are."""
    path, again = tmp_path / "int8.onnx", tmp_path / "again.safetensors"
    given = ("--weights", trained, "--data", pictures, "--batch", 8, *REFERENCE)
    out, err = run("quantize", "digits", path, *given)
    told = re.search(r"accuracy: ([\d.]+) % of 30 before, ([\d.]+) % after\n", out)
    assert told and float(told[1]) > 90 and float(told[2]) > 90
    assert SAYS in err
    exact, _ = classify("--network", "digits", "--weights", trained)
    small, said = classify("--network", path)
    assert [f"{100 * each:.1f}" for each in (exact, small)] == [told[1], told[2]] and SAYS in said
    preparation = md.load_preparation(path)
    assert preparation == md.load_preparation(trained) and preparation is not None
    x = np.concatenate(
        [read_picture(file, preparation) for file in sorted(pictures.glob("*/[1-4].png"))[:8]]
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options)
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    ours = md.compile(path, device="reference")(x)
    ours = next(iter(ours.values())) if isinstance(ours, dict) else ours
    np.testing.assert_allclose(theirs, ours, atol=0.02 * np.abs(ours).max())
    run("export", path, again)
    assert md.load_preparation(again) == preparation
    assert classify("--network", again)[0] == small


def test_training_goes_on_as_weights_were_prepared(
    trained: Path, pictures: Path, run: Run, tmp_path: Path
) -> None:
    given = ("--data", pictures, "--weights", trained, "--epochs", 1, "--lr", 1e-9)
    out, err = run("train", "digits", *given, "--output", tmp_path, *REFERENCE)
    assert "prepared as the file says: 16x16, grey" in err and "% of 6 held-out" in out
    assert md.load_preparation(tmp_path / "weights.safetensors") == md.load_preparation(trained)


def test_a_folder_of_another_order_and_more_classes(
    trained: Path, pictures: Path, run: Run, tmp_path: Path
) -> None:
    """Folders are the classes of their names: two of three, which are not the first ones."""
    for name in ("down", "slanted"):
        shutil.copytree(pictures / name, tmp_path / "two" / name)
    given = ("quantize", "digits", tmp_path / "net.onnx", "--weights", trained, *REFERENCE)
    out, _ = run(*given, "--data", tmp_path / "two")
    told = re.search(r"accuracy: ([\d.]+) % of 20 before", out)
    assert told and float(told[1]) > 90
    (tmp_path / "two" / "down").rename(tmp_path / "two" / "up")
    out, err = run(*given, "--data", tmp_path / "two")
    assert "accuracy" not in out
    assert "accuracy is not measured: of the classes, up are none of the network's" in err
    out, err = run(*given, "--data", pictures / "down")
    assert "accuracy" not in out and "has no folders of classes" in err
