"""``minidnn train``: what it writes, how it goes on, and what it refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.cli import main
from minidnn.models import get_model
from minidnn.training.trainer import Trainer
from minidnn.weights import load_weights, save_weights

PIL = pytest.importorskip("PIL.Image")

FILES = {"weights", "classes", "checkpoint", "history", "curves", "confusions"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes, each dark or bright in a place of its own."""
    root = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for label, name in enumerate(("left", "middle", "right")):
        (root / name).mkdir()
        for i in range(8):
            pixels = random.integers(0, 60, (8, 8), np.uint8)
            pixels[:, 3 * label : 3 * label + 2] += 180
            PIL.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def train(*arguments: object, network: str = "digits", code: int = 0) -> None:
    given = ["--augment", "none", "--batch", 8, "--lr", 0.02, *arguments]
    assert main(["train", network, *map(str, given), "--device", "reference"]) == code


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("trained") / "new" / "folder"
    train("--data", data, "--output", output, "--epochs", 6, "--steps-per-launch", 2)
    return output


def test_all_files_are_written(
    trained: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {path.stem for path in trained.iterdir()} == FILES
    assert (trained / "classes.txt").read_text() == "left\nmiddle\nright\n"
    header, *rows = (trained / "history.csv").read_text().splitlines()
    assert len(rows) == 6 and "validation_accuracy" in header
    assert ">6 samples, 100.0 % right<" in (trained / "confusions.svg").read_text()
    assert ">held out<" in (trained / "curves.svg").read_text()

    picture, weights = data / "middle" / "0.png", trained / "weights.safetensors"
    labels = ["--labels", str(trained / "classes.txt"), "--device", "reference"]
    network = ["--network", "digits", "--weights", str(weights), "--top", "1"]
    assert main(["classify", str(picture), *network, *labels]) == 0
    assert "middle" in capsys.readouterr().out.replace(str(picture), "")


def test_ctrl_c_saves_and_resuming_gives_the_same_bits(
    trained: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, calls = Trainer.step, 0

    def interrupted(self: Trainer, x: Any, target: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:  # in the third epoch of two steps each
            raise KeyboardInterrupt
        return step(self, x, target)

    arguments = ("--data", data, "--output", tmp_path, "--epochs", 6)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        train(*arguments, code=130)
    assert f"saved to {tmp_path}; --resume goes on" in capsys.readouterr().err
    train(*arguments, code=2)
    assert "--resume goes on from it, and another folder begins anew" in capsys.readouterr().err
    train(*arguments, "--resume")
    assert re.search(r"accuracy: 100.0 % of 6 held-out pictures", capsys.readouterr().out)
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        ours, theirs = load_weights(tmp_path / name), load_weights(trained / name)
        assert all(ours[key].tobytes() == theirs[key].tobytes() for key in theirs)


def test_fine_tuning_keeps_what_fits(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From ten classes to three, on a second folder, at a rate that changes next to nothing."""
    state = get_model("digits", seed=5).state_dict()
    save_weights(state, tmp_path / "ten.safetensors")
    arguments = ("--data", data, "--validate", data, "--weights", tmp_path / "ten.safetensors")
    train(*arguments, "--lr", 1e-12, "--epochs", 1, "--output", tmp_path / "out")
    printed = capsys.readouterr()
    assert "for 3 classes, head.weight, head.bias begin at random" in printed.err
    assert "24 pictures of 3 classes, 24 held out" in printed.err
    found = load_weights(tmp_path / "out" / "weights.safetensors")
    assert found["head.weight"].shape == (3, 40)
    np.testing.assert_allclose(found["stem.0.weight"], state["stem.0.weight"], rtol=0, atol=1e-6)


def test_train_and_val_within_a_folder_and_grey_to_colours(data: Path, tmp_path: Path) -> None:
    for name in ("train", "val"):
        shutil.copytree(data, tmp_path / "data" / name)
    arguments = ("--data", tmp_path / "data", "--epochs", 1, "--size", 33, "--augment", "photos")
    train(*arguments, "--output", tmp_path / "out", "--optimizer", "sgd", network="squeezenet1_1")
    classes = ("left", "middle", "right")
    assert (tmp_path / "out" / "classes.txt").read_text().split() == list(classes)
    found = md.load_preparation(tmp_path / "out" / "weights.safetensors")
    assert found == md.Preparation(38, 33, classes=classes)  # with a margin, and torchvision's mean


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "nowhere"], "folder nowhere cannot be read: No such file or directory"),
        (["--data", "DATA/left"], "left has no folders; valid is a folder of pictures a class"),
        (["--data", "DATA", "--validate", "ONE"], "differ in left, right; valid are folders with"),
        (["--data", "ONE"], "has one class, middle; valid are at least two"),
        (["--data", "digits", "--validate", "DATA"], "digits has pictures to evaluate on"),
        (["--data", "fashion-mnist"], "--data fashion-mnist: valid is fashion-mnist:FOLDER"),
        (["--data", "fashion-mnist:ONE"], "there is neither"),
        (["--data", "DATA", "--resume"], "checkpoint.safetensors"),
        (["--data", "DATA", "--weights", "none.safetensors"], "none.safetensors"),
    ],
)
def test_what_cannot_be_trained_on(
    arguments: list[str],
    text: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(data / "middle", tmp_path / "one" / "middle")
    places = {"DATA": str(data), "ONE": str(tmp_path / "one")}
    given = [re.sub("DATA|ONE", lambda m: places[m[0]], each) for each in arguments]
    train(*given, "--output", tmp_path / "out", code=2)
    message = capsys.readouterr().err
    assert text in message and "internal error" not in message
    assert not (tmp_path / "out").exists()


def test_an_unknown_network(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("--data", data, network="resnet17", code=2)
    assert "no such network; did you mean" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--epochs=0", "--batch=x", "--lr=-1", "--optimizer=sdg"])
def test_wrong_numbers_end_in_usage(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "digits", "--data", "digits", wrong])
    assert f"argument {wrong.partition('=')[0]}: " in capsys.readouterr().err


def test_the_zoo_has_the_same_script(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "minidnn.models.train", "--help"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: minidnn train ")
