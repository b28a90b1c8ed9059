"""Formulas and sums that compute in float32 and read or give half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.errors import GraphError
from minidnn.gradients.reverse import gradient
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import argument
from minidnn.graph.ir import Graph, Node, Value
from minidnn.graph.operators import Formula, Reduce
from minidnn.graph.types import TensorType, rounded_to

A, B = argument(0), argument(1)


def test_a_formula_computes_in_float32() -> None:
    """Nothing is rounded on the way: 1 + 2^-12 is no float16."""
    op = Formula((A + B) - 1.0, 2, compute="float32")
    half, single = TensorType((2, 3), "float16"), TensorType((2, 3))
    assert op.infer(half, single) == (single,)
    assert op.infer(half, half) == (single,)
    (found,) = op.reference(np.ones((2, 3), np.float16), np.full((2, 3), 2.0**-12, np.float32))
    np.testing.assert_array_equal(found, np.full((2, 3), 2.0**-12, np.float32))


def test_a_formula_gives_what_is_asked_for() -> None:
    x = np.array([[1.0 + 2.0**-9, 3.0e38]], np.float32)
    for dtype in ("float16", "bfloat16"):
        op = Formula(A, dtype=dtype, compute="float32")
        assert op.infer(TensorType((1, 2))) == (TensorType((1, 2), dtype),)
        np.testing.assert_array_equal(op.reference(x)[0], rounded_to(dtype, x))


def test_whole_numbers_are_fractions_there() -> None:
    op = Formula(A / 4.0, compute="float32")
    x = Value(TensorType((5,), "int64"), "x")
    node = Node(op, [x], "quarter")
    given = np.arange(5)
    for device in ("reference", "cpu"):
        exe = md.compile(Graph([x], node.outputs, [node]), device=device)
        np.testing.assert_array_equal(exe(given), np.float32(given / 4))


def test_wider_operands_are_refused() -> None:
    with pytest.raises(GraphError, match="no wider than float32"):
        Formula(A, compute="float32").infer(TensorType((1,), "float64"))
    with pytest.raises(GraphError, match="compute='float16'; valid"):
        Formula(A, compute="float16")
    with pytest.raises(GraphError, match="dtype='float16'; valid"):
        Reduce("sum", (0,), dtype="float16")
    for dtype in ("float64", "int64"):
        with pytest.raises(GraphError, match="no wider"):
            Reduce("sum", (0,), dtype="float32").infer(TensorType((2,), dtype))


def test_a_sum_stays_as_it_was_made() -> None:
    x = np.full((3, 5000), 1.0, np.float16)
    assert Reduce("sum", (1,)).reference(x)[0][0] == 5000
    x[:, 0] = 2.0
    (found,) = Reduce("sum", (1,), dtype="float32").reference(x)
    assert found.dtype == np.float32 and found[0] == 5001


@pytest.mark.parametrize("how", ["sum", "mean", "max", "prod"])
def test_gradients(how: Any) -> None:
    """Those by halves are halves, and right."""
    x = Value(TensorType((2, 4), "float16"), "x")
    y = Value(TensorType((2, 4)), "y")
    product = Node(Formula(A * B, 2, compute="float32"), [x, y], "product")
    narrow = Node(Formula(A, dtype="float16", compute="float32"), product.outputs, "narrow")
    total = Node(Reduce(how, (1,), dtype="float32"), narrow.outputs, "total")
    loss = Node(Reduce("sum", (0,)), total.outputs, "loss")
    graph = Graph([x, y], loss.outputs, [product, narrow, total, loss])
    graph = gradient(graph, loss.output, of=[x, y])
    assert [v.dtype for v in graph.outputs[1:]] == ["float16", "float32"]
    random = np.random.default_rng(0)
    arrays = [random.uniform(1, 2, (2, 4)).astype(d) for d in ("float16", "float32")]
    _, by_x, by_y = evaluate(graph, arrays)
    a, b = (array.astype(np.float64) for array in arrays)
    p = (a * b).astype(np.float16).astype(np.float64)
    slope = {
        "sum": np.ones_like(p),
        "mean": np.full_like(p, 0.25),
        "max": (p == p.max(1, keepdims=True)).astype(float),
        "prod": p.prod(1, keepdims=True) / p,
    }[how]
    np.testing.assert_allclose(by_x, slope * b, rtol=4e-3)
    np.testing.assert_allclose(by_y, slope * a, rtol=4e-3)
