"""The CPU backend: plans compiled with ISPC, run by the native runner."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minidnn._cached_property import cached_property

from ...cache import building_forbidden
from ...errors import DeviceError, GraphError
from ...fusion.contraction import parts_of
from ...fusion.region import FusedContraction, FusedSequence
from ...fusion.region import Region as FusedRegion
from ...fusion.target import Target
from ...graph import operators as ops
from ...graph.index_map import Indexed
from ...graph.ir import Node, Value
from ...graph.liveness import storage_bytes
from ...graph.operator import Contraction, Elementwise, Reshaping, Windowed
from ...graph.types import ITEMSIZE
from ...runtime.cores import usable_cores
from ...runtime.plan import Plan
from ..options import accuracy_option, check_options, tune_option
from . import sequence
from .buffers import AlignedMemory, Guard
from .contraction import Workspace, refusals, why_unsupported
from .isa import Isa, best_isa, isa_named, usable_isa
from .kernels import compile_kernels
from .library import NativeFunction
from .lower import Pointer, Task, lower_plan
from .machine import describe_machine, memory_bytes
from .native import runner, why_not_cached
from .packing import Packed
from .program import BoundKernel, Group, NativeProgram, Operand, shared_pool
from .rates import measured_rates
from .target import CpuTarget, device_for
from .toolchain import why_unusable
from .tuning import Build, tuned_tasks

_ALIGNMENT = 64
_CHUNK_BYTES = 32 << 20
#: What computes in float32 alone, and what takes every dtype of which values may be.
_FLOAT: tuple[type, ...] = (
    *(FusedRegion, Contraction, Windowed, ops.Softmax, ops.LogSoftmax, ops.AdaptiveAvgPool2d),
    *(ops.GroupNorm, ops.LayerNorm, ops.MatMul, ops.Reorder),
)
_ANY = (
    *(Elementwise, Reshaping, Indexed),
    *(ops.ArgMax, ops.Concat, ops.Gather, ops.Reduce, ops.TakeChannels),
)
_DTYPES = ("float32", "int32", "int64", "uint8", "bool")


class CpuBackend:
    """Generated ISPC on the processor's vector units."""

    name = "cpu"

    def unavailable(self) -> str | None:
        try:
            best_isa()
        except DeviceError as error:
            return str(error)
        if (cause := building_forbidden()) is None:
            return why_unusable()
        reason = why_not_cached()
        return None if reason is None else f"{reason}, and {cause} forbids to compile it"

    def precisions(self) -> Sequence[str]:
        return ("float32",)

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        isa, threads = _isa(options, isa_named), _threads(options)
        return CpuTarget(device_for(isa, threads), isa.lanes, accuracy_option(options))

    def unsupported(self, node: Node, precision: str) -> str | None:
        if not isinstance(node.op, (*_FLOAT, *_ANY)):
            return f"there is no kernel for {node.op.name}"
        valid = _DTYPES if isinstance(node.op, _ANY) else ("float32",)
        for value in (*node.inputs, *node.outputs):
            if value.dtype not in valid:
                return f"{value!r} is none of {', '.join(valid)}"
        if isinstance(node.op, (Contraction, FusedContraction)):
            return why_unsupported(parts_of(node))
        if isinstance(node.op, FusedSequence):
            return sequence.why_unsupported(node.op)
        return None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> CpuProgram:
        check_options("cpu", options, ("threads", "isa", "accuracy", "guarded", "tune"))
        guarded = options.get("guarded", False)
        if type(guarded) is not bool:
            raise GraphError(f"guarded={guarded!r}; valid are True (the debug mode) and False")
        accuracy = accuracy_option(options)
        isa, threads = _isa(options, usable_isa), _threads(options)
        tune = tune_option(options, "heuristic")
        plan.check_fits(memory_bytes(), "this machine")

        if tune == "heuristic":
            tasks = lower_plan(plan, isa, threads, accuracy)
        else:
            tasks = tuned_tasks(plan, isa, threads, accuracy, tune, builder(plan, isa, threads))
        return builder(plan, isa, threads, guarded)(tasks)


def builder(plan: Plan, isa: Isa, threads: int, guarded: bool = False) -> Build[CpuProgram]:
    """Makes programs of a plan from its tasks."""

    def build(tasks: Sequence[Task], shared: CpuProgram | None = None) -> CpuProgram:
        kernels = compile_kernels([task.source for task in tasks], isa)
        return CpuProgram(plan, tasks, kernels, isa, threads, guarded, shared)

    return build


def _isa(options: Mapping[str, Any], named: Callable[[str], Isa]) -> Isa:
    return named(options["isa"]) if options.get("isa") is not None else best_isa()


