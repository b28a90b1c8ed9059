"""compose_vectors: point-wise operators on vectors become one where one alone reads another."""

from __future__ import annotations

from typing import Any

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.compose import COMPOSE_VECTORS, MOST_OPERANDS
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, graph_of, ops_of, run

PAIR = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Pair")
CHOICE = ops.Formula(where(argument(0) > 0.0, argument(1), argument(2)), 3, title="Choice")


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, COMPOSE_VECTORS, context=context)
    assert_same(before, result)
    return result


def pair(a: Any, b: Any) -> Any:
    return apply(PAIR, a, b)


def test_chains_and_trees_become_one_formula() -> None:
    def build(t, x, y, s):
        return pair(pair(pair(x, y), s), pair(y, pair(s, s)))

    found = after(build, (5,), (5,), ())
    assert ops_of(found) == ["Pair"] and len(found.nodes[0].inputs) == 3


def test_what_others_read_and_what_is_a_result_stays() -> None:
    def build(t, x, y):
        shared, given = pair(x, y), pair(y, x)
        return [pair(shared, x), pair(shared, y), given, pair(given, x)]

    assert ops_of(after(build, (5,), (5,))) == ["Pair"] * 5


def test_planes_and_other_operators_are_left_alone() -> None:
    def build(t, x, v):
        wide = pair(pair(x, x), x)
        return [wide, pair(apply(ops.Reduce("sum", (0, 2)), wide), v)]

    assert ops_of(after(build, (2, 5, 3), (5,))) == ["Pair", "Pair", "Reduce", "Pair"]


def test_bools_are_read_and_casts_stay() -> None:
    def build(t, x, y):
        met = apply(ops.Formula(where(argument(0) > 0.5, 1.0, 0.0), dtype="bool"), x)
        whole = apply(ops.Formula(argument(0) * 3.0, dtype="int64"), pair(x, y))
        return [apply(CHOICE, met, pair(x, y), y), whole]

    found = after(build, (5,), (5,))
    # The choice takes the pair; the cast takes one, too, as it computes in float32; the comparison
    # gives a bool, which is no float.
    assert ops_of(found) == ["Formula", "Formula", "Choice"]


def test_what_takes_nothing_is_left_as_it_is() -> None:
    def build(t, x):
        return apply(ops.Mul(), x, x)

    before = graph_of(build, (5,))
    assert run(before, COMPOSE_VECTORS) is before


def test_halves_are_rounded_in_between() -> None:
    def build(t, x):
        return pair(pair(x, x), x)

    before = graph_of(build, (5,), dtype="float16")
    assert run(before, COMPOSE_VECTORS) is before


def test_formulas_have_so_many_operands() -> None:
    def build(t, *values):
        sums = list(values)
        while len(sums) > 1:
            sums.append(pair(sums.pop(0), sums.pop(0)))
        return sums[0]

    found = after(build, *[(2,)] * (MOST_OPERANDS + 4))
    assert 1 < len(found.nodes) < 6
    assert max(len(node.inputs) for node in found.nodes) <= MOST_OPERANDS


def test_strategies_without_stacks_and_fuel() -> None:
    def build(t, x):
        return pair(pair(x, x), x)

    for context in (Context(strategy="layers"), Context(fuel=0)):
        assert ops_of(after(build, (5,), context=context)) == ["Pair", "Pair"]
