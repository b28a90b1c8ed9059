"""hoist_pooling: average pools before the 1x1 convolutions that they read."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.move_pooling import HOIST_POOLING
from tests.passes.build import assert_same, constant, conv, expect, graph_of, ops_of, relu, run

X = (2, 4, 7, 9)


def average(x: Value, kernel: int = 2, stride: int = 2, padding: int = 0, **options: Any) -> Value:
    op = ops.AvgPool2d((kernel, kernel), (stride, stride), (padding, padding), **options)
    return apply(op, x)


def after(build) -> Graph:
    before = graph_of(build, X)
    result = run(before, HOIST_POOLING)
    assert_same(before, result, 1e-5)
    return result


def test_a_transition_of_a_densenet() -> None:
    def build(t, x):
        return average(conv(t, relu(x), 3, bias=True))

    expect(
        after(build),
        """
        g(%x0: float32[2, 4, 7, 9]) {
          %relu: float32[2, 4, 7, 9] = ReLU()(%x0)
          %avgpool2d: float32[2, 4, 3, 4] = AvgPool2d(kernel_size=(2, 2), stride=(2, 2))(%relu)
          %conv2d: float32[2, 3, 3, 4] = Conv2d()(%avgpool2d, @w1, @w1.bias)
          return %conv2d
        }
        """,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": 3, "padding": 1, "count_include_pad": False},
        {"kernel": 3, "ceil_mode": True},
        {"kernel": 3, "padding": 1, "count_include_pad": False, "ceil_mode": True},
    ],
    ids=str,
)
def test_averages_over_what_is_there(options) -> None:
    assert ops_of(after(lambda t, x: average(conv(t, x, 3, bias=True), **options))) == [
        "AvgPool2d",
        "Conv2d",
    ]


def test_grouped_convolutions() -> None:
    def build(t, x):
        return average(apply(ops.Conv2d(groups=2), x, constant(t, (6, 2, 1, 1), "w")))

    assert ops_of(after(build)) == ["AvgPool2d", "Conv2d"]


def several_readers(t, x):
    y = conv(t, x, 3)
    return average(y), relu(y)


@pytest.mark.parametrize(
    "build",
    [
        lambda t, x: average(conv(t, x, 3, 3)),
        lambda t, x: average(conv(t, x, 3, stride=(2, 2))),
        lambda t, x: average(conv(t, x, 3, padding=((1, 1), (1, 1)))),
        lambda t, x: average(conv(t, x, 3), kernel=3, padding=1),
        lambda t, x: average(conv(t, x, 3), divisor_override=3),
        lambda t, x: average(conv(t, x, 3), kernel=1, stride=1),
        lambda t, x: average(relu(conv(t, x, 3))),
        lambda t, x: apply(ops.MaxPool2d((2, 2), (2, 2)), conv(t, x, 3)),
        several_readers,
    ],
    ids=[
        "3x3",
        "stride",
        "padding",
        "zeros counted",
        "divisor",
        "same size",
        "relu between",
        "max",
        "two readers",
    ],
)
def test_refusals(build) -> None:
    before = graph_of(build, X)
    assert str(run(before, HOIST_POOLING)) == str(before)


def test_fuel() -> None:
    def build(t, x):
        return average(conv(t, average(conv(t, x, 3), 2, 1), 3))

    before = graph_of(build, X)
    context = Context(fuel=1)
    result = run(before, HOIST_POOLING, context=context)
    assert [r.description for r in context.rewrites] == ["compute avgpool2d before conv2d"]
    assert ops_of(result) == ["AvgPool2d", "Conv2d", "Conv2d", "AvgPool2d"]
