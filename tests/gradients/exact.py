"""Gradients of a case in float64, and how near those of a device are to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import minidnn as md
from minidnn.graph.attention_patterns import expand_attention
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from tests.cases import Case
from tests.gradients.losses import differentiable, opened, with_loss
from tests.gradients.test_cases import small


def exact_gradients(case: Case) -> tuple[Graph, list[np.ndarray], Sequence[np.ndarray]]:
    """The graph of a case's gradients, its inputs in float32, and what it gives in float64; skips
    the test of a case without any."""
    shapes = small(case)[-1]
    graph, constants = opened(case.graph(shapes))
    (output,) = graph.outputs
    graph, _ = expand_attention(with_loss(graph))  # of one gradient alone not all operands count
    of = differentiable(graph)
    if not of:
        pytest.skip("it has no gradient")
    given = np.random.default_rng(1).standard_normal(output.shape)
    arrays = [
        array.astype(np.float32) if array.dtype.kind == "f" else array
        for array in (*case.inputs(shapes, "float64"), *constants, given)
    ]
    whole = md.gradient(graph, "loss", of)
    wide = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    return whole, arrays, evaluate(whole, wide, "float64")


def assert_near_exact(
    graph: Graph, found: Sequence[np.ndarray], exact: Sequence[np.ndarray], what: str = ""
) -> None:
    """Whether results in float32 are those of float64."""
    for value, actual, wanted in zip(graph.outputs, found, exact, strict=True):
        near = 1e-5 * (1 + np.abs(wanted[np.isfinite(wanted)]).max(initial=0))
        text = f"{value.name}{what}"
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=near, err_msg=text)
