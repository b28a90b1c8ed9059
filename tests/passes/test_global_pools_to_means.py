"""global_pools_to_means: averages of whole planes as means that sweeps make."""

from __future__ import annotations

from typing import Any

import pytest

from minidnn.fusion.region import FusedSums, Region
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.move_pooling import GLOBAL_POOLS_TO_MEANS
from minidnn.passes.sum_together import SUM_TOGETHER
from tests.passes.build import Build, assert_same, graph_of, max_pool, ops_of, relu, run
from tests.passes.test_sum_together import sums_of

X = (2, 3, 4, 5)
WHOLE = ops.AvgPool2d((4, 5), (4, 5), (0, 0))
TINY = 2e-3
"""The mean is rounded to float16, and so is the average."""


class Planes(Target):
    """Adds up planes in sweeps."""

    fuses_spatial_sums = True

    def refuse_fusion(self, region: Region) -> str | None:
        return None if isinstance(region, FusedSums) else super().refuse_fusion(region)


def squeezed(pool: Any) -> Build:
    """An average of what is read once more."""

    def build(t: Any, x: Any) -> Any:
        y = relu(x)
        return [apply(pool, y), y]

    return build


def after(build: Build, *shapes: tuple[int, ...], dtype: str = "float16", **options: Any) -> Graph:
    before = graph_of(build, *shapes, dtype=dtype)
    result = run(before, GLOBAL_POOLS_TO_MEANS, context=Context(Planes(), **options))
    assert_same(before, result, TINY)
    return result


@pytest.mark.parametrize("pool", [WHOLE, ops.AdaptiveAvgPool2d((1, 1))])
def test_an_average_of_what_is_computed_is_added_up_where_that_is(pool: Any) -> None:
    found = after(squeezed(pool), X)
    assert ops_of(found) == ["ReLU", "Reduce"]
    assert found.outputs[0].shape == (2, 3, 1, 1) and found.outputs[0].dtype == "float16"
    swept = run(found, SUM_TOGETHER, context=Context(Planes()))
    assert sums_of(swept) == [["ReLU", "Reduce"]]
    assert_same(found, swept, TINY)


@pytest.mark.parametrize(
    "pool",
    [
        ops.AvgPool2d((3, 5), (1, 1), (0, 0)),
        ops.AvgPool2d((4, 5), (4, 5), (0, 0), divisor_override=7),
        ops.AvgPool2d((4, 5), (1, 1), (1, 1)),
        ops.AdaptiveAvgPool2d((1, 2)),
    ],
)
def test_other_averages_stay(pool: Any) -> None:
    assert "Reduce" not in ops_of(after(squeezed(pool), X))


def test_what_is_stored_anyway_is_averaged_as_it_was() -> None:
    def build(t, x):
        return [apply(WHOLE, x), apply(ops.AdaptiveAvgPool2d((1, 1)), max_pool(x))]

    assert "Reduce" not in ops_of(after(build, X))


def test_float32_keeps_the_order_of_a_window() -> None:
    assert "Reduce" not in ops_of(after(squeezed(WHOLE), X, dtype="float32"))


def test_one_sequence_computes_what_is_only_averaged() -> None:
    assert "Reduce" not in ops_of(after(lambda t, x: apply(WHOLE, relu(x)), X))


@pytest.mark.parametrize("options", [{"strategy": "layers"}, {"fuel": 0}])
def test_when_averages_stay(options: Any) -> None:
    assert "Reduce" not in ops_of(after(squeezed(WHOLE), X, **options))


def test_targets_that_add_up_no_planes() -> None:
    before = graph_of(squeezed(WHOLE), X, dtype="float16")
    assert "Reduce" not in ops_of(run(before, GLOBAL_POOLS_TO_MEANS))
