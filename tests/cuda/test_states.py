"""States on CUDA without a GPU: kernels in the emulator, layouts and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.cuda.block import lay_out
from minidnn.backends.cuda.constants import Data
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.problem import Addresses, ContractionProblem
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import InWorkspace
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph, State
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.operators import Reorder
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from minidnn.training.step import Objective, step_graph
from tests.cuda.cards import H200
from tests.states.build import BUILDERS, graph_of
from tests.states.test_programs import random_graph

from .emulator.run import Emulated
from .lowered import FEW, EmulatedProgram, Kernel, planned
from .test_operators import run


def plan_of(graph: Graph, precision: str = "float32") -> Plan:
    context = Context(CudaTarget(H200.device(precision), precision), stored=True)
    return make_plan(optimize(graph, context, verify=True), context)


def test_several_runs_are_the_evaluators(tmp_path: Path) -> None:
    """What states become is written over them where that can be."""
    graphs = [*(graph_of(build) for build in BUILDERS), *map(random_graph, range(8))]
    plans = [plan_of(graph) for graph in graphs]
    lowered = [lower_plan(plan, H200, False) for plan in plans]
    works = [task.work for tasks in lowered for task in tasks]
    kernels = Emulated([work.source for work in works if isinstance(work, Launch)], tmp_path)
    random = np.random.default_rng(0)
    for graph, plan, tasks in zip(graphs, plans, lowered, strict=True):
        held: dict[str, np.ndarray] = {}
        states: Any = {state: state.data.flatten() for state in plan.graph.states}
        for _ in range(3):
            given = [random.standard_normal(v.shape, np.float32) for v in graph.inputs]
            wanted = evaluate(graph, given, states=held)
            found = run(plan, tasks, kernels, given, states)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one, other, 1e-5, 1e-5)
            for state in plan.graph.updates:
                np.testing.assert_allclose(states[state], held[state.name].ravel(), 1e-5, 1e-5)


def network(**options: Any) -> L.Sequential:
    """A convolution with what it absorbs, and vectors in sequences."""
    net = L.Sequential(
        *(L.MaxPool2d(2), L.BatchNorm2d(16), L.AvgPool2d(2, 1)),
        *(L.Conv2d(16, 16, 3, padding=1, **options), L.BatchNorm2d(16), L.SiLU()),
    )
    net.initialize(1)
    return net


def by_first(problem: ContractionProblem) -> Kernel:
    """The first kernel of ours that is one launch, and its numbers."""
    counts = [len(some) for some in (problem.others, problem.vectors, problem.before_vectors)]
    others, vectors, before = ((0,) * count for count in counts)
    nowhere = Addresses(0, 0, 0, others, vectors, before)
    for algorithm in algorithms_for(problem, FEW):
        for choice in (
            algorithm.kernel.choices(problem, FEW) if algorithm.kernel is not None else ()
        ):
            assert algorithm.kernel is not None
            launches = algorithm.kernel.launches(problem, choice, FEW)
            if len(launches) == 1:
                (arguments,) = algorithm.kernel.arguments(problem, choice, nowhere, FEW)
                numbers = [one for one in arguments[3 + sum(counts) :] if isinstance(one, int)]
                return algorithm.core, launches[0], numbers
    raise AssertionError(problem.describe())


@pytest.mark.parametrize(("precision", "groups"), [("float32", 1), ("tf32", 16)])
def test_parameters_are_read_where_states_lie(precision: str, groups: int, tmp_path: Path) -> None:
    net, shape = network(groups=groups), (2, 16, 12, 12)
    program = EmulatedProgram(net, shape, precision, by_first, tmp_path, states=True)
    pointers = [p for task in program.tasks for p in task.pointers]
    assert {"1.bias", "1.running_mean"} <= {p.name for p in pointers if isinstance(p, State)}
    (weight,) = (t.pointers[1] for t in program.tasks if isinstance(t.work, ContractionProblem))
    assert isinstance(weight, State)
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    for _ in range(2):
        states = {s.name: a[: s.type.bytes].view(np.float32) for s, a in program.states.items()}
        held = {k: v.reshape(net.state_dict()[k].shape) for k, v in states.items()}
        (wanted,) = evaluate(to_graph(net, shape, states=True), [x], "float64", states=held)
        np.testing.assert_allclose(program(x), wanted, 1e-4, 1e-4)
        for array in states.values():
            array *= 1.25


class Joined(L.Layer):
    """Two normalizations, one of which computes some channels of a sequence alone."""

    def __init__(self) -> None:
        self.one, self.two = L.BatchNorm2d(4), L.BatchNorm2d(12)

    def forward(self, x: Any, y: Any) -> Any:
        return np.maximum(np.concatenate([self.one(x), self.two(y)], 1), 0.0)


def test_vectors_of_some_channels_are_packed(tmp_path: Path) -> None:
    net, shapes = Joined().initialize(0), ((2, 4, 6, 6), (2, 12, 6, 6))
    plan = plan_of(to_graph(net, shapes, states=True))
    tasks = lower_plan(plan, H200, False)
    assert any(isinstance(p, InWorkspace) for task in tasks for p in task.pointers)
    sources = [task.work.source for task in tasks if isinstance(task.work, Launch)]
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape, np.float32) for shape in shapes]
    states: Any = {state: state.data.flatten() for state in plan.graph.states}
    (found,) = run(plan, tasks, Emulated(sources, tmp_path), given, states)
    (wanted,) = evaluate(to_graph(net, shapes), given, "float64")
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


def test_filters_of_few_channels_are_gathered_in_every_run(tmp_path: Path) -> None:
    net = L.Sequential(L.Conv2d(3, 16, 7, stride=2, padding=3), L.ReLU())
    net.initialize(0)
    plan = planned(net, (2, 3, 20, 20), "tf32", states=True)
    packing, task, _ = lower_plan(plan, H200, True)
    assert isinstance(packing.work, Launch) and isinstance(task.work, ContractionProblem)
    weight, table, packed = packing.pointers
    assert packed == task.pointers[1] and isinstance(weight, State) and isinstance(table, Data)
    made = np.full(task.workspace_bytes // 4, np.float32(-77))
    kernels = Emulated([packing.work.source], tmp_path)
    kernels.launch(packing.work, [weight.data, table.make(), made])
    gather = task.work.gather
    assert gather is not None
    np.testing.assert_array_equal(made, gather.filter(weight.data, "float32").ravel())


@pytest.mark.parametrize(("precision", "layout"), [("float32", PLANAR), ("tf32", CHANNELS_LAST)])
def test_weights_lie_as_their_convolutions_read_them(precision: str, layout: Layout) -> None:
    net = L.Sequential(
        *(L.Conv2d(8, 16, 3), L.ReLU(), L.Conv2d(16, 16, 3), L.ReLU()),
        *(L.Conv2d(16, 16, 1), L.Conv2d(16, 16, 3, groups=16)),
    )
    plan = planned(net, (2, 8, 20, 20), precision, states=True)
    tasks = lower_plan(plan, H200, precision == "tf32")
    problems = [task for task in tasks if isinstance(task.work, ContractionProblem)]
    assert len(problems) == 4
    for task in problems[:2]:
        weight: Any = task.pointers[1]
        assert plan.layout(weight) == layout
    for task in problems[2:]:
        assert isinstance(task.pointers[1], State), "it lies the same way in both layouts"
    turned = [n for n in plan.graph.nodes if isinstance(n.op, Reorder) and "weight" in n.name]
    assert len(turned) == (2 if layout == CHANNELS_LAST else 0)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_training_step_has_a_task_for_every_node(precision: str) -> None:
    net = network()
    net = L.Sequential(*net, L.Dropout(0.1), L.Flatten(), L.Linear(400, 4))
    loss = md.losses.CrossEntropy()
    objective = Objective(loss, dict(loss.metrics))
    graph = step_graph(net, [(4, 16, 12, 12)], objective, md.optim.Adam(0.1))
    plan = plan_of(graph, precision)
    backend = CudaBackend()
    assert not [r for n in plan.graph.nodes if (r := backend.unsupported(n, precision))]
    tasks = lower_plan(plan, H200, precision == "tf32")
    assert lay_out(plan, {task.node: task.workspace_bytes for task in tasks}).bytes
    written = {plan.roots.get(value) for task in tasks for value in task.node.outputs}
    assert written >= set(plan.graph.updates), "every state is written in its own memory"
