"""simplify: what computes nothing is removed, what is known is computed."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.passes.infrastructure import Context, Pass, run_passes
from minidnn.passes.simplify import SIMPLIFY, flatten_concats, no_dead_nodes, no_identities
from tests.passes.build import (
    assert_same,
    constant,
    conv,
    expect,
    graph_of,
    join,
    max_pool,
    ops_of,
    relu,
    run,
    value_of,
)

X = (1, 4, 6, 6)
FACTORS = np.array([1.0, -2.0, 1e-20, -1e-20], np.float32)


def test_identities_are_dropped_and_dividing_pools_made_regular() -> None:
    def build(t, x):
        x = apply(ops.Dropout(), apply(ops.Identity(), x))
        x = max_pool(join(relu(x)), 1, 1, 0)
        x = apply(ops.AdaptiveAvgPool2d((3, 3)), x)
        return apply(ops.Flatten(), apply(ops.AdaptiveAvgPool2d((3, 3)), x))

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    expect(
        after,
        """
        g(%x0: float32[1, 4, 6, 6]) {
          %relu: float32[1, 4, 6, 6] = ReLU()(%x0)
          %adaptiveavgpool2d: float32[1, 4, 3, 3] = AvgPool2d(kernel_size=(2, 2), stride=(2, 2))(%relu)
          %flatten: float32[1, 36] = Flatten()(%adaptiveavgpool2d)
          return %flatten
        }
        """,  # noqa: E501
    )
    assert_same(before, after)


@pytest.mark.parametrize(
    "op",
    [
        ops.MaxPool2d((1, 1), (2, 1)),
        ops.AvgPool2d((1, 1), (1, 1), divisor_override=2),
        ops.MaxPool2d((2, 1), (1, 1)),
        ops.Reshape((4, 36)),
        ops.AdaptiveAvgPool2d((4, 4)),
        ops.ReLU(),
    ],
    ids=str,
)
def test_what_looks_like_an_identity_stays(op: ops.MaxPool2d) -> None:
    before = graph_of(lambda t, x: apply(op, x), X)
    assert run(before, SIMPLIFY) is before


def test_exact_looking_arithmetic_stays() -> None:
    """x * 1 and x + 0 change NaN payloads and the sign of zero."""

    def build(t, x):
        one = t.constant(object(), "one", x.type, lambda: np.ones(X, np.float32))
        return apply(ops.Mul(), x, one)

    before = graph_of(build, X)
    assert run(before, SIMPLIFY) is before


def test_a_product_with_a_constant_for_each_channel_scales() -> None:
    channels, rows, columns = X[1:]

    def scaled(*shape: int) -> list[str]:
        def build(t, x):
            return apply(ops.Mul(), constant(t, shape, "s"), apply(ops.Mul(), x, x))

        before = graph_of(build, X)
        result = run(before, SIMPLIFY)
        assert_same(before, result)
        return ops_of(result)

    assert scaled(channels, 1, 1) == scaled(1, channels, 1, 1) == ["Mul", "ScaleShift"]
    assert scaled(1, 1, 1) == scaled(channels, rows, 1) == scaled(columns) == ["Mul", "Mul"]


def test_a_join_that_is_read_by_a_join_and_by_its_part_becomes_part_of_it() -> None:
    def build(t, x):
        inner = join(relu(x), x)
        return join(inner, join(x, inner), inner)

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    assert ops_of(after) == ["ReLU", "Concat"]
    assert_same(before, after)


def test_a_join_that_two_joins_read_stays() -> None:
    def build(t, x):
        inner = join(relu(x), x)
        return join(inner, x), join(x, inner)

    before = graph_of(build, X)
    assert run(before, SIMPLIFY) is before


def test_a_scale_keeps_the_signs_of_zeros() -> None:
    """They decide what a division by the product gives."""

    def build(t, x):
        factor = t.constant(object(), "s", TensorType((4, 1, 1)), lambda: FACTORS.reshape(4, 1, 1))
        return apply(ops.Div(), constant(t, (1,), "d"), apply(ops.Mul(), x, factor))

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    assert "ScaleShift" in ops_of(after)
    random = np.random.default_rng(0)
    numbers = np.array([0.0, -0.0, 1e-38, -1e-38, np.inf, 2.0], np.float32)
    given = [random.choice(numbers, X)]
    with np.errstate(all="ignore"):
        (expected,), (actual,) = evaluate(before, given), evaluate(after, given)
    assert np.isneginf(expected).any() and np.isposinf(expected).any()
    np.testing.assert_array_equal(actual, expected)


def test_a_product_of_whole_numbers_stays() -> None:
    channels = X[1]

    def build(t, x):
        factor = np.arange(channels).reshape(-1, 1, 1)
        type = TensorType(factor.shape, "int64")
        return apply(ops.Mul(), x, t.constant(object(), "s", type, lambda: factor))

    before = graph_of(build, X, dtype="int64")
    assert run(before, SIMPLIFY) is before


def test_a_product_of_constants_is_computed() -> None:
    def build(t, x):
        return apply(ops.Add(), x, apply(ops.Mul(), constant(t, X), constant(t, (X[1], 1, 1))))

    before = graph_of(build, X)
    result = run(before, SIMPLIFY)
    assert_same(before, result)
    assert ops_of(result) == ["Add"]


def test_dead_nodes_are_dropped_with_what_only_they_read() -> None:
    def build(t, x):
        kept = relu(x)
        conv(t, apply(ops.Tanh(), kept), 2)
        return kept

    context = Context()
    after = run(graph_of(build, X), SIMPLIFY, context=context)
    assert ops_of(after) == ["ReLU"]
    assert [rewrite.description for rewrite in context.rewrites] == [
        "drop conv2d, which nobody reads",
        "drop tanh, which nobody reads",
    ]


def test_constants_are_computed_only_when_they_are_asked_for() -> None:
    def build(t, x):
        c = apply(ops.Add(), constant(t, X, "c"), constant(t, (1, 4, 1, 1), "d"))
        return apply(ops.Mul(), x, relu(c))

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    assert ops_of(after) == ["Mul"]
    assert_same(before, after)
    (c, d) = before.constants
    np.testing.assert_array_equal(
        value_of(after.nodes[0].inputs[1]), np.maximum(value_of(c) + value_of(d), 0)
    )


def test_an_output_may_become_an_input_or_a_constant() -> None:
    def build(t, x):
        return apply(ops.Dropout(), x), apply(ops.Identity(), constant(t, X, "c"))

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    assert after.nodes == ()
    assert after.outputs == (after.inputs[0], before.constants[0])
    assert_same(before, after)


def test_an_identity_with_several_readers_and_as_an_output() -> None:
    def build(t, x):
        kept = apply(ops.Identity(), relu(x))
        return kept, apply(ops.Tanh(), kept), apply(ops.Add(), kept, kept)

    before = graph_of(build, X)
    after = run(before, SIMPLIFY)
    assert ops_of(after) == ["ReLU", "Tanh", "Add"]
    assert after.outputs[0] is after.nodes[0].output
    assert_same(before, after)


def test_the_contract_names_what_breaks_it() -> None:
    def build(t, x):
        relu(x)
        return apply(ops.Dropout(), x)

    graph = graph_of(build, X)
    assert list(no_identities(graph)) == ["node 'dropout' (Dropout()) is an identity"]
    assert list(no_dead_nodes(graph)) == ["nobody reads node 'relu'"]
    lazy = Pass("simplify", lambda graph, context: graph, ensures=SIMPLIFY.ensures)
    with pytest.raises(GraphError) as caught:
        run_passes(graph, [lazy], Context(), verify=True)
    assert str(caught.value) == (
        "pass simplify broke its contract: node 'dropout' (Dropout()) is an identity; "
        "nobody reads node 'relu'"
    )
    assert run_passes(graph, [lazy], Context()) is graph, "facts are checked when asked for"
    assert run_passes(graph, [lazy], Context(fuel=0), verify=True) is graph


def test_nothing_to_do_gives_the_same_graph() -> None:
    x = Value(relu_graph().inputs[0].type, "x")
    assert run(Graph([x], [x], []), SIMPLIFY).nodes == ()
    graph = relu_graph()
    assert run(graph, SIMPLIFY) is graph


def relu_graph() -> Graph:
    return graph_of(lambda t, x: relu(x), X)


def test_joins_of_joins_become_one() -> None:
    def build(t, x, y):
        inner = join(join(relu(x), y), relu(y))
        return join(inner, join(x, x, axis=1), x, axis=-3)

    before = graph_of(build, X, X)
    after = run(before, SIMPLIFY)
    expect(
        after,
        """
        g(%x0: float32[1, 4, 6, 6], %x1: float32[1, 4, 6, 6]) {
          %relu: float32[1, 4, 6, 6] = ReLU()(%x0)
          %relu.1: float32[1, 4, 6, 6] = ReLU()(%x1)
          %concat.3: float32[1, 24, 6, 6] = Concat(axis=-3)(%relu, %x1, %relu.1, %x0, %x0, %x0)
          return %concat.3
        }
        """,
    )
    assert_same(before, after)
    for fuel in range(4):
        assert_same(before, run_passes(before, [SIMPLIFY], Context(fuel=fuel), verify=True))


def test_joins_that_only_what_goes_keeps_apart_become_one() -> None:
    def build(t, x):
        inner = join(x, relu(x))
        relu(inner)  # which nobody reads
        return join(apply(ops.Identity(), inner), x)

    assert ops_of(run(graph_of(build, X), SIMPLIFY)) == ["ReLU", "Concat"]


def test_joins_that_stay_joins_of_joins() -> None:
    def build(t, x):
        other_axis, read_twice = join(x, x, axis=2), join(x, relu(x))
        kept = join(relu(other_axis), relu(other_axis))
        return join(read_twice, x), relu(read_twice), join(other_axis, other_axis, axis=1), kept

    before = graph_of(build, X)
    assert run(before, SIMPLIFY) is before
    contract_of_joins = graph_of(lambda t, x: join(join(x, x), x), X)
    (text,) = flatten_concats(contract_of_joins)
    assert text == "the concatenation 'concat' is only read by another along its axis"
