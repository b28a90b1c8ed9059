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
from collections.abc import Callable
from functools import cache
from typing import Any

from minidnn.cudnn.driver import SUCCESS, EdgeData, call, captured
from minidnn.gpu.cupy import cupy

_EARLY = 9
"""The compute capability from which on kernels can begin early."""


@cache
def begin_early(device: int) -> bool:
    """Whether kernels can begin on a device before the one in front of them has ended."""
    return int(cupy().cuda.runtime.getDeviceProperties(device)["major"]) >= _EARLY


def fenced(launch: Callable[[], int]) -> int:
    """Launches on CuPy's current stream what begins only when all in front of it has ended."""
    stream = int(cupy().cuda.get_current_stream().ptr)
    found = captured(stream)
    if found is None:
        _empty()((1,), (1,), ())
        return launch()
    graph, last = found
    status = launch()
    if status == SUCCESS:  # else the caller says what failed
        for node in last:
            _wait_for_end(graph, node)
    return status


@cache
def _empty() -> Any:
    return cupy().RawKernel('extern "C" __global__ void minidnn_fence() {}', "minidnn_fence")


def _wait_for_end(graph: int, node: int) -> None:
    """Edges from a node of a graph that is being captured become ordinary ones."""
    count, first = ctypes.c_size_t(), ctypes.c_void_p(node)
    call("cuGraphNodeGetDependentNodes_v2", first, None, None, ctypes.byref(count))
    nodes, edges = (ctypes.c_void_p * count.value)(), (EdgeData * count.value)()
    call("cuGraphNodeGetDependentNodes_v2", first, nodes, edges, ctypes.byref(count))
    whole, one = ctypes.c_void_p(graph), ctypes.c_size_t(1)
    for second, edge in zip(nodes, edges, strict=True):
        if not edge.type:
            continue
        ends = (ctypes.c_void_p * 1)(node), (ctypes.c_void_p * 1)(second)
        call("cuGraphRemoveDependencies_v2", whole, *ends, ctypes.byref(edge), one)
        call("cuGraphAddDependencies_v2", whole, *ends, None, one)


__all__ = ["begin_early", "fenced"]
