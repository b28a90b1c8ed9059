"""A study that is measured: each step in a process of its own, then NVIDIA's libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from ..backends.cuda.machine import machine_of
from .apart import LIMIT_SECONDS, Apart, Failure
from .ceilings import CeilingJob, ceilings
from .measure import Job, measure
from .operands import OperandFolder
from .step import Block, Ladder, LadderStep, Parameters
from .study import study

Tell = Callable[[str], None]


def measured_study(
    ladder: Ladder,
    steps: Sequence[LadderStep],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    parameters: Parameters | None = None,
    *,
    limit: float = LIMIT_SECONDS,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """What :func:`.study.study` says of this machine's GPU, and what was measured: in each cell,
    and in ``libraries`` for each shape.  What failed has the reason in ``failed``.  ``limit``:
    seconds that a cell may take; ``tell`` is called with a line about what is going on.

    Raises:
        DeviceError: there is no GPU, no CuPy or no NVRTC.
    """
    document = study(ladder, steps, blocks, shapes, machine_of(0), parameters)
    with OperandFolder(ladder) as folder:
        by_step = sorted(document["cells"], key=lambda cell: _place(steps, cell))
        for name, group in groupby(by_step, key=lambda cell: cell["step"]):
            cells = [cell for cell in group if "why_not" not in cell]
            tell(f"{name}: {len(cells)} to be measured")
            jobs = [_job(ladder.step(name), cell, shapes, folder) for cell in cells]
            for cell, found in zip(cells, Apart(measure, limit).run(jobs), strict=True):
                cell |= {"failed": found.text} if isinstance(found, Failure) else found
        tell("libraries")
        document["libraries"] = _libraries(ladder, shapes, folder, limit)
    return document


def _place(steps: Sequence[LadderStep], cell: dict[str, Any]) -> int:
    return [step.name for step in steps].index(cell["step"])


def _job(
    step: LadderStep, cell: dict[str, Any], shapes: Sequence[Any], folder: OperandFolder
) -> Job:
    shape = shapes[cell["shape"]]
    across, down = cell["block"]
    operands = folder.of(step.operands(shape), shape)
    return Job(step, shape, (across, down), cell["parameters"], operands)


def _libraries(
    ladder: Ladder, shapes: Sequence[Any], folder: OperandFolder, limit: float
) -> list[Any]:
    """For each shape the rows of :func:`.ceilings.ceilings`, or why there are none."""
    names = ladder.steps[0].operands(ladder.shape)
    jobs = [CeilingJob(shape, folder.of(names, shape)) for shape in shapes]
    found = Apart(ceilings, limit).run(jobs)
    return [
        {"failed": one.text} if isinstance(one, Failure) else {"algorithms": one} for one in found
    ]
