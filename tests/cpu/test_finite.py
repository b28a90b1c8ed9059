"""Bounds on inputs that exclude NaN: interval arithmetic against samples; bounds of networks."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.isa import AVX512
from minidnn.backends.cpu.sequences.finite import _RULES, BOUNDS, Interval, input_bound
from minidnn.backends.cpu.target import CpuTarget, device_for
from minidnn.fusion.region import FusedSequence
from minidnn.graph import operators as ops
from minidnn.graph.scalar_ops import SCALAR_OPS
from minidnn.graph.window import WindowAxis, average_window
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize


def interval(random: np.random.Generator) -> Interval:
    """Any interval; some begin or end at zero or infinity, or are one number."""
    low, high = sorted(random.uniform(-1, 1, 2) * 10.0 ** random.uniform(-3, 38))
    kind = random.integers(0, 6)
    ends = {0: (min(0.0, high), high), 1: (low, np.inf), 2: (-np.inf, high), 3: (0.0, 0.0)}
    low, high = ends.get(int(kind), (abs(low), abs(low) + abs(high)) if kind == 4 else (low, high))
    return Interval(float(np.float32(low)), float(np.float32(high)))


def sample(of: Interval, random: np.random.Generator, count: int) -> np.ndarray:
    low, high = np.float32(of.low), np.float32(of.high)
    inner = random.uniform(max(of.low, -3e38) / 2, min(of.high, 3e38) / 2, count) * 2
    numbers = np.concatenate([[low, high, 0.0], inner]).astype(np.float32)
    return np.clip(numbers, low, high)


@pytest.mark.parametrize("op", _RULES)
def test_intervals_hold_all_results(op: str) -> None:
    random = np.random.default_rng(len(op))
    known = SCALAR_OPS[op]
    with np.errstate(all="ignore"):
        for _ in range(300):
            operands = [interval(random) for _ in range(known.arity)]
            result = _RULES[op](*operands)
            count = 40 if known.arity < 3 else 10
            grids = np.meshgrid(*(sample(v, random, count) for v in operands))
            found = np.asarray(known.evaluate(*(g.ravel() for g in grids)), np.float32)
            nan = np.isnan(found)
            assert result.nan or not nan.any(), (operands, result)
            if not nan.all():
                least, most = found[~nan].min(), found[~nan].max()
                assert result.low <= least and most <= result.high, (operands, result)


def bound_of(net: L.Layer, shape: tuple[int, ...]) -> float | None:
    context = Context(CpuTarget(device_for(AVX512, 2), AVX512.lanes))
    graph = optimize(to_graph(net, shape), context)
    (op,) = [node.op for node in graph.nodes if isinstance(node.op, FusedSequence)]
    return input_bound(*op.kernel)


def test_averages_of_padding_alone_are_nan() -> None:
    """A dilated window may have all its taps on both sides of the plane."""
    rows, column = WindowAxis(2, 1, (1, 1), dilation=2), WindowAxis(1, 1)

    def averaged(count_padding: bool) -> L.Layer:
        average = ops.Pool2d(average_window(rows, column, count_padding))
        return L.Sequential(OperatorLayer(average), L.MaxPool2d((1, 3), 1, padding=(0, 1)))

    shape = (1, 16, 1, 9)
    assert bound_of(averaged(True), shape) == BOUNDS[0]
    assert bound_of(averaged(False), shape) is None
    result = md.compile(averaged(False), shape, device="cpu")(np.ones(shape, np.float32))
    assert np.isnan(result).all()


def test_bounds_that_exclude_nan() -> None:
    shape = (1, 16, 8, 8)
    pool = L.MaxPool2d(3, 1, 1)
    assert bound_of(pool, shape) == BOUNDS[0]
    assert bound_of(L.Sequential(L.SiLU(), pool), shape) == BOUNDS[0]
    large, zero = L.BatchNorm2d(16), L.BatchNorm2d(16)
    large.load_state_dict({**large.state_dict(), "weight": np.full(16, 1e25, np.float32)})
    zero.load_state_dict({**zero.state_dict(), "weight": np.zeros(16, np.float32)})
    # 1e25 * 2^64 is infinite, and infinity times zero NaN; 1e25 * 2^32 is finite.
    assert bound_of(L.Sequential(large, L.ReLU(), zero, pool), shape) == BOUNDS[1]
    assert bound_of(L.Sequential(large, pool), shape) == BOUNDS[0]
    assert bound_of(L.Sequential(large, L.ReLU(), large, L.ReLU(), zero, pool), shape) is None
