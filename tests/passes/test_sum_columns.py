"""sum_columns: sums over all axes but the last are those of a matrix's columns."""

from __future__ import annotations

from typing import Any

from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.share_sums import SUM_COLUMNS
from minidnn.passes.simplify import drop_dead
from tests.passes.build import Build, assert_same, graph_of, ops_of, run

X = (2, 3, 4, 5)


class Adding(Target):
    @property
    def adds_columns(self) -> bool:
        return True


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    result = drop_dead(run(before, SUM_COLUMNS, context=context or Context(Adding())), Context())
    assert_same(before, result, 1e-6)
    return result


def summed(x: Any, *dims: int, how: Any = "sum", keepdim: bool = False) -> Any:
    return apply(ops.Reduce(how, dims, keepdim), x)


def test_leading_axes_become_one() -> None:
    found = after(lambda t, x: summed(x, 0, 1, 2), X)
    assert ops_of(found) == ["View", "Reduce"]
    assert found.nodes[-1].inputs[0].shape == (24, 5)
    assert ops_of(after(lambda t, x: summed(x, 0, 1), X[1:])) == ["View", "Reduce"]


def test_a_transpose_to_channels_is_not_read() -> None:
    def build(t, x):
        return summed(apply(ops.Transpose((0, 3, 1, 2)), x), 0, 2, 3)

    assert ops_of(after(build, X)) == ["View", "Reduce"]


def test_other_sums_stay() -> None:
    def build(t, x):
        moved = apply(ops.Transpose((0, 2, 1, 3)), x)
        sums = [summed(x, 0, 2, 3), summed(x, 0, 1), summed(moved, 0, 2, 3)]
        return [*sums, summed(x, 0, 1, 2, how="max"), summed(x, 0, 1, 2, keepdim=True)]

    assert "View" not in ops_of(after(build, X))
    assert "View" not in ops_of(after(lambda t, x: summed(x, 0), (3, 4)))
    for context in (Context(), Context(Adding(), "layers"), Context(Adding(), fuel=0)):
        assert ops_of(after(lambda t, x: summed(x, 0, 1, 2), X, context=context)) == ["Reduce"]
