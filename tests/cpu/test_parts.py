"""Parts of values on the CPU: what is left of a join's gradient is read where it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import compiler
from minidnn import layers as L
from minidnn.graph.evaluate import evaluate
from minidnn.graph.operators import TakeChannels
from minidnn.layers.build import to_graph


class Squares(L.Layer):
    def forward(self, x: Any) -> Any:
        return (x * x).mean()


def joined(counts: tuple[int, ...]) -> md.Layer:
    """Convolutions, each of all that were before it."""
    image = md.Input((counts[0], 7, 9))
    y: Any = L.BatchNorm2d(counts[0])(L.Conv2d(counts[0], counts[0], 3, padding=1)(image))
    before = counts[0]
    for count in counts[1:]:
        found = L.Conv2d(before, count, 3, padding=1)(L.ReLU()(L.BatchNorm2d(before)(y)))
        y, before = L.Concat()(y, found), before + count
    return md.Model(image, L.AvgPool2d(2)(y))


@pytest.mark.parametrize(
    ("counts", "views"), [((32, 16, 16, 64), 6), ((16, 5, 11, 16), 3)], ids=["all", "some"]
)
@pytest.mark.together(2)
def test_gradients(counts: tuple[int, ...], views: int) -> None:
    """Parts whose channels fill no registers are copied."""
    net = joined(counts).initialize(0)
    shape = (2, counts[0], 7, 9)
    graph = to_graph(L.Sequential(net, Squares()), shape, mode="train", states=True)
    weights = [state for state in graph.states if state.name.endswith("weight")]
    whole = md.gradient(graph, graph.outputs[0], of=[graph.inputs[0], *weights])
    exe = compiler.compile(whole, store=md.Store(), device="cpu", threads=2)
    plan = exe.program.plan  # type: ignore[attr-defined]
    takes = [node for node in plan.graph.nodes if isinstance(node.op, TakeChannels)]
    assert takes
    assert sum(map(plan.annotations.is_view, takes)) == views
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    for found, wanted in zip(exe(x), evaluate(whole, [x], "float64", states={}), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-3, 1e-4 * np.abs(wanted).max())
