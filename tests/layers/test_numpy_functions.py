"""Python's operators and NumPy's functions in ``forward`` and on symbols give what NumPy gives."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.numpy_functions import UFUNCS
from minidnn.layers.build import to_graph

SPECIAL = [-np.inf, -3.0, -1.5, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.5, np.inf, np.nan]
A = np.stack([np.resize(SPECIAL, (3, 4, 5)), np.linspace(-2, 2, 60).reshape(3, 4, 5)])
B = np.roll(A, 7).reshape(A.shape)


class Written(L.Layer):
    """A user's own layer, written as one function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def results(network: L.Layer, *arrays: np.ndarray, dtype: str = "float64") -> list[np.ndarray]:
    graph = to_graph(network, [array.shape for array in arrays])
    check(graph)
    return list(evaluate(graph, arrays, dtype=dtype))


def same(function: Callable[..., Any], *arrays: np.ndarray) -> None:
    """A function gives NumPy's results inside ``forward``, and on symbols."""
    with np.errstate(all="ignore"):
        expected = function(*arrays)
    (found,) = results(Written(function), *arrays)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=2e-12, atol=1e-15)
    symbols = [md.Input(array.shape[1:]) for array in arrays]
    net = md.Model(symbols, [function(*symbols), *symbols])
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(results(again, *arrays)[0], found)


ONE: list[Callable[[Any], Any]] = [
    lambda x: np.maximum(x, 0),
    lambda x: np.minimum(0.5, x),
    lambda x: x > 0,
    lambda x: x <= 0.5,
    lambda x: np.where(x > 0, x, 0.1 * x),
    lambda x: np.where(x > 0, 1, 0),
    lambda x: np.where((x > -1) & ~(x >= 2.5), x, -1.0),
    lambda x: np.where((x < -1) | (x > 1), True, x == 0.5) ^ (x > 2),
    lambda x: x * (x > 0),
    lambda x: (x > 0) * 2.0 + (x == 0.5),
    lambda x: x != 0,
    lambda x: x == x,
    lambda x: np.equal(x, np.inf),
    lambda x: x != x,
    abs,
    lambda x: +x,
    lambda x: x**2,
    lambda x: x**3,
    lambda x: 2**x,
    lambda x: x * True,
    lambda x: x.mean((2, 3)),
    lambda x: x.mean(axis=(-1, -2), keepdims=True),
    lambda x: np.mean(x, axis=1),
    lambda x: x.sum(1),
    lambda x: np.sum(x, axis=(1, 3), keepdims=True),
    lambda x: x.max(-1),
    lambda x: np.min(x, axis=2),
    lambda x: x.prod(3),
    lambda x: np.var(x, axis=1, ddof=1),
    lambda x: np.std(x, axis=(2, 3), keepdims=True),
    lambda x: np.argmax(x[:, :, :, 1:3], axis=3),
    lambda x: x.argmin(2),
    lambda x: (x > 0).sum(1),
    lambda x: (x[:, :2] > 0).mean((1, 2)),
    lambda x: np.clip(x, -1, 1),
    lambda x: x.clip(min=0.25),
    lambda x: np.clip(x, None, 0.5),
    lambda x: np.round(x),
    lambda x: x[:, 1],
    lambda x: x[:, :, ::2, 1:-1],
    lambda x: x[..., ::-1],
    lambda x: x[:, None, -1, ..., 2],
    lambda x: x[:, [2, 0, -1]],
    lambda x: x[:, np.array([1, 1])][..., :1],
    lambda x: np.take(x, [0, 2], axis=1),
    lambda x: np.flip(x, (1, 3)),
    lambda x: x.reshape(-1, 60),
    lambda x: np.reshape(x, (-1, 3, 20)),
    lambda x: np.transpose(x, (0, 2, 3, 1)),
    lambda x: x.transpose(0, 3, 1, 2),
    lambda x: np.swapaxes(x, 1, -1),
    lambda x: np.squeeze(x[:, :1], axis=1),
    lambda x: x[:, :1].squeeze(1),
    lambda x: np.expand_dims(x, (1, -1)),
    lambda x: np.concatenate([x, x * 2], axis=1),
    lambda x: np.stack([x, -x], axis=2),
    lambda x: np.split(x, [1], axis=1)[1],
    lambda x: np.split(x, 2, axis=2)[0],
    lambda x: np.zeros_like(x) + np.ones_like(x),
    lambda x: x + np.arange(5),
    lambda x: np.array([0.5, 1.0, 2.0])[:, None, None] * x,
    lambda x: x @ np.arange(10).reshape(5, 2),
    lambda x: np.arange(8).reshape(2, 4) @ x,
    lambda x: x.astype(bool),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", ONE, ids=range(len(ONE)))
def test_one_operand(function: Callable[[Any], Any]) -> None:
    same(function, A)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: str(ufunc.__name__))
