"""Products of matrices that are computed, and linear layers whose weight is read as it lies."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import ISAS, Isa
from minidnn.backends.cpu.operators.matmul import FEW_ROWS
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph

from .warming import warm

# Rows, products and columns beside the sizes of register tiles, parts and tasks.
SHAPES = [
    *((1, 1, 1), (2, 127, 3), (7, 129, 16), (9, 300, 49), (50, 128, 50), (97, 17, 200)),
    *((5, 513, 31), (600, 40, 15)),
]


def product(shape: tuple[int, int, int], batch: tuple[int, ...] = ()) -> Graph:
    rows, depth, columns = shape
    a = Value(TensorType((*batch, rows, depth)), "a")
    b = Value(TensorType((depth, columns)), "b")
    return Graph([a, b], [(node := Node(ops.MatMul(), [a, b], "product")).output], [node], "one")


def operands(graph: Graph) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(v.shape, np.float32) for v in graph.inputs]


@cache
def products(isa_name: str) -> dict[tuple[int, int, int], Graph]:
    """Batches of products of each shape, their kernels compiled together."""
    found = {shape: product(shape, (2,)) for shape in SHAPES}
    warm([(graph, "model") for graph in found.values()], ISAS[isa_name])
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.together
def test_products(isa: Isa, shape: tuple[int, int, int]) -> None:
    graph = products(isa.name)[shape]
    a, b = operands(graph)
    found = [md.compile(graph, device="cpu", isa=isa.name, threads=n)(a, b) for n in (1, 2, 3)]
    right = a.astype(np.float64) @ b
    bound = 4 * 2**-24 * np.sqrt(shape[1] + 4) * np.sqrt((a.astype(np.float64) ** 2) @ (b**2))
    assert (np.abs(found[0] - right) <= bound).all()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.together
def test_special_values_stay_in_their_row_and_column(isa: Isa) -> None:
    graph = product((11, 140, 37))
    a, b = operands(graph)
    a[4, 135], b[3, 33], b[0, 20] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        right = a.astype(np.float64) @ b
    found = md.compile(graph, device="cpu", isa=isa.name)(a, b)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_allclose(found, right, 1e-4, 1e-4)


ROWS_FEATURES_OUTPUTS = [(1, 7, 5), (17, 900, 35), (FEW_ROWS, 1700, 9)]


def linear(features: int, outputs: int, bias: bool) -> L.Sequential:
    net = L.Sequential(L.Linear(features, outputs, bias=bias), L.ReLU())
    net.initialize(1)
    return net


@cache
def warm_linear(isa_name: str) -> None:
    graphs = [
        (to_graph(linear(features, outputs, bias), (rows, features)), "model")
        for rows, features, outputs in ROWS_FEATURES_OUTPUTS
        for bias in (True, False)
    ]
    for stored in (False, True):
        warm(graphs, ISAS[isa_name], stored=stored)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("rows, features, outputs", ROWS_FEATURES_OUTPUTS)
@pytest.mark.together(2)
def test_a_weight_read_as_it_lies_changes_no_bit(
    isa: Isa, rows: int, features: int, outputs: int, bias: bool
) -> None:
    warm_linear(isa.name)
    net = linear(features, outputs, bias)
    x = np.random.default_rng(0).standard_normal((rows, features), np.float32)
    x[0, features // 2] = np.nan
    given: dict[str, Any] = {"device": "cpu", "isa": isa.name}
    stored = md.compile(net, x.shape, store=md.Store(), **given)
    program: Any = stored.program
    names = [getattr(task.source, "name", task.source) for task in program.tasks]
    assert not any("pack" in name for name in names)
    np.testing.assert_array_equal(stored(x), md.compile(net, x.shape, **given)(x))
