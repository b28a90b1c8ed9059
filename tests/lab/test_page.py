"""The page of a study: it parses, asks for nothing, and has every step."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from minidnn import lab
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.machine import Rates
from minidnn.cli import main
from minidnn.lab.cpu import machine

VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture(autouse=True)
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this computer take seconds to measure, and pages are the same for all."""
    isa = best_isa().name
    rates = Rates(2, ((isa, 2e11),), ((isa, 1e11),), 2e10, 1e10, 2e11)
    monkeypatch.setattr(machine, "measured_rates", lambda: rates)


class Checker(HTMLParser):
    """Every element that begins ends, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        # An address within the page is all that anything may refer to.
        names = [name for name, value in attrs if not (value or "").startswith("#")]
        assert not {"src", "href", "onload", "onclick"} & set(names), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(name != "href" or (value or "").startswith("#") for name, value in attrs)
        self.seen[tag] = self.seen.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())


def checked(text: str) -> dict[str, int]:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert not re.search(r"https?:|url\(|@import|<script|NaN|inf\b", text.partition("<h2>Steps")[0])
    return checker.seen


@pytest.mark.parametrize("name", sorted(lab.recorded_studies()))
def test_recorded_studies(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "study.html"
    assert main(["lab", "demo", name, "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 3_000_000
    seen = checked(text)
    study, ladder = lab.load_study(lab.recorded_studies()[name]), lab.ladder_of(name)
    measured = {cell["shape"] for cell in study["cells"] if "measured_seconds" in cell}
    # The fifteen, predictions and the ladder of each shape, and the roofline of all.
    assert seen["figure"] == 17 * len(measured) + (name not in ("memory", "reverse", "transpose"))
    assert text.index("How to read this") < text.index("<figure")
    for step in ladder.steps:
        assert f"<summary>{step.name}: " in text
    for number in range(1, 16):
        assert f"<figcaption><b>{number}. " in text
    assert (
        "the roofline" in text or "the rate of a copy" in text
    ) and "prefers-color-scheme: dark" in text
    capsys.readouterr()


def test_predictions_and_failures_have_a_page_too() -> None:
    ladder = lab.ladder_of("conv")
    study = lab.model(ladder, blocks=[(8, 8)], shapes=[{"padding": 1}, {"dilation": 2}])
    text = lab.study_page(study, ladder)
    checked(text)
    assert "naive has no time: stride 1, padding 1, dilation 1; this step knows" in text
    copies = lab.ladder_of("memory-cpu")
    text = lab.study_page(lab.model(copies), copies)
    checked(text)
    assert "Nothing is computed" in text and "the rate of a copy" in text


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "demo", "--html", str(tmp_path / "no" / "study.html")]) == 2
    assert "study.html cannot be written: No such file" in capsys.readouterr().err


def test_graphs_are_calculated_where_nothing_was_counted() -> None:
    study, ladder = lab.load_study(lab.recorded_studies()["conv"]), lab.ladder_of("conv")
    for cell in study["cells"]:
        cell.pop("counters", None)
    text = lab.study_page(study, ladder)
    checked(text)
    assert "Missing:" not in text
    for number in (2, 5, 6, 8, 9, 14, 15):
        assert re.search(rf"<figcaption><b>{number}\. [^<]*, calculated</b>", text), number


def test_an_axis_between_close_numbers_has_its_ends() -> None:
    from minidnn.pages.charts import Chart, Dot, Scale, chart_figure

    close = {"one": [Dot(3.1e-3, 1.0)], "two": [Dot(3.2e-3, 2.0)]}
    chart = Chart("close", "nothing", close, Scale("time, ms", log=True), Scale("GB/s"))
    picture = chart_figure(chart)
    assert ">0.00276<" in picture and ">0.00359<" in picture


def test_lists_steps_and_tunings_have_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.html"
    assert main(["lab", "list", "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    checked(text)
    for name in ("conv-cpu", "reverse", "weight-gradient", "L2 throughput"):
        assert name in text
    assert main(["lab", "show", "transpose", "padded", "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    checked(text)
    assert "Difference to shared" in text
    tune = ["lab", "tune", "memory-cpu", "--step", "apart", "--shape", "L2"]
    assert main([*tune, "--parameters", "STRIDE=8:16", "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    checked(text)
    assert "memory-cpu: apart, tuned" in text and "2 points were tried" in text
    capsys.readouterr()
