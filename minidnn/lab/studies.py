"""Studies: predictions and measurements of a ladder's steps as plain data, and their files.

A study has a cell for each step, block, parameters and shape.  A :class:`LabDevice` holds the
functions that a study needs for its device: the model, the measurement, and the ceilings.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..backends.cuda.functions import compile_kernels
from ..backends.cuda.machine import Machine, machine_of
from ..backends.cuda.nvrtc import Resources
from ..errors import MiniDNNError
from ..measure import write_figures
from .ceilings import CeilingJob, ceilings
from .counters import CountersError, count
from .cpu import machine as cpu_machine
from .cpu import measure as cpu_measure
from .cuda.step import KernelCall
from .isolated_jobs import LIMIT_SECONDS, Failure, IsolatedJobs
from .measure import Job, measure
from .model import Prediction, PredictionOfSeveral, why_no_block
from .operands import RESULT, OperandFolder, Operands
from .step import Block, Choices, Ladder, Point, points_of


@dataclass(frozen=True)
class LabDevice:
    """A kind of device that steps run on, as the functions that studies call.

    Attributes:
        machine: describes this computer's device.
        predict: returns the model's predictions for points on a shape and a machine, or the
            reasons why they cannot run.
        job: makes the job of a point on a shape: plain data for the measuring process.
        measure: checks and times a job.
        ceilings: measures the implementations of a shape in libraries and in the engine.
        count: reads the metrics of jobs from hardware counters, within a limit of seconds; None
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
    """The model's prediction for each point, or why it cannot be launched.  All kernels are
    compiled together, since the model needs their registers.

    Raises:
        DeviceError: there is no NVRTC, or the limits of the machine are not known.
    """
    reasons = [point.why_not(shape, machine) for point in points]
    calls: list[list[KernelCall]] = [
        [] if reason else point.step.calls(shape, point.block, point.parameters)
        for point, reason in zip(points, reasons, strict=True)
    ]
    sources = [call.launch.source for launches in calls for call in launches]
    kernels = iter(compile_kernels(sources, machine.arch) if sources else [])
    return [
        reason
        or _predicted(point, shape, machine, launches, [next(kernels).resources for _ in launches])
        for point, reason, launches in zip(points, reasons, calls, strict=True)
    ]


def _predicted(
    point: Point,
    shape: Any,
    machine: Machine,
    calls: Sequence[KernelCall],
    resources: Sequence[Resources],
) -> Prediction | PredictionOfSeveral | str:
    step, arguments = point.step, (shape, point.block, point.parameters)
    sizes = {**shape.operands, **step.scratch(*arguments)}
    predictions = []
    for call, compiled, work in zip(calls, resources, step.works(*arguments), strict=True):
        x, y, z = call.launch.block
        shared_bytes = call.launch.shared_bytes + compiled.shared_bytes
        reason = why_no_block(machine.capability, x * y * z, compiled.registers, shared_bytes)
        if reason is not None:
            return reason
        predictions.append(
            Prediction(call.launch, machine, compiled, work, shape.operations, sizes)
        )
    return predictions[0] if len(predictions) == 1 else PredictionOfSeveral(tuple(predictions))


