"""``minidnn bisect``: finds a wrong pass in a network of the zoo, through a plan and its arena."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minidnn import models
from minidnn.cli import main
from minidnn.graph.ir import Graph, Rewriter
from minidnn.graph.operators import BatchNorm
from minidnn.layers.build import to_graph
from minidnn.passes import pipeline
from minidnn.passes.infrastructure import Context, Pass
from minidnn.saving import save_graph


def bisect(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[list[str], str]:
    assert main(["bisect", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err


@pytest.fixture
def wrong_pass(monkeypatch: pytest.MonkeyPatch) -> str:
    """A pass that gets the eps of one normalization wrong; returns that normalization's name."""
    target = "blocks.1.bn2"

    def run(graph: Graph, context: Context) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            norm = isinstance(node.op, BatchNorm) and context.allow(f"touch {node.name}")
            if not norm or node.name != target:
                rewriter.keep(node)
                continue
            assert isinstance(node.op, BatchNorm)
            inputs = [rewriter.value(value) for value in node.inputs]
            new = rewriter.add(replace(node.op, eps=1e-2), inputs, node.name, node.source)
            rewriter.replace(node.output, new.output)
        return rewriter.finish()

    first, *others = pipeline.PIPELINE
    monkeypatch.setattr(pipeline, "PIPELINE", (first, Pass("wrong_eps", run), *others))
    return target


def test_a_right_network_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = bisect(capsys, "digits", "--batch", 2)
    assert err == ""
    assert lines[1] == "    0 rewrites: the result deviates by 0"
    assert lines[-1].startswith("after all ")
    found, tolerance = lines[-1].split("deviates by ")[1].split("; the tolerance is ")
    assert 0 < float(found) < float(tolerance) < 1e-4


@pytest.mark.parametrize("options", [[], ["--precision", "float32"], ["--strategy", "five"]])
def test_a_wrong_eps_is_found(
    options: list[str], wrong_pass: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, err = bisect(capsys, "digits", *options, code=1)
    assert err == ""
    (culprit,) = [line for line in lines if line.startswith("rewrite #")]
    assert culprit.endswith(f" wrong_eps: touch {wrong_pass}")
    assert lines[-3].startswith("  without it (") and lines[-2].startswith("  with it (")
    fuels = [int(line.split(" of ")[0].split("(")[1]) for line in lines[-3:-1]]
    assert fuels[1] == fuels[0] + 1 == int(culprit.split("#")[1].split()[0])


def test_a_large_tolerance_forgives(wrong_pass: str, capsys: pytest.CaptureFixture[str]) -> None:
    bisect(capsys, "digits", "--tolerance", 10)


def test_graph_files_and_weights(
    tmp_path: Path, wrong_pass: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.safetensors"
    save_graph(to_graph(models.digits(weights="DEFAULT"), (2, 1, 8, 8)), path)
    lines, _ = bisect(capsys, path, code=1)
    assert any(line.endswith(f"wrong_eps: touch {wrong_pass}") for line in lines)
    again, _ = bisect(capsys, "digits", "--weights", "DEFAULT", "--batch", 2, code=1)
    assert again == lines
    _, err = bisect(capsys, path, "--weights", "DEFAULT", code=2)
    assert f"--weights DEFAULT: the graph file {str(path)!r} has weights" in err


def test_normalizations_are_shaken() -> None:
    """Fresh ones scale by 1 and shift by 0, and hide what a wrong fold does."""
    from minidnn.cli.bisect import _shake

    net = models.digits()
    _shake(net, 3)
    weight, bias = net.blocks[0].bn1.weight.bind("x")(), net.blocks[0].bn1.bias.bind("x")()
    assert (weight < 0).any() and (weight > 0).any() and bias.std() > 0.1


def test_the_precision_must_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = bisect(capsys, "digits", "--precision", "float8", code=2)
    assert err == (
        "minidnn bisect: --precision float8 on device 'reference'; valid are float32, float64\n"
    )


def test_a_tolerance_below_rounding_blames_no_rewrite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["digits", "--precision", "float32", "--tolerance", "1e-12"]
    lines, _ = bisect(capsys, *arguments, code=1)
    assert lines[-1].startswith("with no rewrite at all the result deviates by")
