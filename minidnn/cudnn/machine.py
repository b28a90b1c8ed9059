"""Names of the GPU and of cuDNN, parts of every key under which a measured choice is on disk."""

from __future__ import annotations

from functools import cache

from minidnn.cudnn import library
from minidnn.gpu import cupy


@cache
def device_name(index: int) -> str:
    """Return a device's model, compute capability and multiprocessor count, and the driver."""
    runtime = cupy().cuda.runtime
    properties = runtime.getDeviceProperties(index)
    name = properties["name"]
    model = name.decode() if isinstance(name, bytes) else str(name)
    capability = f"sm {properties['major']}.{properties['minor']}"
    count = f"{properties['multiProcessorCount']} multiprocessors"
    return f"{model}, {capability}, {count}, driver for CUDA {runtime.driverGetVersion()}"


def library_name() -> str:
    """Return the version of cuDNN and of the CUDA runtime that it was built for."""
    loaded = library.load()
    return f"cuDNN {loaded.version} for CUDA {loaded.cudnnGetCudartVersion()}"
