"""compute_together: element-wise operators of one shape become regions."""

from __future__ import annotations

from typing import Any

from minidnn.fusion.region import FusedElements
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.compute_together import COMPUTE_TOGETHER, MOST_POINTERS
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, graph_of, ops_of, run

PAIR = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Pair")
STEP = ops.Formula(argument(0) - argument(1) * argument(2), 3, title="Step")
ONE = ops.Formula(argument(0) * 3.0, title="One")


class Together(Target):
    @property
    def computes_together(self) -> bool:
        return True


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, DEPTH_FIRST, COMPUTE_TOGETHER, context=context or Context(Together()))
    assert_same(before, result)
    return result


def regions_of(graph: Graph) -> list[list[str]]:
    found = [node.op for node in graph.nodes if isinstance(node.op, FusedElements)]
    return [ops_of(region.body) for region in found]


def pair(a: Any, b: Any) -> Any:
    return apply(PAIR, a, b)


def one(a: Any) -> Any:
    return apply(ONE, a)


def test_chains_siblings_and_readers_of_one_node_are_one_region() -> None:
    def build(t, x, y, s):
        a = pair(x, s)
        made = apply(ops.Reduce("sum", (1,)), apply(ops.View((5, 1)), y))
        return [pair(a, y), one(a), one(x), pair(made, s), one(made)]

    found = after(build, (5,), (5,), ())
    assert sorted(map(sorted, regions_of(found))) == [
        ["One", "One", "Pair", "Pair"],
        ["One", "Pair"],
    ]


def test_other_shapes_and_what_needs_a_sum_in_between_stay_apart() -> None:
    def build(t, x, y):
        a = one(x)
        total = apply(ops.Reduce("sum", (0,)), a)
        return [pair(a, total), one(y), one(total)]

    assert regions_of(after(build, (5,), (4,))) == []


def test_large_values_that_stacks_do_not_take() -> None:
    def build(t, w, g, rate):
        moved = apply(STEP, w, g, rate)
        return [moved, apply(STEP, moved, g, rate)]

    assert regions_of(after(build, (2, 3, 4, 5), (2, 3, 4, 5), ())) == [["Step"] * 2]


def test_whole_numbers_bools_and_halves() -> None:
    def build(t, x, y):
        met = apply(ops.Formula(where(argument(0) > 0.5, 1.0, 0.0), dtype="bool"), x)
        whole = apply(ops.Formula(argument(0) * 3.0, dtype="int64"), x)
        half = apply(ops.Formula(argument(0) * 0.3, dtype="float16"), x)
        back = apply(ops.Formula(argument(0) * 2.0, compute="float32", dtype="float32"), half)
        return [apply(ops.Formula(argument(0) + 1.0), whole), pair(back, y), met]

    assert len(regions_of(after(build, (5,), (5,)))) == 1


def test_a_region_takes_few_pointers() -> None:
    def build(t, x):
        return [one(x) for _ in range(2 * MOST_POINTERS)]

    found = regions_of(after(build, (5,)))
    assert len(found) > 1 and max(map(len, found)) < MOST_POINTERS


def test_targets_strategies_and_fuel() -> None:
    def build(t, x):
        return [one(x), one(one(x))]

    contexts = (
        Context(Target()),
        Context(Together(), strategy="layers"),
        Context(Together(), fuel=0),
    )
    for context in contexts:
        assert regions_of(after(build, (5,), context=context)) == []
    assert regions_of(after(build, (5,))) == [["One"] * 3]
