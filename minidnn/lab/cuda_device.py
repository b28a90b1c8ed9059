"""GPUs: what the model says of a launch, and what is measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.cuda.build import compile_kernels
from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import Machine, machine_of
from .ceilings import ceilings
from .counters import count
from .measure import Job, measure
from .model import Prediction
from .occupancy import why_no_block
from .operands import RESULT, Operands
from .step import Point

__all__ = ["ceilings", "count", "job", "machine", "measure", "predict"]


def machine() -> Machine:
    """This computer's first GPU; DeviceError if there is none."""
    return machine_of(0)


def predict(points: Sequence[Point], shape: Any, machine: Machine) -> list[Prediction | str]:
    """The model's view of each point, or why it cannot be launched; kernels are compiled together,
    for the registers that they take.

    Raises:
        DeviceError: there is no NVRTC, or the limits of the machine are not known.
    """
    found: list[Prediction | str] = [point.why_not(shape, machine) or "" for point in points]
    launches: dict[int, Launch] = {
        at: point.step.launch(shape, point.block, point.parameters)
        for at, point in enumerate(points)
        if not found[at]
    }
    sources = [launch.source for launch in launches.values()]
    kernels = compile_kernels(sources, machine.arch) if sources else []
    for (at, launch), kernel in zip(launches.items(), kernels, strict=True):
        point, resources = points[at], kernel.resources
        threads = point.block[0] * point.block[1]
        shared_bytes = launch.shared_bytes + resources.shared_bytes
        found[at] = why_no_block(
            machine.capability, threads, resources.registers, shared_bytes
        ) or Prediction(
            launch,
            machine,
            resources,
            point.step.work_of(shape, point.block, point.parameters),
            shape.operations,
            shape.operands,
        )
    return found


def job(point: Point, shape: Any, machine: Machine, operands: Operands) -> Job:
    """What is to be measured of a point."""
    launch = point.step.launch(shape, point.block, point.parameters)
    arguments, symbols = point.step.arguments(shape), point.step.symbols(launch)
    return Job(launch, tuple(arguments), symbols, shape.operands[RESULT], operands)
