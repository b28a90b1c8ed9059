"""Predicting how long a contraction takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..isa import Isa
from .blocking import block_cycles
from .scheme import Scheme

HIDDEN = 0.5
"""Part of the smaller of computing and moving that the larger one hides; measured with weights
that came from memory."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What a machine reaches with ``threads`` threads together.

    Attributes:
        flops: fp32 operations a second by multiply-adds.
        bandwidth: bytes a second to and from memory.
        cache: bytes of its last cache; 0 if unknown.
    """

    threads: int
    flops: float
    bandwidth: float
    cache: int


NOMINAL_THREADS = 2


def nominal_speed(isa: Isa, threads: int = NOMINAL_THREADS) -> Speed:
    """The machine for which choices are made: so many cores of a current processor.

    Choices must not change from machine to machine or with its load, so nothing is measured.
    """
    return Speed(threads, 16e9 * isa.lanes * threads, 25e9 * min(threads, 4), 32 << 20)


def predict_seconds(scheme: Scheme, speed: Speed) -> float:
    """From arithmetic with its waiting, and memory traffic.

    Values that fit the last cache are taken to be there; weights are not, since a network's
    weights are read once a run.
    """
    clock = speed.flops / speed.threads / (4 * scheme.lanes)
    compute = block_cycles(scheme, speed.threads) / clock
    return overlapped(compute, memory_bytes(scheme, speed.cache) / speed.bandwidth)


def overlapped(compute: float, memory: float) -> float:
    """Seconds of computing and moving: the larger hides a part of the smaller."""
    return max(compute, memory) + (1 - HIDDEN) * min(compute, memory)


def memory_bytes(scheme: Scheme, cache: int) -> int:
    """Bytes that a run moves to and from memory."""
    problem = scheme.problem
    pixels = problem.batch * problem.out[0] * problem.out[1]
    size = problem.size[0] * problem.size[1]
    inputs = 4 * problem.batch * problem.groups * problem.inputs * size
    result = 4 * pixels * problem.groups * problem.outputs
    moved = 4 * scheme.groups * scheme.slots * problem.depth
    if inputs > cache // 2:
        moved += inputs
    if result > cache // 2:
        moved += result * len(problem.others)
        # A line is read before a part of it is written, unless results are streamed.
        moved += result if scheme.streams else 2 * result
    return moved
