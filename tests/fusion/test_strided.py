"""Views by steps: drawn chains of transposes, slices and other shapes, beside NumPy's."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from minidnn.fusion.strided import (
    StridedView,
    is_view,
    operand_view,
    read_view,
    view_of,
    written_view,
)
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType

SEEDS = range(120)


def shapes_of(random: np.random.Generator, size: int) -> tuple[int, ...]:
    """A drawn shape of so many elements."""
    shape = [1] * int(random.integers(1, 6))
    divisor = 2
    while size > 1:
        if size % divisor:
            divisor += 1
            continue
        shape[random.integers(0, len(shape))] *= divisor
        size //= divisor
    return tuple(shape)


def drawn(random: np.random.Generator, shape: tuple[int, ...]) -> Operator:
    match random.integers(0, 4):
        case 0:
            return ops.Transpose(tuple(random.permutation(len(shape)).tolist()))
        case 1 if any(n > 1 for n in shape):
            starts = [int(random.integers(0, n)) for n in shape]
            steps = [int(random.integers(1, 3)) for _ in shape]
            sizes = [-(-(n - a) // s) for n, a, s in zip(shape, starts, steps, strict=True)]
            return ops.Slice(tuple(starts), tuple(sizes), tuple(steps))
        case _:
            return ops.View(shapes_of(random, prod(shape)))


def chain_of(seed: int, cuts: bool = True) -> Graph:
    random = np.random.default_rng(seed)
    x = Value(TensorType(shapes_of(random, 240)), "x")
    nodes: list[Node] = []
    value = x
    for _ in range(random.integers(1, 7)):
        op = drawn(random, value.shape)
        if cuts or not isinstance(op, ops.Slice):
            nodes.append(Node(op, [value], f"n{len(nodes)}"))
            value = nodes[-1].output
    return Graph([x], [value], nodes, "chain")


def placed(view: StridedView, source: np.ndarray) -> np.ndarray:
    steps = view.steps
    assert steps is not None
    strides = tuple(step * source.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(source.ravel()[view.offset :], view.shape, strides)


def test_what_is_read() -> None:
    known = 0
    for seed in SEEDS:
        graph = chain_of(seed)
        assert all(map(is_view, graph.nodes))
        view = view_of(graph.inputs[0], graph.nodes)
        if view is None or view.steps is None:
            continue
        known += 1
        x = np.arange(240, dtype=np.float32).reshape(graph.inputs[0].shape)
        (expected,) = evaluate(graph, [x])
        np.testing.assert_array_equal(placed(view, x), expected)
        if graph.nodes:
            assert read_view(graph.outputs[0]) == (graph.inputs[0], view)
    assert known > len(SEEDS) // 2


def test_what_is_written() -> None:
    """A value lies in the last one where that is a view of it."""
    known = 0
    for seed in SEEDS:
        graph = chain_of(seed, cuts=False)
        view: StridedView | None = StridedView.dense(graph.outputs[0])
        for node in reversed(graph.nodes):
            view = None if view is None else operand_view(node, 0, view)
        if view is None or view.steps is None:
            continue
        known += 1
        x = np.arange(240, dtype=np.float32).reshape(graph.inputs[0].shape)
        (result,) = evaluate(graph, [x])
        np.testing.assert_array_equal(placed(view, result), x)
        if graph.nodes:
            assert written_view(graph, graph.inputs[0]) == (0, view)
    assert known > len(SEEDS) // 2


def test_parts_of_a_join() -> None:
    parts = [Value(TensorType((2, n, 4)), f"x{n}") for n in (3, 5)]
    join = Node(ops.Concat(1), parts, "join")
    turned = Node(ops.Transpose((1, 0, 2)), [join.output], "turned")
    graph = Graph(parts, [turned.output], [join, turned], "joined")
    arrays = [np.full(value.shape, i, np.float32) for i, value in enumerate(parts)]
    (result,) = evaluate(graph, arrays)
    for value, array in zip(parts, arrays, strict=True):
        place, view = written_view(graph, value)
        assert place == 0
        np.testing.assert_array_equal(placed(view, result), array)


@pytest.mark.parametrize(
    ("shape", "dims", "wanted"),
    [((4, 6), (1, 0), (8, 3)), ((2, 3, 4), (2, 0, 1), (2, 12)), ((2, 3), (1, 0), (6,))],
)
def test_shapes_that_no_steps_have(
    shape: tuple[int, ...], dims: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    view = StridedView.dense(Value(TensorType(shape), "x")).transposed(dims).viewed(wanted)
    assert view is None or view.steps is None


def test_alignment() -> None:
    rows = StridedView.dense(Value(TensorType((3, 5, 16)), "x"))
    assert rows.is_aligned(8) and rows.transposed((1, 0, 2)).is_aligned(8)
    assert not rows.transposed((0, 2, 1)).is_aligned(8)
    for start, aligned in ((0, True), (4, False), (8, True)):
        part = rows.part((0, 0, start), (3, 5, 8), (1, 1, 1))
        assert part is not None and part.is_aligned(8) == aligned
