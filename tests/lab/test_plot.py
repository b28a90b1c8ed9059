"""Studies as pictures: SVG that parses and has every graph, PNG, and what cannot be drawn."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from minidnn import lab
from minidnn.cli import main
from minidnn.errors import UnsupportedError
from minidnn.lab.page import study_plot


def picture_of(ladder: str) -> tuple[str, int]:
    study = lab.load_study(lab.recorded_studies()[ladder])
    measured = {cell["shape"] for cell in study["cells"] if "measured_seconds" in cell}
    return study_plot(study, lab.ladder_of(ladder)), len(measured)


def test_every_graph_of_every_shape_is_drawn() -> None:
    text, shapes = picture_of("product")
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and "var(" not in text and "href" not in text
    for number in range(1, 16):
        assert text.count(f">{number}. ") == shapes, number
    assert text.count(">The ladder<") == shapes
    assert text.count(">Predicted over measured time") == shapes
    width, height = (float(root.get(name, "0")) for name in ("width", "height"))
    places = re.findall(r'<g transform="translate\((\d+) (\d+)\)">', text)
    assert len(places) == 17 * shapes
    assert all(float(x) < width and float(y) < height for x, y in places)


def test_predictions_have_a_picture_too(tmp_path: Path) -> None:
    path = tmp_path / "model.svg"
    assert main(["lab", "model", "transpose", "--plot", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert "padded" in text and "the rate of a copy" in text and ">1. Exec" not in text


def test_png(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    path = tmp_path / "transpose.PNG"
    study = lab.load_study(lab.recorded_studies()["transpose"])
    study["shapes"] = study["shapes"][:1]
    study["cells"] = [cell for cell in study["cells"] if cell["shape"] == 0]
    try:
        lab.save_plot(path, study, lab.ladder_of("transpose"))
    except UnsupportedError as error:
        assert "a PNG needs a font" in str(error)
        return
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(data[16:20]) == 2 * 1356  # pixels across


def test_what_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "demo", "transpose", "--plot", "study.pdf"]) == 2
    assert "plot='study.pdf'; valid are names that end with .svg or .png" in capsys.readouterr().err
    assert main(["lab", "demo", "transpose", "--plot", str(tmp_path / "no" / "a.svg")]) == 2
    assert "a.svg cannot be written: No such file" in capsys.readouterr().err
    blank = SimpleNamespace(svg_to_bytes=lambda **given: b"the same")
    monkeypatch.setitem(sys.modules, "resvg_py", blank)  # type: ignore[arg-type]
    assert main(["lab", "demo", "transpose", "--plot", str(tmp_path / "a.png")]) == 2
    assert "a PNG needs a font, and there is none of DejaVu Sans" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "resvg_py", None)  # type: ignore[arg-type]
    assert main(["lab", "demo", "transpose", "--plot", str(tmp_path / "a.png")]) == 2
    assert "pip install 'minidnn[plots]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
