"""The performance model of a kernel on a CPU: its time, and what limits it.

Each part of the machine (multiply-add units, load units, issue, L2, memory) gets its share of the
work, and the part that is busy longest sets the time.  Peak and bandwidths are measured on the
machine.  The loads and instructions that a core executes in the time of a multiply-add, and the
accumulators that hide its latency, are round figures of x86 since Haswell, not fitted to a kernel.
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
"""Vector loads that a core executes in the time of a multiply-add."""
_INSTRUCTIONS = 3.0
"""Instructions that a core issues in the time of a multiply-add."""
CHAINS = 8
"""Independent accumulators that hide the latency of a multiply-add."""
_START = 3e-6
"""Seconds to start all threads and to wait for them."""


@dataclass(frozen=True)
class CpuMachine:
    """A processor, as studies describe it.

    Attributes:
        name: of the processor.
        threads: that share the work.
        isa: "avx512" or "avx2".
        peak_operations: measured float32 operations a second of multiply-adds on registers.
        bandwidth: measured bytes a second that a copy reads plus writes.
        l2_bandwidth: measured bytes a second that all threads together read from their L2 caches.
        l1_bytes, l2_bytes, l3_bytes: sizes of a core's L1 and L2, and of the shared L3.
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
        """Floats in a vector register."""
        return self.instruction_set.lanes

    @property
    def vectors(self) -> float:
        """Vector multiply-adds a second of all threads together."""
        return self.peak_operations / (2 * self.lanes)


def this_cpu() -> CpuMachine:
    """Describes this computer's processor; DeviceError if it executes no known instruction set or
    has no ISPC."""
    isa, description, rates = best_isa(), describe_machine(), measured_rates()
    caches = description.caches
    return CpuMachine(
        name=description.processor,
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
    """The instructions that all threads of a kernel execute together.

    Attributes:
        multiply_adds: vector instructions, or scalar ones where lanes are not used.
        reads: vector and scalar loads; a gather counts once for each of its lanes.
        instructions: all instructions.
        chains: independent accumulators of a thread.
        near_bytes: bytes that are read from L2 or from beyond it.
        gathered: the share of ``reads`` that are lanes of gathers.
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
    """The least that any kernel must do: load or store each operand once, with full vectors."""
    products, floats = operations / 2 / machine.lanes, sum(sizes.values())
    reads = floats / machine.lanes
    return CpuWork(products, reads, products + reads, CHAINS, 4.0 * floats, lanes=machine.lanes)


@dataclass(frozen=True, eq=False)
class CpuPrediction:
    """The model's view of a kernel on a machine; ``sizes``: elements of each operand, by name."""

    machine: CpuMachine
    work: CpuWork
    operations: int
    sizes: Mapping[str, int]
    tasks: int

    @property
    def bytes(self) -> int:
        """Bytes of all operands, each once."""
        return 4 * sum(self.sizes.values())

    @cached_property
    def limits(self) -> dict[str, float]:
        """Seconds that each part of the machine would take by itself."""
        machine, work = self.machine, self.work
        # Tasks are indivisible: the time is that of the busiest thread, relative to an even split.
        share = -(-self.tasks // machine.threads) * machine.threads / self.tasks
        slot = share / machine.vectors
        fits_l3 = self.bytes <= machine.l3_bytes
        return {
            "arithmetic": work.multiply_adds * slot,
            "load units": work.reads / _READS * slot,
            "issue": work.instructions / _INSTRUCTIONS * slot,
            "latency": work.multiply_adds * max(1.0, CHAINS / work.chains) * slot,
            "L2": work.near_bytes * share / machine.l2_bandwidth,
            "memory": self.bytes / (machine.l2_bandwidth if fits_l3 else machine.bandwidth),
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
    """The model's prediction for each point, or why it cannot run."""
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
