"""The slots of a plan: what a run is told the addresses of, and where in it each storage lies."""

from __future__ import annotations

from collections.abc import Mapping

from minidnn.graph.ir import Constant, Value
from minidnn.graph.types import ITEMSIZE
from minidnn.runtime.operand import Operand
from minidnn.runtime.plan import Plan


class Slots:
    """The slots of a plan: a run's own memory, its inputs, outputs and states in the graph's order,
    and last all constants; and which operand each storage is.

    Args:
        own: where the storages lie that are in a run's own memory.
        memory: of how many slots that is.

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
        """Where the storage begins that a value lies in; where a vector itself does."""
        found = self._operands[self._plan.roots.get(value, value)]
        if value.type.rank != 1 or isinstance(value, Constant):
            return found
        return found + self._plan.annotations.place(value).channel * ITEMSIZE[value.dtype]

    def source(self, number: int) -> Operand | Constant | None:
        """What an output must be copied from at the end of a run; None if kernels write it."""
        value = self._plan.graph.outputs[number]
        root = self._plan.roots.get(value, value)
        if isinstance(root, Constant):
            return root
        found = self._operands[root]
        return None if found.slot == self.outputs + number else found
