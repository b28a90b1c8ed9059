"""A study: cells of steps and blocks on one shape and one GPU, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from ..backends.cuda.build import compile_kernels
from ..backends.cuda.kernels import Launch
from ..backends.cuda.machine import Machine
from .model import Prediction
from .occupancy import why_no_block
from .step import Block, Ladder, LadderStep, Parameters

FORMAT, VERSION = "minidnn lab study", 1


def predict(
    ladder: Ladder,
    steps: Sequence[LadderStep],
    blocks: Sequence[Block],
    shape: Any,
    machine: Machine,
    parameters: Parameters | None = None,
) -> dict[tuple[str, Block], Prediction | str]:
    """The model's view of each step with each block, or why it cannot be launched; their kernels
    are compiled together, for the registers that they take.  ``parameters`` are those that are not
    as the steps have them; each step takes its own.

    Raises:
        DeviceError: there is no NVRTC, or the limits of the machine are not known.
    """
    found: dict[tuple[str, Block], Prediction | str] = {}
    launches: dict[tuple[str, Block], Launch] = {}
    for step, block in product(steps, blocks):
        found[step.name, block] = reason = (
            step.why_not(shape, block, machine, step.with_own(parameters)) or ""
        )
        if not reason:
            launches[step.name, block] = step.launch(shape, block, step.with_own(parameters))
    sources = [launch.source for launch in launches.values()]
    kernels = compile_kernels(sources, machine.arch) if sources else []
    for (name, block), kernel in zip(launches, kernels, strict=True):
        launch, resources, step = launches[name, block], kernel.resources, ladder.step(name)
        shared_bytes = launch.shared_bytes + resources.shared_bytes
        found[name, block] = why_no_block(
            machine.capability, block[0] * block[1], resources.registers, shared_bytes
        ) or Prediction(
            launch,
            machine,
            resources,
            step.work(shape, block, step.with_own(parameters)),
            shape.operations,
            shape.operands,
        )
    return found


def study(
    ladder: Ladder,
    steps: Sequence[LadderStep],
    blocks: Sequence[Block],
    shapes: Sequence[Any],
    machine: Machine,
    parameters: Parameters | None = None,
) -> dict[str, Any]:
    """What :func:`predict` finds for each shape, with all that it was asked for."""
    cells = []
    for number, shape in enumerate(shapes):
        predictions = predict(ladder, steps, blocks, shape, machine, parameters)
        for (name, block), found in predictions.items():
            told = {"why_not": found} if isinstance(found, str) else found.record()
            used = ladder.step(name).with_own(parameters)
            head = {"step": name, "shape": number, "block": list(block), "parameters": used}
            cells.append({**head, **told})
    return {
        "format": FORMAT,
        "version": VERSION,
        "ladder": ladder.name,
        "machine": asdict(machine),
        "shapes": [asdict(shape) for shape in shapes],
        "cells": cells,
    }
