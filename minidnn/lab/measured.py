"""A study that is measured: steps in another process, then what they are to reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from .ceilings import CeilingJob
from .counters import CountersError
from .devices import DEVICES, LabDevice
from .isolated_jobs import LIMIT_SECONDS, Failure, IsolatedJobs
from .operands import OperandFolder
from .step import Block, Choices, Ladder, Point, points_of

FORMAT, VERSION = "minidnn lab study", 1


def study(
    ladder: Ladder,
    steps: Sequence[Any],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    machine: Any,
    parameters: Choices | None = None,
) -> dict[str, Any]:
    """What the model says of each step with each block on each shape, or why it cannot be launched.

    ``parameters`` are those that are not as the steps have them; each step takes its own.

    Raises:
        DeviceError: there is no compiler, or the limits of the machine are not known.
    """
    device = DEVICES[ladder.device]
    points = points_of(steps, blocks, parameters)
    cells = []
    for number, shape in enumerate(shapes):
        for point, found in zip(points, device.predict(points, shape, machine), strict=True):
            head = {
                "step": point.step.name,
                "shape": number,
                "block": list(point.block),
                "parameters": point.parameters,
            }
            told = {"why_not": found} if isinstance(found, str) else found.record()
            cells.append({**head, **told})
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
    """What :func:`.study.study` says of this machine's device, and what was measured: in each cell,
    and in ``libraries`` for each shape.  What failed has the reason in ``failed``.  ``limit``:
    seconds that a cell may take; ``counters``: whether hardware counters are read; ``tell`` is
    called with a line about what is going on.

    Raises:
        DeviceError: there is no such device, or no compiler for it.
    """
    device = DEVICES[ladder.device]
    machine = device.machine()
    document = study(ladder, steps, blocks, shapes, machine, parameters)
    with OperandFolder(ladder) as folder:
        order = sorted(
            (cell for cell in document["cells"] if "why_not" not in cell),
            key=lambda cell: (cell["shape"], _place(steps, cell)),
        )
        jobs: list[Any] = []

        def made() -> Iterator[Any]:
            """The job of each cell, when the one before is done."""
            for (number, name), group in groupby(order, lambda one: (one["shape"], one["step"])):
                cells, step, shape = list(group), ladder.step(name), shapes[number]
                tell(f"shape {number}, {name}: {len(cells)} to be measured")
                operands = folder.of(step.operands(shape), shape, step.halves)
                for cell in cells:
                    point = Point(step, tuple(cell["block"]), cell["parameters"])
                    jobs.append(device.job(point, shape, machine, operands))
                    yield jobs[-1]

        found = IsolatedJobs(device.measure, limit).run(made())
        for cell, one in zip(order, found, strict=True):
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
    """Adds what was counted to cells, and tells by what; or why nothing was."""
    assert device.count is not None
    try:
        found = device.count([job for _, job in counted], limit * max(1, len(counted)))
    except CountersError as error:
        return {"why_not": str(error)}
    for (cell, _), metrics in zip(counted, found, strict=True):
        cell["counters"] = metrics
    return {"tool": "ncu"}


def _place(steps: Sequence[Any], cell: dict[str, Any]) -> int:
    return [step.name for step in steps].index(cell["step"])


def _libraries(
    ladder: Ladder, shapes: Sequence[Any], folder: OperandFolder, limit: float
) -> list[Any]:
    """For each shape the ceilings of the device, or why there are none."""
    names = ladder.steps[0].operands(ladder.shape)
    jobs = [CeilingJob(shape, folder.of(names, shape)) for shape in shapes]
    found = IsolatedJobs(DEVICES[ladder.device].ceilings, limit).run(jobs)
    return [
        {"failed": one.text} if isinstance(one, Failure) else {"algorithms": one} for one in found
    ]
