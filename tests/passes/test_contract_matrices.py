"""contract_matrices: products of matrices as gradients of 1x1 convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import CONTRACT_MATRICES
from minidnn.training.losses import MSE
from minidnn.training.optim import SGD
from minidnn.training.step import Objective, step_graph
from tests.passes.build import assert_same, constant, graph_of, ops_of, run

TURN = ops.Transpose((1, 0))


class Contracting(Target):
    contracts_matrices = True


def after(build: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    before = graph_of(build, *shapes)
    result = run(before, CONTRACT_MATRICES, context=Context(Contracting()))
    assert_same(before, result, 1e-5)
    return result


@pytest.mark.parametrize(("rows", "inner", "columns"), [(7, 5, 3), (1, 9, 4), (33, 1, 1)])
def test_a_product_is_the_gradient_for_an_input(rows: int, inner: int, columns: int) -> None:
    found = ops_of(after(lambda t, a, b: a @ b, (rows, inner), (inner, columns)))
    assert found == ["View", "View", "Conv2dInputGradient", "View"]
    found = ops_of(after(lambda t, a: a @ constant(t, (inner, columns)), (rows, inner)))
    assert found == ["View", "View", "Conv2dInputGradient", "View"]


@pytest.mark.parametrize(("rows", "inner", "columns"), [(7, 5, 3), (1, 9, 4), (33, 1, 1)])
def test_one_of_a_transposed_matrix_is_that_for_a_weight(
    rows: int, inner: int, columns: int
) -> None:
    found = ops_of(after(lambda t, a, b: apply(TURN, a) @ b, (inner, rows), (inner, columns)))
    assert found == ["View", "View", "Conv2dWeightGradient", "View"]


def test_a_transposed_matrix_stays_where_it_is_read_otherwise() -> None:
    def build(t: Any, a: Value, b: Value) -> tuple[Value, ...]:
        turned = apply(TURN, a)
        return turned @ b, apply(ops.ReLU(), turned)

    assert ops_of(after(build, (5, 7), (5, 3))).count("Transpose") == 1
    square = after(lambda t, a: apply(TURN, a) @ apply(TURN, a), (5, 5))
    assert "Transpose" in ops_of(square) and "MatMul" not in ops_of(square)
    itself = after(lambda t, a: (lambda turned: (turned @ a, turned))(apply(TURN, a)), (5, 7))
    assert ops_of(itself).count("Transpose") == 1


def test_batches_and_integers_stay() -> None:
    assert "MatMul" in ops_of(after(lambda t, a, b: a @ b, (2, 3, 4), (2, 4, 5)))
    whole = graph_of(lambda t, a, b: a @ b, (3, 4), (4, 5), dtype="int32")
    result = run(whole, CONTRACT_MATRICES, context=Context(Contracting()))
    assert ops_of(result) == ["MatMul"]


def test_other_targets_keep_products() -> None:
    graph = graph_of(lambda t, a, b: a @ b, (3, 4), (4, 5))
    assert run(graph, CONTRACT_MATRICES) is graph


def test_a_linear_layers_gradients_have_no_product_of_matrices() -> None:
    net = md.Sequential(L.Linear(6, 8), L.GELU(), L.Linear(8, 6)).initialize(0)
    objective = Objective(MSE(), {})
    graph = step_graph(net, ((2, 3, 4, 6),), objective, SGD(0.1, momentum=0.9))
    result = run(graph, CONTRACT_MATRICES, context=Context(Contracting()))
    assert_same(graph, result, 1e-4)
    assert "MatMul" in ops_of(graph) and "MatMul" not in ops_of(result)
