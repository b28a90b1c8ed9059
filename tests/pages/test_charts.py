"""Charts and terms: small multiples, bars with parts, ticks, and what is explained."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from minidnn.pages.charts import Bar, Chart, Dot, Scale, bars, chart_figure, chart_picture, strip
from minidnn.pages.page import GLOSSARY, explained, guide, page, table, terms_of
from minidnn.report.network_page import network_page
from tests.pages.documents import measured_report, one_shape


def chart_of(count: int) -> Chart:
    series = {f"step {i}": [Dot(1 + i, 10.0 * (1 + i)), Dot(2 + i, 3.0)] for i in range(count)}
    axes = (Scale("time, ms"), Scale("GB/s"))
    return Chart("Rates", "Higher is faster.", series, *axes, {"roof": [(1.0, 1.0), (9.0, 9.0)]})


@pytest.mark.parametrize(("count", "panels"), [(1, 1), (3, 1), (4, 2), (18, 6)])
def test_many_series_are_small_multiples(count: int, panels: int) -> None:
    text = chart_figure(chart_of(count))
    assert text.count("<svg") == panels and text.count('class="roof"') == panels
    assert text.count("<circle") == 2 * count  # each point has its colour once
    several = panels > 1
    assert text.count('class="behind"') == several and text.count("<use") == panels - 1
    assert ("Across: time, ms. Up: GB/s. Dashed: roof." in text) == several
    if several:
        grey = re.search(r'class="behind" d="([^"]*)"', text)
        assert grey is not None and grey[1].count("h0") == 2 * count
        (key,) = re.findall(r'id="([^"]*)"', text)
        assert text.count(f'href="#{key}"') == panels - 1
    # On the same axes.
    ticks = {tuple(re.findall(r">([\d.]+)</text>", one)) for one in text.split("<svg")[1:]}
    assert len(ticks) == 1
    assert "<b>Rates</b> Higher is faster.</figcaption>" in text


def test_a_picture_has_all_series_and_a_legend() -> None:
    text = chart_picture(chart_of(18))
    assert text.count("<svg") == 1 and "<use" not in text and "var(" not in text
    assert all(f">step {i}</text>" in text for i in range(18))


def test_rings_are_joined_by_themselves() -> None:
    dots = [Dot("a", 1.0), Dot("a", 5.0, hollow=True), Dot("b", 2.0), Dot("b", 6.0, hollow=True)]
    text = chart_figure(Chart("Hits", "See.", {"one": dots}, Scale("x"), Scale("%"), is_line=True))
    lines = re.findall(r'<path d="M([^"]*)" fill="none"', text)
    assert [line.count("L") for line in lines] == [1, 1]
    assert text.count('fill="none" stroke="#2b7bba"><title>') == 2


def test_labels_of_an_axis_do_not_meet() -> None:
    dots = [Dot(f"32x8 T{i} R2", 1.0 + i) for i in range(36)]
    text = chart_figure(Chart("Times", "See.", {"one": dots}, Scale("block"), Scale("ms")))
    places = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">(32x8[^<]*)', text)
    ends = [(float(x) - 3.2 * len(told), float(x) + 3.2 * len(told)) for x, told in places]
    assert len(ends) >= 3 and ends[0][0] >= 0 and ends[-1][1] <= 380
    assert all(left[1] < right[0] for left, right in pairwise(ends))


@pytest.mark.parametrize(
    ("value", "told"),
    [(40_000, "40k"), (2e6, "2M"), (3e9, "3G"), (2000, "2000"), (0.0002, "0.0002")],
)
def test_numbers_of_axes_are_short(value: float, told: str) -> None:
    dots = [Dot(1.0, value), Dot(2.0, value / 2)]
    text = chart_figure(Chart("t", "See.", {"one": dots}, Scale("x"), Scale("y")))
    assert f">{told}</text>" in text


def test_parts_of_bars_add_up() -> None:
    text = bars([Bar("a", 4.0, "4 us", (1.0, 3.0)), Bar("b", 2.0, "2 us", (2.0, 0.0))], {}, "mn")
    pieces = re.findall(r'left:([\d.]+)%;width:([\d.]+)%;[^"]*" title="(.)"', text)
    assert pieces == [("0.00", "25.00", "m"), ("25.00", "75.00", "n"), ("0.00", "50.00", "m")]
    with pytest.raises(ValueError, match="zip"):
        bars([Bar("a", 4.0, "4 us", (1.0,))], {}, "mn")


def test_a_strip_is_as_wide_as_its_numbers() -> None:
    text = strip([("x", 0.75, "first <one>"), ("y", 0.25, "second")])
    assert re.findall(r"flex-grow:([\d.]+)", text) == ["0.75", "0.25"]
    assert 'title="first &lt;one&gt;"' in text and text.count("<span>") == 2


def test_terms_are_explained_once_and_listed_at_the_end() -> None:
    text = explained("Regions & regions <b> of a roofline; the kernel's stack")
    assert text.startswith(f'<abbr title="{GLOSSARY["region"]}">Regions</abbr> &amp; regions &lt;')
    assert text.count("<abbr") == 4
    assert list(terms_of(text)) == ["kernel", "region", "roofline", "stack"]
    whole = page("T", [guide("Read", ["an arena"]), table(["region", "x"], [["kernel", "1"]])])
    assert re.findall("<dt>([^<]*)</dt>", whole) == ["arena", "region"]
    assert "<td>kernel</td>" in whole
    assert "Words of this page" not in page("T", ["<p>nothing</p>"])


def test_every_term_is_used_on_a_page() -> None:
    pages = network_page(measured_report()) + one_shape("conv")
    assert terms_of(pages).keys() == GLOSSARY.keys()
