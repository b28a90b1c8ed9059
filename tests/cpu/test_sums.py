"""Sums of the CPU engine: no less accurate than PyTorch's, and the same bits on any number of
threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import minidnn as md
from minidnn.backends.cpu.isa import best_isa
from minidnn.backends.cpu.operators.reduce import print_argmax, print_reduce
from minidnn.backends.cpu.operators.softmax import print_softmax
from minidnn.graph import operators as ops
from minidnn.graph.operator import Operator
from minidnn.graph.types import TensorType
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.build import to_graph

from .warming import warm

ULP = float(np.finfo(np.float32).eps)
Shape = tuple[int, ...]
Reference = Callable[[Any], Any]

#: Operators of which each is cut into parts, or has rows of its own, and PyTorch's.
SUMS: list[tuple[Operator, Shape, Reference]] = [
    (ops.GroupNorm(1), (1, 3, 256, 256), lambda x: F.group_norm(x, 1)),
    (ops.GroupNorm(32), (1, 64, 60, 61), lambda x: F.group_norm(x, 32)),
    (ops.GroupNorm(3), (1, 3, 301, 299), F.instance_norm),
    (ops.LayerNorm(1), (3, 40001), lambda x: F.layer_norm(x, x.shape[1:])),
    (ops.LayerNorm(1), (65, 770), lambda x: F.layer_norm(x, x.shape[1:])),
    (ops.Softmax(1), (1, 100003), lambda x: F.softmax(x, 1)),
    (ops.Softmax(0), (30001, 3), lambda x: F.softmax(x, 0)),
    (ops.LogSoftmax(1), (2, 9000, 10), lambda x: F.log_softmax(x, 1)),
    (ops.AdaptiveAvgPool2d((1, 1)), (1, 3, 501, 333), lambda x: F.adaptive_avg_pool2d(x, 1)),
    (ops.AdaptiveAvgPool2d((3, 2)), (1, 9, 70, 55), lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    (ops.AvgPool2d((40, 40), (7, 7)), (1, 2, 80, 90), lambda x: F.avg_pool2d(x, 40, 7)),
    (ops.Reduce("mean", (2, 3)), (1, 3, 501, 333), lambda x: x.mean((2, 3))),
    (ops.Reduce("mean", (1,)), (1, 70, 40, 41), lambda x: x.mean(1)),
    (ops.Reduce("sum", (0,)), (30001, 3), lambda x: x.sum(0)),
    (ops.Reduce("mean", (0, 2, 3)), (3, 40, 41, 40), lambda x: x.mean((0, 2, 3))),
]


@cache
def warm_all() -> None:
    """Compiles the kernels of all of them together."""
    warm([(to_graph(OperatorLayer(op), shape), "model") for op, shape, _ in SUMS], best_isa())


def drawn(op: Operator, shape: Shape, mean: float) -> np.ndarray:
    x = mean + np.random.default_rng(1).standard_normal(shape)
    if "Softmax" in op.name:
        x = (x - mean) * 3
    return x.astype(np.float32)


def computed(op: Operator, x: np.ndarray, threads: int = 2, device: str = "cpu") -> np.ndarray:
    options: dict[str, Any] = {}
    if device == "cpu":
        warm_all()
        options["threads"] = threads
    exe = md.compile(OperatorLayer(op), x.shape, device=device, **options)
    result: np.ndarray = exe(x)
    return result


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("mean", [0.0, 1e5])
@pytest.mark.parametrize(
    ("op", "shape", "by_torch"), SUMS, ids=[f"{op}-{shape}" for op, shape, _ in SUMS]
)
def test_errors(op: Operator, shape: Shape, by_torch: Reference, mean: float, device: str) -> None:
    """At most three times PyTorch's error, or four units in the last place of the result, or of
    the sum of magnitudes where numbers of both signs are added."""
    x = drawn(op, shape, mean)
    exact = by_torch(torch.from_numpy(x).double()).numpy()
    theirs = float(np.abs(by_torch(torch.from_numpy(x)).numpy() - exact).max())
    ours = float(np.abs(computed(op, x, device=device) - exact).max())
    magnitude = float(np.abs(exact).max())
    if op.name in ("AdaptiveAvgPool2d", "AvgPool2d", "Reduce"):
        magnitude = float(by_torch(torch.from_numpy(np.abs(x)).double()).numpy().max())
    assert ours <= max(3 * theirs, 4 * ULP * magnitude)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("op", "shape"), [sums[:2] for sums in SUMS], ids=str)
def test_bits_do_not_depend_on_threads(op: Operator, shape: Shape) -> None:
    x = drawn(op, shape, 10.0)
    one = computed(op, x, 1)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(computed(op, x, threads), one)


def test_a_long_row_is_shared_by_threads() -> None:
    """Each kernel over a long row has many tasks, and few rows that are short have one region."""
    for op, shape in (
        (ops.Reduce("mean", (1,)), (1, 1 << 20)),
        (ops.Softmax(1), (1, 1 << 20)),
        (ops.LayerNorm(1), (1, 1 << 20)),
        (ops.ArgMax(1), (1, 1 << 20)),
        (ops.Reduce("max", (0,)), (1 << 20, 3)),
    ):
        regions = regions_of(op, shape)
        assert len(regions) > 1 and regions[0].tasks >= 32, op
        assert len(regions_of(op, (100, 3))) == 1, op


def regions_of(op: Operator, shape: Shape) -> Any:
    program: Any = md.compile(OperatorLayer(op), shape, device="cpu").program
    return program._program.regions


def test_minus_infinity_fills_a_part() -> None:
    """The maximum of a part may be minus infinity where that of the row is not."""
    x = np.full((1, 70000), -np.inf, np.float32)
    assert np.isnan(computed(ops.Softmax(1), x)).all()
    x[0, 50000:] = np.random.default_rng(0).standard_normal(20000)
    for op, by_torch in ((ops.Softmax(1), F.softmax), (ops.LogSoftmax(1), F.log_softmax)):
        expected = by_torch(torch.from_numpy(x).double(), 1).numpy()
        np.testing.assert_allclose(computed(op, x), expected, rtol=1e-5)
    x[0, 60000] = np.inf
    assert np.isnan(computed(ops.Softmax(1), x)).all()


@pytest.mark.parametrize("shape", [(2, 3, 0), (0, 3), (3, 0, 5)], ids=str)
def test_kernels_of_nothing_have_no_tasks(shape: Shape) -> None:
    """Values inside of a graph may have no elements."""
    x = TensorType(shape)
    printed = [print_softmax(ops.Softmax(1), x), print_softmax(ops.LogSoftmax(1), x)]
    if shape[1]:
        printed += [print_argmax(ops.ArgMax(1), x), print_reduce(ops.Reduce("max", (1,)), x)]
    counts = [stage.tasks for staged in printed for stage in staged.stages]
    if shape[1]:
        assert counts == [0] * len(counts)
    empty = print_reduce(ops.Reduce("sum", (1,)), TensorType((2, 0, 3)))
    assert [stage.tasks for stage in empty.stages] == [2]
