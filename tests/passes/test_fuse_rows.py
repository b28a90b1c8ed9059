"""fuse_rows: chains over the same rows become regions."""

from __future__ import annotations

from typing import Any

from minidnn.fusion.region import Region
from minidnn.fusion.rows import FusedRows, region_of_row_operator
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.fuse_rows import FUSE_ROWS, MOST_SUMS
from minidnn.passes.infrastructure import Context
from tests.passes.build import Build, assert_same, graph_of, ops_of, run

X = (2, 3, 5)
LAST = (2,)


class InRows(Target):
    """One that keeps rows of up to 100 elements."""

    def refuse_fusion(self, region: Region) -> str | None:
        if not isinstance(region, FusedRows):
            return super().refuse_fusion(region)
        return "rows are long" if region.rows.length > 100 else None


def after(build: Build, *shapes: tuple[int, ...], context: Context | None = None) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, FUSE_ROWS, context=context or Context(InRows()))
    assert_same(before, result)
    return result


def regions_of(graph: Graph) -> list[list[str]]:
    found = [node.op for node in graph.nodes if isinstance(node.op, FusedRows)]
    return [ops_of(region.body) for region in found]


def reduced(how: Any, x: Any) -> Any:
    return apply(ops.Reduce(how, (x.type.rank - 1,), keepdim=True), x)


def test_a_chain_is_one_region_with_what_others_read() -> None:
    def build(t, x, w):
        apart = x - reduced("mean", x)
        scale = reduced("mean", apart * apart)
        return [apart / scale * w, scale]

    found = after(build, X, (5,))
    assert regions_of(found) == [["Reduce", "Sub", "Mul", "Reduce", "Div", "Mul"]]
    assert len(found.nodes) == 1


def test_views_inside_stay_and_those_behind_do_not() -> None:
    def build(t, x, y):
        total = reduced("sum", apply(ops.View((6, 5)), x))
        rows = apply(ops.View((6, 5)), y) * total
        return apply(ops.View((3, 10)), apply(ops.View((2, 3, 5)), rows))

    found = after(build, X, X)
    assert regions_of(found) == [["View", "Reduce", "View", "Mul"]]
    assert ops_of(found)[1:] == ["View", "View"]


def test_sums_over_rows_are_results_and_no_more_than_fit() -> None:
    def build(t, x, y):
        made = x * reduced("max", x)
        sums = [apply(ops.Reduce("sum", (0, 1)), value) for value in (made, x, x + y, x - y)]
        return [made, sums[0] * 2.0, *sums[1:]]

    found = after(build, X, X)
    (region,) = (node.op for node in found.nodes if isinstance(node.op, FusedRows))
    assert isinstance(region, FusedRows)
    assert len(region.sums) == MOST_SUMS - 1  # others are of what no region computes or reads
    assert ops_of(found).count("Reduce") == 2


def test_sums_of_what_a_region_reads_are_computed_there_through_views() -> None:
    def build(t, x, y):
        made = x * reduced("max", x * y)
        flat = apply(ops.View((6, 5)), apply(ops.View((1, 6, 5)), y))
        return [made, apply(ops.Reduce("sum", (0,)), flat)]

    found = after(build, X, X)
    assert regions_of(found) == [["Mul", "Reduce", "Mul", "View", "View", "Reduce"]]
    assert len(found.nodes) == 1


def test_what_would_make_a_cycle_stays_apart() -> None:
    def build(t, x):
        apart = x - reduced("mean", x)
        moved = apply(ops.Transpose((0, 2, 1)), apart)
        back = apply(ops.Transpose((0, 2, 1)), moved)
        return apply(ops.Softmax(-1), apart * back)

    assert regions_of(after(build, X)) == [["Reduce", "Sub"], ["Mul", "Softmax"]]


def test_other_rows_other_dtypes_and_what_has_no_reduction_stay_apart() -> None:
    def build(t, x, y):
        whole = apply(ops.Formula(argument(0), title="Cast", dtype="int32"), x)
        total = apply(ops.Reduce("sum", LAST, keepdim=True), whole)
        return [x + x * 2.0, total, reduced("max", x), reduced("max", y) * reduced("mean", y)]

    assert regions_of(after(build, X, (6, 7))) == [["Reduce", "Reduce", "Mul"]]


def test_values_repeated_otherwise_stay_apart() -> None:
    def build(t, x, y):
        return apply(ops.Softmax(-1), x + y)

    assert regions_of(after(build, X, (2, 1, 5))) == []
    assert regions_of(after(build, X, (1, 1, 5))) == [["Add", "Softmax"]]
    assert regions_of(after(build, X, (2, 3, 1))) == [["Add", "Softmax"]]
    assert regions_of(after(build, X, (3, 5))) == []


def test_reasons_of_the_target_are_noted_and_fuel_ends() -> None:
    def build(t, x):
        return apply(ops.Softmax(-1), x * 2.0)

    context = Context(InRows())
    assert regions_of(after(build, (2, 101), context=context)) == []
    assert "rows are long" in next(iter(context.notes.values()))
    assert regions_of(after(build, X, context=Context())) == []
    assert regions_of(after(build, X, context=Context(InRows(), fuel=0))) == []
    assert regions_of(after(build, X, context=Context(InRows(), "layers"))) == []


def test_a_node_alone_is_seen_as_rows() -> None:
    def build(t, x, w):
        trailing = apply(ops.Reduce("mean", (1, 2)), x)
        inner = apply(ops.Reduce("mean", (1,)), x)
        return [trailing, inner, apply(ops.LayerNorm(2), x, w)]

    nodes = graph_of(build, X, (3, 5)).nodes
    regions = [region_of_row_operator(node) for node in nodes]
    assert [region and region.rows.length for region in regions] == [15, None, 15]
