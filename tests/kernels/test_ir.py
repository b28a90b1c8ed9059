"""Expressions fold what is known; the interpreter refuses what no kernel may do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from minidnn.kernels.ir import (
    LANE,
    TASK,
    Expr,
    Kernel,
    Let,
    Param,
    Write,
    constant,
    select,
    variable,
)
from minidnn.kernels.render.ispc import split
from minidnn.kernels.schedule import AxisSchedule
from tests.kernels.by_numpy import run

A = variable("a")
X = Param("x", "float32")
Y = Param("y", "float32", is_written=True)
SIZE = AxisSchedule(keeps_sizes=True).size("axis", 7)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (A + 0, A),
        (constant(0) + A, A),
        (A * 1, A),
        (constant(1) * A, A),
        (A * 0, constant(0)),
        (A // 1, A),
        (A % 1, constant(0)),
        (constant(7) // 2, constant(3)),
        (constant(7) % 4 * 5, constant(15)),
        (select(constant(3) < 4, A, 9), A),
        (select(constant(4) < 4, A, 9), constant(9)),
        (A.cast("int64"), A),
        (AxisSchedule(keeps_sizes=True).size("axis", 1), constant(1)),
        (AxisSchedule().size("axis", 7), constant(7)),
    ],
)
def test_what_is_known_is_folded(made: Expr, expected: Expr) -> None:
    assert made == expected


def test_numbers_of_floats_are_not_folded() -> None:
    """A product with 1 makes a signalling NaN a quiet one."""
    value = variable("v", "float32")
    assert (value * 1.0).op == "mul"


def test_constants_that_are_equal_are_the_same() -> None:
    with pytest.raises(ValueError, match=r"a constant is -0\.0, which equals 0\.0"):
        constant(-0.0, "float32")


def test_sizes_do_not_tell_expressions_apart() -> None:
    made, other = (A * each for each in (SIZE, AxisSchedule(keeps_sizes=True).size("axis", 8)))
    assert made == other and hash(made) == hash(other) and made != A * 7


@pytest.mark.parametrize(
    ("index", "shared", "own"),
    [
        (TASK * 4 + LANE, TASK * 4, LANE),
        (TASK * SIZE + (A + LANE), TASK * SIZE + A, LANE),
        ((TASK + LANE) * 4 + 3, TASK * 4 + 3, LANE * 4),
        ((TASK + LANE) // 4, constant(0), (TASK + LANE) // 4),
        (TASK * 4 + A, TASK * 4 + A, constant(0)),
        (LANE, constant(0), LANE),
    ],
)
def test_addresses_are_split(index: Expr, shared: Expr, own: Expr) -> None:
    assert split(index, {LANE}) == (shared, own)


def computed(index: Expr, value: Expr) -> None:
    arrays = {"x": np.ones(4, np.float32), "y": np.zeros(4, np.float32)}
    run(Kernel("wrong", (X, Y), 4, None, (Write(Y, index, value),)), arrays)


def named(value: Expr) -> None:
    arrays = {"x": np.ones(4, np.float32), "y": np.zeros(4, np.float32)}
    body = Let(variable("v", "float32"), value), Write(Y, TASK, variable("v", "float32"))
    run(Kernel("named", (X, Y), 4, None, body), arrays)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: computed(TASK + 1, X[TASK]), IndexError, "elements 1 to 4 of 4"),
        (lambda: computed(TASK, X[TASK - 1]), IndexError, "elements -1 to 2 of 4"),
        (lambda: computed(TASK % 2, X[TASK]), IndexError, "two points write one element of y"),
        (lambda: computed(TASK, X[(TASK - 3) // 4]), ZeroDivisionError, "negative number"),
        (lambda: named(Y[TASK]), ValueError, "v reads what the kernel writes"),
    ],
)
def test_the_interpreter_refuses(
    make: Callable[[], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
    computed(TASK, X[TASK])
    named(X[TASK])
