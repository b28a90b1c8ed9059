"""fold_pad: zeros around an image that only convolutions read."""

from __future__ import annotations

from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply
from minidnn.passes.fold import FOLD_PAD
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, conv, graph_of, ops_of, relu, run

X = (2, 4, 7, 9)


def pad(x: Value, before=(0, 0, 0, 1), after=(0, 0, 2, 1), **options) -> Value:
    return apply(ops.Pad(before, after, **options), x)


def after(build: Build, **options) -> list[ops.Conv2d]:
    before = graph_of(build, X)
    result = run(before, FOLD_PAD, context=Context(**options))
    assert_same(before, result)
    return [node.op for node in result.nodes if isinstance(node.op, ops.Conv2d)]


def test_uneven_zeros_are_added_to_the_padding_of_each_reader() -> None:
    def build(t, x):
        y = pad(x)
        return [conv(t, y, 4, 3, stride=(2, 2)), conv(t, y, 5, 3, padding=((0, 0),) * 2)]

    paddings = [op.padding for op in after(build)]
    assert paddings == [((1, 3), (2, 2)), ((0, 2), (1, 1))]


def test_other_values_axes_readers_and_results_stay() -> None:
    for build in (
        lambda t, x: conv(t, pad(x, value=1.0), 4, 3),
        lambda t, x: conv(t, pad(x, mode="edge"), 4, 3),
        lambda t, x: conv(t, pad(x, (0, 1, 0, 0), (0, 0, 0, 1)), 4, 3),
        lambda t, x: [conv(t, y := pad(x), 4, 3), relu(y)],
        lambda t, x: [conv(t, y := pad(x), 4, 3), y],
    ):
        before = graph_of(build, X)
        assert run(before, FOLD_PAD) is before


def test_without_fuel_nothing_is_folded() -> None:
    before = graph_of(lambda t, x: conv(t, pad(x), 4, 3), X)
    assert run(before, FOLD_PAD, context=Context(fuel=0)) is before
    assert ops_of(run(before, FOLD_PAD)) == ["Conv2d"]