def _threads(options: Mapping[str, Any]) -> int:
    threads = options.get("threads")
    if threads is None:
        return usable_cores()
    if type(threads) is not int or not 1 <= threads <= 1024:
        raise GraphError(f"threads={threads!r}; valid is an int from 1 to 1024")
    return threads


class CpuProgram:
    """A plan as a table of regions.

    Slot 0 is the arena, slot 1 that of groups of nodes that are computed image after image (each
    thread has its part of it), slot 2 the workspace; then come the graph's inputs and outputs, and
    the constants.

    The constants are packed when it is made; it has no further use for those of the graph.

    When ``guarded`` (the debug mode) each value's storage has a slot of its own instead of the
    arena, and every run has fresh buffers between guard pages, those of inputs and outputs
    included: an access behind a buffer ends the process, what was never written is NaN, and
    GraphError names a buffer beside which something was written, or an input that was.

    A program may share the constants of another one for the same plan, as far as they are packed
    by the same functions.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: Sequence[Task],
        kernels: Sequence[NativeFunction],
        isa: Isa,
        threads: int,
        guarded: bool,
        shared: CpuProgram | None = None,
    ) -> None:
        self.plan = plan
        self.tasks = tuple(tasks)
        self.isa = isa
        self.threads = threads
        self.guarded = guarded
        workspace = max((task.workspace_bytes for task in tasks), default=0)
        self._slots = _Slots(plan, threads, workspace, guarded)
        others: _Constants | None = None if shared is None else shared._constants
        self._constants: _Constants = _Constants(self._slots.count, threads, guarded, others)
        rows = [
            BoundKernel(
                kernel,
                tuple(self._operand(pointer, task.group) for pointer in task.pointers),
                task.tasks,
                task.grain,
                task.node.name,
            )
            for task, kernel in zip(tasks, kernels, strict=True)
        ]
        regions = _grouped(rows, [task.group for task in tasks], plan)
        scratch = max((task.scratch_bytes for task in tasks), default=0)
        count = self._slots.count + len(self._constants.buffers)
        self._program = NativeProgram(regions, count, scratch, shared_pool(threads), guarded)
        self._idle: collections.deque[list[AlignedMemory]] = collections.deque()

    @property
    def constant_bytes(self) -> int:
        """Its packed constants."""
        return self._constants.bytes

    @property
    def run_bytes(self) -> int:
        """What a run needs beside them: arenas, workspace, and the threads' scratch."""
        scratch = max((task.scratch_bytes for task in self.tasks), default=0)
        return self._slots.bytes + self.threads * scratch

    def release_memory(self) -> None:
        """Gives what was freed since back to the system, as far as its allocator can."""
        runner().md_memory_release()

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Computes the outputs; several threads may call at once."""
        self._run(inputs, outputs, self._program.run)

    @cached_property
    def takes_addresses(self) -> bool:
        """Whether :meth:`run_at` can be used: kernels write all outputs, and none is guarded."""
        roots = [self.plan.roots.get(value, value) for value in self.plan.graph.outputs]
        written = [self._slots.written.get(root) for root in roots]
        return not self.guarded and written == list(range(len(roots)))

    def run_at(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Computes from and to contiguous arrays of the right types at these addresses."""
        self._run_on([*inputs, *outputs], self._program.run)

    def use_threads_of(self, team: int) -> None:
        """From now on runs with the threads of an OpenMP library, see :class:`Pool`."""
        self._program.pool = shared_pool(self.threads, team)

    def rest(self) -> None:
        """Has the threads sleep until the next run: something else needs the cores."""
        self._program.pool.rest()

    def seconds(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Computes the outputs and tells the seconds of each of :attr:`tasks`."""
        found: list[np.ndarray] = []
        self._run(inputs, outputs, lambda bases: found.append(self._program.run_timed(bases)))
        return found[0]

    def seconds_of_nodes(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> dict[Node, float]:
        """Computes the outputs; the seconds of each node, of all its kernels together."""
        total: dict[Node, float] = {}
        for task, seconds in zip(self.tasks, self.seconds(inputs, outputs), strict=True):
            total[task.node] = total.get(task.node, 0.0) + float(seconds)
        return total

    def details(self, node: Node) -> str:
        """The algorithm of a contraction."""
        task = self._contractions.get(node)
        return "" if task is None or task.choice is None else task.choice.algorithm.name

    def refusals(self, node: Node) -> dict[str, str]:
        """The algorithms that do not compute a contraction, and why."""
        task = self._contractions.get(node)
        return {} if task is None or task.question is None else refusals(task.question)

    def spared_operations(self, node: Node) -> int:
        """How many operations less than its definition a contraction's algorithm takes."""
        task = self._contractions.get(node)
        if task is None or task.choice is None or task.question is None:
            return 0
        taken = task.choice.algorithm.operations(task.choice.scheme)
        return task.question.images * (task.question.problem.operations - taken)

    @cached_property
    def _contractions(self) -> dict[Node, Task]:
        """The first kernel of each contraction."""
        return {task.node: task for task in reversed(self.tasks) if task.choice is not None}

    def bound_seconds(self, operations: int, bytes: int, contraction: bool) -> float:
        """The least time that this machine's measured rates allow, on this program's threads.

        Operations of a contraction are multiply-adds, others count one an instruction.  Bytes
        that fit the second-level caches come at their rate, others at the memory's.
        """
        machine, rates = describe_machine(), measured_rates()
        threads = min(self.threads, machine.cores)
        peak = rates.peak(self.isa.name, threads) / (1 if contraction else 2)
        near = bytes <= machine.caches.l2 * threads
        rate = rates.l2 * threads / machine.cores if near else rates.copy
        return max(operations / peak, bytes / rate)

    def _run(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        run: Callable[[list[int]], Any],
    ) -> None:
        if self.guarded:
            self._run_guarded(inputs, outputs, run)
        else:
            self._run_on([array.ctypes.data for array in (*inputs, *outputs)], run)
        self._finish(inputs, outputs)

    def _run_on(self, addresses: list[int], run: Callable[[list[int]], Any]) -> None:
        """Runs on inputs and outputs at these addresses, with buffers that no other run has."""
        try:
            memory = self._idle.pop()
        except IndexError:
            self.release_memory()  # perhaps of a network that was dropped once compiled
            memory = self._slots.allocate()
        try:
            run([buffer.address for buffer in memory] + addresses + self._constants.addresses)
        finally:
            self._idle.append(memory)

    def _run_guarded(
        self,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        run: Callable[[list[int]], Any],
    ) -> None:
        given = [AlignedMemory(array.nbytes, Guard.END) for array in inputs]
        made = [AlignedMemory(array.nbytes, Guard.END) for array in outputs]
        arrays = [
            buffer.array(array.dtype, array.shape)
            for buffer, array in zip((*given, *made), (*inputs, *outputs), strict=True)
        ]
        for own, array in zip(arrays, inputs, strict=False):
            own[...] = array
        buffers = [*self._slots.allocate(), *given, *made, *self._constants.buffers]
        run([buffer.address for buffer in buffers])
        names = self._slots.names + ["the constants"] * len(self._constants.buffers)
        for name, buffer in zip(names, buffers, strict=True):
            if (at := buffer.stray_write()) is not None:
                raise GraphError(
                    f"a kernel wrote beside the {buffer.size} bytes of {name}, at {at}"
                )
        for value, own, array in zip(self.plan.graph.inputs, arrays, inputs, strict=False):
            if own.tobytes() != array.tobytes():
                raise GraphError(f"a kernel wrote to the input {value.name!r}")
        for own, array in zip(arrays[len(inputs) :], outputs, strict=True):
            array[...] = own

    def _finish(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Copies outputs that no kernel writes: inputs, constants, and values given twice."""
        graph = self.plan.graph
        arrays = dict(zip(graph.inputs, inputs, strict=True))
        for value, array in zip(graph.outputs, outputs, strict=True):
            root = self.plan.roots.get(value, value)
            home = self._slots.written.get(root)
            if home is not None:
                source = outputs[home]
            elif root in arrays:
                source = arrays[root]
            else:
                source = value.data  # type: ignore[attr-defined]
            if source is not array:
                array[...] = source.reshape(array.shape)

    def _operand(self, pointer: Pointer, group: range | None) -> Operand:
        if isinstance(pointer, Workspace):
            own = 0 if group is None else self._slots.workspace_bytes
            return Operand(self._slots.workspace, pointer.offset, thread_stride=own)
        if not isinstance(pointer, Value):
            return self._constants.add(pointer)
        root = self.plan.roots.get(pointer, pointer)
        slot, offset, stride = self._slots.place(root)
        placement = self.plan.graph.placements.get(pointer)
        if placement is not None:
            pixels = int(np.prod(pointer.shape[2:], dtype=np.int64))
            offset += placement.channel * pixels * ITEMSIZE[pointer.dtype]
        if group is None:
            return Operand(slot, offset)
        if stride:
            return Operand(slot, offset, thread_stride=stride)
        # A view may have other images than what it is a view of.
        image = self.plan.layout(root).bytes(root.type) // pointer.shape[0]
        return Operand(slot, offset, item_stride=image)


def _grouped(
    rows: Sequence[BoundKernel], groups: Sequence[range | None], plan: Plan
) -> list[BoundKernel | Group]:
    """The regions of the program: those of a group of nodes together, for each image."""
    found: list[BoundKernel | Group] = []
    for group, members in itertools.groupby(zip(groups, rows, strict=True), lambda pair: pair[0]):
        regions = tuple(row for _, row in members)
        if group is None:
            found += regions
            continue
        nodes = plan.graph.nodes
        name = f"{nodes[group.start].name} to {nodes[group.stop - 1].name}"
        found.append(Group(regions, nodes[group.start].outputs[0].shape[0], name))
    return found


class _Slots:
    """Which slot each storage lies in."""

    def __init__(self, plan: Plan, threads: int, workspace_bytes: int, guarded: bool) -> None:
        graph = plan.graph
        self._guard = guarded
        self._plan = plan
        self._places: dict[Value, tuple[int, int, int]] = {}
        if guarded:
            self._sizes = []
            self.names = []
            for value in plan.arena.offsets:
                self._add(value, plan.layout(value).bytes(value.type), 0)
            for value in plan.group_arena.offsets:
                size = storage_bytes(graph, value, 1)
                self._add(value, threads * size, size)
        else:
            own = plan.group_arena.bytes
            self._places |= {value: (0, o, 0) for value, o in plan.arena.offsets.items()}
            self._places |= {v: (1, o, own) for v, o in plan.group_arena.offsets.items()}
            self._sizes = [plan.arena.bytes, threads * own]
            self.names = ["the arena", "the groups' arena"]
        #: Nodes use it in turn, or those of a group, on all threads at once.
        self.workspace = len(self._sizes)
        self.workspace_bytes = workspace_bytes
        self._sizes.append(threads * workspace_bytes if graph.groups else workspace_bytes)
        self.names.append("the workspace")
        self.names += [f"the input {value.name!r}" for value in graph.inputs]
        self.names += [f"the output {value.name!r}" for value in graph.outputs]
        first = len(self._sizes)
        for i, value in enumerate(graph.inputs):
            self._places[value] = (first + i, 0, 0)
        first += len(graph.inputs)
        #: The output array in which each storage outside of the arena is written.
        self.written: dict[Value, int] = {}
        for i, value in enumerate(graph.outputs):
            root = plan.roots.get(value)
            if root is not None and root not in self._places:
                self._places[root] = (first + i, 0, 0)
                self.written[root] = i
        self.count = first + len(graph.outputs)

    def _add(self, value: Value, size: int, stride: int) -> None:
        """Gives a value a slot of its own."""
        self._places[value] = (len(self._sizes), 0, stride)
        self._sizes.append(size)
        self.names.append(f"the value {value.name!r}")

    def place(self, root: Value) -> tuple[int, int, int]:
        """Slot and offset of a storage, and bytes from one thread's to the next's (0 if all images
        of a batch lie there)."""
        return self._places[root]

    @property
    def bytes(self) -> int:
        return sum(self._sizes)

    def allocate(self) -> list[AlignedMemory]:
        guard = Guard.END if self._guard else Guard.NONE
        return [AlignedMemory(size, guard) for size in self._sizes]


class _Constants:
    """Packed weights, one after another in large buffers, which are the last slots.

    Each is packed and stored before the next is made, so that never two copies of all exist.
    """

    def __init__(self, slot: int, threads: int, guarded: bool, shared: _Constants | None) -> None:
        self.buffers: list[AlignedMemory] = [] if shared is None else list(shared.buffers)
        self.bytes: int = 0 if shared is None else shared.bytes
        self._first = slot
        self._threads = threads
        self._guarded = guarded
        #: Where what each function packed lies: which buffer, and the offset.
        self._places: dict[Callable[[], np.ndarray], tuple[int, int]] = (
            {} if shared is None else dict(shared._places)
        )
        self._used: int | None = None

    @property
    def addresses(self) -> list[int]:
        return [buffer.address for buffer in self.buffers]

    def add(self, make: Callable[[], np.ndarray]) -> Operand:
        """Takes a constant; returns where it lies."""
        if make not in self._places:
            if isinstance(make, Packed):
                offset = self._reserve(4 * make.size)
                make.write(self.buffers[-1].array("f4", (make.size,), offset), self._threads)
            else:
                array = np.ascontiguousarray(make())
                offset = self._reserve(array.nbytes)
                self.buffers[-1].array(array.dtype, (array.size,), offset)[...] = array.ravel()
            self._places[make] = len(self.buffers) - 1, offset
        number, offset = self._places[make]
        return Operand(self._first + number, offset)

    def _reserve(self, size: int) -> int:
        """Takes that many bytes of the last buffer; where they begin."""
        offset = self._used
        if self._guarded:
            self.buffers.append(AlignedMemory(size, Guard.END))
            offset = 0
        elif offset is None or offset + size > self.buffers[-1].size:
            # Pages that nothing is written to take no memory.
            self.buffers.append(AlignedMemory(max(size, _CHUNK_BYTES)))
            offset = 0
        self._used = offset + -(-size // _ALIGNMENT) * _ALIGNMENT
        self.bytes += size
        return offset
