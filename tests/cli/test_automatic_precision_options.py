"""--precision auto and --tolerance, and the commands that do not take them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minidnn.cli import main, serve
from minidnn.errors import UnsupportedError

AUTO = ["digits", "--device", "reference", "--precision", "auto", "--tolerance", "0.02"]
SAID = "precision auto: float32, as the device has no other for inference"


def test_explain_and_report_say_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["explain", *AUTO]) == 0
    assert capsys.readouterr().out.splitlines()[1] == SAID
    assert main(["explain", *AUTO, "--json", "--passes"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["automatic_precision"] == [SAID]
    assert len(document["passes"]) == len({one["name"] for one in document["passes"]})
    page = tmp_path / "page.html"
    assert main(["report", *AUTO, "--no-measure", "--html", str(page)]) == 0
    assert SAID in page.read_text()


def test_classify_says_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "3.png"
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(picture)
    assert main(["classify", str(picture), "--network", *AUTO]) == 0
    assert f"minidnn classify: {SAID}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explain", *AUTO[:3], "--tolerance", "1"], "tolerance=1.0 with precision=None; valid is"),
        (["explain", *AUTO[:-1], "0"], "--tolerance: '0' is not a number above 0"),
        (["export", "digits", "net.onnx", "--tolerance", "1"], "'net.onnx' is no compiled network"),
        (
            ["export", "digits", "net.mdx", "--batch", "1:4", "--precision", "auto"],
            "precision='auto' is not for named sizes: ",
        ),
    ],
)
def test_what_does_not_fit(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as error:  # what argparse refuses
        code = error.code  # type: ignore[assignment]
    assert code == 2
    assert text in capsys.readouterr().err


def test_a_server_takes_one_of_the_devices() -> None:
    options = Namespace(device=None, precision="auto", threads=None)
    with pytest.raises(UnsupportedError, match=r"^precision='auto' is not for serving, "):
        serve._open("digits", options)
