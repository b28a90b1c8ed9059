"""What executes a plan: its descriptor, variant packs of addresses, the one C call, and its fence.

A fence keeps a kernel of cuDNN from beginning before the one in front of it has ended.  From
compute capability 9.0 on cuDNN launches kernels with programmatic stream serialization: they begin
while the kernel in front still runs, and wait for its end before they read what it writes.  The
runtime-fused ones of cuDNN 9.19 wait before they read image and filter, or both matrices, and not
before they read what point-wise operations join to the result.  A residual that the kernel in front
writes was then read too early, by the blocks that began first: in ResNet-18 up to a fifth of the
choices of engines gave wrong images, others from run to run.

Fenced, such a kernel begins when all in front has ended.  In a CUDA graph its edge becomes an
ordinary one, which costs 1 us of the overlap; elsewhere an empty kernel goes in front of it, 2 us.
An event that is recorded and waited for does not help.

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


_REMEMBERED_PACKS = 16


@dataclass(frozen=True)
class StoredExecution:
    """A plan as a file has it.

    Attributes:
        text: cuDNN's own, which holds code: whoever executes it trusts who made it.
        ids: of the inputs, the outputs and the constants.
        scalars: the constants, with their dtypes.
        joined: places among the inputs of those that point-wise operations take.
    """

    text: str
    ids: Sequence[int]
    scalars: Sequence[tuple[str, float]]
    joined: Sequence[int]


class Execution:
    """A finalized plan, which computes on addresses.

    Attributes: ``device`` (its index; None where the plan was built for one that is not there) and
    ``workspace`` (bytes needed beside the tensors).

    Args:
        ids: of the inputs, the outputs and the constants.
        scalars: the constants, with their dtypes.
        joined: places among the inputs of those that point-wise operations take.
    """

    def __init__(
        self,
        descriptor: BackendDescriptor,
        device: int | None,
        ids: Sequence[int],
        scalars: Sequence[tuple[str, float]],
        joined: Sequence[int],
    ) -> None:
        self.device = device
        self.workspace = int(
            descriptor.get(A.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, T.CUDNN_TYPE_INT64)[0]
        )
        self._descriptor = descriptor
        self._ids = ids
        self._given = scalars
        self._scalars = [HOST_TYPES[dtype](value) for dtype, value in scalars]
        self._joined = joined
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[int, ...], BackendDescriptor] = OrderedDict()

    @staticmethod
    def restored(stored: StoredExecution, device: int) -> Execution:
        """What was stored, on the current device, which has that index.

        Raises:
            CuDNNError: this cuDNN does not take the text, or not for this device.
        """
        made = BackendDescriptor(D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        made.set(A.CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T.CUDNN_TYPE_HANDLE, current_handle())
        made.set_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, stored.text)
        made.finalize()
        return Execution(made, device, stored.ids, stored.scalars, stored.joined)

    def stored(self) -> StoredExecution:
        """It as a file has it."""
        text = self._descriptor.get_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        return StoredExecution(text, self._ids, self._given, self._joined)

    def describe(self) -> str:
        """What it computes, in one line, as far as that is known."""
        return "a stored plan"

    def bind_pointers(
        self, pointers: list[int], workspace: int, keep: object, settled: Sequence[int] = ()
    ) -> Bound:
        """Fixes addresses of inputs, then outputs, which nobody checks.

        ``workspace`` is an address, ``keep`` is what the result keeps alive; ``settled`` are the
        places of inputs that no work in flight writes, such as weights.
        """
        pack = self._pack(pointers, workspace, keep=False)
        return Bound(self, pack, (), keep, self._reads_early(settled))

    def _reads_early(self, settled: Sequence[int]) -> bool:
        """Whether its kernel may read an input before the kernel in front has written it."""
        if not set(self._joined).difference(settled) or self.device is None:
            return False
        return begin_early(self.device)

    def _pack(self, pointers: list[int], workspace: int, keep: bool) -> BackendDescriptor:
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
        """Computes.

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
        """Runs when thread or device changed, since a handle belongs to one of each."""
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
