"""recompute: less memory in use at once under a limit, and the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError, OutOfMemoryError
from minidnn.graph.ir import Graph
from minidnn.models import get_model
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.passes.recompute import stored_bytes
from minidnn.runtime.plan import Plan, make_plan
from minidnn.training.step import Objective, step_graph

SHAPE = (8, 3, 24, 24)


class Block(L.Layer):
    """A residual block: its input is read by three nodes."""

    def __init__(self, channels: int) -> None:
        self.body = L.Sequential(
            *(L.Conv2d(channels, channels, 3, padding=1, bias=False), L.BatchNorm2d(channels)),
            *(L.SiLU(), L.Dropout(0.2), L.Conv2d(channels, channels, 3, padding=1)),
        )

    def forward(self, x: Any) -> Any:
        return np.maximum(x + self.body(x), 0.0)


def network(channels: int = 8) -> L.Layer:
    return L.Sequential(
        L.Conv2d(3, channels, 3, padding=1),
        *(Block(channels) for _ in range(3)),
        *(L.AdaptiveAvgPool2d((1, 1)), L.Flatten(), L.Linear(channels, 4)),
    )


def step(net: L.Layer, shape: tuple[int, ...]) -> Graph:
    optimizer = md.optim.SGD(0.1, momentum=0.9)
    return step_graph(net, [shape], Objective(md.losses.CrossEntropy(), {}), optimizer)


def planned(graph: Graph, limit: int | None = None) -> tuple[Plan, list[str]]:
    """A plan under a limit, and what is computed again for it."""
    context = Context(stored=True, memory_limit=limit)
    plan = make_plan(optimize(graph, context, verify=True), context)
    return plan, [r.description for r in plan.rewrites if r.pass_name == "recompute"]


def test_cheap_values_are_computed_again_first() -> None:
    graph = step(network(channels=64), SHAPE)  # for which convolutions are dear
    free, nothing = planned(graph)
    assert nothing == []
    stored, values = stored_bytes(free.graph), free.arena.bytes
    plan, some = planned(graph, stored + values * 9 // 10)
    assert plan.arena.bytes <= values * 9 // 10
    assert some
    assert not any("body.0" in each or "body.4" in each for each in some), "convolutions"
    less, more = planned(graph, stored + values * 6 // 10)
    assert less.arena.bytes <= values * 6 // 10
    assert more[: len(some)] == some


def test_a_limit_that_is_large_enough_changes_nothing() -> None:
    graph = step(network(), SHAPE)
    free, _ = planned(graph)
    plan, nothing = planned(graph, stored_bytes(free.graph) + free.arena.bytes)
    assert nothing == []
    assert [n.name for n in plan.graph.nodes] == [n.name for n in free.graph.nodes]


def trained(net: L.Layer, shape: tuple[int, ...], classes: int, **options: Any) -> Any:
    """A trainer after three steps, and their losses."""
    net.initialize(3)
    random = np.random.default_rng(0)
    trainer = md.Trainer(
        net, shape, md.losses.CrossEntropy(), md.optim.SGD(0.1, momentum=0.9), **options
    )
    losses = [
        float(
            trainer.step(
                random.standard_normal(shape, np.float32), random.integers(0, classes, shape[0])
            )
        )
        for _ in range(3)
    ]
    return trainer, losses


def bytes_of(trainer: md.Trainer) -> tuple[int, int]:
    """Of states, and of values."""
    plan = trainer.step_program.plan
    return stored_bytes(plan.graph), plan.arena.bytes


def assert_same_bits(net: L.Layer, shape: tuple[int, ...], part: float, **options: Any) -> None:
    """Training under a limit that leaves values a part of what they take gives the same bits."""
    free, losses = trained(net, shape, 4, **options)
    stored, values = bytes_of(free)
    limit = stored + int(values * part)
    bound, same = trained(net, shape, 4, memory_limit=limit, **options)
    assert sum(bytes_of(bound)) <= limit
    assert same == losses
    for name, array in free.store.items():
        np.testing.assert_array_equal(bound.store[name], array, err_msg=name)


def test_the_same_bits_on_the_reference() -> None:
    assert_same_bits(network(), SHAPE, 0.6, device="reference")


def test_what_is_needed_at_least_is_told_and_is_enough() -> None:
    shape = (2, 3, 8, 8)
    with pytest.raises(OutOfMemoryError, match=r"^memory_limit=1000 bytes; weights and st") as told:
        trained(network(), shape, 4, device="reference", memory_limit=1000)
    needed = int(str(told.value).split(": ")[1].split(" are needed")[0])
    trainer, _ = trained(network(), shape, 4, device="reference", memory_limit=needed)
    assert sum(bytes_of(trainer)) <= needed


@pytest.mark.parametrize("limit", [-1, 1.5, True])
def test_limits_that_are_none(limit: Any) -> None:
    message = rf"memory_limit={limit}; valid is a number of bytes, or None"
    with pytest.raises(GraphError, match=message):
        md.compile(L.ReLU(), SHAPE, device="reference", memory_limit=limit)


@pytest.mark.full
def test_resnet18_on_the_cpu_engine() -> None:
    net = get_model("resnet18", num_classes=4)
    assert_same_bits(net, (8, 3, 64, 64), 0.7, device="cpu", threads=2)
