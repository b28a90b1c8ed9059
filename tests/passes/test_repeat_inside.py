"""repeat_inside: point-wise operators repeat what they read."""

from __future__ import annotations

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.share_sums import REPEAT_INSIDE
from minidnn.passes.simplify import SIMPLIFY
from tests.passes.build import Build, assert_same, graph_of, ops_of, run

X = (2, 3, 4, 5)
PAIR = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Pair")


def after(build: Build, *shapes: tuple[int, ...]) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, REPEAT_INSIDE, SIMPLIFY)
    assert_same(before, result)
    return result


def test_chains_of_repetitions_go() -> None:
    def build(t, x, y):
        wide = apply(ops.Expand(X), apply(ops.Expand((2, 3, 1, 5)), y))
        return apply(PAIR, wide, apply(PAIR, x, wide))

    found = after(build, X, (1, 3, 1, 1))
    # The last one reads a tensor of the result's shape, so it repeats y itself, too.
    assert ops_of(found) == ["Pair", "Pair"]


def test_what_gives_the_result_its_shape_stays() -> None:
    def build(t, y, z):
        return apply(PAIR, apply(ops.Expand(X), y), z)

    assert ops_of(after(build, (2, 1, 4, 5), (2, 3, 1, 1))) == ["Expand", "Pair"]


def test_other_readers_and_other_ranks_keep_it() -> None:
    def build(t, x, y, v):
        wide = apply(ops.Expand(X), y)
        return [apply(PAIR, x, wide), apply(ops.MatMul(), wide, wide.transpose((0, 1, 3, 2)))]

    assert ops_of(after(build, X, (1, 3, 1, 1), (5,))).count("Expand") == 1

    def other(t, x, v):
        return apply(PAIR, x, apply(ops.Expand(X), v))

    assert ops_of(after(other, X, (5,))) == ["Expand", "Pair"]
