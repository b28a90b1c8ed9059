"""The slots of a plan: the pieces of memory whose addresses a run receives, and the operand (slot
and offset) of each value's storage."""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.graph.ir import Constant, Value
from minidnn.graph.types import ITEMSIZE
from minidnn.runtime.operand import Operand
from minidnn.runtime.plan import Plan


class Slots:
    """The slots of a plan, and the operand of each storage.

    First come the slots of a run's own memory, then one for each input, output and state in the
    graph's order, and last one for all constants.

    Args:
        own: the operands of storages in a run's own memory.
        memory: how many slots that memory has.

    Attributes:
        inputs, outputs, states: the first slot of each.
        constants: the slot of the constants.
    """

    def __init__(self, plan: Plan, own: Mapping[Value, Operand], memory: int) -> None:
        graph = plan.graph
        self.inputs = memory
        self.outputs = self.inputs + len(graph.inputs)
        self.states = self.outputs + len(graph.outputs)
        self.constants = self.states + len(graph.states)
        self._plan = plan
        self._operands = dict(own)
        for first, values in ((self.inputs, graph.inputs), (self.states, graph.states)):
            self._operands |= {value: Operand(first + i) for i, value in enumerate(values)}
        for i, value in enumerate(graph.outputs):
            root = plan.roots.get(value, value)
            if not isinstance(root, Constant):
                self._operands.setdefault(root, Operand(self.outputs + i))

    def operand(self, value: Value) -> Operand:
        """The address of the storage that holds a value; of a vector, the address of the vector
        itself, which may begin within its storage."""
        operand = self._operands[self._plan.roots.get(value, value)]
        if value.type.rank != 1 or isinstance(value, Constant):
            return operand
        return operand + self._plan.annotations.place(value).channel * ITEMSIZE[value.dtype]

    def source(self, number: int) -> Operand | Constant | None:
        """The source from which output ``number`` must be copied at the end of a run; None if
        kernels write the output."""
        value = self._plan.graph.outputs[number]
        root = self._plan.roots.get(value, value)
        if isinstance(root, Constant):
            return root
        operand = self._operands[root]
        return None if operand.slot == self.outputs + number else operand
