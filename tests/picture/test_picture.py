"""The picture of a graph is valid SVG that shows every node where it belongs."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from minidnn import layers as L
from minidnn import models
from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.picture import to_svg
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import optimize
from tests.storage.sample import nested, net

SVG = "{http://www.w3.org/2000/svg}"


@dataclass
class Rect:
    left: float
    top: float
    right: float
    bottom: float
    title: str
    dashed: bool

    def contains(self, other: Rect) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def overlaps(self, other: Rect) -> bool:
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)


@dataclass
class Picture:
    rects: list[Rect]
    texts: list[str]
    arrows: list[tuple[float, float]]  # where arrows end
    size: tuple[float, float]

    def titled(self, start: str) -> Rect:
        (rect,) = [rect for rect in self.rects if rect.title.startswith(start)]
        return rect


def read(svg: str) -> Picture:
    """Where everything is, read by a parser of XML."""
    root = ElementTree.fromstring(svg)
    found = Picture([], [], [], (float(root.get("width", "")), float(root.get("height", ""))))

    def visit(element: ElementTree.Element, x: float, y: float) -> None:
        move = element.get("transform")
        if move:
            dx, dy = move.removeprefix("translate(").removesuffix(")").split(",")
            x, y = x + float(dx), y + float(dy)
        title = element.findtext(f"{SVG}title")
        if element.tag == f"{SVG}rect" and title is not None:
            left, top = x + float(element.get("x", 0)), y + float(element.get("y", 0))
            right, bottom = (
                left + float(element.get("width", "")),
                top + float(element.get("height", "")),
            )
            dashed = element.get("class") == "g"
            found.rects.append(Rect(left, top, right, bottom, title, dashed))
        elif element.tag == f"{SVG}text":
            found.texts.append(element.text or "")
        elif element.tag == f"{SVG}path" and element.get("marker-end"):
            place = element.get("d", "").replace("V", " V ").replace("C", " C ").replace("M", " M ")
            words = place.replace(",", " ").split()
            if words[-2] == "V":
                numbers = [w for w in words[:-2] if w[-1].isdigit()]
                last_x = numbers[0] if "C" not in words else words[words.index("C") + 5]
                found.arrows.append((x + float(last_x), y + float(words[-1])))
            else:
                found.arrows.append((x + float(words[-2]), y + float(words[-1])))
        for child in element:
            visit(child, x, y)

    visit(root, 0.0, 0.0)
    return found


def boxes(picture: Picture, names: list[str]) -> list[Rect]:
    return [picture.titled(f"{name} = ") for name in names]


class Residual(L.Layer):
    def __init__(self) -> None:
        self.conv1 = L.Conv2d(8, 8, 3, padding=1)
        self.bn1 = L.BatchNorm2d(8)
        self.relu = L.ReLU()
        self.conv2 = L.Conv2d(8, 8, 3, stride=1, padding=1, bias=False)

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.bn1(self.conv1(x)))) + x)


def residual() -> Graph:
    return to_graph(Residual(), (1, 8, 16, 16))


def test_a_residual_block() -> None:
    graph = residual()
    picture = read(to_svg(graph))
    drawn = boxes(picture, [node.name for node in graph.nodes])
    for before, after in itertools.pairwise(drawn):
        assert before.bottom < after.top  # data flows downwards
        assert abs((before.left + before.right) - (after.left + after.right)) < 1  # straight
    for text in ("Residual", "conv1", "Conv2d 3x3"):
        assert text in picture.texts
    assert picture.texts.count("1x8x16x16") == len(graph.nodes) + 2
    assert "BatchNorm" in picture.texts and "contraction" in picture.texts
    # every edge ends on the upper side of what reads it
    ends = sorted(drawn[-2].top - y for _, y in picture.arrows)
    assert len(picture.arrows) == 8 and sum(abs(end) < 0.11 for end in ends) == 2


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "densenet121", "inception_v3"])
@pytest.mark.parametrize("optimized", [False, True])
def test_networks_of_the_zoo(name: str, optimized: bool) -> None:
    size = 299 if name.startswith("inception") else 224
    graph = to_graph(getattr(models, name)(), (1, 3, size, size))
    graph = optimize(graph) if optimized else graph
    picture = read(to_svg(graph))
    top = [picture.rects[i] for i in _outermost(picture.rects)]
    assert len(top) == len(graph.nodes)
    for i, one in enumerate(top):
        assert one.left >= 0 and one.right <= picture.size[0] and one.bottom <= picture.size[1]
        assert not any(one.overlaps(other) for other in top[i + 1 :])
    inner = sum(len(node.op.body.nodes) for node in graph.nodes if hasattr(node.op, "body"))
    assert len(picture.rects) == len(graph.nodes) + inner
    assert bool(inner) == optimized


def _outermost(rects: list[Rect]) -> list[int]:
    """Rects that no earlier one contains: outlines come before their content."""
    found: list[int] = []
    for i, rect in enumerate(rects):
        if not any(rects[j].contains(rect) for j in found):
            found.append(i)
    return found


def test_regions_enclose_their_bodies() -> None:
    picture = read(to_svg(nested(2)))
    outer, inner = picture.titled("region1 = "), picture.titled("region0 = ")
    relu, after, last = boxes(picture, ["relu", "after1", "last"])
    assert outer.contains(inner) and inner.contains(relu) and outer.contains(last)
    assert not inner.overlaps(last) and not outer.overlaps(after)
    assert "region1: Region" in picture.texts


def test_groups_are_outlined() -> None:
    graph = residual()
    members = [graph.node(name) for name in ("bn1", "relu")]
    picture = read(to_svg(graph, groups={"a <b> & c": members}))
    frame = picture.titled("a <b> & c")
    assert frame.dashed and "a <b> & c" in picture.texts
    inside = [
        r.title.split(" = ")[0] for r in picture.rects if r is not frame and frame.overlaps(r)
    ]
    assert inside == ["bn1", "relu"]
    assert all(frame.contains(box) for box in boxes(picture, inside))


def test_a_group_that_a_path_leaves_is_framed_node_by_node() -> None:
    graph = residual()
    members = [graph.node(name) for name in ("conv1", "conv2")]
    picture = read(to_svg(graph, groups={"both": members}))
    frames = [rect for rect in picture.rects if rect.title == "both"]
    assert len(frames) == 2 and not any(frame.dashed for frame in frames)
    assert picture.texts.count("both") == 2
    for frame, box in zip(frames, boxes(picture, ["conv1", "conv2"]), strict=True):
        assert frame.contains(box)
    assert not any(frame.overlaps(b) for frame in frames for b in boxes(picture, ["bn1", "relu"]))


def test_two_groups_that_only_together_make_a_cycle() -> None:
    type = TensorType((1, 2))
    x = Value(type, "x")
    a, b = (Node(ops.ReLU(), [x], name) for name in "ab")
    c, d = Node(ops.ReLU(), [b.output], "c"), Node(ops.ReLU(), [a.output], "d")
    graph = Graph([x], [c.output, d.output], [a, b, c, d])
    picture = read(to_svg(graph, groups={"ac": [a, c], "bd": [b, d]}))  # a -> d and b -> c
    assert picture.titled("ac").dashed
    assert sum(rect.title == "bd" for rect in picture.rects) == 2


def test_highlights() -> None:
    graph = residual()
    plain = read(to_svg(graph)).rects
    for given in ("conv2", ["conv2"], [graph.node("conv2")]):
        picture = read(to_svg(graph, highlight=given))
        assert len(picture.rects) == len(plain) + 1
        assert picture.titled("highlighted").contains(picture.titled("conv2 = "))
    assert read(to_svg(nested(1), highlight=["relu"])).titled("highlighted")


def test_what_is_not_in_the_graph() -> None:
    graph = residual()
    other = residual().node("conv1")
    with pytest.raises(GraphError, match=r"highlight: 'conv9' is no node of graph 'Residual'"):
        to_svg(graph, highlight=["conv1", "conv9"])
    with pytest.raises(GraphError, match=r"highlight: 'conv1' is no node"):
        to_svg(graph, highlight=[other])
    with pytest.raises(GraphError, match=r"groups\['g'\]: .*conv1.* is no node of graph"):
        to_svg(graph, groups={"g": [other]})
    node = graph.node("conv1")
    with pytest.raises(GraphError, match=r"groups\['h'\]: node 'conv1' is in the group 'g' alre"):
        to_svg(graph, groups={"g": [node], "h": [node]})


@pytest.mark.parametrize("name", ["<a&b>", "\"'", "a\0b\x1b\ud800\uffff", "\U0001f600", "n" * 500])
def test_any_name_gives_valid_xml(name: str) -> None:
    x = Value(TensorType((1, 2)), name)
    node = Node(ops.ReLU(), [x], name, name)
    svg = to_svg(Graph([x], [node.output], [node], name, [name]), groups={name: [node]})
    svg.encode()
    picture = read(svg)
    shown = picture.texts[0]
    assert len(shown) <= 60
    assert shown == name or "\ufffd" in shown or "\u2026" in shown
    assert all("n" * 50 not in text or len(text) <= 60 for text in picture.texts)


def test_several_inputs_outputs_and_dtypes() -> None:
    graph = net()
    picture = read(to_svg(graph))
    assert {"input", "scores", "features", "2x3x8x8"} <= set(picture.texts)
    half = to_graph(L.ReLU(), (1, 2), "float16")
    assert "float16 1x2" in read(to_svg(half)).texts


def test_an_empty_graph() -> None:
    x = Value(TensorType(()), "x")
    assert "scalar" in read(to_svg(Graph([x], [x], []))).texts
    assert "0 nodes, 0 operations" in to_svg(Graph([], [], []))


def test_a_large_graph_takes_less_than_two_seconds() -> None:
    graph = to_graph(models.densenet201(), (1, 3, 224, 224))
    assert len(graph.nodes) > 700
    start = time.process_time()
    svg = to_svg(graph)
    assert time.process_time() - start < 2
    assert len(svg) < 2_000_000


SCRIPT = """
import sys
from minidnn import models
from minidnn.graph.picture import to_svg
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import optimize
graph = optimize(to_graph(models.squeezenet1_1(), (1, 3, 64, 64)))
groups = {"one": graph.nodes[1:4], "two": [graph.nodes[0], graph.nodes[5]]}
sys.stdout.write(to_svg(graph, ["features.3.concat"], groups))
"""


def test_a_picture_is_the_same_from_process_to_process(root: Path) -> None:
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", SCRIPT]
        found.append(
            subprocess.run(command, check=True, cwd=root, env=environment, capture_output=True)
        )
    assert found[0].stdout == found[1].stdout and found[0].stdout.startswith(b"<svg")
