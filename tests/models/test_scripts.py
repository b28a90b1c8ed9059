"""The command lines of the zoo's files and of the zoo as a whole."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minidnn import models
from minidnn.layers.build import to_graph
from minidnn.models import _script
from minidnn.models.__main__ import main as zoo_main
from minidnn.models._stacks import chains, count, is_optimizable
from minidnn.passes.infrastructure import Context
from minidnn.passes.simplify import simplify
from minidnn.pictures import Preparation, read_picture
from minidnn.weights import save_weights
from tests.sampling import every, mixed

FILES = list(dict.fromkeys(models._NETWORKS.values()))[1:]  # digits.py is none


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def picture(path: Path, width: int, height: int) -> Path:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    image.fromarray(pixels).save(path)
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("file", every(3, FILES))
def test_every_file_is_a_script(file: str) -> None:
    done = python("-m", f"minidnn.models.{file}", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python -m minidnn.models.{file} ")
    listed = next(x for x in done.stdout.splitlines() if x.startswith("Networks: "))
    assert models._NETWORKS[listed.split()[1].rstrip(",.")] == file
    for command in ("summary", "run", "bench"):
        assert f"\n    {command} " in done.stdout


def test_run_prints_the_highest_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "--size", "64", "--top", "3", "--batch", "2", "--device", "reference"]
    _script.main("squeezenet1_1", "squeezenet1_0", arguments=arguments)
    first = capsys.readouterr().out
    rows = [line.split() for line in first.splitlines()]
    assert [row[:2] for row in rows] == [[i, f"{k}."] for i in "01" for k in (1, 2, 3)]
    scores = [float(row[-1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)
    _script.main("squeezenet1_1", arguments=arguments)
    assert capsys.readouterr().out == first


def test_run_takes_pictures_and_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, image = tmp_path / "weights.safetensors", picture(tmp_path / "a.png", 120, 90)
    net = models.squeezenet1_1(seed=3, num_classes=10)
    save_weights(net.state_dict(), weights)
    chosen = ["--weights", str(weights), "--classes", "10", "--image", str(image)]
    sizes = ["--size", "64", "--top", "1", "--device", "reference"]
    _script.main("squeezenet1_1", arguments=["run", *chosen, *sizes])
    row = capsys.readouterr().out.split()

    from minidnn.graph.evaluate import evaluate

    x = read_picture(image, Preparation(73, 64))
    (y,) = evaluate(to_graph(net, x.shape), [x])
    assert int(row[3]) == y.argmax()
    assert float(row[-1]) == pytest.approx(float(y.max()), rel=1e-3)


@pytest.mark.parametrize(
    ("network", "weights", "resize"),
    [
        ("resnet50", "IMAGENET1K_V1", 256),
        ("resnet50", "ResNet50_Weights.IMAGENET1K_V2", 232),
        ("resnet50", "DEFAULT", 232),
        ("resnet50", "mine.safetensors", 232),
        ("resnet50", None, 232),
        ("digits", "DEFAULT", 224),
        ("efficientnet_b0", "DEFAULT", 256),
    ],
)
def test_pictures_are_as_the_weights_want_them(
    monkeypatch: pytest.MonkeyPatch, network: str, weights: str | None, resize: int
) -> None:
    monkeypatch.setattr(_script, "read_picture", lambda path, preparation: preparation)
    options = argparse.Namespace(network=network, weights=weights, image=Path("cat.jpg"))
    filtered = "bicubic" if network == "efficientnet_b0" else "bilinear"
    expected = Preparation(resize, 224, 3, interpolation=filtered)
    assert _script._picture(options, (1, 3, 224, 224)) == expected


def test_bench_prints_times(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "squeezenet1_0", "--size", "64", "--device", "reference"]
    runs = ["--repeat", "3", "--warmup", "0"]
    _script.main("squeezenet1_1", "squeezenet1_0", arguments=[*arguments, *runs])
    out = capsys.readouterr().out
    assert out.startswith("squeezenet1_0  1x3x64x64  median ") and ", 3 runs)" in out


def test_summary_prints_the_layers(capsys: pytest.CaptureFixture[str]) -> None:
    _script.main("alexnet", arguments=["summary", "--batch", "2"])
    out = capsys.readouterr().out
    assert "classifier.6" in out and "2x1000" in out and "61,100,840" in out


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["run", "--size", "16", "--device", "reference"], 1, "node 'features.5': MaxPool2d"),
        (["run", "--weights", "nothing"], 1, "weights 'nothing' are not known"),
        (["run", "--image", "/nowhere.png", "--device", "reference"], 1, "/nowhere.png cannot be"),
        (["bench", "--batch", "0"], 2, "argument --batch: '0' is not a number of at least 1"),
        (["bench", "resnet18"], 2, "invalid choice: 'resnet18'"),
        (["run", "--seed", "-1"], 2, "argument --seed: '-1' is not a number of at least 0"),
        ([], 2, "required"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        _script.main("alexnet", arguments=arguments)
    assert caught.value.code == status
    printed = capsys.readouterr()
    assert text in printed.err.splitlines()[-1] and printed.out == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("arguments", "buffered"), mixed(2, [("", "list"), (".alexnet", "summary")], [False, True])
)
def test_output_that_cannot_be_written_is_no_traceback(
    arguments: tuple[str, str], buffered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    command = f"{sys.executable} -m minidnn.models{arguments[0]} {arguments[1]}"
    closed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | true"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (closed.returncode, closed.stderr) == (1, "")
    full = subprocess.run(
        ["bash", "-c", f"{command} > /dev/full"], capture_output=True, text=True, timeout=120
    )
    name = f"python -m minidnn.models{arguments[0]}"
    assert (full.returncode, full.stderr) == (1, f"{name}: No space left on device\n")


def test_the_zoo_lists_its_networks(capsys: pytest.CaptureFixture[str]) -> None:
    zoo_main(["list"])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == models.list_models()
    assert rows[1].split() == ["alexnet", "3x224x224", "61,100,840", "parameters"]
    assert rows[-1].split() == ["vit_b_16", "3x224x224", "86,567,656", "parameters"]


def test_stack_counts_by_hand() -> None:
    """resnet18: the stem, three chains in each of eight blocks, one in each of three shortcuts.

    Of ours, a block's last normalization, its shortcut's, the sum and what follows are one.
    """
    found = count("resnet18")
    assert (found.chains, found.stacks) == (1 + 8 * 3 + 3, 1 + 8 * 2)
    # ReLU and pooling three times, and four times ReLU alone.
    found = count("alexnet")
    assert (found.optimizable, found.chains, found.stacks, found.stacks_left) == (10, 7, 7, 3)
    net = models.resnet18()
    graph = simplify(to_graph(net, (1, 3, 224, 224)), Context())
    assert sum(map(is_optimizable, graph.nodes)) == 20 + 17 + 2  # normalizations, ReLU, pooling
    assert chains(graph) == 28


def test_stacks_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    zoo_main(["stacks", "alexnet", "squeezenet1_1"])
    lines = capsys.readouterr().out.splitlines()
    assert (
        "  ".join(lines[0].split()) == "network  layers  optimizable  chains  stacks  stacks  left"
    )
    assert lines[1].split() == ["alexnet", "19", "10", "7", "7", "3"]
    assert len(lines[0]) == len(lines[1]) == len(lines[2])
    with pytest.raises(SystemExit, match="1"):
        zoo_main(["stacks", "alexnetz"])
    assert "did you mean 'alexnet'" in capsys.readouterr().err


def test_the_documented_table_is_the_printed_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (root / "docs/reference/zoo.md").read_text(encoding="utf-8")
    block = text.split("```\nnetwork ")[1].split("```")[0]
    zoo_main(["stacks", *(line.split()[0] for line in block.splitlines()[1:])])
    printed = capsys.readouterr().out
    assert "network " + block.rstrip() == printed.split("\n\n")[0]
