"""sink_pooling: average pools after the narrowing 1x1 convolutions that read them."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.move_pooling import SINK_POOLING
from tests.passes.build import assert_same, constant, conv, expect, graph_of, ops_of, relu, run

X = (2, 6, 7, 9)


def average(x: Value, kernel: int = 3, stride: int = 1, padding: int = 1, **options: Any) -> Value:
    op = ops.AvgPool2d((kernel, kernel), (stride, stride), (padding, padding), **options)
    return apply(op, x)


def after(build) -> Graph:
    before = graph_of(build, X)
    result = run(before, SINK_POOLING)
    assert_same(before, result, 1e-5)
    return result


def test_a_pooled_branch_of_an_inception_block() -> None:
    def build(t, x):
        return relu(conv(t, average(x), 2, bias=True))

    expect(
        after(build),
        """
        g(%x0: float32[2, 6, 7, 9]) {
          %conv2d: float32[2, 2, 7, 9] = Conv2d()(%x0, @w1)
          %avgpool2d: float32[2, 2, 7, 9] = AvgPool2d(kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))(%conv2d)
          %conv2d.bias: float32[2, 2, 7, 9] = ScaleShift()(%avgpool2d, @avgpool2d.one, @w1.bias)
          %relu: float32[2, 2, 7, 9] = ReLU()(%conv2d.bias)
          return %relu
        }
        """,  # noqa: E501
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"count_include_pad": False}, {"divisor_override": 4}, {"kernel": 1, "padding": 0}],
    ids=str,
)
def test_whatever_is_divided_by(options) -> None:
    assert ops_of(after(lambda t, x: conv(t, average(x, **options), 3))) == ["Conv2d", "AvgPool2d"]


def test_grouped_convolutions() -> None:
    def build(t, x):
        return apply(ops.Conv2d(groups=2), average(x), constant(t, (4, 3, 1, 1), "w"))

    assert ops_of(after(build)) == ["Conv2d", "AvgPool2d"]


def several_readers(t, x):
    y = average(x)
    return conv(t, y, 3), relu(y)


@pytest.mark.parametrize(
    "build",
    [
        lambda t, x: conv(t, average(x), 3, 3),
        lambda t, x: conv(t, average(x), 3, stride=(2, 2)),
        lambda t, x: conv(t, average(x), 3, padding=((1, 1), (1, 1))),
        lambda t, x: conv(t, average(x), 6),
        lambda t, x: conv(t, average(x, stride=2), 3),
        lambda t, x: conv(t, average(x, ceil_mode=True), 3),
        lambda t, x: conv(t, relu(average(x)), 3),
        lambda t, x: conv(t, apply(ops.MaxPool2d((3, 3), (1, 1), (1, 1)), x), 3),
        several_readers,
    ],
    ids=[
        "3x3",
        "stride",
        "padding",
        "as many channels",
        "smaller",
        "ceil",
        "relu between",
        "max",
        "two readers",
    ],
)
def test_refusals(build) -> None:
    before = graph_of(build, X)
    assert str(run(before, SINK_POOLING)) == str(before)


def test_fuel() -> None:
    def build(t, x):
        return conv(t, average(conv(t, average(x), 4)), 3)

    before = graph_of(build, X)
    context = Context(fuel=1)
    result = run(before, SINK_POOLING, context=context)
    assert [r.description for r in context.rewrites] == ["compute avgpool2d after conv2d"]
    assert ops_of(result) == ["Conv2d", "AvgPool2d", "AvgPool2d", "Conv2d"]
