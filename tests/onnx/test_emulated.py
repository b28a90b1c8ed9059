"""ONNX's own backend tests and random models by CUDA's kernels, run by the emulator: those that
take no cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.backends.cuda.task import Task
from minidnn.graph.ir import Graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests.cuda.cards import H200
from tests.cuda.emulator.run import Emulated
from tests.cuda.test_operators import run

from .backend_cases import chosen_cases
from .test_backend import compare, loaded
from .test_random_models import compare as compare_random
from .test_random_models import inputs as inputs_of
from .test_random_models import models

#: Kernels that are compiled together.
PART = 60


def lowered(graph: Graph) -> tuple[Plan, list[Task]]:
    context = Context(CudaTarget())
    plan = make_plan(optimize(graph, context), context)
    return plan, lower_plan(plan, H200, False)


Run = tuple[Plan, list[Task], list[np.ndarray], Callable[[list[np.ndarray]], None]]


def emulate(runs: Sequence[Run], folder: Path) -> None:
    """Runs plans and hands over what they give."""
    for first in range(0, len(runs), PART):
        part = runs[first : first + PART]
        works = [task.work for _, tasks, _, _ in part for task in tasks]
        kernels = Emulated([work.source for work in works if isinstance(work, Launch)], folder)
        for plan, tasks, inputs, judge in part:
            judge(run(plan, tasks, kernels, [np.ascontiguousarray(array) for array in inputs]))


@pytest.mark.full
def test_cuda_kernels(tmp_path: Path) -> None:
    runs: list[Run] = []
    contractions = 0
    for case in chosen_cases():
        for graph, inputs, expected in loaded(case):
            plan, tasks = lowered(graph)
            if all(isinstance(task.work, Launch) for task in tasks):
                runs.append((plan, tasks, inputs, partial(compare, case, expected=expected)))
            else:
                contractions += 1
    assert len(runs) > 900 and contractions < 40
    emulate(runs, tmp_path)


def random_runs(first: int, count: int) -> list[Run]:
    runs: list[Run] = []
    for seed, made, graph in models(first, count):
        plan, tasks = lowered(graph)
        if all(isinstance(task.work, Launch) for task in tasks):
            judge = partial(compare_random, seed, made)
            runs.append((plan, tasks, inputs_of(made, graph), judge))
    return runs


def test_random_models(tmp_path: Path) -> None:
    emulate(random_runs(40_000, 60), tmp_path)


@pytest.mark.full
def test_many_random_models(tmp_path: Path) -> None:
    emulate(random_runs(40_100, 1000), tmp_path)
