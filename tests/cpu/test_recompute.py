"""Training under a memory limit on the CPU engine, guarded."""

from __future__ import annotations

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.layers.build import to_graph
from minidnn.models import get_model
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.passes.recompute import stored_bytes
from minidnn.runtime.plan import make_plan
from tests.passes.test_recompute import assert_same_bits, network


def test_the_same_bits() -> None:
    assert_same_bits(network(), (4, 3, 12, 12), 0.7, device="cpu", threads=2, guarded=True)


def test_times_of_regions_leave_what_is_trained() -> None:
    trainer = md.Trainer(
        L.Linear(4, 2), (2, 4), md.losses.MSE(), md.optim.SGD(0.1), device="cpu", threads=2
    )
    before = trainer.state_dict()
    text = trainer.explain(measure=True)
    assert "ms measured" in text and "kept for the backward pass" in text
    for name, array in trainer.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(("batch", "part", "groups"), [(8, 1.0, 1), (8, 0.9, 1), (2, 0.9, 0)])
def test_images_one_by_one_take_no_more_than_a_limit(batch: int, part: float, groups: int) -> None:
    """For many images it takes less memory, for two, whose values both threads have, it may not."""
    graph = to_graph(get_model("resnet18"), (batch, 3, 224, 224))

    def planned(limit: int | None) -> tuple[int, int]:
        context = Context(CpuBackend().target("float32", {"threads": 2}), memory_limit=limit)
        plan = make_plan(optimize(graph, context), context)
        values = plan.arena.bytes + 2 * plan.group_arena.bytes
        return stored_bytes(plan.graph) + values, len(plan.annotations.groups)

    free, _ = planned(None)
    limit = int(free * part)
    bytes, found = planned(limit)
    assert min(found, 1) == groups
    assert bytes <= max(limit, free)
