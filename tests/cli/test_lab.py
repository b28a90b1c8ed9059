"""``minidnn lab``: lists, shows and predicts, and says what is valid."""

from __future__ import annotations

import json

import pytest

from minidnn.cli import main


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["lab", *arguments]) == 0
    return capsys.readouterr().out


def test_list_names_ladders_steps_and_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "list")
    assert "conv: convolution" in text and "  registers       Several filters a thread" in text
    assert "L1 hit rate: L1 hits / all accesses" in text
    document = json.loads(told(capsys, "list", "--json"))
    names = [ladder["name"] for ladder in document["ladders"]]
    gpu = ["conv", "input-gradient", "weight-gradient"]
    gpu += ["product", "memory", "reverse", "transpose"]
    assert names == [*gpu, "conv-cpu", "memory-cpu"]
    assert all(metric["formula"] for metric in document["metrics"])


def test_show_explains_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "show", "product", "coalesced", "--gpu", "A100")
    assert "// Expect: Several times faster" in text
    assert "-  const int row = blockIdx.x * blockDim.x + threadIdx.x;" in text
    assert "on NVIDIA A100\nrows 4096, columns 4096, depth 4096" in text
    document = json.loads(told(capsys, "show", "conv", "naive", "--json"))
    assert document["difference"] == [] and document["step"]["name"] == "naive"
    assert document["source"].startswith("// One thread an output")


def test_model_is_a_table_or_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("model", "conv", "--block", "8x8,64x32", "--step", "tiled,fused")
    text = told(capsys, *arguments, "--shape", "batch=1,padding=1")
    assert "batch 1, channels 32" in text and "padding 1" in text
    assert "no: a block of 2048 threads; valid are 1 to 1024" in text
    written = json.loads(told(capsys, *arguments, "--json"))
    assert (written["format"], written["version"]) == ("minidnn lab study", 1)
    cells = {(cell["step"], *cell["block"]): cell for cell in written["cells"]}
    assert cells["tiled", 8, 8]["predicted_seconds"] > cells["fused", 8, 8]["predicted_seconds"] > 0
    assert cells["fused", 8, 8]["registers"] > 16
    assert "why_not" in cells["fused", 64, 32]


def test_parameters_go_to_the_steps_that_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("model", "conv", "--step", "tiled,positions,vectors", "--json")
    written = json.loads(told(capsys, *arguments, "--parameters", "GROUP=6,POSITIONS=2"))
    tiled, positions, vectors = written["cells"]
    assert tiled["parameters"] == {} and "registers" in tiled
    assert positions["parameters"] == {"GROUP": 6, "POSITIONS": 2}
    assert positions["grid"] == [2 * 4, 6, 32]
    assert vectors["why_not"] == "GROUP=6; this step wants a multiple of 4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "conv", "fast"], "conv has no step 'fast'; it has naive, general, coalesced"),
        (["model", "fft"], "no ladder is called 'fft'; there are conv, input-gradient, weight-"),
        (["model", "conv", "--gpu", "H300"], "'H300' is not described; A100, RTX3090, RTX4090"),
        (["model", "conv", "--shape", "batch"], "'batch' is no list of sizes such as batch=1"),
        (["model", "conv", "--shape", "n=-1"], "shapes of conv are 3-64@224,7/2, 64-64@56,3/1"),
        (["model", "conv", "--shape", "depth=3"], "'depth' is no size; valid are batch, channels"),
        (
            ["model", "conv", "--parameters", "TILE=3"],
            "TILE=3; valid are numbers from 1 on of GROUP",
        ),
        (["model", "conv", "--parameters", "GROUP=0"], "GROUP=0; valid are numbers from 1 on"),
        (["model", "conv", "--shape", "width=1"], "the window is larger than the padded image"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--block=8", "--block=8x8x8", "--parameters=GROUP"])
def test_wrong_values_end_in_usage(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "model", "conv", wrong])
    assert "is no list of" in capsys.readouterr().err
