"""Derivatives of scalar expressions: every operation, ties, NaN, infinities, what overflows."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from minidnn.gradients.scalar import TERMS, arguments_of, derivative, renumbered, with_result
from minidnn.graph import expression as scalar
from minidnn.graph.expression import (
    Expression,
    apply,
    argument,
    evaluate,
    exp,
    linearize,
    log,
    log1p,
    maximum,
    minimum,
    sigmoid,
    tanh,
    where,
)
from minidnn.graph.scalar_functions import at_least, at_most, root
from minidnn.graph.scalar_functions import softplus as softplus_of
from minidnn.graph.scalar_ops import SCALAR_OPS

X, Y, SEED = argument(0), argument(1), argument(2)
INF, NAN = math.inf, math.nan

#: Points away from kinks, at which each operation is defined.
POINTS = np.array([0.3, 0.55, 1.25, 2.1, 3.4])


def slopes(
    expression: Expression,
    *points: list[float] | np.ndarray,
    index: int = 0,
    seed: float = 1.0,
    dtype: str = "float64",
) -> np.ndarray:
    """The derivative at points; 0 where there is none."""
    given = [np.array(each, dtype) for each in points]
    found = derivative(expression, index, SEED)
    if found is None:
        return np.zeros_like(given[0])
    given += [given[0]] * (2 - len(given))
    return evaluate(found, (*given, np.full_like(given[0], seed)))


@pytest.mark.parametrize("op", SCALAR_OPS)
def test_every_operation_by_differences(op: str) -> None:
    arity = SCALAR_OPS[op].arity
    operands = [X, Y, 0.7 * X * Y][:arity]
    if op == "where":
        operands = [X < 2.0 * Y, X * X, Y]
    expression = scalar.number(apply(op, *operands))
    y, h = POINTS[::-1] + 0.07, 1e-6
    for index in range(2):
        ahead = [POINTS + h * (index == 0), y + h * (index == 1)]
        behind = [POINTS - h * (index == 0), y - h * (index == 1)]
        expected = (evaluate(expression, ahead) - evaluate(expression, behind)) / (2 * h)
        found = slopes(expression, POINTS, y, index=index)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_terms_are_those_of_operations() -> None:
    assert {op: len(terms) for op, terms in TERMS.items()} == {
        op: SCALAR_OPS[op].arity for op in TERMS
    }


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (tanh(X), "x2 * (1.0 - (tanh(x0) * tanh(x0)))"),
        (exp(X), "x2 * exp(x0)"),
        (maximum(X, 0.0), "where(maximum(x0, 0.0) <= 0.0, 0.0, x2)"),
        (where(X > 0, X, 0.1 * X), "where(x0 > 0.0, x2, x2 * 0.1)"),
        (X + 3.0, "x2"),
    ],
    ids=str,
)
def test_text(expression: Expression, found: str) -> None:
    assert str(derivative(expression, 0, SEED)) == found


def test_by_result() -> None:
    y = argument(1)
    found = derivative(sigmoid(X), 0, SEED)
    assert found is not None
    by_result = with_result(found, sigmoid(X), y)
    assert arguments_of(by_result) == [1, 2]
    values = np.array([0.25, 0.5]), np.array([0.25, 0.5]), np.array([1.0, -2.0])
    np.testing.assert_allclose(evaluate(by_result, values), [0.25 * 0.75, -0.5])
    order = renumbered(by_result, [2, 1])
    np.testing.assert_array_equal(
        evaluate(order, [values[2], values[1]]), evaluate(by_result, values)
    )


def test_what_does_not_change_has_no_derivative() -> None:
    for expression in (Y, scalar.constant(2.0), scalar.floor(X), scalar.number(X < Y)):
        assert derivative(expression, 0, SEED) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponentials_that_overflow(dtype: str) -> None:
    points = [-INF, -1e4, -800.0, -100.0, 0.0, 100.0, 800.0, 1e4, INF]
    steps = [0.0, 0, 0, 0, 0.5, 1, 1, 1, 1]

    def close(expression: Expression, at: list[float], expected: list[float]) -> None:
        found = slopes(expression, at, dtype=dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)

    close(sigmoid(X), points, [0, 0, 0, 0, 0.25, 0, 0, 0, 0])
    for softplus in (log1p(exp(X)), log(1.0 + exp(X)), log(exp(X) + 1.0)):
        close(softplus, points, steps)
    close(X / (1.0 + exp(-X)), points[1:-1], steps[1:-1])
    close(log(exp(X)), points, [1.0] * len(points))


def test_choices_are_no_products() -> None:
    relu, leaky = maximum(X, 0.0), where(X > 0, X, 0.0)
    hardswish = X * minimum(maximum(X + 3.0, 0.0), 6.0) / 6.0
    for expression in (relu, leaky, 2.0 * relu, relu / 3.0, -relu):
        np.testing.assert_array_equal(slopes(expression, [-1.0, -INF], seed=INF), 0.0)
    np.testing.assert_array_equal(slopes(hardswish, [-INF, INF, -4.0, 4.0]), [0, 1, 0, 1])


def test_limits_win_over_what_they_limit() -> None:
    relu6 = minimum(maximum(X, 0.0), 6.0)
    np.testing.assert_array_equal(slopes(relu6, [-1, 0, 1, 6, 7]), [0, 0, 1, 0, 0])
    np.testing.assert_array_equal(slopes(maximum(0.0, X), [-1, 0, -0.0, 1]), [0, 0, 0, 1])
    np.testing.assert_array_equal(slopes(abs(X), [-2, -0.0, 0, 2]), [-1, 0, 0, 1])


@pytest.mark.parametrize("function", [maximum, minimum])
def test_two_equal_operands_get_one_half_each(function: object) -> None:
    expression = function(X, Y)  # type: ignore[operator]
    for index in (0, 1):
        assert slopes(expression, [1.0], [1.0], index=index) == 0.5
    assert slopes(function(X, X), [1.0]) == 1.0  # type: ignore[operator]


def test_powers() -> None:
    np.testing.assert_array_equal(slopes(apply("pow", X, 3.0), [0, -2, 2]), [0, 12, 12])
    np.testing.assert_array_equal(slopes(apply("pow", X, 0.0), [0, -2]), [0, 0])
    np.testing.assert_array_equal(slopes(apply("pow", X, 1.0), [0, -2]), [1, 1])
    power = apply("pow", X, Y)
    np.testing.assert_array_equal(slopes(power, [0.0, 2.0], [0.0, 0.0]), [0, 0])
    np.testing.assert_array_equal(slopes(power, [0.0, 1.0], [2.0, 2.0], index=1), [0, 0])


def test_logarithms_of_exponentials_are_exact_far_from_0() -> None:
    points = np.array([-700.0, -50.0, -20.0, 0.0, 20.0, 700.0])
    for softplus in (log1p(exp(X)), log(1.0 + exp(X)), log(exp(X) + 1.0), softplus_of(X)):
        expected = np.exp(-np.logaddexp(0.0, -points))
        np.testing.assert_allclose(slopes(softplus, points), expected, rtol=1e-14)


def test_quotients_by_what_is_nearly_nothing() -> None:
    tiny = 5e-324
    np.testing.assert_array_equal(slopes(X / Y, [0.0, 0.0], [tiny, -tiny], index=1), 0.0)
    inverse = 1.0 / X
    np.testing.assert_array_equal(slopes(inverse * inverse, [0.0, -0.0, INF]), [-INF, INF, 0.0])


@pytest.mark.parametrize(
    ("limit", "function"), [(at_least, torch.clamp_min), (at_most, torch.clamp_max)]
)
def test_bounds_are_those_of_clamp(limit: object, function: object) -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 5e-324, INF, -INF, NAN]
    x, bound = np.array(list(product(numbers, repeat=2))).T
    leaves = [torch.from_numpy(each.copy()).requires_grad_() for each in (x, bound)]
    value = function(*leaves)  # type: ignore[operator]
    expression = limit(X, Y)  # type: ignore[operator]
    np.testing.assert_array_equal(evaluate(expression, [x, bound]), value.detach().numpy())
    for index, wanted in enumerate(torch.autograd.grad(value.sum(), leaves)):
        np.testing.assert_array_equal(slopes(expression, x, bound, index=index), wanted.numpy())


def test_roots_have_a_slope_at_0() -> None:
    np.testing.assert_array_equal(slopes(root(X * X), [0.0, 2.0, -2.0]), [0.0, 1.0, -1.0])
    assert np.isnan(slopes(root(X), [NAN])).all()


def test_nan_stays_nan_but_passes_limits() -> None:
    for expression in (X * X, tanh(X), sigmoid(X), exp(X)):
        assert np.isnan(slopes(expression, [NAN])).all()
    assert slopes(maximum(X, 0.0), [NAN]) == 1.0  # as in PyTorch, and so are these
    assert slopes(abs(X), [NAN]) == 0.0
    assert slopes(maximum(X, Y), [NAN, 1.0], [1.0, NAN]).tolist() == [1.0, 1.0]


def test_shared_subexpressions_stay_shared() -> None:
    deep, choices = X, X
    for _ in range(60):
        deep = deep * deep + 1.0
        choices = abs(choices) * 0.5 + where(choices > 0.1, choices, 0.2)
    for expression in (deep, choices):
        found = derivative(expression, 0, SEED)
        assert found is not None
        assert len(linearize(found)) < 6000


def test_second_derivatives() -> None:
    for expression in (sigmoid(X), tanh(X) * X, log1p(exp(X)), apply("pow", X, 3.0)):
        first = derivative(expression, 0, scalar.constant(1.0))
        assert first is not None
        h = 1e-5
        expected = (evaluate(first, [POINTS + h]) - evaluate(first, [POINTS - h])) / (2 * h)
        np.testing.assert_allclose(slopes(first, POINTS), expected, rtol=1e-7, atol=1e-9)
