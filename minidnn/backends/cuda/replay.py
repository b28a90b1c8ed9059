"""CUDA graphs whose inputs and outputs (*ends*) are bound to the caller's arrays at each launch.

The addresses of a caller's arrays change from call to call.  Where generated kernels alone read or
write an end, the arguments of their graph nodes are set to the caller's address, and nothing is
copied.  Otherwise a memcpy node of the graph copies it: enqueuing a copy on its own takes the host
longer than launching the graph.  Either way a node is updated only if the address differs from the
last launch's.

A disabled node still costs time in every launch.  So graphs with hundreds of ends, such as
parameters and their gradients, have no memcpy nodes for ends that kernels reach directly: if such
an end needs a copy after all, whoever launches the graph enqueues it.
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
"""Ends up to which a graph has memcpy nodes even where they are disabled in most launches."""


def _side(name: str) -> tuple[tuple[str, Any], ...]:
    """The fields of ``CUDA_MEMCPY3D`` for its source ("src") or destination ("dst")."""
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
    """The node of a generated kernel in a graph, whose arguments (64 bits each) can be set."""

    def __init__(self, node: int, arguments: Sequence[int]) -> None:
        self._node = ctypes.c_void_p(node)
        self._arguments = (ctypes.c_uint64 * len(arguments))(*arguments)
        base = ctypes.addressof(self._arguments)
        pointers = (base + 8 * index for index in range(len(arguments)))
        self._places = (ctypes.c_void_p * len(arguments))(*pointers)
        self._params = _KernelStruct()
        self._set: Callable[..., int] | None = None

    def attach(self, executable: ctypes.c_void_p) -> None:
        """Names the executable graph that the node belongs to; later calls do nothing, as several
        ends may share a node."""
        if self._set is None:
            driver.call("cuGraphKernelNodeGetParams_v2", self._node, ctypes.byref(self._params))
            self._params.kernelParams = ctypes.addressof(self._places)
            self._set = driver.driver().cuGraphExecKernelNodeSetParams_v2
            self._given = (executable, self._node, ctypes.byref(self._params))

    def set(self, argument: int, value: int) -> bool:
        """Sets an argument for the next launches.  Returns whether the driver accepted it; if not,
        the argument keeps its value."""
        assert self._set is not None
        old = self._arguments[argument]
        self._arguments[argument] = value
        if self._set(*self._given) == driver.SUCCESS:
            return True
        self._arguments[argument] = old  # the kernel's other arguments can still be set
        return False


@dataclass(frozen=True)
class Aim:
    """A kernel's argument that is an address: ``offset`` bytes into a caller's array."""

    kernel: KernelNode
    argument: int
    offset: int

    def at(self, address: int) -> bool:
        """Points the kernel at a caller's array; returns whether the driver accepted it."""
        return self.kernel.set(self.argument, address + self.offset)


class End:
    """An input or output of a graph, which reads or writes a caller's array in one of two ways: its
    kernels are pointed at the array, or a memcpy node copies between the array and a buffer of the
    instance.

    Args:
        address: where kernels read or write until they are pointed elsewhere.
        size: bytes.
        takes: whether it is an input.
        own: whether ``address`` is memory of the instance.  Otherwise it is a caller's, and a
            buffer is allocated for the first array that has to be copied.

    Attributes:
        address: the instance's buffer; 0 as long as there is none.
        bytes: its size.
        node: the memcpy node, if the graph has one.
        params: that node's parameters.
        aims: all arguments that are its address, if generated kernels alone take it.
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
        """Names the executable graph that the memcpy node, if any, and the kernels belong to."""
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
        """Whether kernels read or write the caller's array, and nothing is copied."""
        return self._aimed != self.address

    def reach(self, address: int, kind: int = DEVICE_TO_DEVICE, apart: bool = True) -> bool:
        """Sets the address of the caller's array for the next launches.

        Returns whether the graph reaches it, directly or by its memcpy node.  If not, the graph
        copies nothing here, and whoever launches it copies between the array and the buffer.  An
        end of no bytes is always reached.

        kind: the kind of copy that the array would need (``cudaMemcpyKind``).
        apart: whether no other array of the launch overlaps this one, where either is written.
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
            # The driver refuses memory that is not this device's own, such as managed memory.
        self._switch(False)
        return False

    def _aim(self, address: int) -> bool:
        """Points all kernels at an address and returns whether the driver accepted it.  If not,
        they are pointed at the instance's buffer for good."""
        if address == self._aimed:
            return True
        if all(aim.at(address) for aim in self.aims):
            self._aimed = address
            return True
        buffer = self._own()
        if not all(aim.at(buffer) for aim in self.aims):
            raise DeviceError("cuGraphExecKernelNodeSetParams takes no address, not even the first")
        self._aimed, self.aims = buffer, ()
        return False

    def _own(self) -> int:
        """The address of the instance's buffer, which is allocated when it is first needed."""
        if not self.address:
            self._memory = allocated(self.bytes, "the copy of an array that kernels cannot reach")
            self.address = int(self._memory.ptr)
        return self.address

    def _switch(self, copies: bool) -> None:
        """Enables or disables the memcpy node."""
        if copies is not self._copies:
            driver.call(
                "cuGraphNodeSetEnabled", self._handle, self.node, ctypes.c_uint(int(copies))
            )
            self._copies = copies


