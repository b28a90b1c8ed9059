"""Scalar expressions: what they compute, their straight-line code, their text, their JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidnn import scalar
from minidnn.errors import GraphError
from minidnn.graph.expression import (
    Expression,
    Instruction,
    apply,
    argument,
    arguments,
    constant,
    evaluate,
    from_json,
    linearize,
    operations,
    to_json,
)
from minidnn.graph.scalar_ops import COMPARISONS, SCALAR_OPS

x, y, z = argument(0), argument(1), argument(2)
POINTS = np.array([-3.0, -0.5, 0.0, 0.25, 1.0, 2.5])

#: How each scalar operation is written, and what it means by Python's own floats.
MEANING: dict[str, tuple[Expression, Callable[..., float]]] = {
    "add": (x + y, lambda a, b: a + b),
    "sub": (x - y, lambda a, b: a - b),
    "mul": (x * y, lambda a, b: a * b),
    "div": (x / (abs(y) + 1), lambda a, b: a / (abs(b) + 1)),
    "fma": (scalar.fma(x, y, 2), lambda a, b: a * b + 2),
    "neg": (-x, lambda a, b: -a),
    "abs": (abs(x), lambda a, b: abs(a)),
    "maximum": (scalar.maximum(x, y), max),
    "minimum": (scalar.minimum(x, y), min),
    "floor": (scalar.floor(x), lambda a, b: math.floor(a)),
    "round": (scalar.rint(x), lambda a, b: round(a)),
    "sqrt": (scalar.sqrt(abs(x)), lambda a, b: math.sqrt(abs(a))),
    "exp": (scalar.exp(x), lambda a, b: math.exp(a)),
    "expm1": (scalar.expm1(x), lambda a, b: math.expm1(a)),
    "log": (scalar.log(abs(x) + 1), lambda a, b: math.log(abs(a) + 1)),
    "log1p": (scalar.log1p(abs(x)), lambda a, b: math.log1p(abs(a))),
    "tanh": (scalar.tanh(x), lambda a, b: math.tanh(a)),
    "erf": (scalar.erf(x), lambda a, b: math.erf(a)),
    "sin": (scalar.sin(x), lambda a, b: math.sin(a)),
    "cos": (scalar.cos(x), lambda a, b: math.cos(a)),
    "atan": (scalar.atan(x), lambda a, b: math.atan(a)),
    "pow": ((abs(x) + 1) ** y, lambda a, b: (abs(a) + 1) ** b),
    "lt": (scalar.where(x < y, 1, 2), lambda a, b: 1 if a < b else 2),
    "le": (scalar.where(x <= y, 1, 2), lambda a, b: 1 if a <= b else 2),
    "gt": (scalar.where(x > y, 1, 2), lambda a, b: 1 if a > b else 2),
    "ge": (scalar.where(x >= y, 1, 2), lambda a, b: 1 if a >= b else 2),
    "eq": (scalar.where(scalar.equal(x, y), 1, 2), lambda a, b: 1 if a == b else 2),
    "where": (scalar.where(x > y, x, y), lambda a, b: a if a > b else b),
}
MORE = (
    (1 - x, lambda a, b: 1 - a),
    (2 / (1 + abs(x)), lambda a, b: 2 / (1 + abs(a))),
    (2**x, lambda a, b: 2**a),
    (x**2, lambda a, b: a * a),
    (3 + x * 2, lambda a, b: 3 + a * 2),
    (scalar.clip(x, -1, 1), lambda a, b: min(max(a, -1), 1)),
    (scalar.sigmoid(x), lambda a, b: 1 / (1 + math.exp(-a))),
    ((x > 0) * y, lambda a, b: (a > 0) * b),
    (-(x > y), lambda a, b: -(a > b)),
    ((x > y) + (x > 0), lambda a, b: (a > b) + (a > 0)),
    (constant(4.5), lambda a, b: 4.5),
)


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [pytest.param(*pair, id=str(pair[0])) for pair in (*MEANING.values(), *MORE)],
)
def test_meaning(expression: Expression, meaning: Callable[..., float]) -> None:
    a, b = (v.ravel() for v in np.meshgrid(POINTS, POINTS))
    expected = [float(meaning(p, q)) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(evaluate(expression, (a, b)), expected, rtol=1e-15, atol=1e-300)
    single = evaluate(expression, (a.astype(np.float32), b.astype(np.float32)))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=1e-6, atol=1e-30)


def test_every_operation_is_tested() -> None:
    assert set(MEANING) == set(SCALAR_OPS)
    for op, (expression, _) in MEANING.items():
        assert op in {line.op for line in linearize(expression)}


def test_arrays_without_axes() -> None:
    for expression, meaning in MEANING.values():
        result = evaluate(expression, (np.array(0.5), np.array(-1.5)))
        assert result.shape == ()
        assert float(result) == pytest.approx(float(meaning(0.5, -1.5)), rel=1e-15)


def test_half_precision_is_rounded_once() -> None:
    a = np.arange(0, 1, 1 / 512).astype(np.float16)
    wide = 1 / (1 + np.exp(-a.astype(np.float32)))
    np.testing.assert_array_equal(evaluate(scalar.sigmoid(x), (a,)), wide.astype(np.float16))


def test_constants_take_the_operands_dtype() -> None:
    a = np.array([1.0], np.float32)
    assert evaluate(x + 0.1, (a,))[0] == np.float32(1) + np.float32(0.1)


def test_nan_wins() -> None:
    a, b = np.array([np.nan, 1.0]), np.array([1.0, np.nan])
    for expression in (scalar.maximum(x, y), scalar.minimum(x, y), scalar.maximum(x * y, 0)):
        assert np.isnan(evaluate(expression, (a, b))).all()


# Straight-line code


def test_linearize_shares_subexpressions() -> None:
    code = linearize((x + 1) * (x + 1) - (x + 1))
    assert code == (
        Instruction("argument", (), 0),
        Instruction("constant", (), 1.0),
        Instruction("add", (0, 1)),
        Instruction("mul", (2, 2)),
        Instruction("sub", (3, 2)),
    )


def test_operands_come_before_their_use_and_the_result_last() -> None:
    for expression, _ in (*MEANING.values(), *MORE):
        code = linearize(expression)
        assert code[-1].op == expression.op
        for i, line in enumerate(code):
            assert all(operand < i for operand in line.operands)
        assert len(set(code)) == len(code)


def test_signed_zeros_are_different_constants() -> None:
    signed = scalar.where(x > 0, 0.0, -0.0)
    assert [line.value for line in linearize(signed) if line.op == "constant"] == [0.0, -0.0]
    result = evaluate(signed, (np.array([1.0, -1.0]),))
    assert np.signbit(result).tolist() == [False, True]
    assert constant(0.0) != constant(-0.0)
    assert constant(math.nan) == constant(math.nan)


def test_long_and_shared_expressions() -> None:
    """Neither depth nor sharing costs more than the number of operations."""
    chain, doubled = x, x
    for _ in range(5000):
        chain = chain + 1
    for _ in range(200):
        doubled = doubled * doubled
    assert len(linearize(chain)) == 5002
    assert len(linearize(doubled)) == 201
    assert doubled == from_json(to_json(doubled))
    assert hash(doubled) == hash(from_json(to_json(doubled)))
    assert doubled != doubled * 1
    assert str(doubled) == "mul(... 201 operations ...)"
    assert evaluate(chain, (np.zeros(1),)) == 5000


def test_equality_is_by_what_is_computed() -> None:
    assert x + 1 == argument(0) + 1.0
    assert x + 1 != 1 + x
    assert len({x + 1, argument(0) + 1, x + 2}) == 2
    assert (x == 1) is False


def test_counts() -> None:
    assert operations(x) == 0
    assert operations(scalar.maximum(x, 0)) == 1
    assert operations(scalar.exp(x) + scalar.exp(x)) == SCALAR_OPS["exp"].operations + 1
    assert [arguments(e) for e in (constant(1), x, y + 1, x * z)] == [0, 1, 2, 3]


# Text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (scalar.where(x > 0, x, y * x), "where(x0 > 0.0, x0, x1 * x0)"),
        ((x + 1) * -x, "(x0 + 1.0) * neg(x0)"),
        (x - (y - z), "x0 - (x1 - x2)"),
        (scalar.fma(x, y + 1, z), "fma(x0, x1 + 1.0, x2)"),
    ],
)
def test_text(expression: Expression, text: str) -> None:
    assert str(expression) == text


# Errors


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            lambda: x if x > 0 else y,
            "the scalar expression x0 > 0.0 has no truth value while it is being described; "
            "choose between two expressions with where(condition, a, b)",
        ),
        (
            lambda: scalar.where(x == 0, x, y),  # type: ignore[arg-type]
            "operand False of scalar operation 'where' is a bool; valid are numbers and scalar "
            "expressions; == compares descriptions, equal(a, b) numbers",
        ),
        (
            lambda: scalar.where(x + 1, x, y),
            "the condition of where is x0 + 1.0; valid are <, <=, >, >=, equal",
        ),
        (
            lambda: x + "1",  # type: ignore[operator]
            "operand '1' of scalar operation 'add' is a str; valid are numbers and scalar "
            "expressions",
        ),
        (lambda: apply("neg", x, y), "scalar operation 'neg' takes 1 operands, got 2"),
    ],
)
def test_errors(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}$"):
        wrong()


# JSON

UNARY = sorted(op for op, known in SCALAR_OPS.items() if known.arity == 1)
BINARY = sorted(
    op for op, known in SCALAR_OPS.items() if known.arity == 2 and op not in COMPARISONS
)


def _grow(inner: Any) -> Any:
    return (
        st.builds(apply, st.sampled_from(UNARY), inner)
        | st.builds(apply, st.sampled_from(BINARY), inner, inner)
        | st.builds(scalar.fma, inner, inner, inner)
        | st.builds(lambda a, b, c, d: scalar.where(a <= b, c, d), inner, inner, inner, inner)
    )


EXPRESSIONS = st.recursive(
    st.builds(argument, st.integers(0, 3)) | st.builds(constant, st.floats(width=32)),
    _grow,
    max_leaves=12,
)


@settings(max_examples=200)
@given(EXPRESSIONS)
def test_json_round_trip(expression: Expression) -> None:
    back = from_json(json.loads(json.dumps(to_json(expression))))
    assert back == expression
    assert linearize(back) == linearize(expression)
    operands = [np.array([-1.5, 0.0, 0.75, np.inf])] * 4
    np.testing.assert_array_equal(evaluate(back, operands), evaluate(expression, operands))


VALID = "valid are ['argument', index], ['constant', float] and [operation, earlier lines ...]"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "not a scalar expression: None"),
        ([], "not a scalar expression: []"),
        ("exp", "not a scalar expression: 'exp'"),
        ([["argument", -1]], f"not a scalar expression: line 0 is ['argument', -1]; {VALID}"),
        ([["argument", True]], f"not a scalar expression: line 0 is ['argument', True]; {VALID}"),
        ([["constant", "1"]], f"not a scalar expression: line 0 is ['constant', '1']; {VALID}"),
        ([["constant", 10**400]], "not a scalar expression: line 0 is ['constant', 1000"),
        ([["eval", 0]], f"not a scalar expression: line 0 is ['eval', 0]; {VALID}"),
        ([["argument", 0], ["neg", 1]], "not a scalar expression: line 1 is ['neg', 1]"),
        ([["argument", 0], ["neg", -1]], "not a scalar expression: line 1 is ['neg', -1]"),
        ([["argument", 0], ["add", 0]], "scalar operation 'add' takes 2 operands, got 1"),
        ([["argument", 0], ["where", 0, 0, 0]], "the condition of where is x0; valid are <, <="),
    ],
)
def test_what_is_not_an_expression(data: Any, text: str) -> None:
    with pytest.raises(GraphError, match=f"^{re.escape(text)}"):
        from_json(data)
