"""A CPU as studies describe it: measured rates and the sizes of its caches."""

from __future__ import annotations

from dataclasses import dataclass

from ...backends.cpu.isa import Isa, best_isa, isa_named
from ...backends.cpu.machine import describe_machine
from ...backends.cpu.rates import measured_rates


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
