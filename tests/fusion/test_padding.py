"""Padding inside of stacks: of the step that pads, never computed on padded input.

The classic mistake is to compute the step before on a padded patch: its results outside of the
plane are then finite numbers (a shift, for example) where the window must see minus infinity or
nothing at all.  Every example below gives other numbers when that mistake is made.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from tests.passes.build import graph_of, relu
from tests.sampling import some

ROWS, COLUMNS = 5, 4


def shifted(t, x, shift: float):
    """x * 1 + shift: what padded positions would hold is ``shift``."""
    channels = x.shape[1]
    one = t.constant(
        object(), "one", TensorType((channels,)), lambda: np.ones(channels, np.float32)
    )
    by = t.constant(
        object(), "by", TensorType((channels,)), lambda: np.full(channels, shift, np.float32)
    )
    return apply(ops.ScaleShift(), x, one, by)


def everywhere(graph: Graph, x: np.ndarray, step: int = 1) -> np.ndarray:
    """The result under every patch size, rolling or not, which must always be the same; in CI
    under each ``step``-th."""
    rows, columns = graph.outputs[0].shape[2:]
    reference = FusedSequence(graph, Schedule(1, 1)).reference(x)[0]
    schedules = product(range(1, rows + 1), range(1, columns + 1), (1, 2, rows))
    for tall, wide, strips in some(schedules, step):
        (got,) = FusedSequence(graph, Schedule(tall, wide, strips)).interpret(x)
        np.testing.assert_array_equal(got, reference, f"patches of {tall}x{wide}, {strips} strips")
    return reference


def by_hand(x: np.ndarray, reduce: str, kernel: int, pad: int, stride: int = 1) -> np.ndarray:
    """A window over the positions that exist, one output at a time."""
    rows, columns = x.shape[2:]
    size = [(n + 2 * pad - kernel) // stride + 1 for n in (rows, columns)]
    out = np.zeros((*x.shape[:2], *size), np.float32)
    for i, j in product(range(size[0]), range(size[1])):
        top, left = i * stride - pad, j * stride - pad
        seen = x[:, :, max(top, 0) : top + kernel, max(left, 0) : left + kernel]
        if reduce == "max":
            out[:, :, i, j] = seen.max(axis=(2, 3))
        elif reduce == "inside":
            out[:, :, i, j] = seen.mean(axis=(2, 3))
        else:
            out[:, :, i, j] = seen.sum(axis=(2, 3)) / kernel**2
    return out


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("reduce", "shift"), [("max", 100.0), ("average", 100.0), ("inside", 100.0)]
)
def test_padding_of_an_inner_step_at_every_edge_and_corner(
    reduce: str, shift: float, kernel: int
) -> None:
    pad = kernel // 2
    pair, pads = (kernel, kernel), (pad, pad)
    op: Operator = (
        ops.MaxPool2d(pair, (1, 1), pads)
        if reduce == "max"
        else ops.AvgPool2d(pair, (1, 1), pads, count_include_pad=reduce == "average")
    )
    # Negative everywhere, so that a zero or the shift in the padding would win.
    x = -1.0 - np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(1, 1, ROWS, COLUMNS)
    graph = graph_of(lambda t, x: apply(op, relu(shifted(t, x, shift))), x.shape)
    got = everywhere(graph, x, 7)
    np.testing.assert_allclose(got, by_hand(x + shift, reduce, kernel, pad), rtol=1e-6)
    negative = graph_of(lambda t, x: apply(op, shifted(t, x, -shift)), x.shape)
    got = everywhere(negative, x, 7)
    np.testing.assert_allclose(got, by_hand(x - shift, reduce, kernel, pad), rtol=1e-6)


def test_two_padding_steps_one_after_the_other() -> None:
    """The second max sees minus infinity outside, not the first one's results out there."""
    x = np.full((1, 1, ROWS, COLUMNS), -5.0, np.float32)
    x[0, 0, 0, 0] = -1.0

    def build(t, x):
        y = shifted(t, apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x), 10.0)
        return apply(ops.AvgPool2d((3, 3), (1, 1), (1, 1), count_include_pad=False), y)

    first = by_hand(x, "max", 3, 1) + 10.0
    expected = by_hand(first, "inside", 3, 1)
    np.testing.assert_allclose(everywhere(graph_of(build, x.shape), x), expected, rtol=1e-6)


def test_a_corner_in_numbers() -> None:
    """relu(x + 1) of zeros is 1 everywhere; its padded average is 4/9, 6/9 and 1, not 1."""
    x = np.zeros((1, 1, 3, 3), np.float32)

    def build(t, x):
        return apply(ops.AvgPool2d((3, 3), (1, 1), (1, 1)), relu(shifted(t, x, 1.0)))

    got = everywhere(graph_of(build, x.shape), x)[0, 0]
    np.testing.assert_allclose(got * 9, [[4, 6, 4], [6, 9, 6], [4, 6, 4]], rtol=1e-6)


def test_strides_ceil_mode_and_padding_together() -> None:
    """The last window hangs over the end: what lies there is not read, nor counted."""
    x = -np.arange(1, 31, dtype=np.float32).reshape(1, 1, 5, 6)

    def build(t, x):
        y = shifted(t, x, 3.0)
        return apply(ops.MaxPool2d((3, 3), (2, 2), (1, 1), ceil_mode=True), y)

    got = everywhere(graph_of(build, x.shape), x)[0, 0]
    plane = x[0, 0] + 3.0
    expected = [
        [
            plane[max(2 * i - 1, 0) : 2 * i + 2, max(2 * j - 1, 0) : 2 * j + 2].max()
            for j in range(got.shape[1])
        ]
        for i in range(got.shape[0])
    ]
    assert got.shape == (3, 4)
    np.testing.assert_array_equal(got, expected)


def test_windows_that_see_nothing_but_padding() -> None:
    """A dilated window between the rows of a small plane: minus infinity, and 0 / 0 in PyTorch's
    average of what is inside; a ReLU after it computes on minus infinity."""
    x = np.ones((1, 1, 2, 2), np.float32)

    def build(t, x):
        y = shifted(t, x, 1.0)
        return relu(apply(ops.MaxPool2d((2, 2), (1, 1), (1, 1), (3, 3)), y))

    got = everywhere(graph_of(build, x.shape), x)
    np.testing.assert_array_equal(got, np.zeros((1, 1, 1, 1)))


def test_infinities_and_nan_at_the_edge_stay_where_they_belong() -> None:
    x = np.zeros((1, 1, 6, 6), np.float32)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = np.nan, -np.inf

    def build(t, x):
        return apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), shifted(t, x, -1.0))

    got = everywhere(graph_of(build, x.shape), x)[0, 0]
    expected = np.full((6, 6), -1.0)
    expected[:2, :2] = np.nan
    np.testing.assert_array_equal(got, expected)
