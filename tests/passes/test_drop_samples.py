"""drop_samples: stochastic depth draws a number for each sample, and stacks multiply by it."""

from __future__ import annotations

import numpy as np

from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.drop_samples import DROP_SAMPLES
from minidnn.passes.infrastructure import Context
from tests.passes.build import ops_of, relu, run

X = (6, 3, 4, 5)


class InStacks(Target):
    @property
    def drops_in_stacks(self) -> bool:
        return True


def graph(p: float = 0.5, rows: int = 6, back: tuple[int, ...] = X, again: int = 1) -> Graph:
    with tracing("g") as trace:
        x = trace.input(TensorType(X), "x")
        numbers = [trace.input(TensorType((), "int64"), name) for name in ("seed", "step")]
        y = relu(x)
        for _ in range(again):
            wide = apply(ops.View((rows, 1, y.type.size // rows)), y)
            dropped = apply(ops.RandomDrop(p, 7, channels=True), wide, *numbers)
            y = relu(apply(ops.View(back), dropped))
    return trace.graph([y])


def after(before: Graph, context: Context | None = None) -> Graph:
    result = run(before, DROP_SAMPLES, context=context or Context(InStacks()))
    x = np.random.default_rng(0).standard_normal(X).astype(np.float32)
    x[0, 0, 0], x[1:3, 1], x[3:5, 2] = -0.0, np.inf, np.nan
    for step in range(4):
        given = [x, np.array(3), np.array(step)]
        for y, expected in zip(evaluate(result, given), evaluate(before, given), strict=True):
            np.testing.assert_array_equal(y, expected)
    return result


def test_drops_are_drawn_for_samples_alone_and_multiplied_in_stacks() -> None:
    found = after(graph())
    assert ops_of(found) == ["ReLU", "View", "RandomDrop", "DropSamples", "ReLU"]
    (drop,) = (node for node in found.nodes if isinstance(node.op, ops.RandomDrop))
    assert drop.output.shape == (6, 1, 1, 1)
    assert "FusedSequence" in ops_of(run(found, DEPTH_FIRST))


def test_the_same_numbers_are_drawn_once() -> None:
    assert ops_of(after(graph(again=2))).count("RandomDrop") == 1


def test_all_samples_at_once_and_extreme_probabilities() -> None:
    assert "DropSamples" in ops_of(after(graph(rows=1)))
    for p in (0.0, 1.0):
        assert "DropSamples" in ops_of(after(graph(p)))


def test_other_drops_stay() -> None:
    assert "DropSamples" not in ops_of(after(graph(back=(6, 60))))
    assert "DropSamples" not in ops_of(after(graph(rows=3)))
    assert "DropSamples" not in ops_of(after(graph(), Context()))
    assert "DropSamples" not in ops_of(after(graph(), Context(InStacks(), "layers")))
    assert "DropSamples" not in ops_of(after(graph(), Context(InStacks(), fuel=0)))
