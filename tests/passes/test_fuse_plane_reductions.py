"""fuse_plane_reductions: planes are added up in the sequence that makes them."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.fusion.region import FusedSequence, FusedSums, Region
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.fuse_reductions import FUSE_PLANE_REDUCTIONS
from minidnn.passes.infrastructure import Context
from minidnn.passes.sum_together import SUM_TOGETHER
from tests.passes.build import Build, assert_same, graph_of, max_pool, ops_of, relu, run

X = (2, 3, 6, 5)
TIMES = ops.Formula(argument(0) * argument(1), 2, title="Times")


class Adding(Target):
    def refuse_fusion(self, region: Region) -> str | None:
        sums = isinstance(region, (FusedSums, FusedSequence))
        return None if sums else super().refuse_fusion(region)


class Refusing(Adding):
    def refuse_fusion(self, region: Region) -> str | None:
        refused = isinstance(region, FusedSequence) and region.summed
        return "no" if refused else super().refuse_fusion(region)


def total(x: Any, how: Any = "sum") -> Any:
    return apply(ops.Reduce(how, (0, 2, 3)), x)


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    passes = (SUM_TOGETHER, DEPTH_FIRST, FUSE_PLANE_REDUCTIONS)
    result = run(before, *passes, context=context or Context(Adding()))
    assert_same(before, result, tolerance=1e-5)
    return result


def sequences(graph: Graph) -> list[FusedSequence]:
    return [node.op for node in graph.nodes if isinstance(node.op, FusedSequence)]


def test_what_is_added_up_alone_is_not_stored() -> None:
    def build(t, x, g):
        y = max_pool(x)
        scaled = apply(TIMES, y, g)
        return [max_pool(scaled), total(scaled), total(apply(TIMES, scaled, y))]

    found = after(build, X, X)
    (region,) = sequences(found)
    assert region.summed == (1, 2)
    assert [o.shape for o in next(iter(found.nodes)).outputs] == [X, (2, 3, 1, 1), (2, 3, 1, 1)]
    assert ops_of(found) == ["FusedSequence", "View", "View", "FusedSums"]
    assert "sum 1" in str(region.kernel[0])


def test_a_plane_that_is_stored_too_is_copied() -> None:
    def build(t, x):
        y = relu(max_pool(x))
        return [y, total(y)]

    (region,) = sequences(after(build, X))
    assert region.summed == (1,) and ops_of(region.body)[-1] == "Copy"


def moments(x: Any) -> list[Any]:
    mean = apply(ops.Reduce("mean", (0, 2, 3)), x)
    return [mean, apply(ops.Variance(), x, mean)]


@pytest.mark.parametrize("far", [0.0, 50.0])
def test_a_variance_is_that_of_means_and_within_planes(far: float) -> None:
    def build(t, x):
        y = max_pool(x + far)
        return [relu(y), *moments(y)]

    found = after(build, X)
    (region,) = sequences(found)
    assert (region.summed, region.spread) == ((1, 2), (2,))
    (sums,) = (node.op for node in found.nodes if isinstance(node.op, FusedSums))
    assert sums.shape == X[:2] and ops_of(found)[-1] == "Add"


def test_a_variance_beside_sums() -> None:
    def build(t, x, g):
        y = max_pool(apply(TIMES, x, g))
        return [total(y), *moments(y), total(apply(TIMES, y, y))]

    (region,) = sequences(after(build, X, X))
    assert (region.summed, region.spread) == ((0, 1, 2, 3), (2,))


def test_a_variance_alone_stays_apart() -> None:
    def build(t, x, mean):
        return [apply(ops.Variance(), max_pool(x), mean)]

    (region,) = sequences(after(build, X, X[1:2]))
    assert not region.summed


def test_two_sweeps_over_one_sequence() -> None:
    def build(t, x, g):
        one = max_pool(x)
        two = max_pool(apply(TIMES, one, g))
        return [total(one), relu(max_pool(two)), total(two)]

    found = after(build, X, X)
    assert [len(region.summed) for region in sequences(found)] == [2]
    assert ops_of(found).count("FusedSums") == 2


def test_the_last_sequence_adds_up_what_others_made() -> None:
    def build(t, x, g):
        y = max_pool(x)
        wide = apply(ops.Reduce("mean", (0, 2, 3), keepdim=True), relu(y))
        z = max_pool(g + wide)
        return [total(apply(TIMES, y, z)), z]

    found = after(build, X, X)
    first, second = sequences(found)
    assert not first.summed and second.summed == (1,)


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_what_stays_apart(how: str) -> None:
    """Means; whatever the target refuses; sums of what no sequence makes."""

    def made(t, x):
        return [max_pool(x), total(max_pool(x), how)]

    def given(t, x):
        return [max_pool(x), total(x, how)]

    refusing = Context(Refusing() if how == "sum" else Adding())
    for build, context in ((made, refusing), (given, None)):
        found = after(build, X, context=context)
        assert not any(region.summed for region in sequences(found))
        assert any(isinstance(node.op, FusedSums) for node in found.nodes)


def test_halves_and_fuel_stay_apart() -> None:
    def build(t, x):
        return [max_pool(x), total(max_pool(x))]

    before = graph_of(build, X, dtype="float16")
    result = run(
        before, SUM_TOGETHER, DEPTH_FIRST, FUSE_PLANE_REDUCTIONS, context=Context(Adding())
    )
    assert not any(region.summed for region in sequences(result))
    for strategy in ("layers", "contractions"):
        context = Context(Adding(), strategy)
        assert not any(r.summed for r in sequences(after(build, X, context=context)))
