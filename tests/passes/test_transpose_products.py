"""transpose_products: transposes around products of batches of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from minidnn.fusion.product import FusedProduct
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType
from minidnn.passes.infrastructure import Context
from minidnn.passes.transpose_products import transpose_products
from tests.cuda.products import factor, product_graph
from tests.passes.build import assert_same, ops_of

HEADS, LAST = ops.Transpose((0, 2, 1, 3)), ops.Transpose((0, 1, 3, 2))
LIES = (2, 5, 3, 4)


@dataclass(frozen=True)
class Turning(Target):
    transposes_products = True


def after(graph: Graph, same: bool = True, **options) -> Graph:
    found = transpose_products(graph, Context(Turning(), **options))
    check(found)
    if same:
        assert_same(graph, found)
    return found


def region(graph: Graph) -> FusedProduct:
    (op,) = (node.op for node in graph.nodes if isinstance(node.op, FusedProduct))
    return op


def test_heads_and_keys_are_read_where_they_lie() -> None:
    graph = product_graph((LIES, LIES), "float32", ([HEADS], [HEADS, LAST]), [HEADS])
    found = after(graph)
    assert ops_of(found) == ["FusedProduct"]
    op = region(found)
    steps = [view.steps for _, view in op.multiplied]
    assert steps == [(60, 4, 12, 1), (60, 4, 1, 12)] and op.factor == 1.0
    # Rows and columns of scores lie apart then: (2, 5, 3, 5) of which columns follow each other.
    assert op.result.steps == (75, 5, 15, 1)


def test_lines_stay_together() -> None:
    """A transpose that would tear rows and columns apart stays."""
    torn = ops.Transpose((3, 1, 2, 0))
    found = after(product_graph(((4, 3, 5, 2), (1, 1, 4, 6)), "float32", ([torn], []), []))
    assert ops_of(found) == ["Transpose", "MatMul"]
    found = after(product_graph((LIES, (2, 1, 4, 6)), "float32", ([], []), [torn]))
    assert ops_of(found) == ["MatMul", "Transpose"]
    # Two of them may do no harm.
    found = after(product_graph(((2, 3, 5, 4), (1, 1, 4, 6)), "float32", ([torn, torn], []), []))
    assert ops_of(found) == ["FusedProduct"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_factors(dtype: str) -> None:
    before = ([HEADS, factor(0.125)], [factor(2.0), HEADS, LAST])
    numpy_has = dtype != "bfloat16"
    found = after(product_graph((LIES, LIES), dtype, before, [factor(0.5)]), numpy_has)
    assert ops_of(found) == ["FusedProduct"] and region(found).factor == 0.125
    for number in (0.3, 0.0):
        graph = product_graph((LIES, LIES), dtype, ([HEADS, factor(number)], [HEADS, LAST]))
        assert ops_of(after(graph, numpy_has)) == ["Transpose", "Scale", "FusedProduct"]


def chained(read_twice: bool) -> Graph:
    """The result of a product, transposed, is read by another one, and perhaps by something."""
    a, b = (Value(TensorType((2, 3, 3), "float32"), name) for name in "ab")
    first = Node(ops.MatMul(), [a, b], "first")
    move = Node(ops.Transpose((0, 2, 1)), [first.output], "move")
    second = Node(ops.MatMul(), [move.output, b], "second")
    outputs = [second.output, move.output] if read_twice else [second.output]
    return Graph([a, b], outputs, [first, move, second])


def test_a_transpose_between_two_products() -> None:
    assert ops_of(after(chained(False))) == ["MatMul", "FusedProduct"]
    assert ops_of(after(chained(True))) == ["MatMul", "Transpose", "FusedProduct"]


def test_what_was_rounded_before_is_read() -> None:
    """The transposed of a float32 value that is rounded for two products."""
    cast = ops.Formula(argument(0), title="Cast", dtype="bfloat16", compute="float32")
    x = Value(TensorType((2, 5, 3), "float32"), "x")
    y = Value(TensorType((2, 3, 4), "bfloat16"), "y")

    def graph(nodes: Sequence[Node], *outputs: Value) -> Graph:
        return Graph([x, y], outputs, nodes)

    rounded = Node(cast, [x], "rounded")
    first = Node(ops.MatMul(), [rounded.output, y], "first")
    move = Node(ops.Transpose((0, 2, 1)), [x], "move")
    again = Node(cast, [move.output], "again")
    second = Node(ops.MatMul(), [again.output, first.output], "second")
    found = after(graph([rounded, first, move, again, second], first.output, second.output), False)
    assert ops_of(found) == ["Cast", "MatMul", "FusedProduct"]
    move = Node(ops.Transpose((0, 2, 1)), [x], "move")
    alone = Node(cast, [move.output], "alone")
    other = Value(TensorType((2, 5, 4), "bfloat16"), "other")
    last = Node(ops.MatMul(), [alone.output, other], "last")
    found = after(Graph([x, other], [last.output], [move, alone, last]), False)
    assert ops_of(found) == ["Transpose", "Cast", "MatMul"]


def test_fuel_strategies_and_targets() -> None:
    graph = product_graph((LIES, LIES), "float32", ([HEADS], [HEADS, LAST]))
    assert after(graph, fuel=0) is graph
    assert after(graph, strategy="layers") is graph
    assert transpose_products(graph, Context()) is graph
