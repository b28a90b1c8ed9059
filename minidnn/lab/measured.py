"""A study that is measured: each step in a process of its own, then what it is to reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from .apart import LIMIT_SECONDS, Apart, Failure
from .ceilings import CeilingJob
from .devices import DEVICES
from .operands import OperandFolder
from .step import Block, Choices, Ladder, Point
from .study import study

Tell = Callable[[str], None]


def measured_study(
    ladder: Ladder,
    steps: Sequence[Any],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    parameters: Choices | None = None,
    *,
    limit: float = LIMIT_SECONDS,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """What :func:`.study.study` says of this machine's device, and what was measured: in each cell,
    and in ``libraries`` for each shape.  What failed has the reason in ``failed``.  ``limit``:
    seconds that a cell may take; ``tell`` is called with a line about what is going on.

    Raises:
        DeviceError: there is no such device, or no compiler for it.
    """
    device = DEVICES[ladder.device]
    machine = device.machine()
    document = study(ladder, steps, blocks, shapes, machine, parameters)
    with OperandFolder(ladder) as folder:
        by_step = sorted(document["cells"], key=lambda cell: _place(steps, cell))
        for name, group in groupby(by_step, key=lambda cell: cell["step"]):
            cells = [cell for cell in group if "why_not" not in cell]
            tell(f"{name}: {len(cells)} to be measured")
            step, jobs = ladder.step(name), []
            for cell in cells:
                shape = shapes[cell["shape"]]
                point = Point(step, tuple(cell["block"]), cell["parameters"])
                operands = folder.of(step.operands(shape), shape)
                jobs.append(device.job(point, shape, machine, operands))
            for cell, found in zip(cells, Apart(device.measure, limit).run(jobs), strict=True):
                cell |= {"failed": found.text} if isinstance(found, Failure) else found
        tell("libraries")
        document["libraries"] = _libraries(ladder, shapes, folder, limit)
    return document


def _place(steps: Sequence[Any], cell: dict[str, Any]) -> int:
    return [step.name for step in steps].index(cell["step"])


def _libraries(
    ladder: Ladder, shapes: Sequence[Any], folder: OperandFolder, limit: float
) -> list[Any]:
    """For each shape the ceilings of the device, or why there are none."""
    names = ladder.steps[0].operands(ladder.shape)
    jobs = [CeilingJob(shape, folder.of(names, shape)) for shape in shapes]
    found = Apart(DEVICES[ladder.device].ceilings, limit).run(jobs)
    return [
        {"failed": one.text} if isinstance(one, Failure) else {"algorithms": one} for one in found
    ]
