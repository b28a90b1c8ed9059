"""What keeps a kernel of cuDNN from beginning before the one in front of it has ended.

From compute capability 9.0 on cuDNN launches kernels with programmatic stream serialization: they
begin while the kernel in front still runs, and wait for its end before they read what it writes.
The runtime-fused ones of cuDNN 9.19 wait before they read image and filter, or both matrices, and
not before they read what point-wise operations join to the result.  A residual that the kernel in
front writes was then read too early, by the blocks that began first: in ResNet-18 up to a fifth of
the choices of engines gave wrong images, others from run to run.

Fenced, such a kernel begins when all in front has ended.  In a CUDA graph its edge becomes an
ordinary one, which costs 1 us of the overlap; elsewhere an empty kernel goes in front of it, 2 us.
An event that is recorded and waited for does not help.

Sources: CUDA programming guide, "Programmatic Dependent Launch and Synchronization"; CUDA driver
API, "Stream Management" and "Graph Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from minidnn.cudnn._cupy import cupy
from minidnn.errors import DeviceError

_EARLY = 9
"""The compute capability from which on kernels can begin early."""
_SUCCESS = 0


class _EdgeData(ctypes.Structure):
    """``CUgraphEdgeData``; ``type`` is 0 for an edge that waits for the end of its first node."""

    _fields_ = (
        ("from_port", ctypes.c_ubyte),
        ("to_port", ctypes.c_ubyte),
        ("type", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * 5),
    )


@cache
def begin_early(device: int) -> bool:
    """Whether kernels can begin on a device before the one in front of them has ended."""
    return int(cupy().cuda.runtime.getDeviceProperties(device)["major"]) >= _EARLY


def fenced(launch: Callable[[], int]) -> int:
    """Launches on CuPy's current stream what begins only when all in front of it has ended."""
    stream = int(cupy().cuda.get_current_stream().ptr)
    captured = _captured(stream)
    if captured is None:
        _empty()((1,), (1,), ())
        return launch()
    graph, last = captured
    status = launch()
    if status == _SUCCESS:  # else the caller says what failed
        for node in last:
            _wait_for_end(graph, node)
    return status


@cache
def _empty() -> Any:
    return cupy().RawKernel('extern "C" __global__ void minidnn_fence() {}', "minidnn_fence")


def _captured(stream: int) -> tuple[int, Sequence[int]] | None:
    """The CUDA graph that a stream is captured into, and the nodes that the next one follows."""
    if not stream or not cupy().cuda.runtime.streamIsCapturing(stream):
        return None
    driver = _driver()
    if driver is None:
        return None
    state, number, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    graph, nodes = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_void_p)()
    edges = ctypes.POINTER(_EdgeData)()
    found = (state, number, graph, nodes, edges, count)
    _check(
        "cuStreamGetCaptureInfo_v3",
        driver.cuStreamGetCaptureInfo_v3(ctypes.c_void_p(stream), *map(ctypes.byref, found)),
    )
    assert graph.value is not None
    return graph.value, [nodes[i] or 0 for i in range(count.value)]


def _wait_for_end(graph: int, node: int) -> None:
    """Edges from a node of a graph that is being captured become ordinary ones."""
    driver = _driver()
    count = ctypes.c_size_t()
    name = "cuGraphNodeGetDependentNodes_v2"
    get, first = driver.cuGraphNodeGetDependentNodes_v2, ctypes.c_void_p(node)
    _check(name, get(first, None, None, ctypes.byref(count)))
    nodes, edges = (ctypes.c_void_p * count.value)(), (_EdgeData * count.value)()
    _check(name, get(first, nodes, edges, ctypes.byref(count)))
    whole, one = ctypes.c_void_p(graph), ctypes.c_size_t(1)
    for second, edge in zip(nodes, edges, strict=True):
        if not edge.type:
            continue
        ends = (ctypes.c_void_p * 1)(node), (ctypes.c_void_p * 1)(second)
        old = ctypes.byref(edge)
        _check(
            "cuGraphRemoveDependencies_v2",
            driver.cuGraphRemoveDependencies_v2(whole, *ends, old, one),
        )
        _check(
            "cuGraphAddDependencies_v2",
            driver.cuGraphAddDependencies_v2(whole, *ends, None, one),
        )


@cache
def _driver() -> Any:
    """CUDA's driver library; None if it is older than edges with data, 12.3."""
    library = ctypes.CDLL("libcuda.so.1")
    return library if hasattr(library, "cuStreamGetCaptureInfo_v3") else None


def _check(name: str, status: int) -> None:
    if status != _SUCCESS:
        raise DeviceError(f"{name} failed with CUDA's error {status}")


__all__ = ["begin_early", "fenced"]
