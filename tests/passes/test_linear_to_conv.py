"""linear_to_conv: linear layers over channels that were moved last, as 1x1 convolutions."""

from __future__ import annotations

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import FIRST, LAST, LINEAR_TO_CONV
from minidnn.passes.simplify import SIMPLIFY
from tests.passes.build import (
    assert_same,
    constant,
    conv,
    expect,
    graph_of,
    linear,
    norm,
    ops_of,
    relu,
    run,
)

X = (2, 6, 5, 7)


def last(x: Value) -> Value:
    return apply(ops.Transpose(LAST), x)


def first(x: Value) -> Value:
    return apply(ops.Transpose(FIRST), x)


def normalized(t, x: Value) -> Value:
    vectors = [constant(t, x.shape[-1:], f"n{len(t.nodes)}.{p}") for p in "ab"]
    return apply(ops.LayerNorm(1), x, *vectors)


def after(build) -> Graph:
    before = graph_of(build, X)
    result = run(before, LINEAR_TO_CONV)
    assert_same(before, result, 1e-5)
    return result


def test_a_block_of_a_convnext() -> None:
    def build(t, x):
        y = normalized(t, last(x))
        y = linear(t, apply(ops.GELU(), linear(t, y, 12)), 6)
        scale = constant(t, (6, 1, 1), "scale")
        return apply(ops.Add(), apply(ops.Mul(), scale, first(y)), x)

    before = graph_of(build, X)
    result = run(before, SIMPLIFY, LINEAR_TO_CONV)
    assert_same(before, result, 1e-5)
    expect(
        result,
        """
        g(%x0: float32[2, 6, 5, 7]) {
          %transpose: float32[2, 5, 7, 6] = Transpose(dims=(0, 2, 3, 1))(%x0)
          %layernorm: float32[2, 5, 7, 6] = LayerNorm(axes=1)(%transpose, @n1.a, @n1.b)
          %linear.input: float32[2, 6, 5, 7] = Transpose(dims=(0, 3, 1, 2))(%layernorm)
          %linear: float32[2, 12, 5, 7] = Conv2d()(%linear.input, @linear.filter, @w2.bias)
          %gelu: float32[2, 12, 5, 7] = GELU()(%linear)
          %linear.1: float32[2, 6, 5, 7] = Conv2d()(%gelu, @linear.1.filter, @w4.bias)
          %mul: float32[2, 6, 5, 7] = ScaleShift()(%linear.1, @mul.scale, @mul.shift)
          %add: float32[2, 6, 5, 7] = Add()(%mul, %x0)
          return %add
        }
        """,
    )


def test_nothing_is_moved_where_channels_lay_first_before() -> None:
    graph = after(lambda t, x: relu(first(linear(t, last(relu(x)), 4))))
    assert ops_of(graph) == ["ReLU", "Conv2d", "ReLU"]


def test_others_may_read_what_was_moved() -> None:
    def build(t, x):
        moved = last(x)
        return first(linear(t, moved, 4)), relu(moved)

    assert sorted(ops_of(after(build))) == ["Conv2d", "ReLU", "Transpose"]


def test_only_what_the_last_move_reads_alone_and_what_is_known() -> None:
    def shared(t, x):
        y = linear(t, last(x), 4)
        return first(relu(y)), y

    for build in (
        shared,
        lambda t, x: first(relu(last(x))),
        lambda t, x: first(norm(t, linear(t, last(x), 4))),
        lambda t, x: apply(ops.Transpose((0, 3, 2, 1)), linear(t, last(x), 4)),
        lambda t, x: conv(t, x, 4),
    ):
        graph = graph_of(build, X)
        assert run(graph, LINEAR_TO_CONV) is graph


def test_fuel() -> None:
    graph = graph_of(lambda t, x: first(linear(t, last(x), 4)), X)
    assert run(graph, LINEAR_TO_CONV, context=Context(fuel=0)) is graph
