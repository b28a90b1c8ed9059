"""ONNX's own backend tests by CUDA's kernels, run by the emulator: those that take no cuDNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import Task, lower_plan
from minidnn.backends.cuda.target import CudaTarget
from minidnn.graph.ir import Graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import Plan, make_plan
from tests.cuda.emulator.run import Emulated
from tests.cuda.test_operators import run

from .backend_cases import BackendCase, chosen_cases
from .test_backend import compare, loaded

#: Kernels that are compiled together.
PART = 60


def lowered(graph: Graph) -> tuple[Plan, list[Task]]:
    context = Context(CudaTarget())
    plan = make_plan(optimize(graph, context), context)
    return plan, lower_plan(plan, "sm_90", False)


@pytest.mark.full
def test_cuda_kernels(tmp_path: Path) -> None:
    runs: list[tuple[BackendCase, Plan, list[Task], list[np.ndarray], list[np.ndarray]]] = []
    contractions = 0
    for case in chosen_cases():
        for graph, inputs, expected in loaded(case):
            plan, tasks = lowered(graph)
            if all(isinstance(task.work, Launch) for task in tasks):
                runs.append((case, plan, tasks, inputs, expected))
            else:
                contractions += 1
    assert len(runs) > 900 and contractions < 40
    for first in range(0, len(runs), PART):
        part = runs[first : first + PART]
        works = [task.work for _, _, tasks, _, _ in part for task in tasks]
        kernels = Emulated([work.source for work in works if isinstance(work, Launch)], tmp_path)
        for case, plan, tasks, inputs, expected in part:
            given = [np.ascontiguousarray(array) for array in inputs]
            compare(case, run(plan, tasks, kernels, given), expected)
