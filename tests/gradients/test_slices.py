"""Gradients by values that are looked at slice by slice."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.gradients.reverse import gradient, pullback
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType

SHAPE = (3, 7, 2)


def sliced(cuts: list[tuple[int, int]], axis: int = 1, more: bool = False) -> Graph:
    """Slices of a value, of which each gets a factor of its own; ``more``: so does the whole."""
    x = Value(TensorType(SHAPE), "x")
    nodes: list[Node] = []
    parts = []
    for number, (begin, end) in enumerate(cuts):
        starts = [begin if d == axis else 0 for d in range(3)]
        sizes = [end - begin if d == axis else n for d, n in enumerate(SHAPE)]
        cut = Node(ops.Slice(tuple(starts), tuple(sizes), (1, 1, 1)), [x], f"cut{number}")
        power = Node(ops.Mul(), [cut.output, cut.output], f"power{number}")
        nodes += [cut, power]
        parts.append(power.output)
    if more:
        nodes.append(Node(ops.Mul(), [x, x], "square"))
        parts.append(nodes[-1].output)
    return Graph([x], parts, nodes, "sliced")


def by_sums(graph: Graph, x: np.ndarray, seeds: list[np.ndarray]) -> np.ndarray:
    """What each slice gives, added up where it lies."""
    found = np.zeros(SHAPE)
    for node in graph.nodes:
        if isinstance(node.op, ops.Slice):
            ends = zip(node.op.starts, node.op.sizes, strict=True)
            place = tuple(slice(begin, begin + size) for begin, size in ends)
            seed = seeds[int(node.name.removeprefix("cut"))]
            found[place] += 2 * x[place] * seed
        if node.name == "square":
            found += 2 * x * seeds[-1]
    return found


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(
    ("cuts", "joined"),
    [
        ([(0, 3), (3, 7)], True),
        ([(4, 7), (0, 1), (1, 4)], True),
        ([(0, 3), (4, 7)], False),
        ([(0, 4), (3, 7)], False),
        ([(0, 3), (2, 6)], False),
        ([(0, 3), (3, 6)], False),
        ([(0, 7), (0, 7)], False),
    ],
)
def test_slices(cuts: list[tuple[int, int]], joined: bool, more: bool) -> None:
    graph = sliced(cuts, more=more)
    back = pullback(graph, graph.inputs)
    assert any(isinstance(node.op, ops.Concat) for node in back.nodes) == joined
    random = np.random.default_rng(0)
    x, *seeds = (random.standard_normal(value.shape) for value in back.inputs)
    (found,) = evaluate(back, [x, *seeds], "float64")
    np.testing.assert_allclose(found, by_sums(graph, x, seeds), rtol=1e-12)


def test_slices_that_the_loss_does_not_depend_on() -> None:
    """Their gradient is zero, and nobody's is lost."""
    graph = sliced([(0, 3), (3, 7)])
    total = Node(ops.Reduce("sum", (0, 1, 2)), [graph.outputs[1]], "loss")
    whole = Graph(graph.inputs, [total.output], [*graph.nodes, total], "loss")
    made = gradient(whole, "loss", of="x")
    x = np.random.default_rng(1).standard_normal(SHAPE)
    _, found = evaluate(made, [x], "float64")
    expected = 2 * x
    expected[:, :3] = 0
    np.testing.assert_allclose(found, expected, rtol=1e-12)
