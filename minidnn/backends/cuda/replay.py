"""A plan captured as a CUDA graph, at whose ends each launch sets the callers' addresses.

Callers' arrays lie elsewhere each time.  Where kernels of ours alone work on an input or output,
they are told where it is, and nothing is copied.  Else a node of the graph copies it: to enqueue a
copy takes the driver's host part longer than to launch the graph.  Either way addresses are set
only where they are others than the last time.

A node that is switched off still takes part in every launch.  Graphs of hundreds of ends, as are
parameters and their gradients, have none for ends that kernels are told of: what has to be copied
there all the same, the caller copies.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...cudnn import driver
from ...cudnn.graph.spec import ALIGNMENT
from ...errors import DeviceError
from ...gpu import cupy
from .arrays import DEVICE_TO_DEVICE
from .memory import allocated

_DEVICE = 2
"""``CU_MEMORYTYPE_DEVICE``."""
_MOST_IDLE = 16
"""A graph of more ends than that has no nodes that would mostly be switched off."""


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


class _KernelStruct(ctypes.Structure):
    """``CUDA_KERNEL_NODE_PARAMS_v2``."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        *((side + axis, ctypes.c_uint) for side in ("gridDim", "blockDim") for axis in "XYZ"),
        ("sharedMemBytes", ctypes.c_uint),
        *((name, ctypes.c_void_p) for name in ("kernelParams", "extra", "kern", "ctx")),
    )


class KernelNode:
    """A kernel of ours in a graph, whose arguments are 64 bits each and can be set."""

    def __init__(self, node: int, arguments: Sequence[int]) -> None:
        self._node = ctypes.c_void_p(node)
        self._arguments = (ctypes.c_uint64 * len(arguments))(*arguments)
        begin = ctypes.addressof(self._arguments)
        places = (begin + 8 * place for place in range(len(arguments)))
        self._places = (ctypes.c_void_p * len(arguments))(*places)
        self._params = _KernelStruct()
        self._set: Callable[..., int] | None = None

    def attach(self, executable: ctypes.c_void_p) -> None:
        """The node is part of an executable graph now; nothing happens the second time."""
        if self._set is None:
            driver.call("cuGraphKernelNodeGetParams_v2", self._node, ctypes.byref(self._params))
            self._params.kernelParams = ctypes.addressof(self._places)
            self._set = driver.driver().cuGraphExecKernelNodeSetParams_v2
            self._given = (executable, self._node, ctypes.byref(self._params))

    def set(self, argument: int, value: int) -> bool:
        """Whether launches from the next one on have that argument; if not, it is as it was."""
        assert self._set is not None
        before = self._arguments[argument]
        self._arguments[argument] = value
        if self._set(*self._given) == driver.SUCCESS:
            return True
        self._arguments[argument] = before  # the kernel's other arguments can still be set
        return False


@dataclass(frozen=True)
class Aim:
    """An argument of a kernel that is an address, so many bytes behind the caller's."""

    kernel: KernelNode
    argument: int
    offset: int

    def at(self, address: int) -> bool:
        """Whether the kernel works there from now on."""
        return self.kernel.set(self.argument, address + self.offset)


class End:
    """An input's or output's memory, and what reaches a caller's array instead: the kernels that
    work there, or a node that copies it there or back.

    Args:
        address: where kernels work until they are told of another address.
        takes: whether it is an input.
        own: whether that memory is the instance's.  Else it is a caller's, and the first array that
            has to be copied has memory allocated for the copy.

    Attributes:
        address: of the instance's own memory; 0 as long as there is none.
        aims: all arguments that are its address, if kernels of ours alone take it.
    """

    def __init__(self, address: int, size: int, takes: bool, own: bool = True) -> None:
        self.address = address if own else 0
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
        self.aims: Sequence[Aim] = ()
        self._reached: int | None = address
        self._aimed = address
        self._copies = False
        self._set: Callable[..., int] | None = None
        self._context: ctypes.c_void_p | None = None

    def attach(self, executable: int, context: ctypes.c_void_p) -> None:
        """The node, if there is one, and the kernels are part of an executable graph now."""
        self._handle = ctypes.c_void_p(executable)
        self._context = context
        if self.node:
            self._copies = True
            self._set = driver.driver().cuGraphExecMemcpyNodeSetParams
            self._given = (self._handle, self.node, ctypes.byref(self.params), context)
        for aim in self.aims:
            aim.kernel.attach(self._handle)

    @property
    def is_direct(self) -> bool:
        """Whether kernels work in the caller's memory now, and nothing is copied."""
        return self._aimed != self.address

    def reach(self, address: int, kind: int = DEVICE_TO_DEVICE, apart: bool = True) -> bool:
        """Whether the graph works at that address, or copies from or to it, from its next launch
        on; if not, it copies nothing here, and that is left to the caller.  No bytes need no copy.

        kind: how the array would be copied.
        apart: whether no other array of the launch overlaps it that is written or, if this one is,
            read.
        """
        if not self.bytes:
            return True
        direct = apart and kind == DEVICE_TO_DEVICE and bool(self.aims) and address % ALIGNMENT == 0
        if address == self._reached and direct is self.is_direct:
            return True
        if self._context is None:
            return False
        driver.ensure_context(self._context)
        self._reached = None
        if direct and self._aim(address):
            self._switch(False)
            self._reached = address
            return True
        self._aim(self._own())
        if kind == DEVICE_TO_DEVICE and self._set is not None:
            setattr(self.params, self._outer, address)
            if self._set(*self._given) == driver.SUCCESS:
                self._switch(True)
                self._reached = address
                return True
            # It is no memory of this device's own: managed memory, for example.
        self._switch(False)
        return False

    def _aim(self, address: int) -> bool:
        """Whether all kernels work at that address; if the driver refuses, they stay where they
        were made to work for good."""
        if address == self._aimed:
            return True
        if all(aim.at(address) for aim in self.aims):
            self._aimed = address
            return True
        own = self._own()
        if not all(aim.at(own) for aim in self.aims):
            raise DeviceError("cuGraphExecKernelNodeSetParams takes no address, not even the first")
        self._aimed, self.aims = own, ()
        return False

    def _own(self) -> int:
        """The address of memory of the instance's."""
        if not self.address:
            self._memory = allocated(self.bytes, "the copy of an array that kernels cannot reach")
            self.address = int(self._memory.ptr)
        return self.address

    def _switch(self, copies: bool) -> None:
        if copies is not self._copies:
            driver.call(
                "cuGraphNodeSetEnabled", self._handle, self.node, ctypes.c_uint(int(copies))
            )
            self._copies = copies


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
            takes, gives = (
                [end for end in some if _has_node(end, len(ends))] for some in (takes, gives)
            )
            _add_copies(graph, context, takes, gives, found[1])
        self.executable = int(runtime.graphInstantiate(graph))
        weakref.finalize(self, runtime.graphExecDestroy, self.executable).atexit = False
        for end in ends:
            end.attach(self.executable, context)


def _has_node(end: End, count: int) -> bool:
    """Whether a node copies for an end, in a graph of so many."""
    return not end.aims or (count <= _MOST_IDLE and bool(end.address))


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
