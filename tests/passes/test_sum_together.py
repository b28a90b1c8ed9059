"""sum_together: sums over all axes but channels become regions."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.fusion.region import FusedSums, Region
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.sum_together import SUM_TOGETHER
from tests.passes.build import Build, assert_same, conv, graph_of, ops_of, relu, run

X = (2, 3, 4, 5)
AXES = (0, 2, 3)
PAIR = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Pair")


class Summing(Target):
    def refuse_fusion(self, region: Region) -> str | None:
        return None if isinstance(region, FusedSums) else super().refuse_fusion(region)


def total(x: Any, keepdim: bool = False, how: Any = "sum") -> Any:
    return apply(ops.Reduce(how, AXES, keepdim), x)


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, SUM_TOGETHER, context=context or Context(Summing()))
    assert_same(before, result)
    return result


def sums_of(graph: Graph) -> list[list[str]]:
    """What each region computes."""
    regions = [node.op for node in graph.nodes if isinstance(node.op, FusedSums)]
    return [ops_of(region.body) for region in regions]


def test_sums_of_one_tensor_are_one_region_unless_one_needs_the_other() -> None:
    def build(t, x):
        mean = total(x, keepdim=True, how="mean")
        apart = apply(PAIR, x, mean)
        return [mean, total(apart), total(relu(x)), total(relu(apart), how="mean")]

    found = after(build, X)
    assert sums_of(found) == [["Reduce"], ["Pair", "ReLU", "ReLU", "Reduce", "Reduce", "Reduce"]]
    assert ops_of(found) == ["FusedSums", "View", "FusedSums"]


def test_a_value_that_is_summed_alone_is_not_stored() -> None:
    def build(t, x, g):
        return total(relu(apply(PAIR, relu(x), g)))

    assert sums_of(after(build, X, X)) == [["ReLU", "Pair", "ReLU", "Reduce"]]


def test_more_than_two_tensors_are_read_where_they_are_one() -> None:
    def build(t, x, y, z):
        return total(apply(PAIR, apply(PAIR, x, y), z))

    found = after(build, X, X, X)
    assert sums_of(found) == [["Reduce"]] and ops_of(found) == ["Pair", "Pair", "FusedSums"]


def test_three_halves_are_read_where_what_is_made_of_them_is_as_large_as_two() -> None:
    def build(t, x, y, z):
        wide = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Wide", compute="float32")
        return total(apply(wide, apply(wide, x, y), z))

    before = graph_of(build, X, X, X, dtype="float16")
    found = run(before, SUM_TOGETHER, context=Context(Summing()))
    assert_same(before, found, 1e-3)
    assert sums_of(found) == [["Wide", "Wide", "Reduce"]]


def test_what_a_convolution_reads_is_stored_anyway_and_read() -> None:
    def build(t, x, y, z):
        joined = apply(PAIR, x, y)
        return [total(apply(PAIR, joined, z)), conv(t, joined, 4)]

    found = after(build, X, X, X)
    assert sums_of(found) == [["Pair", "Reduce"]]


def test_vectors_are_no_tensors_however_they_are_repeated() -> None:
    def build(t, x, y, v):
        wide = apply(ops.Expand(X), v)
        return [total(apply(PAIR, apply(PAIR, x, v), apply(PAIR, y, wide))), relu(wide)]

    found = after(build, X, X, (1, 3, 1, 1))
    assert sums_of(found) == [["Expand", "Pair", "Pair", "Pair", "Reduce"]]


class Planes(Summing):
    fuses_spatial_sums = True


def test_planes_are_added_up_with_what_is_computed_before_them() -> None:
    def build(t, x, y, p):
        product = apply(PAIR, relu(x), y)
        planes = apply(ops.Reduce("sum", (2, 3)), product)
        means = apply(ops.Reduce("mean", (2, 3), True), relu(x))
        return [planes, means, total(apply(PAIR, product, p))]

    shapes = X, X, (2, 3, 1, 1)
    found = after(build, *shapes, context=Context(Planes()))
    assert sums_of(found) == [
        ["ReLU", "Pair", "ReLU", "Reduce", "Reduce"],
        ["ReLU", "Pair", "Pair", "Reduce"],
    ]
    regions = [node.op for node in found.nodes if isinstance(node.op, FusedSums)]
    assert [op.by_plane for op in regions] == [True, False]
    assert [[v.shape for v in op.plane_numbers] for op in regions] == [[], [(2, 3, 1, 1)]]
    # Elsewhere a number for each plane is a value of another shape, and planes are no sums.
    assert sums_of(after(build, *shapes)) == [["Reduce"]]


def test_other_axes_wholes_and_extremes_are_left_alone() -> None:
    def build(t, x, i):
        return [
            *(apply(ops.Reduce("sum", axes), x) for axes in ((0, 2), (2, 3), (0, 1, 2, 3))),
            *(total(x, how="max"), total(i)),
        ]

    before = graph_of(lambda t, x: build(t, x, x.astype("int64")), X)
    assert run(before, SUM_TOGETHER, context=Context(Summing())).nodes[-2].op.name == "Reduce"
    assert "FusedSums" not in ops_of(run(before, SUM_TOGETHER, context=Context(Summing())))


@pytest.mark.parametrize("strategy", ["layers", "contractions"])
def test_layers_stay_apart(strategy: Any) -> None:
    def build(t, x):
        return [total(relu(x)), total(x)]

    context = Context(Summing(), strategy=strategy)
    assert sums_of(after(build, X, context=context)) == [["Reduce"], ["Reduce"]]


def test_targets_refuse() -> None:
    def build(t, x):
        return total(relu(x))

    assert ops_of(after(build, X, context=Context())) == ["ReLU", "Reduce"]


def test_fuel() -> None:
    def build(t, x):
        return [total(relu(x)), total(x)]

    assert ops_of(after(build, X, context=Context(Summing(), fuel=0))) == ["ReLU", *["Reduce"] * 2]
