"""What people look at, in a browser: on phones and desktops, on light and dark paper."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.pages.page import page
from minidnn.report.network_page import network_page
from tests.pages.browser import DESKTOP, PHONE, SCHEMES, measured
from tests.pages.documents import measured_report, one_shape
from tools.browser import NAMES, find_browser

COMPLAINTS = ("overflow", "texts", "contrast", "captions")
BROKEN = """\
<style>.pale { color: #999; background: #fff } .far { width: 2000px }</style>
<p class="pale">pale</p><p class="far">far</p><figure><figcaption><b>bare</b></figcaption></figure>
<svg viewBox="0 0 100 40"><text x="10" y="20">one</text><text x="14" y="22">two</text>
<text x="95" y="20">outside</text></svg>"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    browser = find_browser()
    if browser is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed (apt-get install chromium)")
    pages = {
        "report": network_page(measured_report(), measured_report()),
        "conv": one_shape("conv"),
        "conv-cpu": one_shape("conv-cpu"),
        "broken": page("Broken", [BROKEN]),
    }
    return measured(browser, pages, tmp_path_factory.mktemp("browser"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", ["report", "conv", "conv-cpu"])
def test_nothing_is_cut_or_pale_or_without_a_caption(
    found: dict[str, Any], name: str, width: int, scheme: str
) -> None:
    frame = found[f"{name} {width} {scheme}"]
    assert {kind: frame[kind] for kind in COMPLAINTS} == {kind: [] for kind in COMPLAINTS}
    assert frame["pictures"] >= 2


def test_schemes_differ(found: dict[str, Any]) -> None:
    papers = {scheme: found[f"report {PHONE} {scheme}"]["paper"] for scheme in SCHEMES}
    assert papers == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}


def test_what_is_wrong_is_found(found: dict[str, Any]) -> None:
    frame = found[f"broken {PHONE} light"]
    assert "far" in frame["overflow"][0]
    assert {told.partition(":")[0] for told in frame["texts"]} == {"cut", "over"}
    assert len(frame["contrast"]) == 1 and "pale" in frame["contrast"][0]
    assert len(frame["captions"]) == 2
