"""Gradients of whole graphs: what is asked for, several readers, second derivatives, mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, UnsupportedError
from minidnn.gradients.reverse import Recorded
from minidnn.gradients.table import RULES, Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import Expression, sigmoid
from minidnn.graph.ir import Constant, Graph, Node, State, Value
from minidnn.graph.operator import Activation, Movement
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType
from minidnn.layers.build import to_graph
from tests.gradients.losses import differences, differentiable, gradients, with_loss
from tests.sampling import mixed


def squared(shape: tuple[int, ...] = (2, 3)) -> Graph:
    """x -> y = 3 x and its sum of squares."""
    with tracing("squared") as trace:
        x = trace.input(TensorType(shape), "x")
        y = x * 3.0
        return trace.graph([y, (y * y).sum()], ["y", "loss"])


X = np.arange(6.0).reshape(2, 3)


def test_outputs_stay_and_gradients_follow() -> None:
    graph = squared()
    whole = md.gradient(graph, "loss", "x")
    check(whole)
    assert whole.inputs == graph.inputs and whole.nodes[: len(graph.nodes)] == graph.nodes
    assert whole.outputs[:2] == graph.outputs
    assert whole.output_names == ("y", "loss", "gradient.x")
    assert {node.source for node in whole.nodes} <= {node.source for node in graph.nodes}
    y, loss, found = evaluate(whole, [X])
    np.testing.assert_array_equal(y, 3 * X)
    assert loss == 9 * (X**2).sum()
    np.testing.assert_array_equal(found, 18 * X)


def test_values_may_be_given_themselves() -> None:
    graph = squared()
    by_value = md.gradient(graph, graph.outputs[1], [graph.outputs[0], graph.inputs[0]])
    *_, by_y, by_x = evaluate(by_value, [X])
    np.testing.assert_array_equal(by_y, 6 * X)
    np.testing.assert_array_equal(by_x, 18 * X)
    by_name = md.gradient(graph, "loss", ["y", "x"])
    assert str(by_name) == str(by_value)


def test_graphs_without_names_of_outputs_get_none() -> None:
    graph = squared()
    plain = Graph(graph.inputs, graph.outputs, graph.nodes)
    assert md.gradient(plain, graph.outputs[1], "x").output_names is None


def test_the_loss_by_itself_is_one() -> None:
    assert evaluate(md.gradient(squared(), "loss", "loss"), [X])[-1] == 1


def test_gradients_of_states_run_on_the_reference() -> None:
    net = L.Sequential(L.Linear(3, 2), L.Elementwise(lambda x: x * sigmoid(x)))
    graph = to_graph(net, (4, 3), states=True)
    graph = with_loss(graph)
    weight, bias = graph.states
    assert isinstance(weight, State)
    whole = md.gradient(graph, "loss", [weight, bias])
    assert whole.states == graph.states
    store = md.Store()
    exe = md.compile(whole, device="reference", store=store)
    x, given = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    _, by_weight, by_bias = exe(x, given)
    store[bias.name] = np.full(2, 9.0, np.float32)
    _, other, _ = exe(x, given)
    assert by_weight.shape == (2, 3) and by_bias.shape == (2,)
    assert not np.array_equal(by_weight, other)


def test_updates_stay() -> None:
    state = State(TensorType(()), "count", np.zeros((), np.float32))
    x = Value(TensorType(()), "x")
    node = Node(ops.Add(), (x, state), "more")
    graph = Graph([x], node.outputs, [node], updates={state: node.output})
    assert md.gradient(graph, "more", ["x", "count"]).updates == graph.updates


def test_all_readers_add_up() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((4,)), "x")
        y = np.tanh(x)
        graph = trace.graph([(y * y + x * y - np.exp(y)).sum() + x.max()], ["loss"])
    given = np.array([*X[0], -1.0])
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [given], "float64")[1:]
    y, dy = np.tanh(given), 1 - np.tanh(given) ** 2
    expected = 2 * y * dy + y + given * dy - np.exp(y) * dy + (given == given.max())
    np.testing.assert_allclose(found, expected)


def test_one_operand_twice() -> None:
    x = Value(TensorType((2, 3)), "x")
    joined = Node(ops.Concat(0), (x, x), "joined")
    total = Node(ops.Reduce("sum", (0, 1)), joined.outputs, "loss")
    graph = Graph([x], total.outputs, [joined, total])
    assert (evaluate(md.gradient(graph, "loss", "x"), [X])[1] == 2).all()


def test_steps_give_zero() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((2, 3)), "x")
        graph = trace.graph([np.floor(x).sum()], ["loss"])
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [X])[1:]
    np.testing.assert_array_equal(found, np.zeros((2, 3)))


def test_casts_and_other_dtypes() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((3,), "float16"), "x")
        places = trace.input(TensorType((3,), "int64"), "places")
        wide = x.astype("float32")
        loss = (wide * wide * places).sum().astype("float64")
        graph = trace.graph([loss], ["loss"])
    whole = md.gradient(graph, "loss", "x")
    check(whole)
    (found,) = evaluate(whole, [np.array([1, 2, 3], np.float16), np.array([1, 0, -1])])[1:]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, [2, 0, -6])
    with pytest.raises(GraphError, match=r"%places: int64.* has no gradient; valid are dtypes"):
        md.gradient(graph, "loss", "places")


def test_the_first_maximum_of_a_window_and_all_of_an_axis() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((1, 1, 2, 3)), "x")
        (pooled,) = trace.apply(ops.MaxPool2d((2, 2), (1, 1)), x)
        graph = trace.graph([pooled.sum() * 8.0 + x.max()], ["loss"])
    same = np.array([[[[1.0, 1.0, 0.0], [1.0, 1.0, -np.inf]]]])
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [same])[1:]
    np.testing.assert_array_equal(found, [[[[8.25, 8.25, 0], [0.25, 0.25, 0]]]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kernel", "dilation"), mixed(2, [(3, 2), (17, 18), (1, 300), (20, 20)], [1, 2])
)
def test_windows_of_any_size_have_one_maximum(kernel: tuple[int, int], dilation: int) -> None:
    """Ties, among them of infinities and NaN: the first one takes all."""
    random = np.random.default_rng(0)
    size = tuple(dilation * k + 5 for k in kernel)
    x = random.choice(
        [0.0, 1.0, 2.0, np.inf, -np.inf], (2, 3, *size), p=[0.5, 0.3, 0.18, 0.01, 0.01]
    )
    x[0, 0] = np.where(random.random(size) < 0.01, np.nan, x[0, 0])
    op = ops.MaxPool2d(kernel, (2, 3), (kernel[0] // 2, kernel[1] // 2), (dilation, dilation))
    graph = _weighted(op, x.shape)
    by = random.integers(1, 9, graph.inputs[1].shape).astype(np.float64)
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [x, by])[1:]
    expected = np.zeros_like(x)
    rows, columns = (
        axis.taps(np.arange(n))[0] for axis, n in zip(op.window().axes, by.shape[2:], strict=True)
    )
    for n, c, i, j in np.ndindex(by.shape):
        taps = [
            (x[n, c, r, k], r, k)
            for r in rows[i]
            for k in columns[j]
            if 0 <= r < size[0] and 0 <= k < size[1]
        ]
        best = next((t for t in taps if np.isnan(t[0])), None) or max(taps, key=lambda t: t[0])
        expected[n, c, best[1], best[2]] += by[n, c, i, j]
    np.testing.assert_array_equal(found, expected)


def _weighted(op: ops.MaxPool2d, shape: tuple[int, ...]) -> Graph:
    """The sum of a pooled value's elements, each with a weight of its own; of NaN and infinities it
    is none, but its gradient is the weights."""
    with tracing() as trace:
        (pooled,) = trace.apply(op, trace.input(TensorType(shape), "x"))
        return trace.graph([(pooled * trace.input(pooled.type, "by")).sum()], ["loss"])


def test_minus_infinity_wins_over_padding() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((1, 1, 1, 1)), "x")
        (pooled,) = trace.apply(ops.MaxPool2d((2, 2), (1, 1), (1, 1)), x)
        graph = trace.graph([pooled.sum()], ["loss"])
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [np.full((1, 1, 1, 1), -np.inf)])[1:]
    assert found == 4


def test_products_with_zeros() -> None:
    with tracing() as trace:
        x = trace.input(TensorType((3, 4)), "x")
        graph = trace.graph([x.prod(1).sum()], ["loss"])
    rows = np.array([[2.0, 3, 4, 5], [0, 3, 4, 5], [0, 0, 4, 5]])
    (found,) = evaluate(md.gradient(graph, "loss", "x"), [rows])[1:]
    np.testing.assert_array_equal(found, [[60, 40, 30, 24], [60, 0, 0, 0], [0, 0, 0, 0]])


OPERATORS = (
    *(ops.Sigmoid(), ops.GELU(), ops.ELU(0.5), ops.SiLU(), ops.Tanh(), ops.LeakyReLU(0.1)),
    *(ops.AvgPool2d((3, 2), (1, 1), (1, 1)), ops.MaxPool2d((2, 2), (1, 1))),
    *(ops.Softmax(1), ops.LogSoftmax(-1), ops.GroupNorm(2, 0.1), ops.LayerNorm(1, 0.1)),
    *(ops.Transpose((0, 1, 3, 2)), ops.Pad((0, 0, 1, 0), (0, 0, 0, 1), "edge")),
)
PAIRS = (ops.Add(), ops.Mul(), ops.Sub(), ops.Concat(1))


def random_graph(seed: int) -> Graph:
    """Values that are computed of any before them, with shared weights, and several outputs."""
    random = np.random.default_rng(seed)
    with tracing() as trace:
        weight = trace.input(TensorType((2, 2, 2, 3)), "weight")
        values = [trace.input(TensorType((2, 2, 4, 4)), "x"), trace.input(TensorType((4, 1)), "y")]
        values[1] = values[0] * values[1]
        for _ in range(int(random.integers(3, 9))):
            a, b = (values[i] for i in random.integers(0, len(values), 2))
            choice = int(random.integers(0, 4))
            if choice == 0 and a.shape[1] == 2 and min(a.shape[2:]) > 2:
                (out,) = trace.apply(ops.Conv2d((1, 1), ((1, 0), (1, 1))), a, weight)
            elif choice == 1 and (a.shape == b.shape):
                (out,) = trace.apply(PAIRS[int(random.integers(0, len(PAIRS)))], a, b)
            else:
                (out,) = trace.apply(OPERATORS[int(random.integers(0, len(OPERATORS)))], a)
            values.append(out)
        return trace.graph([values[-1], values[-2] * 0.5, values[int(random.integers(2, 4))]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tens", range(10))
def test_random_graphs(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        check_random_graph(seed)


@pytest.mark.full
@pytest.mark.parametrize("hundreds", range(1, 11))
def test_many_random_graphs(hundreds: int) -> None:
    for seed in range(100 * hundreds, 100 * hundreds + 100):
        check_random_graph(seed)


def check_random_graph(seed: int) -> None:
    graph = with_loss(random_graph(seed))
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal(value.shape) for value in graph.inputs]
    of = differentiable(graph)
    found = gradients(graph, of, inputs)
    directions = [random.standard_normal(value.shape) for value in of]
    products = [a * b for a, b in zip(found, directions, strict=True)]
    magnitude = sum(np.abs(p).sum() for p in products)
    # A kink may lie within a step, but hardly within two of them.
    errors = [
        abs(differences(graph, of, inputs, directions, step) - sum(p.sum() for p in products))
        for step in (1e-5, 1e-6)
    ]
    assert min(errors) <= 1e-5 * magnitude, seed


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "op",
    [
        *(ops.Conv2d((2, 1), ((1, 0), (0, 2)), (1, 2), 2), ops.Linear(), ops.MatMul()),
        *(ops.Softmax(1), ops.LogSoftmax(1), ops.Sigmoid(), ops.GELU(), ops.LayerNorm(1)),
        *(ops.GroupNorm(2), ops.AvgPool2d((2, 2), (1, 1)), ops.MaxPool2d((2, 2), (1, 1), (1, 1))),
        *(ops.Reduce("prod", (1,)), ops.Reduce("max", (1,)), ops.Pad((0, 1), (1, 0), "wrap")),
        ops.Div(),
    ],
    ids=str,
)
def test_second_derivatives(op: ops.Conv2d) -> None:
    """The gradient of (a direction times the gradient) is the gradient's change along it."""
    shapes: list[tuple[int, ...]] = [(2, 4, 4, 3)]
    if isinstance(op, ops.Conv2d):
        shapes.append((4, 2, 2, 2))
    elif isinstance(op, (ops.Linear, ops.MatMul, ops.Div, ops.Pad, ops.Reduce)):
        shapes = [(3, 4)] if isinstance(op, (ops.Pad, ops.Reduce)) else [(3, 4), (4, 4)]
        shapes = [(4, 4), (4, 4)] if isinstance(op, ops.Div) else shapes
    with tracing() as trace:
        operands = [trace.input(TensorType(s), f"x{i}") for i, s in enumerate(shapes)]
        outputs = trace.apply(op, *operands)
        graph = trace.graph([(outputs[0] * outputs[0] * outputs[0]).mean()], ["loss"])
    graph = md.gradient(graph, "loss", graph.inputs)
    count = len(graph.inputs)
    graph = with_loss(Graph(graph.inputs, graph.outputs[1:], graph.nodes))
    random = np.random.default_rng(3)
    inputs = [random.uniform(0.5, 2.0, value.shape) for value in graph.inputs]
    of = graph.inputs[:count]
    found = gradients(graph, of, inputs)
    directions = [random.standard_normal(value.shape) for value in of]
    products = [a * b for a, b in zip(found, directions, strict=True)]
    change = differences(graph, of, inputs, directions)
    magnitude = sum(np.abs(p).sum() for p in products)
    assert abs(change - sum(p.sum() for p in products)) <= 1e-6 * magnitude + 1e-9


