"""Kernel plans: the same in every process, shared by equal sequences, and checked when run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minidnn import models
from minidnn.errors import GraphError
from minidnn.fusion.interpret import PlanError, interpret
from minidnn.fusion.plan import Binding, KernelPlan
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Graph
from minidnn.graph.trace import apply
from minidnn.layers.build import to_graph
from minidnn.passes.depth_first import DEPTH_FIRST
from minidnn.passes.fold import FOLD_BATCH_NORM
from minidnn.passes.pipeline import optimize
from minidnn.passes.simplify import SIMPLIFY
from tests.passes.build import graph_of, inputs_of, join, max_pool, relu, scale
from tests.passes.build import run as run_passes

DIGEST_OF_ALL_PLANS = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.fusion.test_plan import plans_of
text = "".join(repr(plan) for name in ("resnet18", "densenet121", "inception_v3")
               for plan in plans_of(name))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def plans_of(name: str) -> list[KernelPlan]:
    network = models.get_model(name)
    return plans_in(optimize(to_graph(network, (1, *network.input_shape))))


def plans_in(graph: Graph) -> list[KernelPlan]:
    return [node.op.kernel[0] for node in graph.nodes if isinstance(node.op, FusedSequence)]


def test_plans_are_byte_identical_in_every_process(root: Path) -> None:
    digests = set()
    for seed in ("0", "1", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST_OF_ALL_PLANS, str(root)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "sequences", "most"), [("densenet121", 120, 20), ("vgg16", 15, 12)]
)
def test_repeated_blocks_share_one_kernel(name: str, sequences: int, most: int) -> None:
    """Without absorbing, so that there are many: numbers of channels do not matter to a plan."""
    network = models.get_model(name)
    graph = to_graph(network, (1, *network.input_shape))
    plans = plans_in(run_passes(graph, SIMPLIFY, FOLD_BATCH_NORM, DEPTH_FIRST))
    assert len(plans) == sequences
    assert len(set(map(repr, plans))) == len(set(plans)) <= most


def stack(t, x, y):
    """Three steps over two inputs that are joined, with an output in the middle."""
    a = join(relu(x), scale(t, y))
    b = max_pool(a)
    return b, relu(apply(ops.AvgPool2d((2, 2), (2, 2)), scale(t, max_pool(b, 3, 1, 1))))


def graph() -> Graph:
    return graph_of(stack, (2, 3, 10, 9), (2, 2, 10, 9))


def run(plan: KernelPlan, binding: Binding, region: FusedSequence) -> list[np.ndarray]:
    given = dict(zip(region.body.inputs, inputs_of(region.body), strict=True))
    tensors = [given[slot.value].reshape(slot.value.type.plane) for slot in binding.inputs]
    vectors = [v.value.data for v in binding.vectors if isinstance(v.value, Constant)]
    return interpret(plan, binding, tensors, vectors)


def region_of(schedule: Schedule) -> FusedSequence:
    return FusedSequence(graph(), schedule)


SCHEDULES = [Schedule(2, 2), Schedule(1, 4, 5), Schedule(2, 3, 2), Schedule(1, 1, 1, True)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_an_unchanged_plan_gives_the_references_bits(schedule: Schedule) -> None:
    region = region_of(schedule)
    results = run(*region.kernel, region)
    for got, expected in zip(results, region.reference(*inputs_of(region.body)), strict=True):
        np.testing.assert_array_equal(got, expected)


def shrink_step(plan: KernelPlan, number: int, axis: str, low: int, high: int) -> KernelPlan:
    """The plan with less computed in one step."""
    extent = getattr(plan.steps[number], axis)
    smaller = replace(extent, low=extent.low + low, high=extent.high - high)
    steps = list(plan.steps)
    steps[number] = replace(steps[number], **{axis: smaller})
    return replace(plan, steps=tuple(steps))


def change_owned(plan: KernelPlan, output: int, by: int, axis: int = 0) -> KernelPlan:
    """The plan with outputs whose tiles overlap (by > 0) or leave gaps (by < 0)."""
    planes = list(plan.planes)
    (at,) = (i for i, plane in enumerate(planes) if plane.output == output)
    owned = list(planes[at].owned or ())
    owned[axis] = replace(owned[axis], high=owned[axis].high + by)
    planes[at] = replace(planes[at], owned=(owned[0], owned[1]))
    return replace(plan, planes=tuple(planes))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("rows above", lambda plan: shrink_step(plan, 0, "rows", 1, 0)),
        ("rows below", lambda plan: shrink_step(plan, 0, "rows", 0, 1)),
        ("columns left", lambda plan: shrink_step(plan, 0, "columns", 1, 0)),
        ("columns right", lambda plan: shrink_step(plan, 0, "columns", 0, 1)),
        ("halo of a later step", lambda plan: shrink_step(plan, 1, "rows", 0, 2)),
        ("overlapping rows", lambda plan: change_owned(plan, 0, 1)),
        ("missing rows", lambda plan: change_owned(plan, 0, -1)),
        ("overlapping columns", lambda plan: change_owned(plan, 0, 1, 1)),
        ("missing columns", lambda plan: change_owned(plan, 1, -1, 1)),
        ("a step too few", lambda plan: replace(plan, steps=plan.steps[1:])),
        ("steps in another order", lambda plan: replace(plan, steps=plan.steps[::-1])),
    ],
)
def test_broken_plans_are_found(what: str, change: Callable[[KernelPlan], KernelPlan]) -> None:
    """Also where the numbers would be right by accident."""
    region = region_of(Schedule(2, 2))
    plan, binding = region.kernel
    with pytest.raises(PlanError, match=r"is read before|are read, but|is written \d times"):
        run(change(plan), binding, region)


@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_buffers_are_no_larger_than_needed(schedule: Schedule, axis: str) -> None:
    """With one row or column less, something is lost that is read later, or does not fit."""
    region = region_of(schedule)
    plan, binding = region.kernel
    storages = {plane.buffer.storage for plane in plan.planes if plane.buffer is not None}
    assert storages
    for storage in sorted(storages):
        planes = list(plan.planes)
        for i, plane in enumerate(planes):
            if plane.buffer is not None and plane.buffer.storage == storage:
                less = {axis: getattr(plane.buffer, axis) - 1}
                planes[i] = replace(plane, buffer=replace(plane.buffer, **less))
        with pytest.raises(PlanError, match=r"are read, but the buffer|do not fit the buffer"):
            run(replace(plan, planes=tuple(planes)), binding, region)


def test_plans_say_where_everything_lies() -> None:
    text = str(region_of(Schedule(2, 2)).kernel[0])
    assert text.startswith("kernel over 5x4 in patches of 2x2")
    assert "(input 0)" in text and "(output 1)" in text and "step 3" in text
    assert "max window of" in text and "sum window of" in text


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (Schedule(0, 1), "schedule 0x1: rows, columns and strips must be at least 1"),
        (Schedule(1, 1, 0), "schedule 1x1: rows, columns and strips must be at least 1"),
    ],
)
def test_schedules_that_are_none(schedule: Schedule, text: str) -> None:
    with pytest.raises(GraphError) as caught:
        _ = region_of(schedule).kernel
    assert str(caught.value) == text


def test_a_patch_of_strides_that_do_not_agree_is_the_whole_plane() -> None:
    body = graph_of(lambda t, x: (max_pool(x, 3, 3, 0), max_pool(x, 2, 2, 0)), (1, 2, 12, 12))
    with pytest.raises(GraphError) as caught:
        _ = FusedSequence(body, Schedule(2, 4)).kernel
    assert str(caught.value) == (
        "schedule 2x4: strides of this sequence do not agree, so that its patch must be the "
        "whole plane, 4x4"
    )
    whole = FusedSequence(body, Schedule(4, 4))
    (x,) = inputs_of(body)
    for got, expected in zip(whole.interpret(x), whole.reference(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_batch_and_channels_are_no_part_of_a_plan() -> None:
    def build(t, x):
        return relu(scale(t, max_pool(x)))

    first = FusedSequence(graph_of(build, (1, 3, 8, 8)), Schedule(4, 8)).kernel[0]
    second = FusedSequence(graph_of(build, (7, 64, 8, 8)), Schedule(4, 8)).kernel[0]
    assert first == second and repr(first) == repr(second)
    other = FusedSequence(graph_of(build, (1, 3, 8, 9)), Schedule(4, 8)).kernel[0]
    assert first != other and repr(first) != repr(other)


def test_numbers_in_expressions_are_part_of_a_plan() -> None:
    def plan(slope: float) -> KernelPlan:
        body = graph_of(lambda t, x: apply(ops.LeakyReLU(slope), x), (1, 2, 4, 4))
        return FusedSequence(body, Schedule(4, 4)).kernel[0]

    plans = {plan(slope) for slope in (0.0, -0.0, 0.1, 0.1 + 1e-18, 0.2)}
    assert len(plans) == 4
