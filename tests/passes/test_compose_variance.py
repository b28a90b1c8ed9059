"""compose_variance: variances of operators that every target has."""

from __future__ import annotations

import numpy as np
import pytest

from minidnn.backends.cpu.target import CpuTarget
from minidnn.fusion.target import Target
from minidnn.graph.checker import check
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.operators import Reduce, Variance
from minidnn.graph.trace import apply, tracing
from minidnn.graph.types import TensorType
from minidnn.passes.compose import compose_variance
from minidnn.passes.infrastructure import Context


def statistics(shape: tuple[int, ...], dtype: str) -> Graph:
    axes = (0, *range(2, len(shape)))
    with tracing("statistics") as trace:
        x = trace.input(TensorType(shape, dtype), "x")
        mean = apply(Reduce("mean", axes, dtype="float32"), x)
        return trace.graph([apply(Variance("float32"), x, mean)])


@pytest.mark.parametrize("shape", [(3, 4, 5, 7), (6, 4), (2, 3, 5)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", [Target(), CpuTarget()], ids=["plain", "cpu"])
def test_numbers(shape: tuple[int, ...], dtype: str, target: Target) -> None:
    given = statistics(shape, dtype)
    graph = compose_variance(given, Context(target))
    check(graph)
    assert not any(isinstance(node.op, Variance) for node in graph.nodes)
    assert graph.outputs[0].type == given.outputs[0].type
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16).astype(np.float32)
    x = x.astype(np.float16) if dtype == "float16" else x
    (found,) = evaluate(graph, [x])
    axes = (0, *range(2, len(shape)))
    np.testing.assert_allclose(found, x.astype(np.float64).var(axes), rtol=1e-5)


def test_without_fuel_nothing_changes() -> None:
    given = statistics((3, 4, 5, 7), "float32")
    graph = compose_variance(given, Context(Target(), fuel=0))
    assert [node.op for node in graph.nodes] == [node.op for node in given.nodes]
