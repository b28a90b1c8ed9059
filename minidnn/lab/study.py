"""A study: cells of steps and blocks on one shape and one GPU, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..backends.cuda.build import compile_kernels
from ..backends.cuda.machine import Machine
from .model import Prediction
from .occupancy import why_no_block
from .step import Block, Ladder, LadderStep

FORMAT, VERSION = "minidnn lab study", 1


def predict(
    ladder: Ladder,
    steps: Sequence[LadderStep],
    blocks: Sequence[Block],
    shape: Any,
    machine: Machine,
) -> dict[tuple[str, Block], Prediction | str]:
    """The model's view of each step with each block, or why it cannot be launched; their kernels
    are compiled together, for the registers that they take.

    Raises:
        DeviceError: there is no NVRTC, or the limits of the machine are not known.
    """
    found: dict[tuple[str, Block], Prediction | str] = {}
    pairs = [(step, block) for step in steps for block in blocks]
    refused = {(step.name, block): step.why_not(shape, block, machine) for step, block in pairs}
    wanted = [(step, block) for step, block in pairs if not refused[step.name, block]]
    launches = [step.launch(shape, block) for step, block in wanted]
    kernels = compile_kernels([launch.source for launch in launches], machine.arch)
    compiled = {
        (step.name, block): (launch, kernel.resources)
        for (step, block), launch, kernel in zip(wanted, launches, kernels, strict=True)
    }
    for step, block in pairs:
        key = step.name, block
        if (reason := refused[key]) is not None:
            found[key] = reason
            continue
        launch, resources = compiled[key]
        shared_bytes = launch.shared_bytes + resources.shared_bytes
        threads = block[0] * block[1]
        reason = why_no_block(machine.capability, threads, resources.registers, shared_bytes)
        work = step.work(shape, block, step.parameters)
        found[key] = reason or Prediction(
            launch, machine, resources, work, shape.operations, shape.operands
        )
    return found


def study(
    ladder: Ladder,
    steps: Sequence[LadderStep],
    blocks: Sequence[Block],
    shape: Any,
    machine: Machine,
) -> dict[str, Any]:
    """What :func:`predict` finds, with all that it was asked for."""
    cells = []
    for (name, block), found in predict(ladder, steps, blocks, shape, machine).items():
        told = {"why_not": found} if isinstance(found, str) else found.record()
        parameters = dict(ladder.step(name).parameters)
        cells.append({"step": name, "block": list(block), "parameters": parameters, **told})
    return {
        "format": FORMAT,
        "version": VERSION,
        "ladder": ladder.name,
        "machine": asdict(machine),
        "shape": asdict(shape),
        "cells": cells,
    }
