"""Execution of a plan: its descriptor, variant packs of addresses, the one C call, and its fence.

A fence keeps a cuDNN kernel from beginning before the preceding kernel has ended.  From compute
capability 9.0 on cuDNN launches kernels with programmatic stream serialization: they begin while
the preceding kernel still runs, and wait for its end before they read what it writes.  The
runtime-fused kernels of cuDNN 9.19 wait before they read image and filter, or both matrices, but
not before they read the other operands of the point-wise epilogue.  The blocks that begin first
can thus read a residual before the preceding kernel has written it: in ResNet-18 up to a fifth of
the engine choices gave wrong images, different choices from run to run.

A fenced kernel begins when all preceding work of its stream has ended.  In a CUDA graph its
programmatic edge becomes an ordinary one, which costs 1 us of overlap; elsewhere an empty kernel
is launched before it, which costs 2 us.  An event that is recorded and waited for does not help.

Sources: CUDA programming guide, "Programmatic Dependent Launch and Synchronization"; CUDA driver
API, "Stream Management" and "Graph Management".
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from minidnn.cudnn import errors, library
from minidnn.cudnn.driver import SUCCESS, EdgeData, call, captured
from minidnn.cudnn.dtypes import HOST_TYPES
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.handle import current_handle
from minidnn.errors import DeviceError
from minidnn.gpu import cupy

_EARLY = 9
"""The major compute capability from which on a kernel can begin before the preceding one ends."""


@cache
def begin_early(device: int) -> bool:
    """Whether kernels on a device can begin before the preceding kernel has ended."""
    return int(cupy().cuda.runtime.getDeviceProperties(device)["major"]) >= _EARLY


def fenced(launch: Callable[[], int]) -> int:
    """Launches a kernel that begins only when all preceding work on its stream has ended.

    ``launch`` enqueues it on CuPy's current stream and returns a status, which is returned.
    """
    stream = int(cupy().cuda.get_current_stream().ptr)
    capture = captured(stream)
    if capture is None:
        _empty()((1,), (1,), ())
        return launch()
    graph, preceding = capture
    status = launch()
    if status == SUCCESS:  # else the caller says what failed
        for node in preceding:
            _wait_for_end(graph, node)
    return status


@cache
def _empty() -> Any:
    return cupy().RawKernel('extern "C" __global__ void minidnn_fence() {}', "minidnn_fence")


def _wait_for_end(graph: int, node: int) -> None:
    """Turns the programmatic edges from a node of a graph under capture into ordinary ones."""
    count, first = ctypes.c_size_t(), ctypes.c_void_p(node)
    call("cuGraphNodeGetDependentNodes_v2", first, None, None, ctypes.byref(count))
    nodes, edges = (ctypes.c_void_p * count.value)(), (EdgeData * count.value)()
    call("cuGraphNodeGetDependentNodes_v2", first, nodes, edges, ctypes.byref(count))
    capturing, single = ctypes.c_void_p(graph), ctypes.c_size_t(1)
    for dependent, edge in zip(nodes, edges, strict=True):
        if not edge.type:
            continue
        ends = (ctypes.c_void_p * 1)(node), (ctypes.c_void_p * 1)(dependent)
        call("cuGraphRemoveDependencies_v2", capturing, *ends, ctypes.byref(edge), single)
        call("cuGraphAddDependencies_v2", capturing, *ends, None, single)


_REMEMBERED_PACKS = 16


@dataclass(frozen=True)
class StoredExecution:
    """A plan in the form in which a file holds it.

    Attributes:
        text: cuDNN's serialized plan, which holds code: whoever executes it trusts who made it.
        ids: cuDNN's unique ids of the inputs, the outputs and the constants.
        scalars: the dtype and value of each constant.
        epilogue_inputs: positions among the inputs of those that point-wise operations read.
    """

    text: str
    ids: Sequence[int]
    scalars: Sequence[tuple[str, float]]
    epilogue_inputs: Sequence[int]


class Execution:
    """A finalized plan that is executed on device addresses.

    Attributes: ``device`` (its CUDA index; None where the plan was built for an absent device) and
    ``workspace`` (bytes needed beside the tensors).

    Args:
        ids: cuDNN's unique ids of the inputs, the outputs and the constants.
        scalars: the dtype and value of each constant.
        epilogue_inputs: positions among the inputs of those that point-wise operations read.
    """

    def __init__(
        self,
        descriptor: BackendDescriptor,
        device: int | None,
        ids: Sequence[int],
        scalars: Sequence[tuple[str, float]],
        epilogue_inputs: Sequence[int],
    ) -> None:
        self.device = device
        self.workspace = int(
            descriptor.get(A.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, T.CUDNN_TYPE_INT64)[0]
        )
        self._descriptor = descriptor
        self._ids = ids
        self._given = scalars
        self._scalars = [HOST_TYPES[dtype](value) for dtype, value in scalars]
        self._epilogue_inputs = epilogue_inputs
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[int, ...], BackendDescriptor] = OrderedDict()

    @staticmethod
    def restored(stored: StoredExecution, device: int) -> Execution:
        """The plan that was stored, on the current device, whose index is ``device``.

        Raises:
            CuDNNError: this cuDNN does not take the text, or not for this device.
        """
        made = BackendDescriptor(D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        made.set(A.CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T.CUDNN_TYPE_HANDLE, current_handle())
        made.set_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, stored.text)
        made.finalize()
        return Execution(made, device, stored.ids, stored.scalars, stored.epilogue_inputs)

    def stored(self) -> StoredExecution:
        """The plan in the form in which a file holds it."""
        text = self._descriptor.get_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        return StoredExecution(text, self._ids, self._given, self._epilogue_inputs)

    def describe(self) -> str:
        """What the plan computes, in one line, as far as that is known."""
        return "a stored plan"

    def bind_pointers(
        self, pointers: list[int], workspace: int, keep: object, settled: Sequence[int] = ()
    ) -> Bound:
        """Binds the addresses of inputs, then outputs, without any check.

        ``workspace`` is an address, ``keep`` an object that the result keeps alive; ``settled``
        are the positions of inputs that no work in flight writes, such as weights.
        """
        pack = self._pack(pointers, workspace, keep=False)
        return Bound(self, pack, (), keep, self._reads_early(settled))

    def _reads_early(self, settled: Sequence[int]) -> bool:
        """Whether its kernel may read an input before the preceding kernel has written it."""
        if not set(self._epilogue_inputs).difference(settled) or self.device is None:
            return False
        return begin_early(self.device)

    def _pack(self, pointers: list[int], workspace: int, keep: bool) -> BackendDescriptor:
        """The variant pack of these addresses; ``keep`` caches it for the next such call."""
        key = (*pointers, workspace)
        with self._lock:
            found = self._packs.get(key)
            if found is not None:
                self._packs.move_to_end(key)
                return found
        pack = BackendDescriptor(D.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        hosts = [ctypes.addressof(scalar) for scalar in self._scalars]
        pack.set(A.CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, T.CUDNN_TYPE_INT64, *self._ids)
        pack.set(A.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, T.CUDNN_TYPE_VOID_PTR, *pointers, *hosts)
        pack.set(A.CUDNN_ATTR_VARIANT_PACK_WORKSPACE, T.CUDNN_TYPE_VOID_PTR, workspace)
        pack.finalize()
        if keep:
            with self._lock:
                self._packs[key] = pack
                if len(self._packs) > _REMEMBERED_PACKS:
                    self._packs.popitem(last=False)
        return pack

    def close(self) -> None:
        """Frees the plan now; bound arrays can then no longer be run."""
        self._packs.clear()
        self._descriptor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bound:
    """A plan with its arrays: call it to compute on CuPy's current stream.

    ``outputs`` are the arrays that it writes.  Nothing is checked or allocated when it runs.
    """

    __slots__ = (
        "_descriptor",
        "_execute",
        "_fenced",
        "_handle",
        "_keep",
        "_pack",
        "_pack_pointer",
        "outputs",
        "plan",
    )

    def __init__(
        self,
        plan: Execution,
        pack: BackendDescriptor,
        outputs: tuple[Any, ...],
        keep: object,
        fenced: bool,
    ) -> None:
        self.plan = plan
        self.outputs = outputs
        self._keep = keep
        self._pack = pack
        self._pack_pointer = pack._address()
        self._descriptor = plan._descriptor
        self._execute = library.load().cudnnBackendExecute
        self._handle = 0
        self._fenced = fenced

    def __call__(self) -> None:
        """Enqueues the computation.

        Raises:
            DeviceError: the current device is not the plan's.
            CuDNNError: cuDNN failed.
        """
        handle = current_handle()
        if handle != self._handle:
            self._check_device(handle)
        plan = self._descriptor.pointer
        if plan is None:
            self._descriptor._address()  # says that the plan is closed
        if self._fenced:
            status = fenced(lambda: self._execute(handle, plan, self._pack_pointer))
        else:
            status = self._execute(handle, plan, self._pack_pointer)
        if status:
            self._fail(status)

    def _check_device(self, handle: int) -> None:
        """Checks the device after a change of handle, which belongs to one thread and device."""
        if self.plan.device is not None:
            current = cupy().cuda.runtime.getDevice()
            if current != self.plan.device:
                raise DeviceError(
                    f"the current device is {current}; {self.plan} was built on {self.plan.device}"
                )
        self._handle = handle

    def _fail(self, status: int) -> None:
        errors.check(
            status,
            "cudnnBackendExecute",
            lambda: {"graph": self.plan.describe(), "plan": repr(self.plan)},
        )
