"""share_sums: joins of sums for sums of joins."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.share_sums import SHARE_SUMS
from tests.passes.build import Build, graph_of, join, max_pool, run

X = (2, 3, 5, 4)
OTHERS = (0, 2, 3)


def after(build: Build, context: Context | None = None) -> Graph:
    before = graph_of(build, X)
    result = run(before, SHARE_SUMS, context=context)
    x = np.random.default_rng(0).normal(3, 2, X)
    x[0, 0, 0, 0], x[1, 2, 3, 1] = np.inf, np.nan
    given = [x]
    for one, other in zip(evaluate(before, given), evaluate(result, given), strict=True):
        # NumPy adds up the same elements of a channel, in the same order.
        np.testing.assert_array_equal(one, other)
    return result


def reads(graph: Graph) -> list[tuple[str, str]]:
    """The sums, each with what it reads."""
    kinds = (ops.Reduce, ops.Variance)
    return [
        (node.op.name, node.inputs[0].name) for node in graph.nodes if isinstance(node.op, kinds)
    ]


def moments(x):
    mean = apply(ops.Reduce("mean", OTHERS), x)
    return [mean, apply(ops.Variance(), x, mean)]


@pytest.mark.parametrize("appends", [True, False])
def test_a_dense_block_reads_each_value_once(appends: bool) -> None:
    def build(t, x):
        found = [x]
        joined = x
        results = moments(x)
        for _ in range(3):
            found.append(max_pool(joined))
            joined = join(joined, found[-1]) if appends else join(*found)
            results += moments(joined)
        return results

    graph = after(build)
    made = [("Reduce", name) for name in ("x0", "maxpool2d", "maxpool2d.1", "maxpool2d.2")]
    assert [each for each in reads(graph) if each[0] == "Reduce"] == made
    assert len(reads(graph)) == 2 * len(made)
    for value in graph.outputs[2:]:
        join_of_vectors = value.producer
        assert join_of_vectors is not None and isinstance(join_of_vectors.op, ops.Concat)
        assert join_of_vectors.op.axis == 0


@pytest.mark.parametrize(
    ("how", "dims", "keepdim", "axis"),
    [
        ("sum", (0, 2, 3), True, 1),
        ("max", (2, 3), False, 1),
        ("min", (1,), False, 3),
        ("prod", (0, 1), False, -1),
        ("mean", (), False, 2),
        ("mean", (1, 3), True, 0),
    ],
)
def test_any_reduction_over_other_axes(how, dims, keepdim, axis) -> None:
    def build(t, x):
        def reduced(value):
            return apply(ops.Reduce(how, dims, keepdim), value)

        y = max_pool(x)
        return [reduced(x), reduced(join(y, x, axis=axis))]

    assert reads(after(build)) == [("Reduce", "x0"), ("Reduce", "maxpool2d")]


def test_what_is_known_of_all_operands_is_not_read_at_all() -> None:
    def build(t, x):
        y = max_pool(x)
        return [*moments(x), *moments(y), *moments(join(y, x, y)), *moments(join(y, x, y))]

    assert [name for _, name in reads(after(build))] == ["x0", "x0", "maxpool2d", "maxpool2d"]


def test_joins_of_which_nothing_is_known_are_left_alone() -> None:
    def build(t, x):
        y, z = max_pool(x), max_pool(x, 5, 1, 2)
        over = apply(ops.Reduce("sum", (1,)), join(x, y))
        one = apply(ops.Reduce("sum", (0, 2, 3)), x)
        other = apply(ops.Reduce("mean", (0, 2, 3)), join(x, y))
        return [*moments(join(x, y)), *moments(join(y, z, x)), over, one, other]

    before = graph_of(build, X)
    result = run(before, SHARE_SUMS)
    assert [n for n in result.nodes if isinstance(n.op, ops.Concat) and n.op.axis == 0] == []


def test_a_variance_around_another_value_is_left_alone() -> None:
    def build(t, x):
        known, joined = moments(x), join(x, max_pool(x))
        mean = apply(ops.Reduce("mean", OTHERS), joined)
        return [*known, apply(ops.Variance(), joined, apply(ops.ReLU(), mean))]

    names = [name for _, name in reads(after(build))]
    assert names == ["x0", "x0", "maxpool2d", "concat"]


def test_fuel_stops_it() -> None:
    def build(t, x):
        return [*moments(x), *moments(join(x, max_pool(x)))]

    context = Context(fuel=1)
    names = [name for _, name in reads(after(build, context))]
    assert names == ["x0", "x0", "maxpool2d", "concat"]
    assert str(context.rewrites[0]) == "#1 share_sums: read maxpool2d alone for reduce.1"


def test_sums_along_the_joined_axis_are_not_joined() -> None:
    """What is known of the operands would have to be added, in another order."""

    def build(t, x):
        y = max_pool(x)
        each = [apply(ops.Reduce("sum", (1,), True), value) for value in (x, y)]
        return [*each, apply(ops.Reduce("sum", (1,), True), join(x, y))]

    assert len(reads(after(build))) == 3
