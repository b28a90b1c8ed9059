"""share_concats: joins that begin alike read each other."""

from __future__ import annotations

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.simplify import SHARE_CONCATS
from tests.passes.build import Build, assert_same, graph_of, join, max_pool, ops_of, run

X = (1, 2, 4, 4)


def after(build: Build, context: Context | None = None) -> Graph:
    before = graph_of(build, X)
    result = run(before, SHARE_CONCATS, context=context)
    assert_same(before, result)
    return result


def joins_of(graph: Graph) -> list[list[str]]:
    """The operands' names of each join."""
    joins = [node for node in graph.nodes if isinstance(node.op, ops.Concat)]
    return [[value.name for value in node.inputs] for node in joins]


def block(t, x):
    """A block of torchvision's DenseNet: every layer joins all values so far."""
    found = [x]
    for _ in range(3):
        found.append(max_pool(join(*found)) if len(found) > 1 else max_pool(x))
    return join(*found)


def test_a_dense_block_joins_one_value_at_a_time() -> None:
    assert joins_of(after(block)) == [
        ["x0", "maxpool2d"],
        ["concat", "maxpool2d.1"],
        ["concat.1", "maxpool2d.2"],
    ]


def test_the_longest_beginning_counts_and_equal_joins_become_one() -> None:
    def build(t, x):
        y, z = max_pool(x), max_pool(x, 5, 1, 2)
        two, three = join(x, y), join(x, y, z)
        return [two, three, join(x, y, z, x, axis=1), join(x, y, z, axis=-3)]

    found = after(build)
    assert joins_of(found) == [["x0", "maxpool2d"], ["concat", "maxpool2d.1"], ["concat.1", "x0"]]
    assert found.outputs[1] is found.outputs[3]


def test_other_axes_other_orders_and_later_joins_are_left_alone() -> None:
    def build(t, x):
        y = max_pool(x)
        return [join(x, y, x), join(x, y), join(x, y, axis=2), join(y, x), join(y, x, axis=3)]

    before = graph_of(build, X)
    assert run(before, SHARE_CONCATS) is before


def test_fuel_stops_it() -> None:
    def build(t, x):
        y = apply(ops.ReLU(), x)
        return [join(x, y), join(x, y, x)]

    assert joins_of(after(build, Context(fuel=0))) == [["x0", "relu"], ["x0", "relu", "x0"]]
    assert ops_of(after(build)) == ["ReLU", "Concat", "Concat"]
