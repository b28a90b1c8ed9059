"""Functions of the CUDA driver that CuPy lacks: to read and edit a CUDA graph under capture."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from minidnn.errors import DeviceError
from minidnn.gpu import cupy

SUCCESS = 0


class EdgeData(ctypes.Structure):
    """``CUgraphEdgeData``; ``type`` 0 is an ordinary edge, which waits for its first node's end."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


def file_name() -> str:
    """The name by which this system's loader finds the CUDA driver library."""
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def driver() -> Any:
    """The CUDA driver library; None before CUDA 12.3, which lacks the data of edges.

    Raises:
        DeviceError: it cannot be loaded.
    """
    try:
        library = ctypes.CDLL(file_name())
    except OSError as error:
        raise DeviceError(
            f"NVIDIA's driver {file_name()} cannot be loaded ({error}); 'nvidia-smi' shows whether "
            "it is installed"
        ) from error
    return library if hasattr(library, "cuStreamGetCaptureInfo_v3") else None


def call(name: str, *arguments: Any) -> None:
    """Calls a function of the driver; raises DeviceError with its name if it fails."""
    status = getattr(driver(), name)(*arguments)
    if status != SUCCESS:
        raise DeviceError(f"{name} failed with CUDA's error {status}")


def ensure_context(context: ctypes.c_void_p) -> None:
    """Makes the context current if the thread has none, because it has not used CUDA yet.

    The runtime does so by itself; the driver function that sets a kernel's arguments in an
    executable graph crashes instead (driver 580).
    """
    current = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(current))
    if not current.value:
        call("cuCtxSetCurrent", context)


def captured(stream: int) -> tuple[int, Sequence[int]] | None:
    """The CUDA graph that a stream is captured into, and the nodes on which its next node depends.

    All are addresses.  None if the stream is not captured, or the driver is too old to tell.
    """
    if not stream or not cupy().cuda.runtime.streamIsCapturing(stream) or driver() is None:
        return None
    state, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    edges = ctypes.POINTER(EdgeData)()
    outputs = (state, number, graph, nodes, edges, count)
    call("cuStreamGetCaptureInfo_v3", ctypes.c_void_p(stream), *map(ctypes.byref, outputs))
    assert graph.value is not None
    return graph.value, [nodes[i] or 0 for i in range(count.value)]


__all__ = ["SUCCESS", "EdgeData", "call", "captured", "driver", "ensure_context", "file_name"]
