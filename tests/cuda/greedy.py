"""Plans prepared without a GPU, each contraction by what takes most workspace of what it may."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import minidnn as md
from minidnn.backends.cuda import prepare
from minidnn.backends.cuda.block import lay_out
from minidnn.backends.cuda.constants import Constants
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import workspace_bytes
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.errors import UnsupportedError
from tests.cuda.cards import H200

from .lowered import planned


class Greedy:
    """Takes what needs most workspace of what the limits leave."""

    def __init__(self, problems: Sequence[ContractionProblem], tuning: Tuning, pool: Any) -> None:
        self.problems, self.tuning = problems, tuning

    def launches(self) -> list[Any]:
        return []

    def made(self) -> dict[ContractionProblem, Any]:
        return {problem: self._most(problem) for problem in self.problems}

    def _most(self, problem: ContractionProblem) -> Any:
        limit = self.tuning.limit(problem)
        sizes = []
        for algorithm in algorithms_for(problem, H200):
            kernel = algorithm.kernel
            choices = kernel.choices(problem, H200) if kernel else ()
            taken = [kernel.workspace(problem, i, H200) for i in choices] if kernel else [0]
            sizes += [workspace_bytes(problem, algorithm, size) for size in taken]
        fitting = [size for size in sizes if size <= limit]
        if not fitting:
            raise UnsupportedError(f"no way within {limit} bytes")
        return taken_by(max(fitting), problem)


def taken_by(workspace: int, problem: ContractionProblem) -> Any:
    """What stands for a recipe that can run: it starts nothing."""
    return SimpleNamespace(workspace=workspace, problem=problem, rows=lambda at, workspace: [])


def loaded(launches: Sequence[Launch]) -> list[Any]:
    """What stands for kernels that can run."""
    return [SimpleNamespace(launch=launch) for launch in launches]


def be_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has :class:`Greedy` choose, and nothing compiled."""
    monkeypatch.setattr(prepare, "Choice", Greedy)
    monkeypatch.setattr(prepare, "LaunchLoader", lambda arch, other: loaded)


def least(network: md.Layer, shape: tuple[int, ...], precision: str) -> tuple[Any, Any, int]:
    """The plan, its tasks, and bytes of weights and values."""
    plan = planned(network, shape, precision)
    tasks = lower_plan(plan, H200, precision == "tf32")
    data = [p for task in tasks for p in task.pointers if isinstance(p, prepare.Data)]
    with prepare.threads() as pool:
        weights = Constants(data, pool).bytes
    return plan, tasks, weights + lay_out(plan, {}).own_bytes
