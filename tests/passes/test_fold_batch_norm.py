"""fold_batch_norm: into the weights before it, else a scale and a shift."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType
from minidnn.passes.fold import FOLD_BATCH_NORM, no_constant_batch_norms
from minidnn.passes.infrastructure import Context, Pass, run_passes
from tests.passes.build import (
    assert_same,
    constant,
    conv,
    expect,
    graph_of,
    inputs_of,
    linear,
    norm,
    ops_of,
    relu,
    run,
    value_of,
)

X = (2, 4, 6, 6)


def test_into_convolutions_with_and_without_bias_else_scale_and_shift() -> None:
    def build(t, x):
        y = norm(t, conv(t, norm(t, x), 3, 3, bias=True))
        return norm(t, relu(norm(t, conv(t, y, 4, groups=1))))

    before = graph_of(build, X)
    after = run(before, FOLD_BATCH_NORM)
    expect(
        after,
        """
        g(%x0: float32[2, 4, 6, 6]) {
          %batchnorm: float32[2, 4, 6, 6] = ScaleShift()(%x0, @batchnorm.scale, @batchnorm.shift)
          %conv2d: float32[2, 3, 6, 6] = Conv2d(padding=((1, 1), (1, 1)))(%batchnorm, @conv2d.folded_weight, @batchnorm.1.folded_bias)
          %conv2d.1: float32[2, 4, 6, 6] = Conv2d()(%conv2d, @conv2d.1.folded_weight, @batchnorm.2.folded_bias)
          %relu: float32[2, 4, 6, 6] = ReLU()(%conv2d.1)
          %batchnorm.3: float32[2, 4, 6, 6] = ScaleShift()(%relu, @batchnorm.3.scale, @batchnorm.3.shift)
          return %batchnorm.3
        }
        """,  # noqa: E501
    )
    assert_same(before, after, 1e-5)


def test_grouped_and_depthwise_convolutions() -> None:
    def build(t, x):
        w = constant(t, (8, 1, 3, 3), "w")
        return norm(t, apply(ops.Conv2d(padding=((1, 0), (0, 2)), groups=4), x, w))

    before = graph_of(build, X)
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Conv2d"]
    assert_same(before, after, 1e-5)


def test_the_new_constants_are_rounded_once() -> None:
    """Weights and bias are those of a float64 computation, to the last bit."""
    before = graph_of(lambda t, x: norm(t, conv(t, x, 5, 3, bias=True)), X)
    _, w, b, m, v = (None, *(value_of(c).astype(np.float64) for c in before.nodes[1].inputs[1:]))
    weight, bias = (value_of(c).astype(np.float64) for c in before.nodes[0].inputs[1:])
    scale = w / np.sqrt(v + 1e-5)
    new_weight, new_bias = map(value_of, run(before, FOLD_BATCH_NORM).nodes[0].inputs[1:])
    expected = (weight * scale[:, None, None, None]).astype(np.float32)
    np.testing.assert_array_equal(new_weight, expected)
    np.testing.assert_array_equal(new_bias, (bias * scale + (b - m * scale)).astype(np.float32))


def test_after_a_linear_layer_of_rank_2() -> None:
    before = graph_of(lambda t, x: norm(t, linear(t, x, 5)), (3, 7))
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Linear"]
    assert_same(before, after, 1e-5)


def test_linear_features_that_are_no_channels_are_left() -> None:
    """Of (N, C, F), linear makes features of the last axis; normalization is over axis 1."""
    before = graph_of(lambda t, x: norm(t, linear(t, x, 5)), (3, 5, 7))
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Linear", "ScaleShift"]
    assert_same(before, after, 1e-5)


def test_a_contraction_with_other_readers_keeps_its_weights() -> None:
    def build(t, x):
        y = conv(t, x, 4)
        return norm(t, y), relu(y)

    before = graph_of(build, X)
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Conv2d", "ScaleShift", "ReLU"]
    assert_same(before, after, 1e-5)


def test_a_contraction_that_is_an_output_keeps_its_weights() -> None:
    def build(t, x):
        y = conv(t, x, 4)
        return y, norm(t, y)

    assert ops_of(run(graph_of(build, X), FOLD_BATCH_NORM)) == ["Conv2d", "ScaleShift"]


def test_weights_that_are_computed_are_left() -> None:
    def build(t, x, w):
        return norm(t, apply(ops.Conv2d(), x, w))

    before = graph_of(build, X, (3, 4, 1, 1))
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Conv2d", "ScaleShift"]
    assert_same(before, after, 1e-5)


def test_of_statistics_that_are_computed_the_scale_is_one_vector() -> None:
    def build(t, x, mean):
        w, b, v = (constant(t, (4,), n) for n in ("w", "b", "v"))
        return apply(ops.BatchNorm(), conv(t, x, 4), w, b, mean, v)

    before = graph_of(build, X, (4,))
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Conv2d", "Scale", "BatchNorm"]
    assert len(after.nodes[-1].inputs) == 4
    assert_same(before, after, 1e-5)


def test_one_weight_in_two_convolutions_folds_into_two() -> None:
    def build(t, x):
        w = constant(t, (4, 4, 1, 1), "w")
        return [norm(t, apply(ops.Conv2d(), x, w)) for _ in range(2)]

    before = graph_of(build, X)
    after = run(before, FOLD_BATCH_NORM)
    assert [c.name for c in after.constants] == [
        "conv2d.folded_weight",
        "batchnorm.folded_bias",
        "conv2d.1.folded_weight",
        "batchnorm.1.folded_bias",
    ]
    assert_same(before, after, 1e-5)


def test_normalizations_in_a_row() -> None:
    """The first folds; the second no longer follows the contraction."""
    before = graph_of(lambda t, x: norm(t, norm(t, conv(t, x, 4))), X)
    after = run(before, FOLD_BATCH_NORM)
    assert ops_of(after) == ["Conv2d", "ScaleShift"]
    assert_same(before, after, 1e-5)


def test_a_variance_of_zero_and_no_eps() -> None:
    def build(t, x):
        parts = [constant(t, (4,), n) for n in ("w", "b", "m")]
        zero = t.constant(object(), "v", TensorType((4,)), lambda: np.zeros(4, np.float32))
        return apply(ops.BatchNorm(eps=0.0), conv(t, x, 4), *parts, zero)

    before = graph_of(build, X)
    (got,) = evaluate(run(before, FOLD_BATCH_NORM), inputs_of(before))
    assert not np.isfinite(got).any()


def test_fuel_stops_between_foldings() -> None:
    def build(t, x):
        return norm(t, relu(norm(t, conv(t, norm(t, conv(t, x, 4)), 4))))

    before = graph_of(build, X)
    seen = []
    for fuel in range(5):
        context = Context(fuel=fuel)
        after = run(before, FOLD_BATCH_NORM, context=context)
        assert_same(before, after, 1e-5)
        seen.append(ops_of(after))
        assert len(context.rewrites) == min(fuel, 3)
    tail = ["ReLU", "BatchNorm"]
    assert seen[0] == ["Conv2d", "BatchNorm", "Conv2d", "BatchNorm", *tail]
    assert seen[1] == ["Conv2d", "Conv2d", "BatchNorm", *tail]
    assert seen[2] == ["Conv2d", "Conv2d", *tail]
    assert seen[3] == seen[4] == ["Conv2d", "Conv2d", "ReLU", "ScaleShift"]


def test_the_contract() -> None:
    graph = graph_of(lambda t, x: norm(t, x), X)
    complaint = "node 'batchnorm' is a batch normalization with constant statistics"
    assert list(no_constant_batch_norms(graph)) == [complaint]
    lazy = Pass("fold_batch_norm", lambda g, c: g, ensures=FOLD_BATCH_NORM.ensures)
    with pytest.raises(GraphError, match=f"^pass fold_batch_norm broke its contract: {complaint}$"):
        run_passes(graph, [lazy], Context(), verify=True)
    assert FOLD_BATCH_NORM.requires == ("simplify",)


def test_nodes_keep_their_names_and_sources() -> None:
    def build(t, x):
        return norm(t, conv(t, x, 4))

    before = graph_of(build, X)
    (node,) = run(before, FOLD_BATCH_NORM).nodes
    assert isinstance(node, Node)
    assert (node.name, node.source) == ("conv2d", before.nodes[0].source)
    assert isinstance(before, Graph)
