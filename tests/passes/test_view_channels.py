"""view_channels: numbers of channels get the rank of what they scale."""

from __future__ import annotations

from minidnn.fusion.collapse import Strategy
from minidnn.graph.ir import Graph
from minidnn.passes.channels import VIEW_CHANNELS
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, graph_of, ops_of, relu, run

X = (2, 3, 4, 5)


def after(build: Build, *shapes: tuple[int, ...], strategy: Strategy = "model") -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, VIEW_CHANNELS, context=Context(strategy=strategy))
    assert_same(before, result)
    return result


def test_a_scale_is_seen_once_and_computed_with_what_is_around_it() -> None:
    def build(t, x, scale):
        return relu(x * scale) * scale

    found = after(build, X, (3, 1, 1))
    assert ops_of(found) == ["View", "Mul", "ReLU", "Mul"]
    assert ops_of(run(found, DEPTH_FIRST)) == ["View", "FusedSequence"]


def test_other_operands_stay() -> None:
    def build(t, x, y):
        return x * y

    for shape in ((4, 5), (1, 1, 1), (1, 3, 1, 1), (3, 4, 1), (5,)):
        assert ops_of(after(build, X, shape)) == ["Mul"]
    assert ops_of(after(build, X, (3, 1, 1), strategy="layers")) == ["Mul"]
