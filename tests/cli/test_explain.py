"""``minidnn explain``: the table, the stacks, the rewrites, the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import minidnn as md
from minidnn import models
from minidnn.cli import main
from minidnn.executable import Executable
from minidnn.layers.build import to_graph
from minidnn.report.explain import Profile, RegionTime
from minidnn.saving import save_graph


def explain(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["explain", *map(str, arguments), "--device", "reference"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(explain(capsys, *arguments, "--json"))


def failing(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["explain", *map(str, arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("minidnn explain: ")
    return printed.err


def test_the_table_is_the_executables(capsys: pytest.CaptureFixture[str]) -> None:
    exe = md.compile(models.squeezenet1_1(), (2, 3, 64, 64), device="reference")
    out = explain(capsys, "squeezenet1_1", "--batch", 2, "--size", 64)
    table, stacks, rewrites = out.rstrip("\n").split("\n\n")
    assert table == exe.explain()
    lines = rewrites.splitlines()
    assert lines[0] == f"{len(exe.plan.rewrites)} rewrites"
    assert [line.strip() for line in lines[1:]] == [str(r) for r in exe.plan.rewrites]
    assert stacks.splitlines()[0] == "4 stacks left after absorption"  # see docs/reference/zoo.md
    assert "(MaxPool2d)" in stacks


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    exe = md.compile(models.resnet18(), (1, 3, 224, 224), device="reference")
    found = document(capsys, "resnet18")
    assert [r["name"] for r in found["regions"]] == [node.name for node in exe.graph.nodes]
    kernels = [r for r in found["regions"] if r["kind"] not in ("view", "in place")]
    predicted = sum(r["predicted_seconds"] for r in kernels)
    assert f"{len(kernels)} kernels, {predicted * 1e3:.3f} ms predicted" in exe.explain()
    assert (found["graph"], found["device"], found["precision"]) == (
        "ResNet",
        "reference",
        "float32",
    )
    assert found["arena"]["bytes"] == exe.plan.arena.bytes >= found["arena"]["lower_bound"]
    assert len(found["stacks"]) == 2 and len(found["rewrites"]) == len(exe.plan.rewrites)
    assert found["rewrites"][0]["number"] == 1 and found["rewrites"][0]["pass"] == "simplify"
    contractions = [r for r in found["regions"] if r["kind"] == "contraction"]
    assert len(contractions) == 21
    assert sum(r["operations"] for r in contractions) == pytest.approx(2 * 1.814e9, rel=0.01)
    assert {"Conv2d", "Add", "ReLU"} in [set(r["operators"]) for r in contractions]


def test_passes_are_printed_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    out = explain(capsys, "digits", "--passes")
    graph = to_graph(models.digits(), (1, 1, 8, 8))
    headings = [line for line in out.splitlines() if line.startswith("== ")]
    assert headings[:20] == [
        "== before freeze ==",
        "== after freeze ==",
        "== after keep_layers ==",
        "== after multiply_int8 ==",
        "== after transpose_linear ==",
        "== after contract_matrices ==",
        "== after compose_gradients ==",
        "== after share_sums ==",
        "== after compose_variance ==",
        "== after repeat_inside ==",
        "== after drop_samples ==",
        "== after view_channels ==",
        "== after simplify ==",
        "== after take_channels ==",
        "== after share_concats ==",
        "== after compose_branches ==",
        "== after fold_pad ==",
        "== after fold_bias ==",
        "== after linear_to_conv ==",
        "== after fold_batch_norm ==",
    ]
    assert "depth_first" in " ".join(headings) and headings[-2] == "== after update_in_place =="
    assert out.startswith(f"== before freeze ==\n{graph}\n")
    assert "(the same graph)" in out
    assert out.split("== annotations ==\n")[1].startswith("layout %input: NCHW\n")
    parts = out.split("== after fold_batch_norm ==\n")
    assert "BatchNorm" in parts[0] and "BatchNorm" not in parts[1]
    found = document(capsys, "digits", "--passes")["passes"]
    assert [f"== after {step['name']} ==" for step in found] == headings[1:-1]
    assert found[0]["before"] == str(graph)


def test_fuel_limits_the_rewrites(capsys: pytest.CaptureFixture[str]) -> None:
    everything = document(capsys, "digits")["rewrites"]
    assert document(capsys, "digits", "--fuel", 4)["rewrites"] == everything[:4]
    assert document(capsys, "digits", "--fuel", 0)["rewrites"] == []


def test_strategies_differ(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {}
    for strategy in ("model", "one", "layers"):
        found = document(capsys, "densenet121", "--size", 64, "--strategy", strategy)
        kinds[strategy] = sum("step" in r["kind"] for r in found["regions"])
    assert 0 < kinds["model"] <= kinds["one"] <= kinds["layers"]


def test_svg_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "digits.svg"
    plain = explain(capsys, "digits")
    assert explain(capsys, "digits", "--svg", path) == plain
    drawn = ElementTree.parse(path).getroot()
    assert drawn.tag.endswith("svg")
    text = " ".join(drawn.itertext())
    assert "FusedContraction" in text or "Conv2d" in text
    error = failing(capsys, "digits", "--device", "reference", "--svg", tmp_path)
    assert f"--svg {tmp_path} cannot be written: Is a directory" in error


def test_what_is_measured_stands_in_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is measured once, for the table and the picture."""
    runs = []

    def profile(executable: Executable, *inputs: np.ndarray) -> Profile:
        runs.append(inputs)
        region = executable.graph.nodes[0]
        time = RegionTime(region.name, "contraction", (), 1, 1, 1.5e-3, 1.0, 1, 1.0, 0.5, 1e-6)
        return Profile((time,), ("described",), 9)

    monkeypatch.setattr(Executable, "profile", profile)
    path = tmp_path / "digits.svg"
    out = explain(capsys, "digits", "--measure", "--svg", path)
    texts = list(ElementTree.parse(path).getroot().itertext())
    assert "1 kernels, 1.500 ms measured" in out and len(runs) == 1
    assert "1.5 ms" in texts and "to 1.5 ms" in texts


def test_rows_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = explain(capsys, "squeezenet1_1", "--size", "64x96")
    assert "1x64x31x47" in out  # the first convolution's result


def test_graph_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.safetensors"
    save_graph(to_graph(models.digits(), (3, 1, 8, 8)), path)
    assert explain(capsys, path) == explain(capsys, "digits", "--batch", 3)
    error = failing(capsys, path, "--batch", 3)
    assert f"--batch 3: the graph file {str(path)!r} has its own size" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["./nothing"], "nothing"),
        (["nothing.safetensors"], "nothing.safetensors"),
        (["resnet"], "did you mean 'resnet"),
        (["alexnet", "--size", "16"], "MaxPool2d"),
        (["digits", "--device", "abacus"], "device='abacus'; valid are"),
        (["digits", "--strategy", "luck"], "strategy='luck'; valid are 'model', 'one'"),
        (["digits", "--device", "reference", "--precision", "int3"], "precision='int3'"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = failing(capsys, *arguments)
    assert error in printed and len(printed.splitlines()) == 1


def test_tuning_is_asked_of_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    error = failing(capsys, "squeezenet1_1", "--size", 64, "--device", "reference", "--tune")
    assert "option 'tune' of device 'reference'" in error


def test_a_file_of_weights_is_no_graph(
    squeezenet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "holds weights, but no graph" in failing(capsys, squeezenet)
