"""Channels that a network moves last, for normalizations, lie there already on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.lower import lower_plan
from minidnn.graph import operators as ops
from minidnn.graph.evaluate import evaluate
from minidnn.graph.trace import apply
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.linear import FIRST, LAST
from tests.cuda.cards import H200

from .contractions import DEPTHWISE, EPSILON, draw_weights
from .lowered import EmulatedProgram, Kernel, by_choice, by_stream, check_numbers, planned

CHANNELS = 16


class Block(L.Layer):
    """A convolution of each channel, a normalization over channels, and linear layers."""

    def __init__(self) -> None:
        self.window = L.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS)
        self.wide = L.Linear(CHANNELS, 2 * CHANNELS)
        self.narrow = L.Linear(2 * CHANNELS, CHANNELS)

    def forward(self, x: Any) -> Any:
        moved = apply(ops.Transpose(LAST), self.window(x))
        normal = apply(ops.LayerNorm(1, 1e-3), moved)
        y = self.narrow(apply(ops.GELU(), self.wide(normal)))
        return apply(ops.Add(), apply(ops.Transpose(FIRST), y), x)


def own(problem: ContractionProblem) -> Kernel:
    if problem.w.shape[1] != 1:
        return by_stream(problem)
    return by_choice(DEPTHWISE, problem, DEPTHWISE.choices(problem, H200)[0])


SHAPE = (2, CHANNELS, 8, 10)


@pytest.mark.race
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_numbers(precision: str, tmp_path: Path) -> None:
    check_numbers(Block(), SHAPE, precision, own, tmp_path)


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"])
def test_moving_them_takes_no_kernel(precision: str) -> None:
    plan = planned(Block(), SHAPE, precision)
    moved = [node for node in plan.graph.nodes if isinstance(node.op, ops.Transpose)]
    assert len(moved) == 2
    tasks = lower_plan(plan, H200, precision == "tf32")
    assert not [task for task in tasks if task.node in moved]


class Joined(L.Layer):
    """What is moved, or the join of what is, is an operand of a join."""

    def __init__(self, part: bool) -> None:
        self.part = part
        self.one, self.two, self.three = (L.Conv2d(CHANNELS, CHANNELS, 1) for _ in range(3))
        made = 2 * CHANNELS if part else CHANNELS
        self.last = L.Conv2d(made + CHANNELS, made, 1)

    def forward(self, x: Any) -> Any:
        y = self.one(x)
        if self.part:
            y = apply(ops.Concat(1), y, self.two(x))
        z = self.last(apply(ops.Concat(1), y, self.three(x)))
        moved = apply(ops.LayerNorm(1, 1e-3), apply(ops.Transpose(LAST), y))
        return apply(ops.Add(), apply(ops.Transpose(FIRST), moved), z)


@pytest.mark.parametrize("part", [False, True])
def test_what_lies_in_a_join_is_moved(part: bool, tmp_path: Path) -> None:
    net, random = Joined(part), np.random.default_rng(0)
    draw_weights(net, random)
    x = rounded_to("float16", random.standard_normal(SHAPE)).astype(np.float32)
    (expected,) = evaluate(to_graph(net, SHAPE), [x], "float64")
    y = EmulatedProgram(net, SHAPE, "float16", own, tmp_path)(x)
    assert np.abs(y - expected).max() <= 6 * EPSILON["float16"] * np.abs(expected).max()


def test_other_moves_are_computed() -> None:
    def tasks_of(net: md.Layer, shape: tuple[int, ...]) -> list[str]:
        tasks = lower_plan(planned(net, shape, "float16"), H200, False)
        return [task.node.op.name for task in tasks]

    class Turned(L.Layer):
        def forward(self, x: Any) -> Any:
            return apply(ops.ReLU(), apply(ops.Transpose((0, 3, 2, 1)), x))

    assert "Transpose" in tasks_of(Turned(), SHAPE)
