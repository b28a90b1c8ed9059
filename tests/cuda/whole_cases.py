"""Contractions of bytes of any kind in one graph, for the emulator and for a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, fma, rint
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType
from tests.cases.bytes import drawn

# Channels in, channels out, window, stride, dilation, groups, size: channels that are whole
# accesses and others, groups of one channel, of few and of many.
CONVOLUTIONS = (
    (3, 24, (3, 2), (2, 1), (1, 1), 1, (9, 8)),
    (16, 40, (1, 1), (1, 1), (1, 1), 1, (5, 9)),
    (32, 16, (3, 3), (1, 1), (1, 1), 1, (7, 6)),
    (48, 72, (3, 3), (2, 2), (2, 1), 1, (9, 11)),
    (24, 16, (3, 3), (2, 2), (1, 1), 1, (8, 5)),
    (21, 13, (2, 3), (1, 2), (1, 2), 1, (7, 9)),
    (20, 20, (3, 3), (1, 1), (1, 1), 20, (6, 7)),
    (7, 7, (5, 3), (2, 1), (1, 1), 7, (9, 6)),
    (16, 24, (3, 3), (1, 1), (1, 1), 2, (6, 5)),
    (64, 64, (3, 3), (2, 1), (1, 1), 4, (5, 5)),
    (12, 6, (1, 3), (1, 1), (1, 1), 6, (4, 6)),
)
LINEAR = ((32, 24), (13, 10), (160, 9))


def whole_graph(seed: int) -> tuple[Graph, list[np.ndarray]]:
    """A graph of contractions whose sums are given as they are, rescaled to floats, and rounded to
    bytes, also beside another value, and its inputs."""
    random = np.random.default_rng(seed)
    inputs: list[np.ndarray] = []
    outputs: list[Value] = []
    with tracing("whole") as trace:
        for number, (cin, cout, window, stride, dilation, groups, size) in enumerate(CONVOLUTIONS):
            top, bottom, left, right = map(int, random.integers(0, 3, 4))
            padding = ((top, bottom), (left, right))
            zero, dtype = _zero(random, number + seed)
            op = ops.Conv2d(stride, padding, dilation, groups, zero)
            x = _input(trace, inputs, random, (2, cin, *size), dtype)
            w = _known(trace, f"w{number}", drawn(random, (cout, cin // groups, *window), "int8"))
            outputs += _results(trace, inputs, random, number, op, x, w)
        for number, (cin, cout) in enumerate(LINEAR, len(CONVOLUTIONS)):
            zero, dtype = _zero(random, number + seed)
            x = _input(trace, inputs, random, (5, cin), dtype)
            w = _known(trace, f"w{number}", drawn(random, (cout, cin), "int8"))
            outputs += _results(trace, inputs, random, number, ops.Linear(zero), x, w)
        return trace.graph(outputs), inputs


def _zero(random: np.random.Generator, number: int) -> tuple[int, str]:
    dtype = ("uint8", "int8")[number % 2]
    if number % 4 == 1:
        return 0, dtype
    bounds = np.iinfo(dtype)
    return int(random.integers(bounds.min, bounds.max)), dtype


def _known(trace: Trace, name: str, array: np.ndarray) -> Value:
    type = TensorType(array.shape, str(array.dtype))
    return trace.constant(object(), name, type, partial(np.asarray, array))


def _input(
    trace: Trace,
    inputs: list[np.ndarray],
    random: np.random.Generator,
    shape: tuple[int, ...],
    dtype: str,
) -> Value:
    name = f"x{len(inputs)}"
    if dtype == "float32":
        inputs.append(random.standard_normal(shape).astype(np.float32))
    else:
        inputs.append(drawn(random, shape, dtype))
    return trace.input(TensorType(shape, dtype), name)


def _results(
    trace: Trace,
    inputs: list[np.ndarray],
    random: np.random.Generator,
    number: int,
    op: Any,
    x: Value,
    w: Value,
) -> list[Value]:
    """One of four: every kind of contraction meets each of them with some seed."""
    count = w.shape[0]
    bias = _known(trace, f"b{number}", random.integers(-9000, 9000, count).astype(np.int32))
    kind = (number + len(inputs)) % 4
    sums = apply(op, x, w, *([] if number % 3 else [bias]))
    if kind == 0:
        return [sums]
    spread = 255.0 * 70 * np.sqrt(np.prod(w.shape[1:]))
    scale = ((0.5 + random.random(count)) * 60 / spread).astype(np.float32)
    shift = random.standard_normal(count).astype(np.float32)
    vectors = [_known(trace, f"{n}{number}", a) for n, a in (("s", scale), ("t", shift))]
    body = fma(argument(0), argument(1), argument(2))
    scaled = apply(ops.Formula(body, 1, 2, "Rescale", compute="float32"), sums, *vectors)
    if kind == 1:
        return [apply(ops.ReLU(), scaled)]
    if kind == 2:
        step = float(np.float32(0.7 + random.random()))
        return [apply(ops.Formula(rint(argument(0) * step) + 0.0, 1, 0, "Round", "int8"), scaled)]
    beside = _input(trace, inputs, random, scaled.shape, ("uint8", "float32")[number % 2])
    step = float(np.float32(0.5 + random.random()))
    rounded = rint((argument(0) + argument(1)) * step) + 7
    to = ("int8", "uint8")[number // 2 % 2]
    return [apply(ops.Formula(rounded, 2, 0, "Round", to, "float32"), scaled, beside)]
