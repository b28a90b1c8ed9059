"""Which networks compute the rows of a batch independently: by structure, beside what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minidnn import models
from minidnn.dynamic.rows import other_batches, row_wise
from minidnn.dynamic.split import RowWise
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, State, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType

Make = Callable[..., Any]


def graph_of(make: Make, rows: int, shape: tuple[int, ...], dtype: str = "float32") -> Graph:
    """What ``make`` records of an input of so many rows, and of a constant maker."""
    with tracing("net") as trace:
        x = trace.input(TensorType((rows, *shape), dtype), "x")

        def constant(array: Any) -> Value:
            held = np.asarray(array, np.float32)
            return trace.constant(object(), "c", TensorType(held.shape), lambda: held)

        return trace.graph([make(x, constant)])


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


ROWS = {
    "element-wise": ((3, 4), lambda x, c: apply(ops.ReLU(), x)),
    "with a vector": ((3, 4), lambda x, c: apply(ops.Add(), x, c(random(1, 3, 4)))),
    "with a lower rank": ((3, 4), lambda x, c: apply(ops.Mul(), c(random(3, 4)), x)),
    "window": ((3, 4, 4), lambda x, c: apply(ops.MaxPool2d((2, 2), (2, 2)), x)),
    "convolution": ((3, 4, 4), lambda x, c: apply(ops.Conv2d(), x, c(random(2, 3, 3, 3)))),
    "linear": ((3,), lambda x, c: apply(ops.Linear(), x, c(random(2, 3)))),
    "product": ((3,), lambda x, c: apply(ops.MatMul(), x, c(random(3, 2)))),
    "products": ((3, 4), lambda x, c: apply(ops.MatMul(), x, apply(ops.Transpose((0, 2, 1)), x))),
    "softmax": ((3, 4), lambda x, c: apply(ops.Softmax(1), x)),
    "sum": ((3, 4), lambda x, c: apply(ops.Reduce("sum", (1, 2)), x)),
    "largest": ((3, 4), lambda x, c: apply(ops.ArgMax(-1), x)),
    "layer norm": ((3, 4), lambda x, c: apply(ops.LayerNorm(2), x)),
    "group norm": ((4, 3), lambda x, c: apply(ops.GroupNorm(2), x)),
    "join": ((3, 4), lambda x, c: apply(ops.Concat(2), x, x)),
    "flatten": ((3, 4), lambda x, c: apply(ops.Flatten(), x)),
    "reshape": ((3, 4), lambda x, c: apply(ops.Reshape((2, -1)), x)),
    "view": ((3, 4), lambda x, c: apply(ops.View((x.shape[0], 12)), x)),
    "transpose": ((3, 4), lambda x, c: apply(ops.Transpose((0, 2, 1)), x)),
    "slice": ((5,), lambda x, c: apply(ops.Slice((0, 1), (x.shape[0], 2), (1, 2)), x)),
    "pad": ((5,), lambda x, c: apply(ops.Pad((0, 1), (0, 2)), x)),
    "take": ((5,), lambda x, c: apply(ops.Take((None, (3, 1))), x)),
    "a token": (
        (3, 4),
        lambda x, c: apply(
            ops.Concat(1), apply(ops.Expand((x.shape[0], 1, 4)), c(random(1, 1, 4))), x
        ),
    ),
}

MIXED = {
    "softmax over rows": ((3,), "mixes rows", lambda x, c: apply(ops.Softmax(0), x)),
    "sum over rows": ((3,), "mixes rows", lambda x, c: apply(ops.Reduce("sum", (0,)), x)),
    "largest row": ((3,), "mixes rows", lambda x, c: apply(ops.ArgMax(0), x)),
    "layer norm of all": ((3,), "mixes rows", lambda x, c: apply(ops.LayerNorm(2), x)),
    "rows joined": ((3,), "mixes rows", lambda x, c: apply(ops.Concat(0), x, x)),
    "all in one": ((3,), "mixes rows", lambda x, c: apply(ops.Flatten(0), x)),
    "split otherwise": ((4,), "mixes rows", lambda x, c: apply(ops.View((2 * x.shape[0], 2)), x)),
    "rows turned": ((3,), "reorders rows", lambda x, c: apply(ops.Transpose((1, 0)), x)),
    "rows reversed": (
        (3,),
        "reorders rows",
        lambda x, c: apply(ops.Slice((x.shape[0] - 1, 0), (x.shape[0], 3), (-1, 1)), x),
    ),
    "rows padded": ((3,), "reorders rows", lambda x, c: apply(ops.Pad((1, 0), (0, 0)), x)),
    "rows taken": (
        (3,),
        "reorders rows",
        lambda x, c: apply(ops.Take((tuple(range(x.shape[0]))[::-1], None)), x),
    ),
    "gram matrix": (
        (3,),
        "reorders rows",
        lambda x, c: apply(ops.MatMul(), x, apply(ops.Transpose((1, 0)), x)),
    ),
    "weighted rows": (
        (3,),
        "reads",
        lambda x, c: apply(ops.Mul(), x, c(np.arange(x.shape[0] * 3).reshape(-1, 3))),
    ),
    "counted rows": ((3,), "reads", lambda x, c: apply(ops.Mul(), x, c([x.shape[0]]))),
    "another for many": (
        (3,),
        "is another operator",
        lambda x, c: apply(ops.ReLU() if x.shape[0] > 2 else ops.Sigmoid(), x),
    ),
    "other attributes": (
        (3,),
        "has other attributes",
        lambda x, c: apply(ops.LeakyReLU(0.5 if x.shape[0] > 2 else 0.25), x),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_independent(name: str) -> None:
    """A part gives what the whole gives for its rows."""
    shape, make = ROWS[name]
    small, large = graph_of(make, 2, shape), graph_of(make, 5, shape)
    assert row_wise(small, large, {0}) == RowWise((True,), (True,))
    x = random(5, *shape)
    (whole,) = evaluate(large, [x])
    (part,) = evaluate(small, [x[1:3]])
    np.testing.assert_array_equal(whole[1:3], part)


@pytest.mark.parametrize("name", ROWS)
def test_graphs_of_other_batches_are_what_would_be_recorded(name: str) -> None:
    shape, make = ROWS[name]
    of_rows = other_batches(graph_of(make, 2, shape), graph_of(make, 5, shape), {0})
    assert not isinstance(of_rows, str)
    for rows in (1, 2, 7):
        assert str(of_rows(rows)) == str(graph_of(make, rows, shape))


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_are_not(name: str) -> None:
    shape, reason, make = MIXED[name]
    found = row_wise(graph_of(make, 2, shape), graph_of(make, 5, shape), {0})
    assert isinstance(found, str) and reason in found, found


def test_picking_by_indices() -> None:
    def table(x: Value, constant: Any) -> Any:
        return apply(ops.Gather(0), constant(random(7, 3)), x)

    small, large = (graph_of(table, rows, (2,), "int64") for rows in (1, 4))
    assert row_wise(small, large, {0}) == RowWise((True,), (True,))


def test_results_without_rows_are_told() -> None:
    def make(rows: int) -> Graph:
        with tracing("net") as trace:
            x = trace.input(TensorType((rows, 3)), "x")
            y = trace.input(TensorType((4, 3)), "y")
            return trace.graph([apply(ops.ReLU(), x), apply(ops.ReLU(), y)])

    assert row_wise(make(1), make(6), {0}) == RowWise((True, False), (True, False))


def test_states_that_are_updated() -> None:
    def make(rows: int) -> Graph:
        x, state = Value(TensorType((rows,)), "x"), State(TensorType((1,)), "s", random(1))
        return Graph([x], [x], [], "net", updates={state: state})

    assert row_wise(make(1), make(2), {0}) == "every run updates its states"


@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18", "densenet121", "inception_v3"])
def test_networks_of_the_zoo(name: str) -> None:
    from minidnn.layers.build import to_graph

    net = models.get_model(name)
    channels, *size = net.input_shape
    small, large = (to_graph(net, (rows, channels, *size), states=True) for rows in (1, 3))
    assert row_wise(small, large, {0}) == RowWise((True,), (True,))
