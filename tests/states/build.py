"""Small graphs with states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, State, Value
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType

Build = Callable[[Trace, Value], Value | list[Value]]


def state(trace: Trace, name: str, shape: tuple[int, ...], dtype: str = "float32") -> State:
    """A state that begins with numbers which follow from its name."""
    random = np.random.default_rng([*name.encode()])
    data = (random.standard_normal(shape) * 4).astype(dtype)
    return trace.state(name, name, TensorType(shape, dtype), lambda: data)


def graph_of(build: Build, shape: tuple[int, ...] = (2, 3, 4, 5)) -> Graph:
    """The graph of ``build(trace, x)``."""
    with tracing("g") as trace:
        outputs = build(trace, trace.input(TensorType(shape), "x"))
    return trace.graph(outputs if isinstance(outputs, list) else [outputs])


def running_mean(trace: Trace, x: Value) -> Value:
    """x less the mean that it had in earlier runs, and a counter of runs."""
    mean, count = state(trace, "mean", (1, 3, 1, 1)), state(trace, "count", (), "int64")
    now = apply(ops.Reduce("mean", (0, 2, 3), keepdim=True), x)
    trace.update(mean, mean * 0.9 + now * 0.1)
    trace.update(count, count + trace.constant("one", "one", count.type, lambda: np.array(1)))
    return x - mean


def swap(trace: Trace, x: Value) -> Value:
    """Two states that become each other."""
    a, b = state(trace, "a", (1, 3, 4, 5)), state(trace, "b", (1, 3, 4, 5))
    trace.update(a, b)
    trace.update(b, a)
    return x + a - b


def momentum(trace: Trace, x: Value) -> list[Value]:
    """A weight that a momentum moves, both updated, one read again after its update."""
    weight, speed = state(trace, "w", (2, 3, 4, 5)), state(trace, "v", (2, 3, 4, 5))
    moved = speed * 0.5 + (x - weight)
    trace.update(speed, moved)
    trace.update(weight, weight + moved * 0.25)
    return [apply(ops.ReLU(), weight), moved * 2.0]


BUILDERS: list[Build] = [running_mean, swap, momentum]
