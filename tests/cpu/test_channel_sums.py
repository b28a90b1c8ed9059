"""Sums over all axes but channels, several in a sweep with the point-wise operators before them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.isa import ISAS, Isa
from minidnn.fusion.region import FusedSums
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from tests.passes.build import graph_of

from .warming import warm

PAIR = ops.Formula(argument(0) - 2.0 * argument(1), 2, title="Pair")
#: Beside the sizes of vectors, blocks of pixels and parts; planes of one pixel and of many.
SHAPES: list[tuple[int, ...]] = [
    (2, 3, 4, 5),
    (3, 600, 1, 1),
    (5, 20, 7, 3),
    (1, 16, 33, 65),
    (9, 40, 31, 29),
]


def total(x: Any, how: Any = "sum", keepdim: bool = False) -> Any:
    return apply(ops.Reduce(how, (0, 2, 3), keepdim), x)


def sums(shape: tuple[int, ...]) -> Graph:
    """Statistics as of a normalization, and the sums of its gradient."""

    def build(t: Any, x: Any, gradient: Any) -> Any:
        mean = total(x, "mean", keepdim=True)
        apart = apply(PAIR, x, apply(ops.Expand(x.shape), mean))
        return [mean, total(apart, "mean"), total(apart * gradient), total(gradient)]

    return graph_of(build, shape, shape)


def operands(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal(shape, np.float32), random.standard_normal(shape, np.float32)


@cache
def all_sums(isa_name: str) -> dict[tuple[int, ...], Graph]:
    """Those of each shape, their kernels compiled together."""
    found = {shape: sums(shape) for shape in SHAPES}
    warm([(g, how) for g in found.values() for how in ("model", "layers")], ISAS[isa_name])
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_and_not_on_any_number_of_threads(isa: Isa, shape: tuple[int, ...]) -> None:
    graph, given = all_sums(isa.name)[shape], operands(shape)
    fused = md.compile(graph, device="cpu", isa=isa.name, threads=2, guarded=True)
    swept = [n.op for n in fused.plan.graph.nodes if isinstance(n.op, FusedSums)]
    assert sorted(len(op.reductions) for op in swept) == [1, 3]
    found = fused(*given)
    with np.errstate(all="ignore"):
        right = md.compile(graph, device="reference", precision="float64")(*given)
    # The magnitudes that are added; those of the distances begin with the rounded mean.
    bound = 8 * 2**-24 * max(1.0, np.abs(given).max()) ** 2 * 9 * shape[0] * shape[2] * shape[3]
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, 0, bound)
    for threads, strategy in ((1, "layers"), (3, "model")):
        same = md.compile(graph, device="cpu", isa=isa.name, threads=threads, strategy=strategy)
        for one, other in zip(found, same(*given), strict=True):
            np.testing.assert_array_equal(one, other)


def test_special_values_stay_in_their_channel(isa: Isa) -> None:
    graph, (x, gradient) = sums((3, 21, 9, 8)), operands((3, 21, 9, 8))
    x[1, 4, 3, 3], gradient[2, 20, 8, 7] = np.nan, np.inf
    found = md.compile(graph, device="cpu", isa=isa.name)(x, gradient)
    for value, channels in zip(found, ([4], [4], [4, 20], [20]), strict=True):
        where = np.flatnonzero(~np.isfinite(value.reshape(-1)))
        assert where.tolist() == channels


def test_a_constant_of_one_pixel(isa: Isa) -> None:
    """It has the shape of what is added up, but lies as a vector."""
    type = TensorType((1, 1, 1, 1))
    x, two = Value(type, "x"), Constant(type, "two", lambda: np.full(type.shape, 2, np.float32))
    product = Node(ops.Formula(argument(0) * argument(1), 2), (x, two), "product")
    total = Node(ops.Reduce("sum", (0, 2, 3)), product.outputs, "total")
    exe = md.compile(Graph([x], total.outputs, [product, total]), device="cpu", isa=isa.name)
    assert any(isinstance(node.op, FusedSums) for node in exe.graph.nodes)
    assert exe(np.full(type.shape, 0.5, np.float32)).tolist() == [1]
