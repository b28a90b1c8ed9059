"""explain: the plan as a table."""

from __future__ import annotations

import re

import minidnn as md
from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from tests.passes.build import conv, graph_of, join, max_pool, relu, scale


def test_regions_layers_and_totals() -> None:
    net = md.Sequential(
        L.Conv2d(3, 8, 3, padding=1),
        L.BatchNorm2d(8),
        L.ReLU(),
        L.MaxPool2d(2),
        L.Flatten(),
        L.Linear(8 * 16, 10),
        L.Softmax(1),
    )
    exe = md.compile(net, (4, 3, 8, 8), device="reference")
    lines = exe.explain().splitlines()
    assert lines[0] == "Sequential on reference in float32, priced for two-core CPU"
    assert lines[1].split() == ["region", "kind", "output", "Mop", "MB", "us", "layers"]
    rows = {line.split()[0]: line for line in lines[2 : 2 + len(exe.graph.nodes)]}
    assert list(rows) == [node.name for node in exe.graph.nodes] == ["2", "3", "4", "5", "6"]
    assert "contraction" in rows["2"] and rows["2"].endswith("Conv2d(0) + ReLU")
    assert "1 step" in rows["3"] and "4x8x4x4" in rows["3"] and "MaxPool2d" in rows["3"]
    assert " view " in rows["4"] and " 0.0 " in rows["4"]
    assert "6: Softmax" in rows["6"]
    total = lines[2 + len(rows)]
    assert re.fullmatch(r"4 kernels, \d+\.\d{3} ms predicted", total)
    assert lines[3 + len(rows)].startswith("arena 0.0")
    assert "(at least 0.0" in lines[3 + len(rows)]


def test_joins_say_what_they_copy_and_notes_why() -> None:
    def build(t, x):
        a, b = conv(t, x, 2, 3), conv(t, x, 2, 3)
        return conv(t, join(a, b), 3, 3), conv(t, join(a, x, conv(t, x, 2, 3)), 3, 3)

    exe = md.compile(graph_of(build, (1, 3, 8, 8)), device="reference")
    text = exe.explain()
    kinds = dict(re.findall(r"^(concat\S*) +(in place|copy \S+) ", text, re.MULTILINE))
    assert kinds == {"concat": "copy 1/2", "concat.1": "copy 1/3"}
    assert "note: x0: copied into concat.1: it is an input, a constant or a state" in text
    assert "note: conv2d: copied into concat: it is a slice of concat.1 already" in text


def test_joins_of_vectors() -> None:
    graph = graph_of(lambda t, x, y: apply(ops.Concat(0), x, y), (3,), (4,))
    assert "copy 2/2" in md.compile(graph, device="reference").explain()


def test_long_names_are_cut_at_the_front() -> None:
    net = md.Sequential()
    inner: L.Layer = L.ReLU()
    for _ in range(20):
        inner = md.Sequential(inner)
    net = md.Sequential(inner, L.Softmax(1))
    text = md.compile(net, (1, 4), device="reference").explain()
    (line,) = [line for line in text.splitlines() if line.startswith("...")]
    assert line[:28].endswith("0.0.0") and line[28] == " "


def test_the_schedule_of_a_sequence_is_shown() -> None:
    def build(t, x):
        return relu(scale(t, max_pool(x)))

    text = md.compile(graph_of(build, (1, 4, 8, 8)), device="reference").explain()
    assert re.search(r"MaxPool2d.* \+ ScaleShift\(.*\) \+ ReLU \[stack 1: \d+x8.*\]", text)
