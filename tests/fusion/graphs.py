"""Random graphs of fusable and other nodes, and inputs for them, as hypothesis strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType

Draw = Any

_ACTIVATIONS = (
    ops.ReLU(),
    ops.ReLU6(),
    ops.LeakyReLU(0.1),
    ops.Hardswish(),
    ops.Identity(),
    ops.SiLU(),
)


@st.composite
def graphs(draw: Draw, least: int = 5, most: int = 40, convolutions: bool = True) -> Graph:
    """Graphs of that many nodes over small planes of odd and even sizes."""
    batch = draw(st.integers(1, 2))
    count = draw(st.integers(least, most))
    with tracing("random") as trace:
        values = [trace.input(_plane(draw, batch), f"x{i}") for i in range(draw(st.integers(1, 2)))]
        while len(trace.nodes) < count:
            values.append(_node(draw, trace, values, convolutions))
        ends = [v for v in values if not any(v in node.inputs for node in trace.nodes)]
        extra = draw(st.lists(st.sampled_from(values), max_size=2))
        outputs = [v for v in dict.fromkeys([*ends, *extra]) if v.producer is not None]
        return trace.graph(outputs)


def _plane(draw: Draw, batch: int) -> TensorType:
    channels = draw(st.integers(1, 5))
    return TensorType((batch, channels, draw(st.integers(1, 13)), draw(st.integers(1, 13))))


def _node(draw: Draw, trace: Trace, values: list[Value], convolutions: bool) -> Value:
    # Recent values are preferred, so that graphs become deep as well as wide.
    recent = values[-4:] if draw(st.booleans()) else values
    x = draw(st.sampled_from(recent))
    kinds = ["window", "window", "activation", "scale", "join", "two"]
    kind = draw(st.sampled_from([*kinds, "conv"] if convolutions else kinds))
    if kind == "window":
        window = _window(draw, x)
        return apply(window, x) if window is not None else apply(ops.ReLU(), x)
    if kind == "scale":
        return apply(ops.ScaleShift(), x, *(_vector(draw, trace, x) for _ in range(2)))
    if kind == "join":
        same = [v for v in values if v.shape[2:] == x.shape[2:]]
        operands = draw(st.lists(st.sampled_from(same), min_size=1, max_size=3))
        if sum(v.shape[1] for v in operands) <= 24:
            return apply(ops.Concat(1), *operands)
    if kind == "two":
        op = draw(st.sampled_from((ops.Add(), ops.Mul(), ops.Sub())))
        other = draw(st.sampled_from([v for v in values if _broadcasts(v, x)]))
        return apply(op, *draw(st.permutations((x, other))))
    if kind == "conv":
        return _convolution(draw, trace, x)
    return apply(draw(st.sampled_from(_ACTIVATIONS)), x)


def _broadcasts(value: Value, x: Value) -> bool:
    return all(a in (1, b) for a, b in zip(value.shape, x.shape, strict=True))


def _window(draw: Draw, x: Value) -> ops.MaxPool2d | ops.AvgPool2d | None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return (draw(st.integers(low, high)), draw(st.integers(low, high)))

    kernel, stride = pair(1, 4), pair(1, 3)
    padding = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
    ceil_mode = draw(st.booleans())
    op: ops.MaxPool2d | ops.AvgPool2d
    if draw(st.booleans()):
        op = ops.MaxPool2d(kernel, stride, padding, pair(1, 2), ceil_mode)
    else:
        divisor = draw(st.sampled_from((None, None, 3)))
        op = ops.AvgPool2d(kernel, stride, padding, ceil_mode, draw(st.booleans()), divisor)
    window = op.window()
    sizes = [a.output_size(s) for a, s in zip(window.axes, x.shape[2:], strict=True)]
    return op if min(sizes) >= 1 else None


def _vector(draw: Draw, trace: Trace, x: Value) -> Constant:
    seed = draw(st.integers(0, 99))
    data = np.random.default_rng(seed).standard_normal(x.shape[1]).astype(np.float32)
    name = f"c{len(trace.nodes)}.{seed}"
    return trace.constant(object(), name, TensorType(data.shape), lambda: data)


def _convolution(draw: Draw, trace: Trace, x: Value) -> Value:
    kernel = draw(st.sampled_from((1, 1, 3)))
    channels = draw(st.integers(1, 4))
    shape = (channels, x.shape[1], kernel, kernel)
    data = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    name = f"w{len(trace.nodes)}"
    weight = trace.constant(object(), name, TensorType(shape), lambda: data)
    pad = kernel // 2
    return apply(ops.Conv2d(padding=((pad, pad), (pad, pad))), x, weight)


def inputs_for(graph: Graph, seed: int, special: bool) -> list[np.ndarray]:
    """Inputs of both signs with ties; some NaN, infinities and negative zeros if ``special``."""
    random = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        array = np.round(random.standard_normal(value.shape), 1).astype(np.float32)
        if special:
            where = random.random(value.shape)
            for i, number in enumerate((np.nan, np.inf, -np.inf, -0.0)):
                array[(where > i * 0.02) & (where < (i + 1) * 0.02)] = number
        arrays.append(array)
    return arrays
