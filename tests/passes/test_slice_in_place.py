"""slice_in_place: channels that follow each other are read where what has them lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Node, Value
from minidnn.graph.trace import apply
from minidnn.layers.build import to_graph
from minidnn.memory import storage_roots
from minidnn.passes.in_place import SLICE_IN_PLACE
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import PIPELINE
from tests.passes.build import conv, graph_of, inputs_of, join, linear, relu, run

X = (2, 4, 6, 6)


def take(x: Value, first: int, count: int) -> Value:
    return apply(ops.TakeChannels(tuple((0, first + i) for i in range(count))), x)


def check(build: Any, *shapes: Any) -> tuple[dict[str, tuple[str, int]], Context]:
    """Where takes lie, and the context, of the whole pipeline, whose plan the reference backend
    runs: it overwrites with NaN what the plan says that nobody reads any more."""
    graph = graph_of(build, *shapes)
    context = Context()
    done = run(graph, *PIPELINE, context=context)
    inputs = inputs_of(graph)
    outputs = md.compile(graph, device="reference")(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for got, expected in zip(outputs, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    places = context.annotations.placements
    found = {
        node.output.name: (places[node.output].buffer.name, places[node.output].channel)
        for node in done.nodes
        if node.output in places and context.annotations.is_view(node)
    }
    return found, context


def test_parts_lie_in_what_they_are_taken_of() -> None:
    def build(t: Any, x: Value) -> list[Value]:
        y = conv(t, x, 9, 3)
        parts = take(y, 0, 4), take(y, 4, 5)
        inner = take(conv(t, parts[1], 6, 3), 2, 3)
        return [conv(t, part, 2, 3) for part in (*parts, inner)]

    found, context = check(build, X)
    assert found == {
        "takechannels": ("conv2d", 0),
        "takechannels.1": ("conv2d", 4),
        "takechannels.2": ("conv2d.1", 2),
    }
    mine = [r.description for r in context.rewrites if r.pass_name == "slice_in_place"]
    assert mine == [f"{name} names a part of {place[0]}" for name, place in found.items()]


def test_parts_of_what_lies_in_a_join() -> None:
    """Their storage lives as long as they are read."""

    def build(t: Any, x: Value) -> list[Value]:
        y = conv(t, x, 6, 3)
        both = join(conv(t, x, 3), y)
        z = conv(t, relu(conv(t, both, 4, 3)), 4, 3)
        return [conv(t, take(y, 2, 4), 4, 3), z]

    found, _ = check(build, X)
    assert found == {"takechannels": ("concat", 5)}


@pytest.mark.parametrize("picks", [((0, 2), (0, 1)), ((0, 0), (0, 2)), ((0, 1), (1, 2))])
def test_other_channels_are_copied(picks: tuple[tuple[int, int], ...]) -> None:
    def build(t: Any, x: Value) -> Value:
        y = [conv(t, x, 5, 3) for _ in range(1 + max(pick[0] for pick in picks))]
        return conv(t, apply(ops.TakeChannels(picks), *y), 2, 3)

    assert check(build, X)[0] == {}


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda t, x: take(conv(t, x, 5), 1, 3), "an output of the graph"),
        (lambda t, x: conv(t, take(x, 1, 3), 2), "taken of an input"),
        (
            lambda t, x: (y := conv(t, x, 5), conv(t, take(y, 1, 3), 2)),
            "or a part of one",
        ),
        (
            lambda t, x: linear(t, apply(ops.Flatten(2), take(conv(t, x, 9), 1, 6)), 3),
            "a reshape",
        ),
    ],
)
def test_refusals(build: Any, why: str) -> None:
    def built(t: Any, x: Value) -> list[Value]:
        found = build(t, x)
        return list(found) if isinstance(found, tuple) else [found]

    found, context = check(built, X)
    assert found == {}
    assert why in context.notes["takechannels"]


@dataclass(frozen=True)
class Refuses(Target):
    def refuse_part(self, node: Node, value: Value, channel: int) -> str | None:
        return f"{node.op.name} begins at {channel}"


def test_the_target_and_the_strategy_decide() -> None:
    graph = graph_of(lambda t, x: conv(t, take(conv(t, x, 5), 1, 3), 2), X)
    for given in ({"strategy": "layers"}, {"fuel": 0}):
        context = Context(**given)
        run(graph, SLICE_IN_PLACE, context=context)
        assert not context.annotations.placements
    context = Context(Refuses())
    run(graph, SLICE_IN_PLACE, context=context)
    assert context.notes["takechannels"] == "copied: for conv2d.1, Conv2d begins at 1"


def test_gradients_of_a_dense_block_copy_nothing() -> None:
    """What is left of each join's gradient is handed on where it lies."""
    image = md.Input((16, 8, 8))
    y: Any = L.Conv2d(16, 16, 3, padding=1)(image)
    for channels in (16, 32, 48):
        y = L.Concat()(y, L.Conv2d(channels, 16, 3, padding=1)(L.ReLU()(y)))
    net = md.Model(image, L.ReLU()(y)).initialize(0)
    graph = to_graph(L.Sequential(net, Summed()), (2, 16, 8, 8), mode="train", states=True)
    whole = md.gradient(graph, graph.outputs[0], of=[graph.inputs[0]])
    context = Context(stored=True)
    done = run(whole, *PIPELINE, context=context)
    takes = [node for node in done.nodes if isinstance(node.op, ops.TakeChannels)]
    assert len(takes) == 6
    roots = storage_roots(done, context.annotations)
    for node in takes:
        assert context.annotations.is_view(node)
        assert roots[node.output] is roots[node.inputs[0]]


class Summed(L.Layer):
    def forward(self, x: Any) -> Any:
        return (x * x).sum()
