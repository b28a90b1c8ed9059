"""``minidnn report``: a page with every region, and a comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidnn.cli import main
from tests.lab.test_page import checked


def test_a_page_and_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "digits.html"
    arguments = ["report", "digits", "--device", "cpu", "--html", str(page)]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    text = page.read_text(encoding="utf-8")
    seen = checked(text)
    # In their order, by layer, kind and cause, the longest, the roofline, and memory.
    assert seen["figure"] == 7 and "Beside the other report" not in text
    assert text.index("How to read this page") < text.index("In short") < text.index("<figure")
    timed = [region for region in document["regions"] if "seconds" in region]
    assert timed and max(document["memory"]) == document["arena"]["lower_bound"]
    for region in document["regions"]:
        assert f"<td>{region['name']}</td>" in text and f"<td>{region['label']}</td>" in text
    assert document["regions"][0]["label"] == "stem.0 (Conv2d) + ReLU"
    for region in timed:
        assert sum(region["causes"].values()) == pytest.approx(region["seconds"])
        floor = max(region["arithmetic_seconds"], region["memory_seconds"])
        assert region["roofline"] == pytest.approx(floor / region["seconds"])
        assert 0 <= region["weight_bytes"] <= region["bytes"]
    assert document["network"] == "digits" and document["batch"] == 1
    for region in timed:
        region["seconds"] *= 3
    timed[0]["name"] = "other"
    other = tmp_path / "before.json"
    other.write_text(json.dumps(document), encoding="utf-8")
    assert main([*arguments, "--beside", str(other), "--no-measure"]) == 0
    text = page.read_text(encoding="utf-8")
    checked(text)
    assert "Beside the other report" in text and "<td>gone</td>" in text
    assert "predicted." in text and "Nothing was measured" in text and "By cause" not in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "is no report: "),
        ("{}", "valid is what minid"),
    ],
)
def test_what_is_no_report(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content, encoding="utf-8")
    arguments = ["report", "digits", "--html", str(tmp_path / "x.html"), "--beside", str(other)]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
