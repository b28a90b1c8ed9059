"""What studies need of a device: its description, the model, and measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import cuda_device
from .cpu import device as cpu_device


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
        cpu_device.machine,
        cpu_device.predict,
        cpu_device.job,
        cpu_device.measure,
        cpu_device.ceilings,
    ),
}
