"""A plan captured as a CUDA graph, with copies at its ends whose outer addresses each launch sets.

Callers' arrays lie elsewhere each time.  To enqueue a copy takes the driver's host part longer
than to launch the graph; in a node of the graph only an address is written, and only where it is
another than the last time.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...cudnn import driver
from ...cudnn._cupy import cupy
from .arrays import DEVICE_TO_DEVICE

_DEVICE = 2
"""``CU_MEMORYTYPE_DEVICE``."""


def _side(name: str) -> tuple[tuple[str, Any], ...]:
    """The fields of a copy's source or destination."""
    return (
        *((name + field, ctypes.c_size_t) for field in ("XInBytes", "Y", "Z", "LOD")),
        (name + "MemoryType", ctypes.c_int),
        (name + "Host", ctypes.c_void_p),
        (name + "Device", ctypes.c_uint64),
        *((name + field, ctypes.c_void_p) for field in ("Array", "Reserved")),
        *((name + field, ctypes.c_size_t) for field in ("Pitch", "Height")),
    )


class _CopyStruct(ctypes.Structure):
    """``CUDA_MEMCPY3D``."""

    _fields_ = (
        *(*_side("src"), *_side("dst")),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
        ("Depth", ctypes.c_size_t),
    )


class End:
    """An input's or output's memory, and the node that copies a caller's array there or back."""

    def __init__(self, address: int, size: int, takes: bool) -> None:
        self.address = address
        self.bytes = size
        self.node = ctypes.c_void_p()
        self.params = _CopyStruct(
            srcMemoryType=_DEVICE,
            srcDevice=address,
            dstMemoryType=_DEVICE,
            dstDevice=address,
            WidthInBytes=size,
            Height=1,
            Depth=1,
        )
        self._outer = "srcDevice" if takes else "dstDevice"
        self._reached: int | None = address
        self._set: Callable[..., int] | None = None

    def attach(self, executable: int, context: ctypes.c_void_p) -> None:
        """The node is part of an executable graph now."""
        self._set = driver.driver().cuGraphExecMemcpyNodeSetParams
        self._handle = ctypes.c_void_p(executable)
        self._given = (self._handle, self.node, ctypes.byref(self.params), context)

    def reach(self, address: int, kind: int = DEVICE_TO_DEVICE) -> bool:
        """Whether the graph copies from or to that address from its next launch on; if not, it
        copies nothing here, and that is left to the caller.  No bytes need no copy."""
        if address == self._reached or not self.bytes:
            return True
        if self._set is None:
            return False
        before, self._reached = self._reached, None
        if kind == DEVICE_TO_DEVICE:
            setattr(self.params, self._outer, address)
            if self._set(*self._given) == driver.SUCCESS:
                if before is None:
                    self._switch(1)
                self._reached = address
                return True
            # It is no memory of this device's own: managed memory, for example.
        if before is not None:
            self._switch(0)
        return False

    def _switch(self, on: int) -> None:
        driver.call("cuGraphNodeSetEnabled", self._handle, self.node, ctypes.c_uint(on))


class Replay:
    """What ``enqueue`` starts on a stream, as an executable CUDA graph between its ends."""

    def __init__(
        self,
        stream: Any,
        enqueue: Callable[[], object],
        takes: Sequence[End] = (),
        gives: Sequence[End] = (),
    ) -> None:
        runtime = cupy().cuda.runtime
        # The graph stays as long as what is made of it: its nodes name what is to be changed.
        runtime.streamBeginCapture(stream.ptr, runtime.streamCaptureModeRelaxed)
        try:
            enqueue()
            found = driver.captured(stream.ptr)
        finally:
            graph = runtime.streamEndCapture(stream.ptr)
        weakref.finalize(self, runtime.graphDestroy, graph).atexit = False
        context = ctypes.c_void_p()
        takes, gives = ([end for end in some if end.bytes] for some in (takes, gives))
        ends = (*takes, *gives) if found is not None else ()
        if found is not None and ends:
            driver.call("cuCtxGetCurrent", ctypes.byref(context))
            _add_copies(graph, context, takes, gives, found[1])
        self.executable = int(runtime.graphInstantiate(graph))
        weakref.finalize(self, runtime.graphExecDestroy, self.executable).atexit = False
        for end in ends:
            end.attach(self.executable, context)


def _add_copies(
    graph: int,
    context: ctypes.c_void_p,
    takes: Sequence[End],
    gives: Sequence[End],
    last: Sequence[int],
) -> None:
    """Copies in front of what a graph begins with, and behind its last nodes."""
    whole, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    driver.call("cuGraphGetRootNodes", whole, None, ctypes.byref(count))
    first = (ctypes.c_void_p * count.value)()
    if count.value:  # the driver refuses to list nothing
        driver.call("cuGraphGetRootNodes", whole, first, ctypes.byref(count))
    behind = (ctypes.c_void_p * len(last))(*last)
    for end in takes:
        _add(whole, end, (ctypes.c_void_p * 0)(), context)
        for node in first:
            ends = (ctypes.c_void_p * 1)(end.node.value), (ctypes.c_void_p * 1)(node)
            driver.call("cuGraphAddDependencies_v2", whole, *ends, None, ctypes.c_size_t(1))
    for end in gives:
        _add(whole, end, behind, context)


def _add(whole: ctypes.c_void_p, end: End, behind: Any, context: ctypes.c_void_p) -> None:
    driver.call(
        "cuGraphAddMemcpyNode",
        *(
            ctypes.byref(end.node),
            whole,
            behind if len(behind) else None,
            ctypes.c_size_t(len(behind)),
        ),
        *(ctypes.byref(end.params), context),
    )
