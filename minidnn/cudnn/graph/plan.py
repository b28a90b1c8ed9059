"""Plans that can be executed: checked arrays, variant packs, and the one C call."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from minidnn.cudnn import errors, library
from minidnn.cudnn import workspace as shared_workspace
from minidnn.cudnn._cupy import cupy
from minidnn.cudnn.graph import arrays, fence, lower
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.device import Target
from minidnn.cudnn.graph.dtypes import HOST_TYPES
from minidnn.cudnn.graph.engines import EngineConfig, Proposal, execution_plan
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.spec import GraphSpec
from minidnn.cudnn.handle import current_handle
from minidnn.errors import DeviceError, GraphError, OutOfMemoryError

_REMEMBERED_PACKS = 16


class Plan:
    """An engine with its settings, ready to compute a graph.

    Attributes: ``spec`` (what it computes), ``config`` (engine and knobs), ``proposal`` (cuDNN's
    notes, where they are known), ``workspace`` (bytes needed beside the arrays) and
    ``milliseconds`` (as measured when it was chosen, else None).
    """

    def __init__(
        self,
        spec: GraphSpec,
        graph: BackendDescriptor,
        target: Target,
        config: EngineConfig,
        *,
        proposal: Proposal | None = None,
        milliseconds: float | None = None,
        scalars: Sequence[float] = (),
        names: Sequence[str] = (),
    ) -> None:
        self.spec = spec
        self.config = config
        self.proposal = proposal
        self.milliseconds = milliseconds
        self.device = target.index
        self._names = tuple(names) or tuple(f"t{i}" for i in (*spec.inputs, *spec.outputs))
        self._descriptor = execution_plan(graph, target, config)
        self.workspace = int(
            self._descriptor.get(A.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, T.CUDNN_TYPE_INT64)[0]
        )
        self._scalars = [
            HOST_TYPES[spec.tensors[index].dtype](value)
            for index, value in zip(spec.scalars, scalars, strict=True)
        ]
        self._ids = [lower.uid(i) for i in (*spec.inputs, *spec.outputs, *spec.scalars)]
        self._lock = threading.Lock()
        self._packs: OrderedDict[tuple[int, ...], BackendDescriptor] = OrderedDict()

    def __call__(self, *inputs: Any, out: Any = None) -> Any:
        """Computes the graph on CuPy's current stream.

        Args:
            inputs: arrays in the order in which the graph declared its tensors.
            out: array for the output, or a sequence of arrays for several; new CuPy arrays are
                made when it is missing.

        Returns:
            The output, or a tuple of outputs.

        Raises:
            GraphError: an array is not what the plan was built for.
            DeviceError: an array or the current device is another than the plan's.
            CuDNNError: cuDNN failed.
        """
        bound = self._bind(inputs, out, None, keep_pack=True)
        bound()
        return bound.outputs[0] if len(bound.outputs) == 1 else bound.outputs

    def bind(self, *inputs: Any, out: Any = None, workspace: Any = None) -> Bound:
        """Fixes the arrays, so that running takes no check and no allocation.

        ``workspace`` is an array or CuPy memory of at least :attr:`workspace` bytes; without
        it the result has one of its own.  The result keeps all arrays alive, can be run many
        times and captured into a CUDA graph.
        """
        return self._bind(inputs, out, workspace, keep_pack=False)

    def _bind(self, inputs: Sequence[Any], out: Any, workspace: Any, keep_pack: bool) -> Bound:
        self._descriptor._address()
        spec = self.spec
        if len(inputs) != len(spec.inputs):
            wanted = ", ".join(self._names[: len(spec.inputs)])
            raise GraphError(f"{len(inputs)} arrays given; the plan takes {wanted}")
        if out is None:
            outputs = tuple(arrays.empty(spec.tensors[i]) for i in spec.outputs)
        else:
            outputs = tuple(out) if isinstance(out, list | tuple) else (out,)
        if len(outputs) != len(spec.outputs):
            raise GraphError(f"out has {len(outputs)} arrays; {len(spec.outputs)} are written")
        pointers = [
            arrays.checked_pointer(array, spec.tensors[index], name, self.device)
            for array, index, name in zip(
                (*inputs, *outputs), (*spec.inputs, *spec.outputs), self._names, strict=True
            )
        ]
        memory, address = self._workspace_for(workspace, shared=keep_pack)
        pack = self._pack(pointers, address, keep_pack)
        return Bound(self, pack, outputs, (inputs, memory), self._reads_early(()))

    def bind_pointers(
        self, pointers: list[int], workspace: int, keep: object, settled: Sequence[int] = ()
    ) -> Bound:
        """Like :meth:`bind` with addresses of inputs, then outputs, which nobody checks.

        ``workspace`` is an address, ``keep`` is what the result keeps alive; ``settled`` are the
        places of inputs that no work in flight writes, such as weights.
        """
        pack = self._pack(pointers, workspace, keep=False)
        return Bound(self, pack, (), keep, self._reads_early(settled))

    def _reads_early(self, settled: Sequence[int]) -> bool:
        """Whether its kernel may read an input before the kernel in front has written it."""
        joined = {self.spec.inputs.index(i) for i in self.spec.joined}
        if not joined.difference(settled) or self.device is None:
            return False
        return fence.begin_early(self.device)

    def _workspace_for(self, given: Any, shared: bool) -> tuple[Any, int]:
        if given is not None:
            pointer, size, place = arrays.room(given, "workspace")
            if None not in (place, self.device) and place != self.device:
                raise DeviceError(
                    f"workspace is on device {place}; the plan was built on {self.device}"
                )
            if size < self.workspace:
                raise GraphError(f"workspace has {size} bytes; the plan needs {self.workspace}")
            return given, pointer
        if self.workspace == 0:
            return None, 0
        if not shared:
            memory = self._allocate()
            return memory, memory.ptr
        buffer = shared_workspace.acquire(self.workspace)
        return buffer, buffer.ptr

    def reserve(self) -> None:
        """Makes room for the workspace that calls on the current stream share.

        Raises:
            OutOfMemoryError: there is not enough memory.
        """
        shared_workspace.acquire(self.workspace)

    def _allocate(self) -> Any:
        try:
            return arrays.allocate(self.workspace)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"no {self.workspace} bytes for the workspace of {self}: {error}; "
                "build with a smaller workspace_limit"
            ) from error

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

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        time = "" if self.milliseconds is None else f", {self.milliseconds:.4f} ms"
        return f"<Plan {self.config}, workspace {self.workspace} bytes{time}>"


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
        plan: Plan,
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
            status = fence.fenced(lambda: self._execute(handle, plan, self._pack_pointer))
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
            lambda: {"graph": self.plan.spec.describe(), "plan": repr(self.plan)},
        )
