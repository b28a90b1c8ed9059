"""What studies need of a device: its description, the model, and measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.cuda.functions import compile_kernels
from ..backends.cuda.machine import Machine, machine_of
from ..backends.cuda.nvrtc import Resources
from .ceilings import ceilings
from .counters import count
from .cpu import machine as cpu_machine
from .cpu import measure as cpu_measure
from .cuda.step import KernelCall
from .measure import Job, measure
from .model import Prediction, PredictionOfSeveral, why_no_block
from .operands import RESULT, Operands
from .step import Point


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


def machine() -> Machine:
    """This computer's first GPU; DeviceError if there is none."""
    return machine_of(0)


def predict(
    points: Sequence[Point], shape: Any, machine: Machine
) -> list[Prediction | PredictionOfSeveral | str]:
    """The model's view of each point, or why it cannot be launched; kernels are compiled together,
    for the registers that they take.

    Raises:
        DeviceError: there is no NVRTC, or the limits of the machine are not known.
    """
    reasons = [point.why_not(shape, machine) for point in points]
    calls: list[list[KernelCall]] = [
        [] if reason else point.step.calls(shape, point.block, point.parameters)
        for point, reason in zip(points, reasons, strict=True)
    ]
    sources = [call.launch.source for own in calls for call in own]
    kernels = iter(compile_kernels(sources, machine.arch) if sources else [])
    return [
        reason or _predicted(point, shape, machine, own, [next(kernels).resources for _ in own])
        for point, reason, own in zip(points, reasons, calls, strict=True)
    ]


def _predicted(
    point: Point,
    shape: Any,
    machine: Machine,
    calls: Sequence[KernelCall],
    resources: Sequence[Resources],
) -> Prediction | PredictionOfSeveral | str:
    step, where = point.step, (shape, point.block, point.parameters)
    sizes = {**shape.operands, **step.scratch(*where)}
    found = []
    for call, taken, work in zip(calls, resources, step.works(*where), strict=True):
        x, y, z = call.launch.block
        shared_bytes = call.launch.shared_bytes + taken.shared_bytes
        reason = why_no_block(machine.capability, x * y * z, taken.registers, shared_bytes)
        if reason is not None:
            return reason
        found.append(Prediction(call.launch, machine, taken, work, shape.operations, sizes))
    return found[0] if len(found) == 1 else PredictionOfSeveral(tuple(found))


def job(point: Point, shape: Any, machine: Machine, operands: Operands) -> Job:
    """What is to be measured of a point."""
    step, where = point.step, (shape, point.block, point.parameters)
    calls = step.calls(*where)
    return Job(
        tuple(calls),
        step.symbols(calls[-1].launch),
        shape.operands[RESULT],
        operands,
        "float16" if RESULT in step.halves else "float32",
        step.scratch(*where),
    )


DEVICES = {
    "cuda": LabDevice(machine, predict, job, measure, ceilings, count),
    "cpu": LabDevice(
        cpu_machine.this_cpu,
        cpu_machine.predict,
        cpu_measure.job,
        cpu_measure.measure,
        cpu_measure.ceilings,
    ),
}
