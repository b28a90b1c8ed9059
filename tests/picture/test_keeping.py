"""What makes a picture worth keeping: shape, straight paths, times, nothing from outside."""

from __future__ import annotations

import re
from functools import cache

import pytest

from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph.ir import Graph
from minidnn.graph.picture import to_svg
from minidnn.graph.svg import HEAT
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import optimize
from tests.picture.test_picture import Picture, read, residual

BLOCKS = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b")
NETWORKS = ("resnet18", "squeezenet1_1", "inception_v3", "densenet201")


@cache
def fused(name: str) -> Graph:
    size = 299 if name.startswith("inception") else 224
    return optimize(to_graph(getattr(models, name)(), (1, 3, size, size)))


@cache
def drawn(name: str) -> Picture:
    return read(to_svg(fused(name)))


@pytest.mark.parametrize("name", NETWORKS)
def test_it_has_the_shape_of_a_page(name: str) -> None:
    width, height = drawn(name).size
    assert 0.7 < width / height < 2
    assert max(width, height) < (4300 if name == "densenet201" else 3300)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_line_ends_at_a_box(name: str) -> None:
    """On its upper side, and between its corners."""
    picture = drawn(name)
    for x, y in picture.arrows:
        assert any(r.left < x < r.right and abs(r.top - y) < 0.3 for r in picture.rects) or any(
            abs(y - top) < 0.3 and left < x < right for left, top, right in pills(name)
        ), (x, y)
    readers = sum(len(node.tensors) for node in fused(name).nodes) + 1
    assert len(picture.arrows) == readers


@cache
def pills(name: str) -> list[tuple[float, float, float]]:
    """Left, top and right of inputs and outputs."""
    found, x, y = [], [0.0], [0.0]
    for line in to_svg(fused(name)).splitlines():
        if move := re.fullmatch(r'<g transform="translate\((.*),(.*)\)">', line):
            x.append(x[-1] + float(move[1]))
            y.append(y[-1] + float(move[2]))
        elif line == "</g>":
            x.pop(), y.pop()
        elif pill := re.fullmatch(r'<rect width="([\d.]*)".* class="p"/>', line):
            found.append((x[-1], y[-1], x[-1] + float(pill[1])))
    return found


def test_inception_does_not_drift() -> None:
    """The joins of its eleven blocks stand below each other, in each column."""
    picture = drawn("inception_v3")
    joins = [picture.titled(f"Mixed_{i}.concat = ") for i in BLOCKS]
    places = {round((join.left + join.right) / 2) for join in joins}
    assert len(places) <= 4


def test_names_of_layers_stand_in_the_boxes() -> None:
    texts = drawn("resnet18").texts
    assert "layer1.0.relu" in texts and "conv1: Conv2d 3x3" in texts
    assert "one region, a row for each operator" in texts


def test_times_are_told_and_coloured() -> None:
    graph = residual()
    names = [node.name for node in graph.nodes]
    times = dict(zip(names, [0.0, 1e-6, 2.5e-4, 1.0], strict=False))
    svg = to_svg(graph, times=times)
    picture = read(svg)
    assert {"0 \u00b5s", "1 \u00b5s", "250 \u00b5s", "1 s"} <= set(picture.texts)
    assert "to 1 s" in picture.texts and "4 kernels take 1 s" in " ".join(picture.texts)
    body = svg[svg.index(f"<title>{names[0]} = ") - 200 :]
    steps = re.findall(r'class="b(?: h(\d))?"><title>([\w.]+) = ', body)
    assert dict((name, step) for step, name in steps) == {
        **dict.fromkeys(names, ""),
        **dict(zip(names, ["0", "0", "0", str(len(HEAT) - 1)], strict=False)),
    }
    assert "to " not in " ".join(read(to_svg(graph)).texts)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), "1"])
def test_times_that_are_none(seconds: float) -> None:
    graph = residual()
    with pytest.raises(GraphError, match=r"times\['conv1'\]=.*; valid are seconds"):
        to_svg(graph, times={"conv1": seconds})
    with pytest.raises(GraphError, match="times: 'conv9' is no node of graph 'Residual'"):
        to_svg(graph, times={"conv9": 1.0})


def test_it_needs_nothing_but_itself() -> None:
    """No font, script or image from anywhere, and colours by day and by night."""
    svg = to_svg(residual())
    assert re.findall(r"https?://[^\"]*|url\([^#]|href|@import", svg) == [
        "http://www.w3.org/2000/svg"
    ]
    assert "prefers-color-scheme: dark" in svg and svg.count("<script>") == 1
    styled = set(re.findall(r"\.([a-z][\w-]*)\{", svg))
    used = {name for names in re.findall(r'class="([^"]*)"', svg) for name in names.split()}
    assert used <= styled
