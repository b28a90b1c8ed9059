"""From the kernels of a plan to the table that is run: where all that they read and write lies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np

from ...graph.ir import Node, Value
from ...graph.types import ITEMSIZE
from ...runtime.plan import Plan
from .buffers import Array
from .constants import PackedConstants
from .contraction import Workspace
from .library import NativeFunction
from .lower import Pointer, Task
from .program import BoundKernel, Group, Operand
from .table import Table


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
    slots = _Slots(plan, max((task.workspace_bytes for task in tasks), default=0), guarded)
    rows = [
        BoundKernel(
            kernel,
            tuple(slots.operand(pointer, task.group, constants) for pointer in task.pointers),
            task.tasks,
            task.grain,
            task.node.name,
        )
        for task, kernel in zip(tasks, kernels, strict=True)
    ]
    table = Table(
        tuple(_grouped(rows, [task.group for task in tasks])),
        tuple(slots.memory),
        len(plan.graph.inputs),
        len(plan.graph.outputs),
        len(plan.graph.states),
        tuple(slots.source(i) for i in range(len(plan.graph.outputs))),
        max((task.scratch_bytes for task in tasks), default=0),
    )
    assert table.constants == slots.constants
    return table, slots.names


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


class _Slots:
    """Which slot each storage lies in."""

    def __init__(self, plan: Plan, workspace_bytes: int, guarded: bool) -> None:
        graph = plan.graph
        self._plan = plan
        #: Slot and offset of each storage, and bytes from one thread's to the next's (0 if all
        #: images of a batch lie there).
        self._places: dict[Value, tuple[int, int, int]] = {}
        #: Bytes of each slot for all threads, and for each of them.
        self.memory: list[tuple[int, int]] = []
        self.names: list[str] = []
        if guarded:
            for value in plan.arena.offsets:
                self._add(value, plan.layout(value).bytes(value.type), 0)
            for value in plan.group_arena.offsets:
                self._add(value, 0, plan.annotations.storage_bytes(value, 1))
        else:
            own = plan.group_arena.bytes
            self._places |= {value: (0, o, 0) for value, o in plan.arena.offsets.items()}
            self._places |= {v: (1, o, own) for v, o in plan.group_arena.offsets.items()}
            self.memory = [(plan.arena.bytes, 0), (0, own)]
            self.names = ["the arena", "the groups' arena"]
        #: Nodes use it in turn, or those of a group, on all threads at once.
        self._workspace = len(self.memory)
        self._workspace_bytes = workspace_bytes
        together = bool(plan.annotations.groups)
        self.memory.append((0, workspace_bytes) if together else (workspace_bytes, 0))
        self.names.append("the workspace")
        self.names += [f"the input {value.name!r}" for value in graph.inputs]
        self.names += [f"the output {value.name!r}" for value in graph.outputs]
        self.names += [f"the state {value.name!r}" for value in graph.states]
        first = len(self.memory)
        for i, value in enumerate(graph.inputs):
            self._places[value] = (first + i, 0, 0)
        first += len(graph.inputs)
        #: The output array in which each storage outside of the arena is written.
        self._written: dict[Value, int] = {}
        for i, value in enumerate(graph.states):
            self._places[value] = (first + len(graph.outputs) + i, 0, 0)
        for i, value in enumerate(graph.outputs):
            root = plan.roots.get(value)
            if root is not None and root not in self._places:
                self._places[root] = (first + i, 0, 0)
                self._written[root] = i
        self.constants = first + len(graph.outputs) + len(graph.states)

    def _add(self, value: Value, whole: int, own: int) -> None:
        """Gives a value a slot of its own."""
        self._places[value] = (len(self.memory), 0, own)
        self.memory.append((whole, own))
        self.names.append(f"the value {value.name!r}")

    def source(self, number: int) -> int | Array | None:
        """What an output is a copy of, see :class:`Table`."""
        graph = self._plan.graph
        value = graph.outputs[number]
        root = self._plan.roots.get(value, value)
        home = self._written.get(root)
        if home is not None:
            return None if home == number else len(graph.inputs) + home
        given = (*graph.inputs, *([None] * len(graph.outputs)), *graph.states)
        if root in given:
            return given.index(root)
        return np.asarray(value.data)  # type: ignore[attr-defined]

    def operand(
        self, pointer: Pointer, group: tuple[Node, ...] | None, constants: PackedConstants
    ) -> Operand:
        if isinstance(pointer, Workspace):
            own = 0 if group is None else self._workspace_bytes
            return Operand(self._workspace, pointer.offset, thread_stride=own)
        if not isinstance(pointer, Value):
            return Operand(self.constants, constants.add(pointer).address)
        root = self._plan.roots.get(pointer, pointer)
        slot, offset, stride = self._places[root]
        channel = self._plan.annotations.place(pointer).channel
        offset += channel * prod(pointer.shape[2:]) * ITEMSIZE[pointer.dtype]
        if group is None:
            return Operand(slot, offset)
        if stride:
            return Operand(slot, offset, thread_stride=stride)
        # A view may have other images than what it is a view of.
        image = self._plan.layout(root).bytes(root.type) // pointer.shape[0]
        return Operand(slot, offset, item_stride=image)
