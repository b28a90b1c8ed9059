"""matmul_to_linear: products of matrices in bfloat16 as linear layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import LEAST_ROWS, MATMUL_TO_LINEAR
from minidnn.passes.mix_precision import MIX_PRECISION
from minidnn.training.losses import MSE
from minidnn.training.optim import SGD
from minidnn.training.step import Objective, step_graph
from tests.passes.build import assert_same, graph_of, ops_of, run

TURN = ops.Transpose((1, 0))
ROWS = LEAST_ROWS


class PrefersLinear(Target):
    prefers_linear = True
    storage = "bfloat16"


CONTEXT = Context(PrefersLinear())


def after(build: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "bfloat16") -> Graph:
    before = graph_of(build, *shapes, dtype=dtype)
    result = run(before, MIX_PRECISION, MATMUL_TO_LINEAR, context=CONTEXT)
    assert_same(before, result, 1e-2)
    return result


@pytest.mark.parametrize("rows", [(ROWS,), (3, ROWS // 2), (2, 3, ROWS)])
def test_the_matrix_on_the_right_becomes_a_weight(rows: tuple[int, ...]) -> None:
    found = after(lambda t, a, b: a @ b, (*rows, 5), (5, 7))
    assert ops_of(found) == ["Transpose", "Linear"]


def test_a_transpose_is_left_out_where_nothing_else_reads_it() -> None:
    found = after(lambda t, a, b: a @ apply(TURN, b), (ROWS, 5), (7, 5))
    assert ops_of(found) == ["Linear"]

    def build(t: Any, a: Any, b: Any) -> tuple[Any, ...]:
        turned = apply(TURN, b)
        return a @ turned, apply(ops.ReLU(), turned)

    assert ops_of(after(build, (ROWS, 5), (7, 5))).count("Transpose") == 1


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((ROWS - 1, 5), (5, 7)), "bfloat16"),
        (((2, ROWS, 5), (2, 5, 7)), "bfloat16"),
        (((ROWS, 0), (0, 7)), "bfloat16"),
        (((ROWS, 5), (5, 7)), "float32"),
    ],
    ids=["few rows", "batches", "no terms", "float32"],
)
def test_other_products_stay(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    assert ops_of(after(lambda t, a, b: a @ b, *shapes, dtype=dtype)) == ["MatMul"]


def test_other_targets_keep_products() -> None:
    graph = graph_of(lambda t, a, b: a @ b, (ROWS, 5), (5, 7), dtype="bfloat16")
    assert run(graph, MIX_PRECISION, MATMUL_TO_LINEAR) is graph


def test_a_linear_layers_gradients_matmul_to_linear() -> None:
    net = md.Sequential(L.Linear(16, 32), L.GELU(), L.Linear(32, 16)).initialize(0)
    objective = Objective(MSE(), {})
    graph = step_graph(net, ((2, 3, 4, 16),), objective, SGD(0.1, momentum=0.9))
    result = run(
        graph, MIX_PRECISION, MATMUL_TO_LINEAR, context=Context(PrefersLinear(), stored=True)
    )

    def products(of: Graph, kind: type) -> list[Node]:
        return [node for node in of.nodes if isinstance(node.op, kind)]

    assert len(products(graph, ops.MatMul)) == 3 and not products(result, ops.MatMul)
    assert len(products(result, ops.Linear)) == 5
    assert {node.output.dtype for node in products(result, ops.Linear)} == {"bfloat16"}
