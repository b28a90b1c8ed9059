"""The steps of the ladder of copies on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..cpu.machine import CpuMachine
from ..cpu.model import CHAINS, CpuWork
from ..cpu.step import IspcStep
from ..step import Ladder, Parameters

PIECE = 1 << 14
"""Floats of a task."""


@dataclass(frozen=True)
class CopyShape:
    """Pieces of 16,384 floats that are copied."""

    pieces: int = 2048

    def __post_init__(self) -> None:
        if not 1 <= self.pieces < 1 << 17:
            raise UnsupportedError(f"pieces={self.pieces}; valid are 1 to {(1 << 17) - 1}")

    @property
    def piece(self) -> int:
        """Floats of a piece."""
        return PIECE

    @property
    def terms(self) -> int:
        """A copy rounds nothing."""
        return 0

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.pieces * PIECE, "y": self.pieces * PIECE}

    @property
    def operations(self) -> int:
        """None."""
        return 0


def copied(shape: CopyShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result in float64."""
    return operands["x"].astype(np.float64)


def _tasks(shape: CopyShape, parameters: Parameters, lanes: int) -> int:
    return shape.pieces


def _work(floats: int, lanes: int, gathered: float = 0.0) -> CpuWork:
    """A read, a write, and half of the loop for each vector; gathers read each lane."""
    vectors = floats / lanes
    reads = vectors * (2 * lanes if gathered else 2)
    return CpuWork(0.0, reads, reads + vectors, CHAINS, 8.0 * floats, gathered, lanes)


def _by_one(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _work(shape.pieces * PIECE, 1)


def _by_vectors(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _work(shape.pieces * PIECE, machine.lanes)


def _apart(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _work(shape.pieces * PIECE, machine.lanes, gathered=1.0)


def _uneven(shape: CopyShape, parameters: Parameters, lanes: int) -> str | None:
    if PIECE % (lanes * parameters["STRIDE"]) == 0:
        return None
    return f"STRIDE={parameters['STRIDE']}; {PIECE // lanes} vectors of a piece are no multiple"


def _step(name: str, **given: Any) -> IspcStep:
    return IspcStep(name=name, source=Path(__file__).parent / f"{name}.ispc", tasks=_tasks, **given)


MEMORY_CPU = Ladder(
    "memory-cpu",
    "a copy of floats, on a CPU",
    CopyShape(),
    (
        _step("scalar", work=_by_one),
        _step("apart", work=_apart, parameters={"STRIDE": 32}, refusal=_uneven),
        _step("vectors", work=_by_vectors, helps=("empty lanes", "gathers", "issue")),
        _step("streamed", work=_by_vectors, helps=("memory",)),
    ),
    copied,
    {"L2": CopyShape(4), "L3": CopyShape(64), "memory": CopyShape(2048)},
)
