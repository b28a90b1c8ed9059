"""The roofline: what a device can reach at an operational intensity."""

from __future__ import annotations

from dataclasses import dataclass

from ..backends.cuda.machine import Machine


@dataclass(frozen=True)
class Roofline:
    """The two roofs of a device: operations a second, and bytes a second."""

    operations: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations a byte above which computing limits, and below which memory does."""
        return self.operations / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Operations a second at so many operations a byte."""
        return min(self.operations, intensity * self.bandwidth)


def roofline_of(machine: Machine, tensor_cores: bool = False) -> Roofline:
    """A GPU's in float32, or of its tensor cores in float16, with the bandwidth that copies
    reach."""
    peak = machine.tensor_operations if tensor_cores else machine.peak_operations
    return Roofline(peak, machine.bandwidth)
