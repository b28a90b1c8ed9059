"""schedule: another order of nodes, if less memory is in use at once."""

from __future__ import annotations

from itertools import permutations

import pytest

from minidnn.graph import operators as ops
from minidnn.graph.checker import complaints
from minidnn.graph.ir import Graph
from minidnn.graph.trace import apply
from minidnn.memory import Annotations, lifetimes, peak_bytes
from minidnn.passes.infrastructure import Context
from minidnn.passes.schedule import SCHEDULE
from tests.passes.build import assert_same, conv, graph_of, relu, run

X = (1, 4, 8, 8)


def peak(graph: Graph) -> int:
    return peak_bytes(lifetimes(graph, Annotations()))


def branches(t, x):
    """Branches whose large results are soon reduced; in the order given all are large at once."""
    wide = [conv(t, x, 32, 3) for _ in range(3)]
    small = [apply(ops.AdaptiveAvgPool2d((1, 1)), w) for w in wide]
    return apply(ops.Add(), apply(ops.Add(), small[0], small[1]), small[2])


def test_branches_run_one_after_the_other() -> None:
    before = graph_of(branches, X)
    context = Context()
    after = run(before, SCHEDULE, context=context)
    assert [n.name for n in before.nodes][:3] == ["conv2d", "conv2d.1", "conv2d.2"]
    assert [n.name for n in after.nodes][:4] == [
        "conv2d",
        "adaptiveavgpool2d",
        "conv2d.1",
        "adaptiveavgpool2d.1",
    ]
    big = 32 * 64 * 4
    assert peak(before) == 3 * big + 128
    assert peak(after) == big + 2 * 128
    text = f"reorder nodes: {3 * big + 128} to {big + 256} bytes at once"
    assert [r.description for r in context.rewrites] == [text]
    assert_same(before, after)


def test_without_fuel_the_order_stays() -> None:
    before = graph_of(branches, X)
    assert run(before, SCHEDULE, context=Context(fuel=0)) is before


def test_a_chain_has_one_order() -> None:
    before = graph_of(lambda t, x: relu(conv(t, relu(conv(t, x, 4)), 4)), X)
    assert run(before, SCHEDULE) is before
    assert SCHEDULE.requires == ("slice_in_place",)


def legal_orders(graph: Graph) -> list[Graph]:
    found = (Graph(graph.inputs, graph.outputs, order) for order in permutations(graph.nodes))
    return [g for g in found if not complaints(g)]


@pytest.mark.parametrize("seed", range(8))
def test_never_worse_than_the_given_order_and_near_the_best(seed: int) -> None:
    """Against all orders of small graphs."""
    import numpy as np

    random = np.random.default_rng(seed)

    def build(t, x):
        values = [x]
        for _ in range(6):
            value = values[int(random.integers(len(values)))]
            values.append(conv(t, value, int(random.integers(1, 40))))
        return values[-3:]

    graph = graph_of(build, X)
    scheduled = peak(run(graph, SCHEDULE))
    peaks = [peak(g) for g in legal_orders(graph)]
    assert min(peaks) <= scheduled <= peak(graph)
    assert scheduled <= 1.35 * min(peaks)
