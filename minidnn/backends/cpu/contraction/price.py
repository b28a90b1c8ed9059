"""Predicting how long a contraction takes."""

from __future__ import annotations

from dataclasses import dataclass

from .blocking import block_cycles
from .scheme import Scheme


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


def predict_seconds(scheme: Scheme, speed: Speed) -> float:
    """The larger of arithmetic with its waiting, and of memory traffic.

    Values that fit the last cache are taken to be there; weights are not, since a network's
    weights are read once a run.
    """
    clock = speed.flops / speed.threads / (4 * scheme.lanes)
    compute = block_cycles(scheme, speed.threads) / clock
    return max(compute, memory_bytes(scheme, speed.cache) / speed.bandwidth)


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
