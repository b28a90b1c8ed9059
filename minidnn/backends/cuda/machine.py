"""The GPU as it is found, and its figures for the cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from ...cudnn._cupy import cupy
from ...errors import DeviceError
from ...fusion.device import H200, Device

_PRODUCTS = {"float32": 1.0, "tf32": 7.0, "float16": 14.0, "bfloat16": 14.0}
"""What contractions reach at each precision, relative to float32, on data-centre GPUs."""


@dataclass(frozen=True)
class Machine:
    """A GPU: its name, compute capability, multiprocessors, and bytes a second from memory."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth: float

    @property
    def arch(self) -> str:
        """What kernels are compiled for: "sm_90"."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    def device(self, precision: str) -> Device:
        """The cost model's figures: an H200's, measured there, scaled by multiprocessors and
        memory."""
        share = self.multiprocessors / H200.workers
        # Reduced precisions keep channels side by side: a block then computes several, and planes
        # do not fit its registers.
        base = H200 if precision == "float32" else replace(H200, lanes=8, register_bytes=1)
        return replace(
            base,
            name=self.name,
            workers=self.multiprocessors,
            operations=H200.operations * share,
            contraction_operations=H200.contraction_operations * share * _PRODUCTS[precision],
            local_bandwidth=H200.local_bandwidth * share,
            bandwidth=self.bandwidth,
        )


_REACHED = 0.87
"""The part of the memory's nominal rate that copies reach: 4.3 of 4.9 TB/s on an H200."""


@cache
def machine_of(index: int) -> Machine:
    """The GPU of that index; DeviceError if there is none, with what CUDA says."""
    runtime = cupy().cuda.runtime
    count = runtime.getDeviceCount()
    if index >= count:
        raise DeviceError(f"cuda:{index} does not exist: CUDA sees {count} GPU{'s' * (count != 1)}")
    found = runtime.getDeviceProperties(index)
    name = found["name"]
    attributes = cupy().cuda.Device(index).attributes
    clock = attributes.get("MemoryClockRate") or 0  # kHz, of two transfers
    width = attributes.get("GlobalMemoryBusWidth") or 0  # bits
    nominal = 2e3 * clock * width / 8
    return Machine(
        name.decode() if isinstance(name, bytes) else str(name),
        (int(found["major"]), int(found["minor"])),
        int(found["multiProcessorCount"]),
        _REACHED * nominal if nominal else H200.bandwidth,
    )
