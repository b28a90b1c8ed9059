"""fold_bias: what is added to a linear layer's features."""

from __future__ import annotations

import pytest

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.fold import FOLD_BIAS
from minidnn.passes.infrastructure import Context
from tests.passes.build import (
    Build,
    assert_same,
    constant,
    conv,
    graph_of,
    linear,
    ops_of,
    relu,
    run,
)

X = (2, 5, 3, 6)


def after(build: Build, context: Context | None = None) -> Graph:
    before = graph_of(build, X)
    result = run(before, FOLD_BIAS, context=context)
    assert_same(before, result, 1e-5)
    return result


def plus(t, x, shape, turned=False):
    operands = x, constant(t, shape, "added")
    return apply(ops.Add(), *(operands[::-1] if turned else operands))


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_number_for_each_feature_becomes_the_bias(shape, turned) -> None:
    found = after(lambda t, x: relu(plus(t, linear(t, x, 4, bias=False), shape, turned)))
    assert ops_of(found) == ["Linear", "ReLU"]
    assert [value.shape for value in found.nodes[0].inputs] == [X, (4, 6), (4,)]


def test_other_sums_stay() -> None:
    for build in (
        lambda t, x: plus(t, linear(t, x, 4, bias=False), (1,)),
        lambda t, x: plus(t, linear(t, x, 4, bias=False), (3, 4)),
        lambda t, x: plus(t, linear(t, x, 4, bias=True), (4,)),
        lambda t, x: plus(t, linear(t, x, 4, bias=False), (7, 1, 1, 1, 4)),
        lambda t, x: [y := linear(t, x, 4, bias=False), plus(t, y, (4,))],
        lambda t, x: apply(ops.Add(), y := linear(t, x, 4, bias=False), y),
        lambda t, x: apply(ops.Mul(), linear(t, x, 4, bias=False), constant(t, (4,))),
        lambda t, x: plus(t, conv(t, x, 5), (6,)),
    ):
        before = graph_of(build, X)
        assert run(before, FOLD_BIAS) is before


def test_without_fuel_nothing_is_folded() -> None:
    before = graph_of(lambda t, x: plus(t, linear(t, x, 4, bias=False), (4,)), X)
    assert run(before, FOLD_BIAS, context=Context(fuel=0)) is before
