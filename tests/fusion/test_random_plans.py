"""On random graphs, every plan executed patch by patch gives the reference's bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import minidnn as md
from minidnn import layers as L
from minidnn.fusion.collapse import EVERYWHERE, Strategy
from minidnn.fusion.device import H200, TWO_CORES, Device
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.target import Target
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from tests.fusion.graphs import graphs, inputs_for
from tests.sampling import IS_FULL

#: A device so small that stacks must be cut.
TINY = Device("tiny", 2, 1e9, 1e9, 1e8, 1e9, 2 << 10, 4, 1e-7)
IN_ORDER = replace(TWO_CORES, stages_inputs=True, in_order=True, step_overhead=2e-8)
DEVICES = (TWO_CORES, H200, TINY, IN_ORDER)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, except that any NaN equals any other."""
    nan = np.isnan(a) & np.isnan(b)
    return a.shape == b.shape and bool((nan | (a.view(np.int32) == b.view(np.int32))).all())


def check_strategy(
    graph: Graph, strategy: Strategy, device: Device, seed: int, special: bool, data: st.DataObject
) -> int:
    """Compares plans with the reference; returns how many sequences were compared."""
    inputs = inputs_for(graph, seed, special)
    context = Context(Target(device), strategy)
    optimized = optimize(graph, context, verify=True)
    compared = 0
    recorded: dict[str, tuple[np.ndarray, ...]] = {}

    def observe(node, results) -> None:  # type: ignore[no-untyped-def]
        recorded[node.name] = results

    results = evaluate(optimized, inputs, observe=observe)
    arrays = dict(zip((v.name for v in optimized.inputs), inputs, strict=True))
    for node in optimized.nodes:
        operands = [arrays[value.name] for value in node.inputs if value in node.tensors]
        arrays.update(zip((v.name for v in node.outputs), recorded[node.name], strict=True))
        if not isinstance(node.op, FusedSequence):
            continue
        schedules = [node.op.schedule, _random_schedule(node.op, data)]
        for schedule in schedules:
            region = FusedSequence(node.op.body, schedule)
            for got, expected in zip(region.interpret(*operands), recorded[node.name], strict=True):
                assert same_bits(got, expected), f"{schedule}\n{region.body}"
            compared += 1
    for got, expected in zip(results, evaluate(graph, inputs), strict=True):
        if not special:
            np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)
    return compared


def _random_schedule(region: FusedSequence, data: st.DataObject) -> Schedule:
    """Any patch size, if the sequence's strides agree; else the whole plane."""
    rows, columns = region.kernel[0].anchor
    if any(e.scale == 0 for p in region.kernel[0].planes for e in p.owned or ()):
        return Schedule(rows, columns, 1, data.draw(st.booleans()), data.draw(st.booleans()))
    return Schedule(
        data.draw(st.integers(1, rows)),
        data.draw(st.integers(1, columns)),
        data.draw(st.integers(1, 5)),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
    )


SETTINGS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking a graph takes minutes; the message shows the region
)


DRAWN: dict[str, Any] = {
    "graph": graphs(),
    "strategy": st.sampled_from(EVERYWHERE),
    "device": st.sampled_from(DEVICES),
    "seed": st.integers(0, 1000),
    "special": st.booleans(),
    "data": st.data(),
}


def check_graphs(part: int, count: int) -> None:
    """As many as that, others in every part: parts may run at the same time."""

    @seed(part)
    @given(**DRAWN)
    @settings(SETTINGS, max_examples=count)
    def check(**drawn: Any) -> None:
        check_strategy(**drawn)

    check()


@pytest.mark.sampled(3)
@pytest.mark.early
@pytest.mark.parametrize("part", range(4), ids="part-{}".format)
def test_plans_of_random_graphs(part: int) -> None:
    """Each part has its own few small graphs, with which hypothesis begins."""
    check_graphs(part, 30 if IS_FULL else 18)


@pytest.mark.early
@pytest.mark.full
@pytest.mark.parametrize("part", range(10), ids="part-{}".format)
def test_plans_of_many_random_graphs(part: int) -> None:
    check_graphs(4 + part, 1000)


@pytest.mark.parametrize("rows", range(1, 9))
@pytest.mark.parametrize("strips", [1, 4])
def test_a_step_reads_a_plane_by_a_window_and_as_it_is(rows: int, strips: int) -> None:
    """The window's rows must be kept although the last operation of the step reads fewer."""
    network = md.Sequential(L.ReLU(), _LessMean())
    optimized = optimize(to_graph(network, (2, 4, 8, 5)), Context(Target(H200)))
    (node,) = optimized.nodes
    assert isinstance(node.op, FusedSequence)
    x = np.random.default_rng(rows).standard_normal((2, 4, 8, 5), np.float32)
    (expected,) = evaluate(optimized, [x])
    for stage in (False, True):
        region = FusedSequence(node.op.body, Schedule(rows, 3, strips, stage, False))
        (found,) = region.interpret(x)
        assert same_bits(found, expected)


class _LessMean(md.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mean = L.AvgPool2d((3, 1), stride=1, padding=(1, 0))

    def forward(self, x: Any) -> Any:
        return x - self.mean(x)
