"""What a measured choice depends on beside its problem; part of every key on disk."""

from __future__ import annotations

from functools import cache

from minidnn.cudnn import library
from minidnn.gpu import cupy


@cache
def device_name(index: int) -> str:
    """Return model, compute capability, number of multiprocessors and driver of a device."""
    runtime = cupy().cuda.runtime
    found = runtime.getDeviceProperties(index)
    name = found["name"]
    model = name.decode() if isinstance(name, bytes) else str(name)
    level = f"sm {found['major']}.{found['minor']}"
    count = f"{found['multiProcessorCount']} multiprocessors"
    return f"{model}, {level}, {count}, driver for CUDA {runtime.driverGetVersion()}"


def library_name() -> str:
    """Return the version of cuDNN and of the CUDA runtime that it was built for."""
    found = library.load()
    return f"cuDNN {found.version} for CUDA {found.cudnnGetCudartVersion()}"
