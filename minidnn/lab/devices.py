"""What studies need of a device: its description, the model, and measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import cuda_device
from .cpu.machine import CpuMachine, CpuPrediction
from .cpu.machine import this_cpu as machine
from .cpu.measure import ceilings, job, measure
from .step import Point


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


@dataclass(frozen=True)
class LabDevice:
    """A kind of device that steps run on.

    Attributes:
        machine: describes this computer's.
        predict: the model's view of points on a shape and a machine, or why they cannot run.
        job: what is measured of a point on a shape, as plain data for another process.
        measure: checks and times a job.
        ceilings: each way in which a library, or the engine, computes a shape.
        count: the metrics of jobs that hardware counters tell, within a limit of seconds; None
            where counters are not read.
    """

    machine: Callable[[], Any]
    predict: Callable[[Sequence[Any], Any, Any], list[Any]]
    job: Callable[..., Any]
    measure: Callable[[Any], dict[str, Any]]
    ceilings: Callable[[Any], list[dict[str, Any]]]
    count: Callable[[Sequence[Any], float], list[dict[str, float]]] | None = None


DEVICES = {
    "cuda": LabDevice(
        cuda_device.machine,
        cuda_device.predict,
        cuda_device.job,
        cuda_device.measure,
        cuda_device.ceilings,
        cuda_device.count,
    ),
    "cpu": LabDevice(
        machine,
        predict,
        job,
        measure,
        ceilings,
    ),
}
