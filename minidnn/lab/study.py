"""A study: cells of steps with blocks and parameters on some shapes, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .devices import DEVICES
from .step import Block, Choices, Ladder, points_of

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
