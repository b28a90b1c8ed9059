"""Graphs over rows, for the tests of their kernels: in the emulator, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, exp, sqrt
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType, rounded_to

Build = Callable[..., Sequence[Value]]

CAST = {
    dtype: ops.Formula(argument(0), title="Cast", dtype=dtype, compute="float32")
    for dtype in ("float32", "float16", "bfloat16")
}


def mixing(body: Any, count: int, dtype: str) -> ops.Formula:
    return ops.Formula(body, count, title="Mix", dtype=dtype, compute="float32")


def mean(x: Value) -> Value:
    return apply(ops.Reduce("mean", (x.type.rank - 1,), keepdim=True, dtype="float32"), x)


def layer_norm(x: Value, w: Value, b: Value) -> list[Value]:
    """In half precision as training has it: a cast in front and another behind."""
    y = apply(ops.LayerNorm(1, 1e-6), apply(CAST["float32"], x), w, b)
    return [apply(CAST[x.dtype], y)]


def layer_norm_gradient(x: Value, g: Value, w: Value) -> list[Value]:
    """All three gradients, with what is stored between the operators in the inputs' dtype."""
    a, b, c, d = map(argument, range(4))
    minus, times, over = (mixing(body, 2, x.dtype) for body in (a - b, a * b, a / b))
    full = mixing(a * b, 2, "float32")
    apart = apply(minus, x, mean(x))
    apart = apply(minus, apart, mean(apart))
    deviation = apply(ops.Formula(sqrt(argument(0) + 1e-6)), mean(apply(full, apart, apart)))
    normal = apply(over, apart, deviation)
    pulled = apply(times, g, w)
    rest = mixing(a - b - c * d, 4, "float32")
    pulled = apply(rest, pulled, mean(pulled), normal, mean(apply(full, pulled, normal)))
    sums = ops.Reduce("sum", tuple(range(x.type.rank - 1)), dtype="float32")
    return [apply(over, pulled, deviation), apply(sums, apply(full, g, normal)), apply(sums, g)]


def softmax_gradient(y: Value, g: Value) -> list[Value]:
    total = apply(ops.Reduce("sum", (y.type.rank - 1,), keepdim=True), g * y)
    return [y * (g - total)]


def softmax(x: Value, mask: Value) -> list[Value]:
    y = apply(ops.Softmax(-1), x * 0.125 + mask)
    return [y, apply(ops.Reduce("max", (x.type.rank - 1,), keepdim=True), y)]


def log_softmax(x: Value) -> list[Value]:
    y = apply(ops.LogSoftmax(-1), x)
    return [y, apply(ops.Formula(exp(argument(0))), y)]


def rms_norm(x: Value, w: Value) -> list[Value]:
    """Behind a residual, which is stored."""
    added = x + x * 0.5
    scale = apply(ops.Formula(1.0 / sqrt(argument(0) + 1e-5)), mean(added * added))
    return [added, added * scale * w]


def unit_rows(x: Value) -> list[Value]:
    total = apply(ops.Reduce("sum", (x.type.rank - 1,), keepdim=True), x * x)
    length = apply(ops.Formula(sqrt(argument(0))), total)
    flat = apply(ops.View((x.type.size // x.shape[-1], x.shape[-1])), x / length)
    return [flat, length, apply(ops.Reduce("sum", (0,), keepdim=True), flat)]


def extremes(x: Value) -> list[Value]:
    axis = (x.type.rank - 1,)
    most, least, all = (apply(ops.Reduce(h, axis, keepdim=True), x) for h in ("max", "min", "prod"))
    return [(x - most) + (least - all), least]


@dataclass(frozen=True)
class RowCase:
    """A graph over rows: what it computes, and which of its operands are rows or vectors."""

    build: Build
    rows: int
    vectors: int = 0
    #: Whether rows may be in half precision.
    halves: bool = True

    def __str__(self) -> str:
        return self.build.__name__

    def graph(self, shape: tuple[int, ...], dtype: str = "float32") -> Graph:
        with tracing("g") as trace:
            given = [trace.input(TensorType(shape, dtype), f"x{i}") for i in range(self.rows)]
            vector = TensorType(shape[-1:], "float32")
            given += [trace.input(vector, f"v{i}") for i in range(self.vectors)]
            outputs = self.build(*given)
        return trace.graph(list(outputs))

    def inputs(
        self, shape: tuple[int, ...], dtype: str = "float32", seed: int = 0
    ) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        rows = [random.standard_normal(shape).astype(np.float32) for _ in range(self.rows)]
        vectors = [random.standard_normal(shape[-1:]).astype("f") for _ in range(self.vectors)]
        return [rounded_to(dtype, x) for x in rows] + vectors


CASES = (
    RowCase(layer_norm, 1, 2),
    RowCase(layer_norm_gradient, 2, 1),
    RowCase(softmax_gradient, 2, halves=False),
    RowCase(softmax, 2, halves=False),
    RowCase(log_softmax, 1, halves=False),
    RowCase(rms_norm, 1, 1, halves=False),
    RowCase(unit_rows, 1, halves=False),
    RowCase(extremes, 1, halves=False),
)
