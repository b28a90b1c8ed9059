"""layout: one layout for each node, conversions between, by predicted time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.layout import PLANAR, Layout, blocked
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.layout import LAYOUT
from tests.passes.build import assert_same, conv, expect, graph_of, max_pool, ops_of, relu, run

X = (1, 8, 16, 16)
BLOCKED = blocked(8)


@dataclass(frozen=True)
class Blocks(Target):
    """Convolutions and ReLU like blocks, and lose ``loss`` seconds without; pools are planar."""

    loss: float = 1e-3

    def layouts(self, node: Node) -> tuple[Layout, ...]:
        return (BLOCKED, PLANAR) if node.op.name in ("Conv2d", "ReLU") else (PLANAR,)

    def layout_seconds(self, node: Node, layout: Layout) -> float:
        return self.loss if layout == PLANAR and node.op.name == "Conv2d" else 0.0


def chain(t, x):
    return conv(t, relu(conv(t, max_pool(x), 8, 3)), 8, 3)


def test_conversions_stand_at_the_edges() -> None:
    before, context = graph_of(chain, X), Context(Blocks())
    after = run(before, LAYOUT, context=context)
    expect(
        after,
        """
        g(%x0: float32[1, 8, 16, 16]) {
          %maxpool2d: float32[1, 8, 16, 16] = MaxPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))(%x0)
          %maxpool2d.NCHW8c: float32[1, 8, 16, 16] = Reorder(layout=NCHW8c)(%maxpool2d)
          %conv2d: float32[1, 8, 16, 16] = Conv2d(padding=((1, 1), (1, 1)))(%maxpool2d.NCHW8c, @w1)
          %relu: float32[1, 8, 16, 16] = ReLU()(%conv2d)
          %conv2d.1: float32[1, 8, 16, 16] = Conv2d(padding=((1, 1), (1, 1)))(%relu, @w3)
          %conv2d.1.NCHW: float32[1, 8, 16, 16] = Reorder(layout=NCHW)(%conv2d.1)
          return %conv2d.1.NCHW
        }
        """,  # noqa: E501
    )
    found = context.annotations.layouts
    assert {value.name: str(layout) for value, layout in found.items()} == {
        "x0": "NCHW",
        "maxpool2d": "NCHW",
        "maxpool2d.NCHW8c": "NCHW8c",
        "conv2d": "NCHW8c",
        "relu": "NCHW8c",
        "conv2d.1": "NCHW8c",
        "conv2d.1.NCHW": "NCHW",
    }
    assert_same(before, after)


def test_conversions_that_cost_more_than_they_save_are_not_made() -> None:
    before, context = graph_of(chain, X), Context(Blocks(loss=1e-9))
    after = run(before, LAYOUT, context=context)
    assert ops_of(after) == ops_of(before)
    assert set(context.annotations.layouts.values()) == {PLANAR}


def test_a_value_with_several_readers_is_converted_once() -> None:
    def build(t, x):
        return [relu(conv(t, x, 8)) for _ in range(3)]

    after = run(graph_of(build, X), LAYOUT, context=Context(Blocks()))
    assert ops_of(after).count("Reorder") == 1 + 3
    assert ops_of(after)[0] == "Reorder"


def test_an_output_that_is_read_too_is_given_back_planar() -> None:
    def build(t, x):
        y = conv(t, x, 8)
        return y, conv(t, y, 8)

    before, context = graph_of(build, X), Context(Blocks())
    after = run(before, LAYOUT, context=context)
    assert [context.annotations.layouts[v] for v in after.outputs] == [PLANAR, PLANAR]
    assert_same(before, after)


def test_values_of_other_ranks_have_no_layout() -> None:
    def build(t, x):
        return apply(ops.Flatten(), conv(t, x, 8))

    context = Context(Blocks())
    after = run(graph_of(build, X), LAYOUT, context=context)
    assert ops_of(after) == ["Reorder", "Conv2d", "Reorder", "Flatten"]
    assert after.outputs[0] not in context.annotations.layouts


@dataclass(frozen=True)
class PlanarWeights(Blocks):
    """Linear layers stay planar, but read their operand in blocks."""

    def reads(self, node: Node, value: object, layout: Layout) -> Layout:
        return BLOCKED if node.op.name == "Flatten" else layout


def test_a_node_may_read_another_layout_than_it_runs_in() -> None:
    def build(t, x):
        return apply(ops.Flatten(), conv(t, x, 8))

    after = run(graph_of(build, X), LAYOUT, context=Context(PlanarWeights()))
    assert ops_of(after) == ["Reorder", "Conv2d", "Flatten"]


def test_fuel_gives_legal_prefixes() -> None:
    """Whatever the fuel, every reader gets the layout that it reads."""
    before = graph_of(chain, X)
    full = Context(Blocks())
    run(before, LAYOUT, context=full)
    texts = [f"compute {name} in NCHW8c" for name in ("conv2d", "relu", "conv2d.1")]
    assert [r.description for r in full.rewrites] == texts
    for fuel in range(4):
        context = Context(Blocks(), fuel=fuel)
        after = run(before, LAYOUT, context=context)
        assert context.rewrites == full.rewrites[:fuel]
        layouts = context.annotations.layouts
        chosen = [layouts[after.node(n).output] for n in ("conv2d", "relu", "conv2d.1")]
        assert chosen == [BLOCKED] * fuel + [PLANAR] * (3 - fuel)
        for node in after.nodes:
            if node.op.name != "Reorder":
                own = layouts[node.output]
                assert all(layouts[v] == own for v in node.tensors)
        assert layouts[after.outputs[0]] == PLANAR


def seconds(graph: Graph, target: Target, chosen: Mapping[Node, Layout]) -> float:
    """What a choice is predicted to cost, computed anew."""
    total = sum(target.layout_seconds(node, chosen[node]) for node in graph.nodes)
    for value in graph.values:
        if value.type.rank != 4 or value.name.startswith("w"):
            continue
        made = chosen[value.producer] if value.producer is not None else PLANAR
        wanted = {chosen[reader] for reader in graph.readers[value]}
        wanted |= {PLANAR} if value in graph.outputs else set()
        total += len(wanted - {made}) * target.seconds(0, 2 * value.type.bytes)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_against_all_choices(seed: int) -> None:
    """Never worse than blocks everywhere or nowhere; mostly the best, else within a half."""
    random = np.random.default_rng(seed)

    def build(t, x):
        values = [x]
        for _ in range(9):
            value = values[int(random.integers(max(0, len(values) - 3), len(values)))]
            kind = random.integers(3)
            made = conv(t, value, 8) if kind == 0 else relu(value) if kind == 1 else max_pool(value)
            values.append(made)
        return values[-2:]

    graph = graph_of(build, X)
    target = Blocks(loss=3e-6)
    context = Context(target)
    after = run(graph, LAYOUT, context=context)
    layouts = context.annotations.layouts
    chosen = {node: layouts[after.node(node.name).output] for node in graph.nodes}
    offers = [target.layouts(node) for node in graph.nodes]
    costs = [
        seconds(graph, target, dict(zip(graph.nodes, choice, strict=True)))
        for choice in product(*offers)
    ]
    got = seconds(graph, target, chosen)
    preferred = {node: offer[0] for node, offer in zip(graph.nodes, offers, strict=True)}
    assert got <= seconds(graph, target, preferred) * (1 + 1e-9)
    assert got <= seconds(graph, target, dict.fromkeys(graph.nodes, PLANAR)) * (1 + 1e-9)
    assert got <= 1.5 * min(costs)
    assert LAYOUT.requires == ("absorb", "depth_first")