def test_passes_keep_the_numbers() -> None:
    """What a gradient is made of fuses and is planned like any other graph."""
    net = L.Sequential(
        *(L.Conv2d(3, 4, 3, padding=1), L.BatchNorm2d(4), L.ReLU(), L.MaxPool2d(2)),
        *(L.Conv2d(4, 4, 1), L.Sigmoid(), L.AvgPool2d(2), L.Flatten(), L.Linear(16, 5)),
        L.LogSoftmax(1),
    )
    graph = with_loss(to_graph(net, (2, 3, 8, 8), states=True))
    whole = md.gradient(graph, "loss", [graph.inputs[0], "0.weight", "8.bias"])
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
    compiled = md.compile(whole, device="reference")(*inputs)
    for actual, expected in zip(compiled, evaluate(whole, inputs, "float64"), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


def test_users_own_operators() -> None:
    @dataclass(frozen=True)
    class Cubed(Activation):
        def formula(self, x: Expression) -> Expression:
            return x * x * x

    @dataclass(frozen=True)
    class Turned(Movement):
        def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
            return inputs

        def move(self, *inputs: np.ndarray) -> np.ndarray:
            return inputs[0][::-1]

    def graph() -> Graph:
        with tracing() as trace:
            x = trace.input(TensorType((3,)), "x")
            (cubed,) = trace.apply(Cubed(), x)
            (turned,) = trace.apply(Turned(), cubed)
            return trace.graph([(turned * np.arange(3.0)).sum()], ["loss"])

    with pytest.raises(UnsupportedError, match=r"node 'turned' \(Turned\(\)\) has no gradient: "):
        md.gradient(graph(), "loss", "x")

    @rule(Turned)
    def turned(call: Backward) -> list[Value | None]:
        assert call.wanted == (True,)
        return [call.gradient[::-1]]

    try:
        (found,) = evaluate(md.gradient(graph(), "loss", "x"), [np.array([1.0, 2, 3])])[1:]
    finally:
        del RULES[Turned]
    np.testing.assert_array_equal(found, [2 * 3, 1 * 12, 0])


def test_a_loss_of_several_elements() -> None:
    with pytest.raises(GraphError, match=r"loss=%mul: .*\[2, 3\].* has 6 elements; valid is a"):
        md.gradient(squared(), "y", "x")


def test_what_the_loss_does_not_reach_is_named() -> None:
    with tracing() as trace:
        x, a, b = (trace.input(TensorType((3,)), name) for name in "xab")
        place = x.argmax(0).astype("float32")
        graph = trace.graph([place * a.sum(), b * 2.0], ["loss", "other"])
    with pytest.raises(GraphError, match="does not depend on 'x', 'b'; valid are values that it"):
        md.gradient(graph, "loss", ["x", "a", "b"])


@pytest.mark.parametrize(
    ("loss", "of", "message"),
    [
        ("los", "x", "loss='los' is no value of graph 'squared'; did you mean 'loss'?"),
        ("loss", "w", "of='w' is no value of graph 'squared'; valid are names of outputs"),
        ("loss", [], "of is empty; valid are one or more values"),
        ("loss", [3], "of=3 is a int; valid are values of the graph and their names"),
        (
            "loss",
            Constant(TensorType((2,)), "c", np.zeros(2, np.float32)),
            r"of=%c: float32\[2\] is no value of graph 'squared'",
        ),
    ],
)
def test_names(loss: str, of: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        md.gradient(squared(), loss, of)


def test_optimized_graphs_are_refused() -> None:
    from minidnn.passes.pipeline import optimize

    graph = optimize(to_graph(L.Sequential(L.ReLU(), L.Tanh()), (1, 1, 1, 1)))
    with pytest.raises(UnsupportedError, match="must be taken before it is optimized"):
        md.gradient(graph, graph.outputs[0], graph.inputs)


def test_nodes_are_looked_up_by_the_bits_of_their_constants() -> None:
    """x / 0.0 is not x / -0.0."""

    def filled(value: float) -> Constant:
        return Constant(TensorType((2,)), "c", np.full(2, value, np.float32))

    (read, *_) = squared((2,)).inputs
    for value, other in ((0.0, -0.0), (-0.0, 0.0), (np.nan, 1.0)):
        node = Node(ops.Div(), [read, filled(value)], "node")
        recorded = Recorded(Graph([read], node.outputs, [node]))
        assert recorded.apply(node.op, read, filled(value)) == node.outputs
        assert recorded.apply(node.op, read, filled(other)) != node.outputs
