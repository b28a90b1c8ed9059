"""Joins on the CPU: operands that begin in the middle of a register's channels."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import ISAS
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.graph.evaluate import evaluate
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize

SHAPE = (2, 3, 5, 7)


def joined(first: int) -> md.Layer:
    """An image of 3 channels, or a convolution of more, joined with 16 and 32 others."""
    x = md.Input(SHAPE[1:])
    parts = [L.Conv2d(3, channels, 3, padding=1)(x) for channels in (16, 32)]
    begin = x if first == 3 else L.Conv2d(3, first, 1)(x)
    net = md.Model(x, L.ReLU()(L.Conv2d(first + 48, 8, 1)(L.Concat()(begin, *parts))))
    return md.calibrate(net, np.random.default_rng(0).standard_normal(SHAPE, np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("first", [3, 4, 16, 20])
def test_only_whole_registers_are_written_in_place(first: int, isa: str) -> None:
    target = CpuTarget(device_for(ISAS[isa], 2), ISAS[isa].lanes)
    context = Context(target)
    optimize(to_graph(joined(first), SHAPE), context, verify=True)
    placements = context.annotations.placements
    assert all(place.channel % target.lanes == 0 for place in placements.values())
    assert len(placements) == (3 if first == 16 else 0)


@pytest.mark.parametrize("first", [3, 4, 16, 20])
@pytest.mark.together
def test_numbers(first: int) -> None:
    net = joined(first)
    x = np.random.default_rng(1).standard_normal(SHAPE, np.float32)
    (expected,) = evaluate(to_graph(net, SHAPE), [x], "float64")
    exe = md.compile(net, SHAPE, device="cpu", threads=2)
    np.testing.assert_allclose(exe(x), expected, rtol=1e-4, atol=1e-5)
