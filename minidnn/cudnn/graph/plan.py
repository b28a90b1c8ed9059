"""Plans of graphs: a :class:`Plan` takes arrays, checks them and executes on them.

Plans whose engines compile kernels are cached on disk in cuDNN's serialized form, which holds the
compiled code.  Compiling a plan takes about a second of a core, reading it a few milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import machine
from minidnn.cudnn import workspace as shared_workspace
from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.graph import arrays, engines, lower
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.device import Target
from minidnn.cudnn.graph.engines import EngineConfig, Proposal
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.execution import Bound, Execution
from minidnn.cudnn.graph.spec import GraphSpec
from minidnn.errors import DeviceError, GraphError, OutOfMemoryError

log = logging.getLogger(__name__)

_FORMAT = 1
_store = CacheStore("cudnn_plan", ".json", 256 << 20)


def built(spec: GraphSpec, target: Target, config: EngineConfig) -> BackendDescriptor:
    """The finalized plan of a configuration, read from the disk cache or built.

    A plan that is built is cached on disk if its engine compiles.

    Raises:
        CuDNNError: the configuration does not support the graph.
    """
    found = _restored(spec, target, config)
    if found is not None:
        return found
    graph = lower.operation_graph(spec, target.handle)
    descriptor = engines.execution_plan(graph, target, config)
    if engines.compiles(graph, target, config):
        keep_compiled(descriptor, spec, target, config)
    return descriptor


def keep_compiled(
    descriptor: BackendDescriptor, spec: GraphSpec, target: Target, config: EngineConfig
) -> None:
    """Caches a plan on disk for :func:`built`, unless cuDNN cannot serialize it."""
    if target.handle is None:
        return  # a plan for an absent device, which cannot be executed
    try:
        text = descriptor.get_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
    except CuDNNError as error:
        log.debug("%s of %s is not kept: %s", config, spec.describe(), error)
        return
    _store.put(_key(spec, target, config), text.encode(), label="compiled plan")


def _restored(spec: GraphSpec, target: Target, config: EngineConfig) -> BackendDescriptor | None:
    """The plan from the disk cache; None where there is none that this cuDNN accepts."""
    data = None if target.handle is None else _store.read(_key(spec, target, config))
    if data is None:
        return None
    made = BackendDescriptor(D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    try:
        made.set(A.CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T.CUDNN_TYPE_HANDLE, target.handle)
        made.set_text(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, data.decode())
        return made.finalize()
    except (CuDNNError, UnicodeDecodeError) as error:
        log.info("%s of %s is built again: %s", config, spec.describe(), error)
        made.close()
        return None


def _key(spec: GraphSpec, target: Target, config: EngineConfig) -> str:
    return digest("cudnn plan", _FORMAT, spec, config, target.name, machine.library_name())


class Plan(Execution):
    """An engine with its settings, ready to compute a graph.

    Attributes: ``spec`` (what it computes), ``config`` (engine and knobs), ``proposal`` (cuDNN's
    notes, where they are known), ``workspace`` (bytes needed beside the arrays) and
    ``milliseconds`` (as measured when it was chosen, else None).
    """

    def __init__(
        self,
        spec: GraphSpec,
        descriptor: BackendDescriptor,
        target: Target,
        config: EngineConfig,
        *,
        proposal: Proposal | None = None,
        milliseconds: float | None = None,
        scalars: Sequence[float] = (),
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(
            descriptor,
            target.index,
            [lower.uid(i) for i in (*spec.inputs, *spec.outputs, *spec.scalars)],
            [(spec.tensors[i].dtype, v) for i, v in zip(spec.scalars, scalars, strict=True)],
            [spec.inputs.index(i) for i in spec.epilogue_inputs],
        )
        self.spec = spec
        self.target = target
        self.config = config
        self.proposal = proposal
        self.milliseconds = milliseconds
        self._names = tuple(names) or tuple(f"t{i}" for i in (*spec.inputs, *spec.outputs))

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
        """Binds the arrays, so that running needs no check and no allocation.

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

    def _workspace_for(self, given: Any, shared: bool) -> tuple[Any, int]:
        if given is not None:
            pointer, size, device = arrays.room(given, "workspace")
            if None not in (device, self.device) and device != self.device:
                raise DeviceError(
                    f"workspace is on device {device}; the plan was built on {self.device}"
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
        """Allocates the workspace that calls on the current stream share.

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

    def keep(self) -> None:
        """Caches the plan on disk for other processes, if its engine compiles."""
        if self.proposal is not None and self.proposal.compiles:
            keep_compiled(self._descriptor, self.spec, self.target, self.config)

    def describe(self) -> str:
        """The graph, in one line."""
        return self.spec.describe()

    def __repr__(self) -> str:
        time = "" if self.milliseconds is None else f", {self.milliseconds:.4f} ms"
        return f"<Plan {self.config}, workspace {self.workspace} bytes{time}>"
