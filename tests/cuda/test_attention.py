"""Attention and its gradient by the emulator, beside float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.product.attention import print_attention, print_attention_gradient
from minidnn.fusion.attention import FusedAttention, FusedAttentionGradient
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.types import rounded_to

from .cards import A100, H200
from .lowered import EmulatedProgram, planned_graph
from .products import attention_graph, packed_graph, with_gradients
from .test_budgets import check

#: Batch, queries, keys, heads, features of a head: one and several tiles, odd ends, one query.
Size = tuple[int, int, int, int, int]
SIZES: tuple[Size, ...] = (
    *((2, 50, 33, 2, 64), (1, 1, 5, 3, 8), (1, 70, 130, 2, 40), (1, 5, 2, 1, 16)),
    *((1, 17, 64, 1, 128), (2, 64, 64, 1, 24), (1, 129, 66, 1, 72)),
)
OFF = {"float16": 4e-3, "bfloat16": 3e-2}


def inputs_of(graph: Graph, dtype: str, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    drawn = (random.standard_normal(value.shape) for value in graph.inputs)
    return [rounded_to(dtype, x.astype(np.float32)).astype(np.float32) for x in drawn]


def assert_near(found: Sequence[np.ndarray], exact: Sequence[np.ndarray], off: float) -> None:
    for number, (one, wanted) in enumerate(zip(found, exact, strict=True)):
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(one), finite, str(number))
        size = np.abs(wanted[finite]).max(initial=0.0)
        assert np.abs(one[finite] - wanted[finite]).max(initial=0.0) <= off * size, number


def program(graph: Graph, dtype: str, folder: Path) -> EmulatedProgram:
    def no_contraction(problem: object) -> object:
        raise AssertionError(problem)

    return EmulatedProgram(graph, (), dtype, no_contraction, folder)  # type: ignore[arg-type]


def kinds(run: EmulatedProgram) -> list[type]:
    regions = (FusedAttention, FusedAttentionGradient)
    return [type(node.op) for node in run.plan.graph.nodes if isinstance(node.op, regions)]


@pytest.mark.sampled(4)
@pytest.mark.race
@pytest.mark.parametrize("dtype", OFF)
@pytest.mark.parametrize("size", SIZES)
def test_attention_and_its_gradient(size: Size, dtype: str, tmp_path: Path) -> None:
    graph = with_gradients(attention_graph(*size))
    run = program(graph, dtype, tmp_path)
    assert kinds(run) == [FusedAttention, FusedAttentionGradient]
    given = inputs_of(graph, dtype, sum(size))
    found = run.all(given)
    assert_near(found, evaluate(graph, given, "float64"), OFF[dtype])
    for one, other in zip(run.all(given, backwards=True), found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("size", SIZES[::3])
def test_inference(size: Size, tmp_path: Path) -> None:
    graph = attention_graph(*size)
    run = program(graph, "float16", tmp_path)
    assert kinds(run) == [FusedAttention]
    given = inputs_of(graph, "float16", 1)
    assert_near(run.all(given), evaluate(graph, given, "float64"), OFF["float16"])


def test_slices_of_one_value(tmp_path: Path) -> None:
    """Queries, keys and values lie in one tensor, and so do their gradients."""
    graph = with_gradients(packed_graph(2, 21, 3, 16))
    run = program(graph, "float16", tmp_path)
    assert kinds(run) == [FusedAttention, FusedAttentionGradient]
    given = inputs_of(graph, "float16", 2)
    assert_near(run.all(given), evaluate(graph, given, "float64"), OFF["float16"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("operand", range(4), ids=["query", "key", "value", "gradient"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_infinities_and_nan(operand: int, number: float, tmp_path: Path) -> None:
    """They reach the results that they reach in float64, and no others."""
    graph = with_gradients(attention_graph(2, 67, 70, 2, 16))
    given = inputs_of(graph, "bfloat16", operand)
    given[operand][1, 66, 20] = number
    with np.errstate(all="ignore"):
        exact = evaluate(graph, given, "float64")
    found = program(graph, "bfloat16", tmp_path).all(given)
    for one, wanted in zip(found, exact, strict=True):
        # Infinity takes from a row what makes it NaN, or the other way round: both are lost.
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(wanted))
    assert_near(found, exact, OFF["bfloat16"])


def test_kernels_keep_to_the_budget() -> None:
    for size in (64, 128, 80):
        graph = with_gradients(attention_graph(2, 197, 197, 2, size))
        for node in planned_graph(graph, "bfloat16").graph.nodes:
            if isinstance(node.op, FusedAttention):
                check([print_attention(node.op.shape, True)], H200)
            if isinstance(node.op, FusedAttentionGradient):
                check([*print_attention_gradient(node.op.shape)], H200)
                check([*print_attention_gradient(node.op.shape)], A100)
