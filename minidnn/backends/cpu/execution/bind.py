"""Tasks, and their binding: pointers of a plan's kernels become slots and offsets in a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from ....graph.ir import Constant, Node, Value
from ....graph.types import ITEMSIZE
from ....memory import ALIGNMENT
from ....runtime.arrays import to_bits
from ....runtime.operand import Operand
from ....runtime.plan import Plan
from ....runtime.slots import Slots
from ...codegen.kernel import KernelSource
from ..compilers.library import NativeFunction
from ..contraction import Choice, Question
from ..operators.kernels import Shaped
from ..stage import PrintedContraction, Staged, Workspace
from .buffers import Array
from .packing import Packed, PackedConstants, PackedVectors, data_of
from .program import BoundKernel, Group, HostSum, Table

#: What a kernel's pointer points to: a value, the workspace that the kernels of a node share, or a
#: constant, made by a function that packs it.
Pointer = Value | Workspace | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Task:
    """One launch of a kernel for a node: ``tasks`` independent tasks, which threads share.

    ``grain`` tasks are computed in one call of the kernel, with ``scratch_bytes`` of scratch memory
    for each thread.  All kernels of a node share ``workspace_bytes`` of workspace.
    """

    node: Node
    #: The kernel's text, the name of a function of the runner, or a sum that runs in Python.
    source: KernelSource | str | HostSum
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    #: The group of nodes to which it belongs, if that is computed image after image: then ``tasks``
    #: are those of one image, and pointers point to the first image.
    group: tuple[Node, ...] | None = None
    #: Of a contraction: the question that an algorithm was chosen for, and the choice.
    question: Question | None = None
    choice: Choice | None = None


def with_packing(tasks: Sequence[Task], outer: Mapping[Value, Value]) -> Sequence[Task]:
    """The tasks of a node, preceded by those that pack weights and vectors that are no constants.

    Packed operands are in workspace, after what the tasks use of it.  ``outer`` maps the inputs of
    a region's body to the region's operands.
    """
    end = max(task.workspace_bytes for task in tasks)
    packing_tasks: list[Task] = []
    packed_at: dict[Pointer, Workspace] = {}
    for pointer in dict.fromkeys(p for task in tasks for p in task.pointers):
        if not isinstance(pointer, (Packed, PackedVectors)):
            continue
        values = [outer.get(value, value) for value in pointer.values]
        if all(isinstance(value, Constant) for value in values):
            continue
        packed = pointer if isinstance(pointer, Packed) else pointer.picked()
        target = packed_at[pointer] = Workspace(-(-end // ALIGNMENT) * ALIGNMENT)
        end = target.offset + ITEMSIZE["float32"] * packed.size
        pointers = (target, *map(numbers_at, packed.numbers), *map(pointer_to, values))
        source = packed.kernel or packed.function
        packing_tasks.append(Task(tasks[0].node, source, pointers, packed.tasks, packed.grain))
    if not packing_tasks:
        return tasks
    return [
        replace(
            task, pointers=tuple(packed_at.get(p, p) for p in task.pointers), workspace_bytes=end
        )
        for task in (*packing_tasks, *tasks)
    ]


def numbers_at(array: np.ndarray) -> Pointer:
    return lambda: array


def tasks_of_stages(node: Node, staged: Staged, given: Sequence[Pointer] = ()) -> list[Task]:
    """The tasks of stages for the pointers ``given``: by default the operands and the output."""
    return bound_stages(node, staged, given or (*map(pointer_to, node.inputs), node.output))


def bound_stages(
    node: Node, staged: Staged | PrintedContraction, values: Sequence[Pointer]
) -> list[Task]:
    """The tasks of stages, whose pointers that are numbers refer to ``values``."""
    return [
        Task(
            node,
            stage.source,
            tuple(values[p] if isinstance(p, int) else p for p in stage.pointers),
            stage.tasks,
            stage.grain,
            stage.scratch_bytes,
            staged.workspace_bytes,
        )
        for stage in staged.stages
    ]


def shaped_task(node: Node, shaped: Shaped, given: Sequence[Pointer] = ()) -> Task:
    """The task of a kernel whose sizes are an operand, for the pointers ``given``: by default the
    operands, the kernel's tables, and the output."""
    given = given or (*map(pointer_to, node.inputs), *map(numbers_at, shaped.tables), node.output)
    pointers, scratch = (*given, lambda: shaped.sizes), shaped.scratch_bytes
    return Task(node, shaped.source, pointers, shaped.tasks, shaped.grain, scratch)


def pointer_to(value: Value) -> Pointer:
    if not isinstance(value, Constant):
        return value
    return partial(_bits_of, value) if value.dtype == "bfloat16" else partial(data_of, value)


def _bits_of(value: Constant) -> np.ndarray:
    """A constant's elements as integers of their bits."""
    return to_bits(data_of(value), value.dtype)


