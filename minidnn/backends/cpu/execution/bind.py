"""From the kernels of a plan to the table that is run: where all that they read and write lies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....graph.ir import Constant, Node, Value
from ....graph.types import ITEMSIZE
from ....runtime.operand import Operand
from ....runtime.plan import Plan
from ....runtime.slots import Slots
from ...codegen.kernel import KernelSource
from ..compilers.library import NativeFunction
from ..contraction import Choice, Question
from ..stage import Workspace
from .buffers import Array
from .packing import PackedConstants
from .program import BoundKernel, Group, HostSum, Table

#: What a kernel's pointer points to: a value, the workspace that the kernels of a node share, or
#: a constant that is packed for it.
Pointer = Value | Workspace | Callable[[], np.ndarray]


@dataclass(frozen=True)
class Task:
    """One kernel over its tasks, for a node."""

    node: Node
    #: Its text, the name of a function of the runner, or what calls back into Python.
    source: KernelSource | str | HostSum
    pointers: tuple[Pointer, ...]
    tasks: int
    grain: int = 1
    scratch_bytes: int = 0
    workspace_bytes: int = 0
    #: The group of nodes to which it belongs, if that is computed image after image: ``tasks`` are
    #: those of one image then, and pointers are those of the first.
    group: tuple[Node, ...] | None = None
    #: Of a contraction: what was chosen for what.
    question: Question | None = None
    choice: Choice | None = None


def bind(
    plan: Plan,
    tasks: Sequence[Task],
    kernels: Sequence[NativeFunction],
    constants: PackedConstants,
    guarded: bool,
) -> tuple[Table, list[str]]:
    """The table of a plan, and what its slots are called.

    Slot 0 is the arena, slot 1 that of groups of nodes that are computed image after image (each
    thread has its part of it), slot 2 the workspace.  When ``guarded`` each value's storage has a
    slot of its own instead of the arenas.  Constants are addressed from 0 on.
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
    """The regions of the table: those of a group of nodes together, for each image."""
    found: list[BoundKernel | Group] = []
    for group, members in itertools.groupby(zip(groups, rows, strict=True), lambda pair: pair[0]):
        regions = tuple(row for _, row in members)
        if group is None:
            found += regions
            continue
        name = f"{group[0].name} to {group[-1].name}"
        found.append(Group(regions, group[0].outputs[0].shape[0], name))
    return found


class _Operands:
    """What kernels' pointers are, in slots."""

    def __init__(self, plan: Plan, workspace_bytes: int, guarded: bool) -> None:
        graph = plan.graph
        self._plan = plan
        #: Bytes of each slot of a run's own, for all threads and for each of them.
        self.memory: list[tuple[int, int]] = []
        self.names: list[str] = []
        own: dict[Value, Operand] = {}

        def apart(value: Value, whole: int, each: int) -> None:
            """Gives a value a slot of its own."""
            own[value] = Operand(len(self.memory), thread_stride=each)
            self.memory.append((whole, each))
            self.names.append(f"the value {value.name!r}")

        if guarded:
            for value in plan.arena.offsets:
                apart(value, plan.layout(value).bytes(value.type), 0)
            for value in plan.group_arena.offsets:
                apart(value, 0, plan.annotations.storage_bytes(value, 1))
        else:
            each = plan.group_arena.bytes
            own |= {value: Operand(0, offset) for value, offset in plan.arena.offsets.items()}
            own |= {
                value: Operand(1, offset, thread_stride=each)
                for value, offset in plan.group_arena.offsets.items()
            }
            self.memory = [(plan.arena.bytes, 0), (0, each)]
            self.names = ["the arena", "the groups' arena"]
        #: Nodes use it in turn, or those of a group, on all threads at once.
        self._workspace = len(self.memory)
        self._workspace_bytes = workspace_bytes
        together = bool(plan.annotations.groups)
        self.memory.append((0, workspace_bytes) if together else (workspace_bytes, 0))
        self.slots = Slots(plan, own, len(self.memory))
        self.names.append("the workspace")
        self.names += [f"the input {value.name!r}" for value in graph.inputs]
        self.names += [f"the output {value.name!r}" for value in graph.outputs]
        self.names += [f"the state {value.name!r}" for value in graph.states]

    def source(self, number: int) -> int | Array | None:
        """What an output is a copy of, see :class:`Table`."""
        found = self.slots.source(number)
        if isinstance(found, Constant):
            return np.asarray(found.data)
        return None if found is None else found.slot - self.slots.inputs

    def operand(
        self, pointer: Pointer, group: tuple[Node, ...] | None, constants: PackedConstants
    ) -> Operand:
        if isinstance(pointer, Workspace):
            own = 0 if group is None else self._workspace_bytes
            return Operand(self._workspace, pointer.offset, thread_stride=own)
        if not isinstance(pointer, Value):
            return Operand(self.slots.constants, constants.add(pointer).address)
        channel = self._plan.annotations.within(pointer).channel
        found = self.slots.operand(pointer)
        found += channel * prod(pointer.shape[2:]) * ITEMSIZE[pointer.dtype]
        if group is None:
            return replace(found, thread_stride=0)
        if found.thread_stride:
            return found
        # A view may have other images than what it is a view of.
        root = self._plan.roots.get(pointer, pointer)
        image = self._plan.layout(root).bytes(root.type) // pointer.shape[0]
        return replace(found, item_stride=image)
