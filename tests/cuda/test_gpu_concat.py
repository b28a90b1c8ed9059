"""Blocks that join values: each branch writes into its slice, and nothing copies it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import compiler
from minidnn import layers as L
from minidnn.backends.cuda.program import CudaProgram
from minidnn.backends.cuda.target import CudaTarget
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph

from .contractions import draw_weights

pytestmark = pytest.mark.gpu
SHAPE = (3, 32, 14, 14)
TOLERANCE = {"float32": 1e-5, "tf32": 3e-3, "float16": 6e-3, "bfloat16": 5e-2}
"""Of the largest value."""


def convolved(value: Any, channels: int, filters: int, window: int) -> Any:
    convolution = L.Conv2d(channels, filters, window, padding=window // 2, bias=False)
    return L.ReLU()(L.BatchNorm2d(filters)(convolution(value)))


def fire() -> md.Layer:
    """SqueezeNet's block."""
    x = md.Input(SHAPE[1:])
    narrow = L.ReLU()(L.Conv2d(32, 16, 1)(x))
    one = L.ReLU()(L.Conv2d(16, 32, 1)(narrow))
    three = L.ReLU()(L.Conv2d(16, 32, 3, padding=1)(narrow))
    return md.Model(x, L.Conv2d(64, 16, 1)(L.Concat()(one, three)))


def inception() -> md.Layer:
    """Branches of one, two and three convolutions, and one that pools."""
    x = md.Input(SHAPE[1:])
    branches = (
        convolved(x, 32, 16, 1),
        convolved(convolved(x, 32, 16, 1), 16, 32, 5),
        convolved(convolved(convolved(x, 32, 16, 1), 16, 32, 3), 32, 32, 3),
        convolved(L.AvgPool2d(3, 1, 1)(x), 32, 16, 1),
    )
    return md.Model(x, L.Conv2d(96, 16, 1)(L.Concat()(*branches)))


def dense() -> md.Layer:
    """Three layers of a DenseNet's block behind a convolution, and its transition."""
    x = md.Input(SHAPE[1:])
    y = L.Conv2d(32, 32, 3, padding=1)(x)
    for channels in (32, 48, 64):
        before = L.ReLU()(L.BatchNorm2d(channels)(y))
        z = convolved(before, channels, 32, 1)
        y = L.Concat()(y, L.Conv2d(32, 16, 3, padding=1, bias=False)(z))
    last = L.ReLU()(L.BatchNorm2d(80)(y))
    return md.Model(x, L.AvgPool2d(2)(L.Conv2d(80, 16, 1)(last)))


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("block", [fire, inception, dense])
def test_slices_are_written_in_place(block: Callable[[], md.Layer], precision: str) -> None:
    random, net = np.random.default_rng(0), block()
    draw_weights(net, random)
    dtype = "float32" if precision == "tf32" else precision
    x = rounded_to(dtype, random.standard_normal(SHAPE).astype(np.float32)).astype(np.float32)
    exe = md.compile(net, SHAPE, device="cuda", precision=precision, tune="heuristic")
    assert_nothing_is_copied(exe)
    (expected,) = evaluate(to_graph(net, SHAPE), [x], "float64")
    for _ in range(2):
        error = np.abs(np.asarray(exe(x), np.float64) - expected).max()
        assert error < TOLERANCE[precision] * np.abs(expected).max()


@pytest.mark.parametrize("precision", TOLERANCE)
def test_gradients_are_read_in_place(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a join's gradient is read where it lies, with the bits of a copy; cuDNN gets
    a copy of its part."""
    random, net = np.random.default_rng(0), dense()
    draw_weights(net, random)
    x = random.standard_normal(SHAPE).astype(np.float32)
    graph = to_graph(L.Sequential(net, Squares()), SHAPE, mode="train", states=True)
    weights = [state for state in graph.states if state.name.endswith("weight")]
    whole = md.gradient(graph, graph.outputs[0], of=[graph.inputs[0], *weights])
    found, views = _found(whole, x, precision)
    assert views == 3
    monkeypatch.setattr(CudaTarget, "refuse_part", lambda *given: "a copy is wanted")
    copied, views = _found(whole, x, precision)
    assert views == 0
    for one, other in zip(found, copied, strict=True):
        np.testing.assert_array_equal(one, other)
    if precision == "float32":
        for one, wanted in zip(found, evaluate(whole, [x], "float64", states={}), strict=True):
            assert np.abs(one - wanted).max() < 4e-5 * max(np.abs(wanted).max(), 1e-3)


def _found(graph: Any, x: np.ndarray, precision: str) -> tuple[list[np.ndarray], int]:
    """Results, and how many parts are read where they lie."""
    given: dict[str, Any] = {"device": "cuda", "precision": precision, "tune": "heuristic"}
    exe = compiler.compile(graph, store=md.Store(), **given)
    program = exe.program
    assert isinstance(program, CudaProgram)
    plan = program.plan
    takes = [node for node in plan.graph.nodes if isinstance(node.op, ops.TakeChannels)]
    return list(map(np.asarray, exe(x))), sum(map(plan.annotations.is_view, takes))


class Squares(L.Layer):
    def forward(self, x: Any) -> Any:
        return (x * x).mean()


def assert_nothing_is_copied(exe: Any) -> None:
    """All that is joined lies in what it is joined to, and no kernel carries it there."""
    program = exe.program
    assert isinstance(program, CudaProgram)
    plan = program.plan
    joins = [node for node in plan.graph.nodes if isinstance(node.op, ops.Concat)]
    assert joins and not any(done.node in joins for done in program.prepared.tasks)
    slots = program.prepared.slots
    for node in joins:
        (joined,) = node.outputs
        for value in node.inputs:
            assert value in plan.annotations.placements
            assert slots.operand(value) == slots.operand(joined)
    assert "carried into its slice" not in exe.explain(measure=True)