def bind(
    plan: Plan,
    tasks: Sequence[Task],
    kernels: Sequence[NativeFunction],
    constants: PackedConstants,
    guarded: bool,
) -> tuple[Table, list[str]]:
    """The table of a plan, and the names of its slots, for messages.

    Slot 0 is the arena.  Slot 1 is the arena of groups of nodes that are computed image after
    image: each thread has its part of it.  Slot 2 is the workspace.  When ``guarded``, each value's
    storage has a slot of its own instead of the arenas.  Offsets in the slot of constants are
    absolute addresses.
    """
    operands = _Operands(plan, max((task.workspace_bytes for task in tasks), default=0), guarded)
    rows = [
        BoundKernel(
            kernel,
            tuple(operands.operand(pointer, task.group, constants) for pointer in task.pointers),
            task.tasks,
            task.grain,
            task.node.name,
        )
        for task, kernel in zip(tasks, kernels, strict=True)
    ]
    table = Table(
        tuple(_grouped(rows, [task.group for task in tasks])),
        tuple(operands.memory),
        len(plan.graph.inputs),
        len(plan.graph.outputs),
        len(plan.graph.states),
        tuple(operands.source(i) for i in range(len(plan.graph.outputs))),
        max((task.scratch_bytes for task in tasks), default=0),
    )
    assert table.constants == operands.slots.constants
    return table, operands.names


def _grouped(
    rows: Sequence[BoundKernel], groups: Sequence[tuple[Node, ...] | None]
) -> list[BoundKernel | Group]:
    """The regions of the table: the kernels of a group of nodes become one :class:`Group`."""
    table_regions: list[BoundKernel | Group] = []
    for group, members in itertools.groupby(zip(groups, rows, strict=True), lambda pair: pair[0]):
        regions = tuple(row for _, row in members)
        if group is None:
            table_regions += regions
            continue
        name = f"{group[0].name} to {group[-1].name}"
        table_regions.append(Group(regions, group[0].outputs[0].shape[0], name))
    return table_regions


class _Operands:
    """Resolves pointers of kernels to operands, and lists the slots that these refer to."""

    def __init__(self, plan: Plan, workspace_bytes: int, guarded: bool) -> None:
        graph = plan.graph
        self._plan = plan
        #: For each slot that a run allocates, its bytes for all threads and for each of them.
        self.memory: list[tuple[int, int]] = []
        self.names: list[str] = []
        operands: dict[Value, Operand] = {}

        def add_slot(value: Value, shared_bytes: int, thread_bytes: int) -> None:
            """Gives a value a slot of its own."""
            operands[value] = Operand(len(self.memory), thread_stride=thread_bytes)
            self.memory.append((shared_bytes, thread_bytes))
            self.names.append(f"the value {value.name!r}")

        if guarded:
            for value in plan.arena.offsets:
                add_slot(value, plan.layout(value).bytes(value.type), 0)
            for value in plan.group_arena.offsets:
                add_slot(value, 0, plan.annotations.storage_bytes(value, 1))
        else:
            thread_bytes = plan.group_arena.bytes
            operands |= {value: Operand(0, offset) for value, offset in plan.arena.offsets.items()}
            operands |= {
                value: Operand(1, offset, thread_stride=thread_bytes)
                for value, offset in plan.group_arena.offsets.items()
            }
            self.memory = [(plan.arena.bytes, 0), (0, thread_bytes)]
            self.names = ["the arena", "the groups' arena"]
        #: The slot of the workspace.  Nodes use it one after another; the nodes of a group run on
        #: all threads at once, so each thread has a workspace of its own if there are groups.
        self._workspace = len(self.memory)
        self._workspace_bytes = workspace_bytes
        together = bool(plan.annotations.groups)
        self.memory.append((0, workspace_bytes) if together else (workspace_bytes, 0))
        self.slots = Slots(plan, operands, len(self.memory))
        self.names.append("the workspace")
        self.names += [f"the input {value.name!r}" for value in graph.inputs]
        self.names += [f"the output {value.name!r}" for value in graph.outputs]
        self.names += [f"the state {value.name!r}" for value in graph.states]

    def source(self, number: int) -> int | Array | None:
        """What an output is a copy of, as in :attr:`Table.sources`."""
        source = self.slots.source(number)
        if isinstance(source, Constant):
            return np.asarray(source.data)
        return None if source is None else source.slot - self.slots.inputs

    def operand(
        self, pointer: Pointer, group: tuple[Node, ...] | None, constants: PackedConstants
    ) -> Operand:
        """The operand of a pointer; for a kernel of a group, with the strides of its images."""
        if isinstance(pointer, Workspace):
            thread_stride = 0 if group is None else self._workspace_bytes
            return Operand(self._workspace, pointer.offset, thread_stride=thread_stride)
        if not isinstance(pointer, Value):
            return Operand(self.slots.constants, constants.add(pointer).address)
        channel = self._plan.annotations.within(pointer).channel
        operand = self.slots.operand(pointer)
        operand += channel * prod(pointer.shape[2:]) * ITEMSIZE[pointer.dtype]
        if group is None:
            return replace(operand, thread_stride=0)
        if operand.thread_stride:
            return operand
        # The image stride is that of the storage: a view's images may have another size.
        root = self._plan.roots.get(pointer, pointer)
        image = self._plan.layout(root).bytes(root.type) // pointer.shape[0]
        return replace(operand, item_stride=image)
