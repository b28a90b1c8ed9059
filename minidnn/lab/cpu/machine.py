"""A CPU as studies describe it, and what a kernel should cost on it, and what should limit it.

Each part of the machine is given its work, and the part that is busy longest sets the time.  Peak
and bandwidths are the machine's, as they are measured; how many reads, instructions and waiting
sums go with a multiply-add are round figures of x86 since Haswell, not fitted to any kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...backends.cpu.isa import Isa, best_isa, isa_named
from ...backends.cpu.machine import describe_machine, measured_rates
from ..model import Roofline
from ..step import Point

_READS = 1.0
"""Vectors that are read in the time of a multiply-add."""
_INSTRUCTIONS = 3.0
"""Instructions that are issued in that time."""
CHAINS = 8
"""Sums that go on at once so that none waits for its last product."""
_START = 3e-6
"""Seconds until all threads have begun, and ended."""


@dataclass(frozen=True)
class CpuMachine:
    """A processor.

    Attributes:
        name: of the processor.
        threads: that share the work.
        isa: "avx512" or "avx2".
        peak_operations: float32 operations a second of multiply-adds on registers, as measured.
        bandwidth: bytes a second that are read plus written in a copy, as measured.
        l2_bandwidth: bytes a second that all threads read from their second caches, as measured.
        l1_bytes, l2_bytes, l3_bytes: of a core's first and second cache, and of the shared one.
    """

    name: str
    threads: int
    isa: str
    peak_operations: float
    bandwidth: float
    l2_bandwidth: float
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @property
    def instruction_set(self) -> Isa:
        return isa_named(self.isa)

    @property
    def lanes(self) -> int:
        """Floats of a vector."""
        return self.instruction_set.lanes

    @property
    def vectors(self) -> float:
        """Vector multiply-adds a second, of all threads."""
        return self.peak_operations / (2 * self.lanes)


def this_cpu() -> CpuMachine:
    """This computer's; DeviceError if it executes no known instruction set or has no ISPC."""
    isa, found, rates = best_isa(), describe_machine(), measured_rates()
    caches = found.caches
    return CpuMachine(
        name=found.processor,
        threads=rates.threads,
        isa=isa.name,
        peak_operations=rates.peak(isa.name),
        bandwidth=rates.copy,
        l2_bandwidth=rates.l2,
        l1_bytes=caches.l1,
        l2_bytes=caches.l2,
        l3_bytes=caches.l3,
    )


@dataclass(frozen=True)
class CpuWork:
    """What a kernel does, in instructions of all threads together.

    Attributes:
        multiply_adds: of vectors, or of single numbers where lanes are not used.
        reads: of vectors and of single numbers; a gather counts for each of its lanes.
        instructions: in all.
        chains: sums that go on at once.
        near_bytes: read from the second cache, or from further away.
        gathered: the part of the reads that gathers do.
        lanes: floats that a multiply-add computes.
    """

    multiply_adds: float
    reads: float
    instructions: float
    chains: int
    near_bytes: float
    gathered: float = 0.0
    lanes: int = 1


def least_work(sizes: Mapping[str, int], operations: int, machine: CpuMachine) -> CpuWork:
    """What any kernel must do: read and write each operand once, and compute in whole vectors."""
    products, floats = operations / 2 / machine.lanes, sum(sizes.values())
    reads = floats / machine.lanes
    return CpuWork(products, reads, products + reads, CHAINS, 4.0 * floats, lanes=machine.lanes)


@dataclass(frozen=True, eq=False)
class CpuPrediction:
    """A kernel on a machine, as the model sees it; ``sizes``: elements of what it reads and
    writes."""

    machine: CpuMachine
    work: CpuWork
    operations: int
    sizes: Mapping[str, int]
    tasks: int

    @property
    def bytes(self) -> int:
        """Of all operands, each once."""
        return 4 * sum(self.sizes.values())

    @cached_property
    def limits(self) -> dict[str, float]:
        """Seconds that each part of the machine would take by itself."""
        machine, work = self.machine, self.work
        # Tasks are handed out whole: the busiest thread has this share of them.
        share = -(-self.tasks // machine.threads) * machine.threads / self.tasks
        slot = share / machine.vectors
        kept = self.bytes <= machine.l3_bytes
        return {
            "arithmetic": work.multiply_adds * slot,
            "load units": work.reads / _READS * slot,
            "issue": work.instructions / _INSTRUCTIONS * slot,
            "latency": work.multiply_adds * max(1.0, CHAINS / work.chains) * slot,
            "L2": work.near_bytes * share / machine.l2_bandwidth,
            "memory": self.bytes / (machine.l2_bandwidth if kept else machine.bandwidth),
        }

    @property
    def limit(self) -> str:
        """The part that is busy longest."""
        return max(self.limits, key=lambda name: self.limits[name])

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return _START + max(self.limits.values())

    def record(self) -> dict[str, Any]:
        """A cell of a study: what is known of the kernel without running it."""
        intensity = self.operations / self.bytes
        machine = self.machine
        roof = Roofline(machine.peak_operations, machine.bandwidth)
        return {
            "tasks": self.tasks,
            "operations": self.operations,
            "bytes": {"L2": self.work.near_bytes, "memory": self.bytes},
            "operational_intensity": intensity,
            "attainable_performance": roof.attainable(intensity),
            "chains": self.work.chains,
            "gathered": self.work.gathered,
            "lanes": self.work.lanes,
            "seconds_by_part": self.limits,
            "predicted_limit": self.limit,
            "predicted_seconds": self.seconds,
        }


def predict(points: Sequence[Point], shape: Any, machine: CpuMachine) -> list[CpuPrediction | str]:
    """The model's view of each point, or why it cannot run."""
    return [point.why_not(shape, machine) or _predicted(point, shape, machine) for point in points]


def _predicted(point: Point, shape: Any, machine: CpuMachine) -> CpuPrediction:
    step = point.step
    return CpuPrediction(
        machine,
        step.work_of(shape, point.parameters, machine),
        shape.operations,
        {name: shape.operands[name] for name in step.operands(shape)},
        step.tasks(shape, point.parameters, machine.lanes),
    )
