"""store_summed: what is stored and added up is computed where it is added up."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.fusion.region import FusedSums, Region
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.sum_together import STORE_SUMMED, SUM_TOGETHER
from tests.passes.build import Build, assert_same, conv, graph_of, ops_of, relu, run
from tests.passes.test_sum_together import PAIR, Summing, X, sums_of, total

NARROWED = ops.Formula(argument(0) * argument(1), 1, 1, title="Narrowed")


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    context = context or Context(Summing())
    result = run(run(before, SUM_TOGETHER, context=context), STORE_SUMMED, context=context)
    assert_same(before, result)
    return result


def residual(t: Any, x: Any, y: Any, z: Any) -> Any:
    """A gradient that a convolution reads, that is added up with another, and that something reads
    which needs what was added up."""
    gradient = relu(apply(PAIR, x, y))
    summed = total(apply(PAIR, gradient, z))
    return [conv(t, gradient, 4), apply(NARROWED, gradient, summed)]


def test_a_gradient_is_stored_where_it_is_added_up() -> None:
    found = after(residual, X, X, X)
    assert sums_of(found) == [["Pair", "ReLU", "Pair", "Reduce"]]
    assert ops_of(found) == ["FusedSums", "Conv2d", "Narrowed"]
    (region,) = (node.op for node in found.nodes if isinstance(node.op, FusedSums))
    assert [value.shape for value in region.stored.values()] == [X]
    assert [node.op.name for node in region.reductions.values()] == ["Reduce"]


def test_sums_of_planes_and_of_channels_stay_apart() -> None:
    class Planes(Summing):
        fuses_spatial_sums = True

    def build(t: Any, x: Any, y: Any, z: Any) -> Any:
        gradient = apply(PAIR, x, relu(y))
        planes = apply(ops.Reduce("sum", (2, 3)), apply(PAIR, gradient, z))
        return [total(apply(PAIR, gradient, z)), planes, conv(t, gradient, 4)]

    found = after(build, X, X, X, context=Context(Planes()))
    regions = [node.op for node in found.nodes if isinstance(node.op, FusedSums)]
    assert sorted(op.by_plane for op in regions) == [False, True]
    assert sum(len(op.stored) for op in regions) == 1


def test_sums_over_one_value_become_one_region() -> None:
    def build(t: Any, x: Any, y: Any, z: Any) -> Any:
        gradient = apply(PAIR, x, relu(y))
        sums = [total(apply(PAIR, gradient, each)) for each in (z, conv(t, z, 3))]
        return [*sums, conv(t, gradient, 4)]

    found = after(build, X, X, X)
    assert [sum(each == "Reduce" for each in body) for body in sums_of(found)] == [2]


def test_a_result_of_the_graph_is_stored() -> None:
    def build(t: Any, x: Any, y: Any) -> Any:
        gradient = apply(PAIR, x, y)
        return [gradient, total(gradient)]

    assert ops_of(after(build, X, X)) == ["FusedSums"]


def test_what_readers_are_computed_with_is_left_to_them() -> None:
    def build(t: Any, x: Any, y: Any, z: Any) -> Any:
        gradient = relu(apply(PAIR, x, y))
        return [
            conv(t, gradient, 4),
            total(apply(PAIR, gradient, z)),
            relu(apply(PAIR, gradient, z)),
        ]

    assert sums_of(after(build, X, X, X)) == [["Pair", "Reduce"]]


def test_what_need_not_be_stored_is_left_alone() -> None:
    def build(t: Any, x: Any, y: Any, z: Any) -> Any:
        middle = apply(PAIR, x, y)
        gradient = relu(middle)
        return [conv(t, gradient, 4), relu(apply(PAIR, middle, z)), total(apply(PAIR, gradient, z))]

    assert sums_of(after(build, X, X, X)) == [["Pair", "Reduce"]]


@pytest.mark.parametrize("strategy", ["layers", "contractions"])
def test_layers_stay_apart(strategy: Any) -> None:
    context = Context(Summing(), strategy=strategy)
    assert sums_of(after(residual, X, X, X, context=context)) == [["Reduce"]]


class OnlySums(Summing):
    def refuse_fusion(self, region: Region) -> str | None:
        stores = isinstance(region, FusedSums) and region.stored
        return "its sweeps store nothing" if stores else super().refuse_fusion(region)


def test_targets_and_fuel() -> None:
    assert sums_of(after(residual, X, X, X, context=Context(OnlySums()))) == [["Pair", "Reduce"]]
    context = Context(Summing(), fuel=1)
    assert sums_of(after(residual, X, X, X, context=context)) == [["Pair", "Reduce"]]
