"""Where the values of a plan lie in memory, and what works on them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...graph.ir import Constant, Value
from ...runtime.plan import Plan
from .functions import Run
from .lower import Pointer


class ValueAddresses:
    """Where the values of a plan lie in one instance, which has states where all others have."""

    def __init__(
        self,
        plan: Plan,
        block: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        states: Mapping[Value, int] | None = None,
    ) -> None:
        #: Where the instance's memory begins, and in it the arena.
        self.block = block
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.states = states or {}
        self._plan = plan
        self._roots = {value: block + offset for value, offset in plan.arena.offsets.items()}
        self._roots |= dict(zip(plan.graph.inputs, inputs, strict=True))
        self._roots |= self.states
        #: What must be copied at the end: to, from (a value's root), bytes.
        self.copies: list[tuple[int, Value, int]] = []
        for value, address in zip(plan.graph.outputs, outputs, strict=True):
            root = plan.roots.get(value, value)
            if root in self._roots or isinstance(root, Constant):
                self.copies.append((address, root, value.type.bytes))
            else:
                self._roots[root] = address

    def address(self, value: Value) -> int:
        """Where the storage begins that a value lies in."""
        return self._roots[self._plan.roots.get(value, value)]


class TaskWork(Protocol):
    """What a task does, wherever its operands lie.

    ``pointers``: what it works on, in whatever order.
    """

    @property
    def pointers(self) -> Sequence[Pointer]: ...

    def bind(self, places: ValueAddresses) -> Run:
        """What launches it on CuPy's current stream."""
