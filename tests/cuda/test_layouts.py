"""Where a GPU's convolutions have their channels, and what that takes."""

from __future__ import annotations

from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.operators import Reorder

from .lowered import planned, problems_of

CHANNELS = 96


def block(kernel: int) -> md.Layer:
    depthwise = L.Conv2d(CHANNELS, CHANNELS, kernel, padding=kernel // 2, groups=CHANNELS)
    return L.Sequential(
        L.Conv2d(CHANNELS, CHANNELS, 1), L.ReLU(), depthwise, L.Conv2d(CHANNELS, CHANNELS, 1)
    )


def layouts(kernel: int, batch: int, size: int, precision: str) -> list[Layout]:
    found = problems_of(block(kernel), (batch, CHANNELS, size, size), precision)
    return [PLANAR if problem.planar else CHANNELS_LAST for problem in found]


@pytest.mark.parametrize("batch", [8, 32])
def test_exact_depthwise_convolutions_have_channels_last_where_moves_are_cheaper(
    batch: int,
) -> None:
    assert layouts(7, batch, 56, "float32") == [PLANAR, CHANNELS_LAST, PLANAR]
    plan = planned(block(7), (batch, CHANNELS, 56, 56), "float32")
    assert [node.op.layout for node in plan.graph.nodes if isinstance(node.op, Reorder)] == [
        CHANNELS_LAST,
        PLANAR,
    ]


@pytest.mark.parametrize(("kernel", "batch", "size"), [(7, 1, 14), (3, 1, 56)])
def test_exact_convolutions_stay_in_planes_where_moves_are_dearer(
    kernel: int, batch: int, size: int
) -> None:
    assert layouts(kernel, batch, size, "float32") == [PLANAR] * 3


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_tensor_cores_have_channels_last_throughout(precision: str) -> None:
    assert layouts(7, 8, 56, precision) == [CHANNELS_LAST] * 3


class Planes(md.Layer):
    """A convolution of what a linear layer makes, seen as planes."""

    def __init__(self) -> None:
        self.linear = L.Linear(24, 16 * 64)
        self.conv = L.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.conv(self.linear(x).reshape((-1, 16, 8, 8)))


@pytest.mark.parametrize("precision", ["tf32", "float16"])
def test_rows_that_are_seen_as_planes_lie_as_planes(precision: str) -> None:
    """A view moves nothing, so that its channels cannot come last."""
    plan = planned(Planes(), (4, 24), precision)
    (view,) = (node for node in plan.graph.nodes if node.op.name == "View")
    assert plan.layout(view.output) == PLANAR
