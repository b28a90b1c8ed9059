"""Small graphs for the tests of passes, and how a rewritten graph is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import dedent
from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType, rounded_to
from minidnn.passes.infrastructure import Context, Pass, run_passes

Build = Callable[..., Value | Sequence[Value]]


def graph_of(build: Build, *shapes: Sequence[int], dtype: str = "float32") -> Graph:
    """The graph of ``build(trace, x0, x1, ...)``, which gives one value or several."""
    with tracing("g") as trace:
        inputs = [trace.input(TensorType(tuple(s), dtype), f"x{i}") for i, s in enumerate(shapes)]
        outputs = build(trace, *inputs)
    return trace.graph([outputs] if isinstance(outputs, Value) else list(outputs))


def constant(trace: Trace, shape: Sequence[int], name: str | None = None, seed: int = 0) -> Any:
    """A constant of random numbers that follow from its name and the seed."""
    name = name or f"c{len(trace.nodes)}"
    random = np.random.default_rng([seed, *name.encode()])
    data = random.standard_normal(tuple(shape)).astype(np.float32)
    return trace.constant(object(), name, TensorType(data.shape), lambda: data)


def conv(
    trace: Trace, x: Value, channels: int, kernel: int = 1, bias: bool = False, **options: Any
) -> Value:
    """A convolution that keeps the plane's size, unless ``options`` say otherwise."""
    name = f"w{len(trace.nodes)}"
    weight = constant(trace, (channels, x.shape[1], kernel, kernel), name)
    more = [constant(trace, (channels,), f"{name}.bias")] if bias else []
    options.setdefault("padding", ((kernel // 2,) * 2,) * 2)
    return apply(ops.Conv2d(**options), x, weight, *more)


def linear(trace: Trace, x: Value, features: int, bias: bool = True) -> Value:
    name = f"w{len(trace.nodes)}"
    weight = constant(trace, (features, x.shape[-1]), name)
    more = [constant(trace, (features,), f"{name}.bias")] if bias else []
    return apply(ops.Linear(), x, weight, *more)


def norm(trace: Trace, x: Value, name: str | None = None) -> Value:
    """A batch normalization with random statistics, variances between 0.5 and 1.5."""
    name = name or f"n{len(trace.nodes)}"
    weight, bias, mean = (constant(trace, x.shape[1:2], f"{name}.{p}") for p in "wbm")
    random = np.random.default_rng(list(name.encode()))
    var = (0.5 + random.random(x.shape[1])).astype(np.float32)
    variance = trace.constant(object(), f"{name}.v", TensorType(var.shape), lambda: var)
    return apply(ops.BatchNorm(), x, weight, bias, mean, variance)


def scale(trace: Trace, x: Value) -> Value:
    vectors = [constant(trace, x.shape[1:2], f"s{len(trace.nodes)}.{p}") for p in "ab"]
    return apply(ops.ScaleShift(), x, *vectors)


def relu(x: Value) -> Value:
    return apply(ops.ReLU(), x)


def join(*values: Value, axis: int = 1) -> Value:
    return apply(ops.Concat(axis), *values)


def max_pool(x: Value, kernel: int = 3, stride: int = 1, padding: int = 1) -> Value:
    return apply(ops.MaxPool2d((kernel, kernel), (stride, stride), (padding, padding)), x)


def run(graph: Graph, *passes: Pass, context: Context | None = None) -> Graph:
    """The graph after these passes, whose requirements are not asked for, verified."""
    free = [Pass(p.name, p.run, (), p.ensures) for p in passes]
    return run_passes(graph, free, context or Context(), verify=True)


def expect(graph: Graph, text: str) -> None:
    """The graph prints as ``text`` does without its indentation."""
    assert str(graph) == dedent(text).strip()


def inputs_of(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [_rounded(v.dtype, random.standard_normal(v.shape)) for v in graph.inputs]


def _rounded(dtype: str, array: np.ndarray) -> np.ndarray:
    """As the reference holds it: NumPy knows bfloat16 only where some package has told it."""
    return rounded_to(dtype, array) if dtype == "bfloat16" else array.astype(dtype)


def assert_same(before: Graph, after: Graph, tolerance: float = 0.0) -> None:
    """Both graphs give the same numbers for the same inputs."""
    inputs = inputs_of(before)
    results = evaluate(after, inputs)
    assert len(results) == len(before.outputs)
    for got, expected in zip(results, evaluate(before, inputs), strict=True):
        if tolerance:
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, expected)


def value_of(constant: Value) -> np.ndarray:
    assert isinstance(constant, Constant)
    return constant.data


def ops_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]
