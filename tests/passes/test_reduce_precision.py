"""reduce_precision: float32 values in the dtype in which the target keeps them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.target import Target
from minidnn.graph.checker import check
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Add, Formula
from minidnn.graph.types import TensorType, rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.passes.reduce_precision import reduce_precision


@dataclass(frozen=True)
class Narrow(Target):
    dtype: str = "float16"

    @property
    def storage(self) -> str:
        return self.dtype


def network() -> md.Layer:
    return L.Sequential(
        L.Conv2d(3, 4, 3), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2), L.BatchNorm2d(4)
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_value_changes_its_dtype(dtype: str) -> None:
    graph = optimize(to_graph(network(), (2, 3, 9, 9)), Context(Narrow(dtype=dtype)), verify=True)
    check(graph)
    assert {value.dtype for value in graph.values} == {dtype}
    assert [value.name for value in graph.inputs] == ["input"]
    for node in graph.nodes:
        for constant in node.op.body.constants:  # type: ignore[attr-defined]
            np.testing.assert_array_equal(constant.data, rounded_to(dtype, constant.data))


def test_weights_are_folded_before_they_are_rounded() -> None:
    net = network()
    plain = optimize(to_graph(net, (2, 3, 9, 9)))
    narrow = optimize(to_graph(net, (2, 3, 9, 9)), Context(Narrow()))
    for wide, small in zip(plain.nodes, narrow.nodes, strict=True):
        pairs = zip(wide.op.body.constants, small.op.body.constants, strict=True)  # type: ignore[attr-defined]
        for first, second in pairs:
            np.testing.assert_array_equal(second.data, first.data.astype(np.float16))


def test_targets_that_keep_float32_and_empty_fuel_change_nothing() -> None:
    graph = to_graph(network(), (2, 3, 9, 9))
    for context in (Context(), Context(Narrow(), fuel=0)):
        assert {value.dtype for value in optimize(graph, context).values} == {"float32"}


def test_rounding_to_bfloat16_is_to_nearest_even_and_keeps_what_is_not_finite() -> None:
    step = 2.0**-7  # of numbers from 1 to 2
    given = [1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -np.inf, 3.4e38, 1e-40, -0.0]
    expected = [1.0, 1 + 2 * step, 1 + step, -np.inf, np.inf, None, -0.0]
    found = rounded_to("bfloat16", np.array(given, np.float32))
    for number, wanted in zip(found, expected, strict=True):
        assert wanted is None or (number == wanted and np.signbit(number) == np.signbit(wanted))
    assert np.isnan(rounded_to("bfloat16", np.array([np.nan], np.float32))).all()
    assert not (found.view(np.uint32) & 0xFFFF).any()


def test_formulas_that_give_float32_give_the_dtype() -> None:
    x = Value(TensorType((2, 3), "int64"), "x")
    cast = Node(Formula(argument(0), title="Cast", dtype="float32"), [x], "cast")
    twice = Node(Add(), [cast.output, cast.output], "twice")
    graph = Graph([x], [twice.output], [cast, twice])
    result = reduce_precision(graph, Context(Narrow()))
    assert [str(node.output.type) for node in result.nodes] == ["float16[2, 3]"] * 2
    assert result.inputs[0].dtype == "int64"
