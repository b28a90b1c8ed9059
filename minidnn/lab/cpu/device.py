"""CPUs: what the model says of a kernel, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..step import Point
from .ceilings import ceilings
from .machine import CpuMachine
from .machine import this_cpu as machine
from .measure import job, measure
from .model import CpuPrediction

__all__ = ["ceilings", "job", "machine", "measure", "predict"]


def predict(points: Sequence[Point], shape: Any, machine: CpuMachine) -> list[CpuPrediction | str]:
    """The model's view of each point, or why it cannot run."""
    return [point.why_not(shape, machine) or _predicted(point, shape, machine) for point in points]


def _predicted(point: Point, shape: Any, machine: CpuMachine) -> CpuPrediction:
    step = point.step
    return CpuPrediction(
        machine,
        step.work_of(shape, point.parameters, machine),
        shape.operations,
        {name: shape.operands[name] for name in step.operands(shape)},
        step.tasks(shape, point.parameters, machine.lanes),
    )