def test_universal_functions(ufunc: Any) -> None:
    if ufunc.nin == 1:
        same(lambda x: ufunc(x > 0) if ufunc is np.invert else ufunc(x), A)
        return
    if ufunc is np.matmul:
        a, b = np.linspace(-1, 1, 24).reshape(2, 3, 4), np.linspace(0, 3, 40).reshape(2, 4, 5)
        same(ufunc, a, b)
        return
    if "bitwise" in ufunc.__name__:
        same(lambda a, b: ufunc(a > 0, b > 0), A, B)
        return
    same(ufunc, A, B)
    same(lambda a: ufunc(a, 0.5), A)
    same(lambda a: ufunc(-2, a), A)


def test_compiled() -> None:
    """What the engines make of truths, integers and arrays in between."""
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 3, 5, 7)).astype(np.float32)

    def function(x: Any) -> Any:
        mask = (x > 0) & (x < 1)
        y = (
            np.where(mask, np.exp(x), np.maximum(x, -0.5))
            * np.array([1.0, 2.0, 3.0])[:, None, None]
        )
        return y - y.mean((2, 3), keepdims=True) + mask * 0.5 + x.argmax(1).reshape(-1, 1, 5, 7) / 2

    for device in ("reference", "cpu"):
        found = md.compile(Written(function), x.shape, device=device)(x)
        np.testing.assert_allclose(found, function(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_whole_numbers_become_fractions_as_in_numpy() -> None:
    numbers = np.arange(-6, 6).reshape(2, 6)

    class Whole(L.Layer):
        def forward(self, x: Any) -> Any:
            whole = np.round(x).astype(np.int64)
            return whole / 4, whole + 0.5, whole * 3, np.sqrt(abs(whole)), whole > 1.5, whole**2

    found = results(Whole(), numbers.astype(np.float64))
    wanted = [numbers / 4, numbers + 0.5, numbers * 3, np.sqrt(abs(numbers)), numbers > 1.5]
    for one, other in zip(found, [*wanted, numbers**2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_indices_that_are_computed() -> None:
    table = np.linspace(0, 1, 12).reshape(4, 3)

    class Embedded(L.Layer):
        def __init__(self) -> None:
            self.table = L.Parameter(table)

        def forward(self, x: Any) -> Any:
            return self.table[x.astype("int64")], np.take(self.table, x.astype("int64"), axis=0)

    x = np.array([[0.0, 3.0], [2.0, 1.0]])
    for found in results(Embedded(), x):
        np.testing.assert_allclose(found, table[x.astype(int)], rtol=1e-6)


X = md.Input((3, 4, 5), name="x")
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda x: x if x > 0 else -x,
        "has no truth value; to choose by a condition write np.where(condition, a, b), for the "
        "larger of two np.maximum(a, b), and for 'and', 'or', 'not' of conditions &, | and ~",
    ),
    (lambda x: max(x, 0), "is symbolic and has no truth value"),
    (lambda x: 0 < x < 1, "is symbolic and has no truth value"),
    (lambda x: math.exp(x), "has no number; write NumPy's functions (np.exp, not math.exp), or"),
    (float, "has no number"),
    (lambda x: [0, 1][x], "has no number"),
    (len, "has no length; its sizes are in x.shape"),
    (list, "has no elements to go through; write x[:, i] for i in range(x.shape[1]), or np.split"),
    (lambda x: x.__setitem__(0, 1), "has no elements that could be set; write np.where"),
    (np.asarray, "has no array; write NumPy's functions"),
    (lambda x: np.array([x]), "has no array; write NumPy's functions"),
    (lambda x: x // 2, "// of symbolic values is not known; write np.floor(a / b)"),
    (lambda x: 5 % x, "% of symbolic values is not known; write a - b * np.floor(a / b)"),
    (
        lambda x: np.cbrt(x),
        "np.cbrt is not known of symbolic values; valid are np.{absol",
    ),
    (lambda x: np.hypot(x, x), "np.hypot is not known of symbolic values; write np.sqrt(a * a"),
    (lambda x: np.mod(x, 2), "np.remainder is not known of symbolic values; write a - b * np."),
    (lambda x: x.mean(dim=1), "x.mean takes no dim=; write axis=1, as NumPy does"),
    (lambda x: x.max(1, keepdim=True), "x.max takes no keepdim=; write keepdims=True, as NumPy"),
    (lambda x: x.mean(2, 3), "keepdims=3; valid are True and False (several axes are one arg"),
    (lambda x: x.argmax((2, 3)), "axis=(2, 3); valid is one axis, or None for all elements"),
    (lambda x: x.argmin(1, keepdims=2), "keepdims=2; valid are True and False"),
    (lambda x: np.add.reduce(x), "np.add.reduce of a symbolic value; valid are x.sum(axis), "),
    (
        lambda x: np.exp(x, out=np.zeros(3)),
        "np.exp of a symbolic value with out=; valid are operands alone",
    ),
    (lambda x: np.linalg.norm(x), "np.norm is not known of symbolic values; valid are np.{where, "),
    (
        lambda x: np.mean(x, axis=1, dtype=np.float64),
        "np.mean of a symbolic value: got an unexpected keyword argument 'dtype'; valid is np.",
    ),
    (lambda x: x.mean(4), "axis=4; valid are different axes from -4 to 3, or None"),
    (lambda x: x.mean((1, 1)), "axis=(1, 1); valid are different axes from -4 to 3, or None"),
    (lambda x: x.reshape(-1, 7), "reshape to (-1, 7) of (1, 3, 4, 5); valid are sizes with the"),
    (lambda x: x.transpose(1, 2), "axes=(1, 2) of (1, 3, 4, 5); valid is each of the 4 axes once"),
    (lambda x: x.squeeze(1), "squeeze of axis=1 of (1, 3, 4, 5); valid are axes of size 1"),
    (lambda x: x[:, 3], "index 3 of axis 1; valid are -3 to 2"),
    (lambda x: x[:, 2:2], "leaves no elements of (1, 3, 4, 5)"),
    (lambda x: x[0, 0, 0, 0, 0], "has 5 axes; valid are at most 4, and at most one ..."),
    (lambda x: x[:, x > 0], "valid are ints, slices, ..., None, lists of ints"),
    (lambda x: x[x > 0], "is bool; valid are ints, slices, ..., None, lists of ints"),
    (lambda x: x[True], "index True (bool); valid are ints, slices"),
    (lambda x: x & 1, "And of float32; valid is bool, as comparisons such as x > 0 give it"),
    (lambda x: np.round(x, 2), "round to decimals=2 of a symbolic value; valid is 0: write np.rou"),
    (lambda x: np.split(x, 2, 1), "split of axis 1 of (1, 3, 4, 5) into 2; valid are equal parts"),
    (lambda x: [1, 2] - x, "cannot compute Sub of a symbolic value and [1, 2] (list); valid are"),
    (lambda x: x.relu(), "has no attribute 'relu'; valid are shape, dtype, ndim, sum, mean, "),
]


@pytest.mark.parametrize(("function", "text"), WRONG, ids=[text[:50] for _, text in WRONG])
def test_what_cannot_be_written(function: Callable[[Any], Any], text: str) -> None:
    for wrong in (lambda: function(X), lambda: to_graph(Written(function), (1, 3, 4, 5))):
        with pytest.raises(GraphError, match=re.escape(text)):
            wrong()


def test_outside_of_forward_values_are_objects() -> None:
    graph = to_graph(L.ReLU(), (1, 2))
    value = graph.outputs[0]
    assert value and value == value and value != graph.inputs[0]
    assert not hasattr(value, "relu")
    assert X in {X: 1}