def job(point: Point, shape: Any, machine: Machine, operands: Operands) -> Job:
    """The measuring job of a point."""
    step, arguments = point.step, (shape, point.block, point.parameters)
    calls = step.calls(*arguments)
    return Job(
        tuple(calls),
        step.symbols(calls[-1].launch),
        shape.operands[RESULT],
        operands,
        "float16" if RESULT in step.float16_operands else "float32",
        step.scratch(*arguments),
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


_FOLDER = Path(__file__).parent / "recorded"
_PARTS: dict[str, type] = {"ladder": str, "machine": dict, "shapes": list, "cells": list}
_CELL: dict[str, type] = {"step": str, "shape": int, "block": list, "parameters": dict}
_FIGURES = ("operations", "operational_intensity", "predicted_seconds")
_CUDA = (
    *("registers", "spill_bytes", "shared_bytes", "occupancy", "waves"),
    *("coalescing", "bank_conflicts"),
)
_CPU = ("tasks", "chains", "gathered", "lanes")


class StudyError(MiniDNNError, ValueError):
    """A file is no study that can be read.

    >>> from minidnn import lab
    >>> try:
    ...     lab.load_study("net.safetensors")
    >>> except lab.StudyError as error:
    ...     print(error)
    """


def save_study(path: str | os.PathLike[str], study: dict[str, Any]) -> None:
    """Writes a study to a file, whole or not at all.

    >>> from minidnn import lab
    >>> lab.save_study("product.json", lab.model("product", ["tiled"]))

    Args:
        path: of the file, which is JSON.
        study: what :func:`model` or :func:`run` gave.

    Raises:
        StudyError: the file cannot be written.
    """
    try:
        write_figures(Path(path), study)
    except OSError as error:
        raise StudyError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error


def load_study(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The study in a file.

    >>> from minidnn import lab
    >>> study = lab.load_study(lab.recorded_studies()["conv"])
    >>> study["machine"]["multiprocessors"]
    132

    Args:
        path: of a file that :func:`save_study` wrote.

    Returns:
        A study, as :func:`minidnn.lab.model` gives it.

    Raises:
        StudyError: there is no such file, it is damaged, no study, or of a later version.
    """
    name = os.fspath(path)
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise StudyError(f"{name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise StudyError(f"{name} is damaged, or no study: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise StudyError(f"{name} is no study: it does not say {FORMAT!r} as its format")
    version = document.get("version")
    if version != VERSION:
        raise StudyError(f"{name} is a study of version {version!r}; this minidnn reads {VERSION}")
    if (damage := _damage(document)) is not None:
        raise StudyError(f"{name} is damaged: {damage}")
    return document


def recorded_studies() -> dict[str, Path]:
    """The files of the studies that come with minidnn, by ladder.

    Returns:
        Paths, by the names of their ladders.

    >>> from minidnn import lab
    >>> sorted(lab.recorded_studies())
    """
    return {path.stem.rpartition("-")[0]: path for path in sorted(_FOLDER.glob("*.json"))}


def _damage(document: dict[str, Any]) -> str | None:
    """The first entry of a study that is missing or has the wrong type; None if there is none."""
    for name, kind in _PARTS.items():
        if not isinstance(document.get(name), kind):
            return f"{name!r} is missing"
    count = len(document["shapes"])
    libraries = document.get("libraries", [None] * count)
    if not isinstance(libraries, list) or len(libraries) != count:
        return f"'libraries' does not have an entry for each of {count} shapes"
    for number, cell in enumerate(document["cells"]):
        if not isinstance(cell, dict):
            return f"cell {number} is {type(cell).__name__}"
        for name, kind in _CELL.items():
            if not isinstance(cell.get(name), kind):
                return f"cell {number} has no {name!r}"
        if not 0 <= cell["shape"] < count:
            return f"cell {number} is of shape {cell['shape']}; there are {count}"
        if "why_not" in cell:
            continue
        wanted = _FIGURES + (_CPU if "isa" in document["machine"] else _CUDA)
        if "libraries" in document and "failed" not in cell:  # it was measured
            wanted += ("measured_seconds",)
        for name in wanted:
            if not isinstance(cell.get(name), int | float):
                return f"cell {number} has no {name!r}"
    return None


FORMAT, VERSION = "minidnn lab study", 1


def study(
    ladder: Ladder,
    steps: Sequence[Any],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    machine: Any,
    parameters: Choices | None = None,
) -> dict[str, Any]:
    """Predicts each step with each block on each shape; a cell that cannot be launched says why.

    ``parameters`` replace the steps' defaults; each step takes those that it has.

    Raises:
        DeviceError: there is no compiler, or the limits of the machine are not known.
    """
    device = DEVICES[ladder.device]
    points = points_of(steps, blocks, parameters)
    cells = []
    for number, shape in enumerate(shapes):
        for point, prediction in zip(points, device.predict(points, shape, machine), strict=True):
            head = {
                "step": point.step.name,
                "shape": number,
                "block": list(point.block),
                "parameters": point.parameters,
            }
            figures = (
                {"why_not": prediction} if isinstance(prediction, str) else prediction.record()
            )
            cells.append({**head, **figures})
    return {
        "format": FORMAT,
        "version": VERSION,
        "ladder": ladder.name,
        "machine": asdict(machine),
        "shapes": [asdict(shape) for shape in shapes],
        "cells": cells,
    }


Tell = Callable[[str], None]


def measured_study(
    ladder: Ladder,
    steps: Sequence[Any],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    parameters: Choices | None = None,
    *,
    limit: float = LIMIT_SECONDS,
    counters: bool = False,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """Predicts and measures steps on this machine's device.

    Measurements are added to the cells of :func:`study`, and those of libraries to ``libraries``,
    for each shape.  A cell that fails has the reason in ``failed``.  ``limit``: seconds that a cell
    may take.  ``counters``: whether hardware counters are read.  ``tell``: receives progress lines.

    Raises:
        DeviceError: there is no such device, or no compiler for it.
    """
    device = DEVICES[ladder.device]
    machine = device.machine()
    document = study(ladder, steps, blocks, shapes, machine, parameters)
    with OperandFolder(ladder) as folder:
        names = [step.name for step in steps]
        order = sorted(
            (cell for cell in document["cells"] if "why_not" not in cell),
            key=lambda cell: (cell["shape"], names.index(cell["step"])),
        )
        jobs: list[Any] = []

        def make_jobs() -> Iterator[Any]:
            """Yields the job of each cell when the one before is done; operands are made on
            demand."""
            for (number, name), group in groupby(order, lambda one: (one["shape"], one["step"])):
                cells, step, shape = list(group), ladder.step(name), shapes[number]
                tell(f"shape {number}, {name}: {len(cells)} to be measured")
                operands = folder.of(step.operands(shape), shape, step.float16_operands)
                for cell in cells:
                    point = Point(step, tuple(cell["block"]), cell["parameters"])
                    jobs.append(device.job(point, shape, machine, operands))
                    yield jobs[-1]

        results = IsolatedJobs(device.measure, limit).run(make_jobs())
        for cell, one in zip(order, results, strict=True):
            cell |= {"failed": one.text} if isinstance(one, Failure) else one
        counted = [pair for pair in zip(order, jobs, strict=True) if "failed" not in pair[0]]
        if counters:
            tell(f"counters: {len(counted)} launches")
            document["counters"] = _count(device, counted, limit)
        tell("libraries")
        document["libraries"] = _libraries(ladder, shapes, folder, limit)
    return document


def _count(
    device: LabDevice, counted: Sequence[tuple[dict[str, Any], Any]], limit: float
) -> dict[str, str]:
    """Adds counted metrics to cells; returns the name of the tool, or why nothing was counted."""
    assert device.count is not None
    try:
        counts = device.count([job for _, job in counted], limit * max(1, len(counted)))
    except CountersError as error:
        return {"why_not": str(error)}
    for (cell, _), metrics in zip(counted, counts, strict=True):
        cell["counters"] = metrics
    return {"tool": "ncu"}


def _libraries(
    ladder: Ladder, shapes: Sequence[Any], folder: OperandFolder, limit: float
) -> list[Any]:
    """The ceilings of the device for each shape, or why there are none."""
    names = ladder.steps[0].operands(ladder.shape)
    jobs = [CeilingJob(shape, folder.of(names, shape)) for shape in shapes]
    results = IsolatedJobs(DEVICES[ladder.device].ceilings, limit).run(jobs)
    return [
        {"failed": one.text} if isinstance(one, Failure) else {"algorithms": one} for one in results
    ]
