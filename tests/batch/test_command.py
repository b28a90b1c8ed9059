"""``minidnn batch`` but for Ray, in whose place a loop computes: models, options, what is told."""

from __future__ import annotations

import builtins
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.cli import main
from tests.batch.pictures import Pictures, make_pictures


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return make_pictures(tmp_path_factory.mktemp("pictures"), 12, 2)


@pytest.fixture
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidnn.batch.on_ray.started", nullcontext)
    monkeypatch.setattr(
        "minidnn.batch.on_ray.run_on_ray", lambda ray, resources, worker, parts: map(worker, parts)
    )


def batch(pictures: Pictures, output: Path, model: object, *more: object) -> int:
    given = ("batch", model, "--input", pictures.root, "--output", output, "--format", "jsonl")
    return main([*map(str, given), *map(str, more)])


def rows(output: Path) -> dict[str, dict[str, Any]]:
    lines = [
        json.loads(line)
        for part in sorted(output.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    return {line["file"]: line for line in lines}


@pytest.mark.usefixtures("in_a_loop")
def test_classes_are_those_of_classify(
    pictures: Pictures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("".join(f"digit {i}\n" for i in range(10)))
    same = ("--labels", names, "--top", 3, "--device", "reference")
    assert batch(pictures, tmp_path / "out", "digits", *same) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("10 of 12 pictures predicted; 12 in ")
    assert f"2 could not be read: {tmp_path}/out/bad.jsonl names them\n" in printed.out
    assert printed.err == "minidnn batch: 12 files\n"
    files = sorted(pictures.good)
    assert main(["classify", *files, "--network", "digits", "--json", *map(str, same)]) == 0
    told = json.loads(capsys.readouterr().out)["pictures"]
    found = rows(tmp_path / "out")
    assert sorted(found) == files
    for each in told:
        row = found[each["file"]]
        assert row["classes"] == [c["class"] for c in each["classes"]]
        assert row["labels"] == [c["label"] for c in each["classes"]]
        assert row["probabilities"] == pytest.approx([c["probability"] for c in each["classes"]])


@pytest.mark.usefixtures("in_a_loop")
def test_models_in_files_say_the_same(pictures: Pictures, tmp_path: Path) -> None:
    """ONNX, a graph, and by their scores; a compiled one on the CPU engine, where there is one."""
    net = md.models.get_model("digits", weights="DEFAULT")
    shape = (4, *(net.input_shape[i] for i in (0, 1, 2)))
    md.save_onnx(net, tmp_path / "net.onnx", shape)
    graph = tmp_path / "net.json"
    md.save_graph(net, graph, shape)
    same = ("--scores", "--device", "reference", "--batch", 4)
    for place, model in enumerate(("digits", tmp_path / "net.onnx", graph)):
        assert batch(pictures, tmp_path / f"out{place}", model, *same) == 1
    first = rows(tmp_path / "out0")
    assert set(first) == pictures.good
    assert all(len(row["scores"]) == 10 for row in first.values())
    for other in (rows(tmp_path / "out1"), rows(tmp_path / "out2")):
        for file, row in first.items():
            assert row["scores"] == pytest.approx(other[file]["scores"], rel=1e-5, abs=1e-5)


@pytest.mark.usefixtures("in_a_loop")
def test_a_compiled_model(
    pictures: Pictures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    path = tmp_path / "digits.mdx"
    net = md.models.get_model("digits", weights="DEFAULT")
    md.compile(net, (4, *net.input_shape), device="cpu").save(path)
    assert batch(pictures, tmp_path / "out", path, "--top", 2, "--device", "cpu") == 1
    assert batch(pictures, tmp_path / "other", "digits", "--top", 2, "--device", "reference") == 1
    found, expected = rows(tmp_path / "out"), rows(tmp_path / "other")
    assert set(found) == pictures.good
    assert {f: r["classes"] for f, r in found.items()} == {
        f: r["classes"] for f, r in expected.items()
    }
    capsys.readouterr()
    assert batch(pictures, tmp_path / "out", path, "--size", 9) == 2
    assert "is compiled, and has its own" in capsys.readouterr().err


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("ending", ["onnx", "safetensors", "mdx"])
def test_a_file_for_a_range(ending: str, pictures: Pictures, tmp_path: Path) -> None:
    if ending == "mdx" and (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    path, device = tmp_path / f"digits.{ending}", "cpu" if ending == "mdx" else "reference"
    given = [str(path), "--weights", "default", "--batch", "1:8"]
    assert main(["export", "digits", *given]) == 0
    options = ("--top", 2, "--batch", 8, "--device")
    assert batch(pictures, tmp_path / "out", path, *options, device) == 1
    assert batch(pictures, tmp_path / "other", "digits", *options, "reference") == 1
    found, expected = rows(tmp_path / "out"), rows(tmp_path / "other")
    assert set(found) == pictures.good
    assert {f: r["classes"] for f, r in found.items()} == {
        f: r["classes"] for f, r in expected.items()
    }


@pytest.mark.usefixtures("in_a_loop")
def test_another_model_of_that_name_is_refused(
    pictures: Pictures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = md.models.get_model("digits", weights="DEFAULT")
    weights = tmp_path / "weights.safetensors"
    state = net.state_dict()
    for factor in (1, 2):
        md.save_weights(
            {name: np.asarray(factor * array) for name, array in state.items()}, weights
        )
        code = batch(
            *(pictures, tmp_path / "out", "digits"),
            *("--weights", weights, "--device", "reference"),
        )
        assert code == factor
    assert "out is of another run: weights was 'weights.safetensors (" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(
    pictures: Pictures,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "ray":
            raise ImportError("no such module", name=name)
        return right(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert batch(pictures, tmp_path / "out", "digits", "--device", "reference") == 2
    told = capsys.readouterr().err
    assert "minidnn batch needs the package 'ray': pip install 'minidnn[batch]'" in told


def test_a_cluster_that_is_not_there_is_named(
    pictures: Pictures,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")

    def refuse(**_: Any) -> None:
        raise ConnectionError("no route to it")

    monkeypatch.setattr(ray, "init", refuse)  # it would try for a quarter of a minute
    same = ("--device", "reference", "--address", "nothing")
    assert batch(pictures, tmp_path / "out", "digits", *same) == 2
    assert "Ray cannot be used at --address nothing: no route to it" in capsys.readouterr().err
