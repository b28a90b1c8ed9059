"""Properties of this machine's GPUs, and the cost model's figures that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from ...errors import DeviceError
from ...fusion.device import H200, Device
from ...gpu import cupy

_HOPPER = (9, 0)
_HZ = 1.98e9
"""The clock of an H200, at which its figures were measured, in Hz."""
_LANES = 128
"""Float32 multiply-adds of an H200's multiprocessor in a cycle."""
_TENSOR = 2048
"""Float16 multiply-adds of its tensor cores in a cycle."""
_GRAPHICS = (1.0, 0.125)
_RATES = {(8, 0): (0.5, 0.5), (8, 6): _GRAPHICS, (8, 9): _GRAPHICS, (12, 0): _GRAPHICS}
"""Throughput of a multiprocessor in a cycle by compute capability, relative to an H200's: float32,
and tensor cores with float32 accumulators.  Source: CUDA programming guide, "Arithmetic
Instructions", and NVIDIA's whitepapers of Ampere, Ada, Hopper and Blackwell (tensor cores of
graphics cards add in float32 at half their rate).  Others are taken to have an H200's."""
_PRODUCTS = {"float32": 1.0, "tf32": 7.0, "float16": 14.0, "bfloat16": 14.0}
"""The throughput that contractions reach at each precision on an H200, relative to float32."""

_ENOUGH = 7.75
"""Blocks for each multiprocessor: a thousand on an H200, where this was measured."""


@dataclass(frozen=True)
class Machine:
    """The properties of a GPU on which choices of kernels and algorithms depend.

    Attributes:
        name: NVIDIA's product name.
        capability: its compute capability, as major and minor number.
        multiprocessors: the number of multiprocessors.
        bandwidth: bytes a second to and from its memory, read and written.
        shared_bytes: the most shared memory of a block, in bytes.
        cache_bytes: the size of the L2 cache, in bytes.
        hertz: the clock of its multiprocessors, in Hz.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth: float
    shared_bytes: int
    cache_bytes: int
    hertz: float

    @property
    def arch(self) -> str:
        """The architecture that kernels are compiled for, such as "sm_90"."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def has_max3(self) -> bool:
        """Whether the maximum of three numbers is one instruction."""
        return self.capability >= _HOPPER

    @property
    def has_clusters(self) -> bool:
        """Whether thread block clusters exist: blocks that run at once and read each other's shared
        memory."""
        return self.capability >= _HOPPER

    @property
    def peak_operations(self) -> float:
        """Float32 operations a second, a multiply-add counted as two."""
        lanes = _LANES * _RATES.get(self.capability, (1.0, 1.0))[0]
        return 2 * lanes * self.multiprocessors * self.hertz

    @property
    def tensor_operations(self) -> float:
        """Operations a second of tensor cores in float16 with float32 accumulators, a multiply-add
        counted as two."""
        rate = _TENSOR * _RATES.get(self.capability, (1.0, 1.0))[1]
        return 2 * rate * self.multiprocessors * self.hertz

    @property
    def enough_blocks(self) -> int:
        """The number of blocks from which on it hardly matters whether the last wave is full."""
        return int(_ENOUGH * self.multiprocessors)

    def device(self, precision: str) -> Device:
        """The cost model's figures: those measured on an H200, scaled by what a multiprocessor
        computes in a cycle, how many there are, the clock, and the memory's rate."""
        share = self.multiprocessors / H200.workers * (self.hertz / _HZ)
        scalar, products = _RATES.get(self.capability, (1.0, 1.0))
        rate = _PRODUCTS[precision] * (scalar if precision == "float32" else products)
        # Reduced precisions are channels last: a block then computes several channels, and planes
        # do not fit its registers.
        base = H200 if precision == "float32" else replace(H200, lanes=8, register_bytes=1)
        return replace(
            base,
            name=self.name,
            workers=self.multiprocessors,
            operations=H200.operations * share * scalar,
            contraction_operations=H200.contraction_operations * share * rate,
            local_bandwidth=H200.local_bandwidth * share,
            local_bytes=self.shared_bytes,
            bandwidth=self.bandwidth,
        )


_REACHED = 0.87
"""The fraction of the memory's nominal bandwidth that copies reach: 4.3 of 4.9 TB/s on an H200."""


@cache
def machine_of(index: int) -> Machine:
    """The properties of the GPU of that index; DeviceError if CUDA sees none."""
    runtime = cupy().cuda.runtime
    count = runtime.getDeviceCount()
    if index >= count:
        raise DeviceError(f"cuda:{index} does not exist: CUDA sees {count} GPU{'s' * (count != 1)}")
    properties = runtime.getDeviceProperties(index)
    name = properties["name"]
    attributes: Mapping[str, int] = cupy().cuda.Device(index).attributes
    return Machine(
        name=name.decode() if isinstance(name, bytes) else str(name),
        capability=(int(properties["major"]), int(properties["minor"])),
        multiprocessors=int(properties["multiProcessorCount"]),
        bandwidth=_bandwidth(attributes),
        shared_bytes=int(attributes["MaxSharedMemoryPerBlockOptin"]),
        cache_bytes=int(attributes["L2CacheSize"]),
        hertz=1e3 * attributes["ClockRate"],
    )


def _bandwidth(attributes: Mapping[str, int]) -> float:
    """The bandwidth that copies reach, in bytes a second; an H200's where CUDA does not report the
    memory's clock."""
    clock = attributes.get("MemoryClockRate") or 0  # kHz, two transfers in each cycle
    width = attributes.get("GlobalMemoryBusWidth") or 0  # bits
    return _REACHED * 2e3 * clock * width / 8 or H200.bandwidth