class Replay:
    """An executable CUDA graph of the work that ``enqueue`` starts on a stream.

    Args:
        stream: a stream of its own, on which the work is captured.
        enqueue: starts the work, and may set the ends' ``aims`` to nodes of the graph.
        takes: the ends that are inputs.
        gives: the ends that are outputs.

    Attributes:
        executable: the handle that ``cudaGraphLaunch`` takes.
    """

    def __init__(
        self,
        stream: Any,
        enqueue: Callable[[], object],
        takes: Sequence[End] = (),
        gives: Sequence[End] = (),
    ) -> None:
        runtime = cupy().cuda.runtime
        # The graph lives as long as its executable: its nodes identify those that are updated.
        runtime.streamBeginCapture(stream.ptr, runtime.streamCaptureModeRelaxed)
        try:
            enqueue()
            captured = driver.captured(stream.ptr)
        finally:
            graph = runtime.streamEndCapture(stream.ptr)
        weakref.finalize(self, runtime.graphDestroy, graph).atexit = False
        context = ctypes.c_void_p()
        takes, gives = ([end for end in some if end.bytes] for some in (takes, gives))
        ends = (*takes, *gives) if captured is not None else ()
        if captured is not None and ends:
            driver.call("cuCtxGetCurrent", ctypes.byref(context))
            takes, gives = (
                [end for end in some if _has_node(end, len(ends))] for some in (takes, gives)
            )
            _add_copies(graph, context, takes, gives, captured[1])
        self.executable = int(runtime.graphInstantiate(graph))
        weakref.finalize(self, runtime.graphExecDestroy, self.executable).atexit = False
        for end in ends:
            end.attach(self.executable, context)


def _has_node(end: End, count: int) -> bool:
    """Whether a graph of ``count`` ends has a memcpy node for this end."""
    return not end.aims or (count <= _MOST_IDLE and bool(end.address))


def _add_copies(
    graph: int,
    context: ctypes.c_void_p,
    takes: Sequence[End],
    gives: Sequence[End],
    last: Sequence[int],
) -> None:
    """Adds a memcpy node before the graph's root nodes for each input, and after its ``last`` nodes
    for each output."""
    handle, count = ctypes.c_void_p(graph), ctypes.c_size_t()
    driver.call("cuGraphGetRootNodes", handle, None, ctypes.byref(count))
    roots = (ctypes.c_void_p * count.value)()
    if count.value:  # the driver refuses to list nothing
        driver.call("cuGraphGetRootNodes", handle, roots, ctypes.byref(count))
    dependencies = (ctypes.c_void_p * len(last))(*last)
    for end in takes:
        _add(handle, end, (ctypes.c_void_p * 0)(), context)
        for node in roots:
            edge = (ctypes.c_void_p * 1)(end.node.value), (ctypes.c_void_p * 1)(node)
            driver.call("cuGraphAddDependencies_v2", handle, *edge, None, ctypes.c_size_t(1))
    for end in gives:
        _add(handle, end, dependencies, context)


def _add(graph: ctypes.c_void_p, end: End, dependencies: Any, context: ctypes.c_void_p) -> None:
    driver.call(
        "cuGraphAddMemcpyNode",
        *(
            ctypes.byref(end.node),
            graph,
            dependencies if len(dependencies) else None,
            ctypes.c_size_t(len(dependencies)),
        ),
        *(ctypes.byref(end.params), context),
    )
