"""Runs a plan with NumPy, in the plan's own arena.

Each node is computed by its operators' references.  Results are written at the offsets that the
plan has for them, and storage is overwritten with NaN once the plan says that it is free, so that
a wrong lifetime, offset or view shows as a wrong result.  A result in bfloat16, which NumPy
computes in float32, is rounded when it is written.  ``interpret=True`` computes sequences patch by
patch with the interpreter of their kernel plans instead.

States are arrays of a store, which a run overwrites with their updates; a run that fails leaves the
store as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minidnn.backends.options import check_options, memory_limit_option
from minidnn.errors import OutOfMemoryError
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.target import Target
from minidnn.graph.evaluate import no_memory_for
from minidnn.graph.ir import Constant, Node, State, Value
from minidnn.graph.types import ITEMSIZE, numpy_dtype, rounded_to
from minidnn.memory import channel_axis, lifetimes
from minidnn.runtime.agreement import agree_on_sums
from minidnn.runtime.cores import usable_memory
from minidnn.runtime.plan import Plan
from minidnn.runtime.store import Store

_POISON = 0xFF  # a float of these bytes is NaN


class ReferenceBackend:
    """NumPy on the CPU."""

    name = "reference"
    keeps_states = True
    uses_host_memory = True

    def unavailable(self) -> str | None:
        return None

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        return Target()

    def precisions(self) -> Sequence[str]:
        return ("float32", "float64")

    def unsupported(self, node: Node, precision: str) -> str | None:
        return None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> ReferenceProgram:
        check_options("reference", options, ("interpret", "memory_limit"))
        plan.check_limit(memory_limit_option(options))
        wide = precision == "float64"
        plan.check_fits(usable_memory(), "this process", _widening(plan, wide))
        agree_on_sums(plan.graph)
        return ReferenceProgram(plan, wide, bool(options.get("interpret")))


@dataclass
class ReferenceProgram:
    """A plan that NumPy executes, with ``wide`` in float64."""

    plan: Plan
    wide: bool
    interpret: bool
    _store: Store | None = field(default=None, init=False)
    _states: dict[State, np.ndarray] = field(default_factory=dict, init=False)

    def attach(self, store: Store) -> None:
        self._states = store.hold(self.plan.graph.states, wide=self.wide)
        self._store = store

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        if self._store is None:
            self._run(inputs, outputs)
            return
        with self._store.lock:
            saved_states = {state: self._states[state].copy() for state in self.plan.graph.updates}
            try:
                self._run(inputs, outputs)
            except BaseException:
                for state, array in saved_states.items():
                    self._states[state][...] = array
                raise

    def _run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        graph = self.plan.graph
        memory = _Memory(self.plan, self.wide)
        for state, array in self._states.items():
            memory.adopt(state, array)
        for value, array in zip(graph.inputs, inputs, strict=True):
            memory.adopt(value, array)
        last_uses = _ends(self.plan)
        for i, node in enumerate(graph.nodes):
            operands = [self._operand(memory, value) for value in node.inputs]
            try:
                results = self._compute(node, operands)
            except OutOfMemoryError as error:
                raise OutOfMemoryError(f"node {node.name!r} ({node.op}): {error}") from error
            except MemoryError as error:
                raise no_memory_for(node, error) from error
            for value, result in zip(node.outputs, results, strict=True):
                memory.write(value, result)
            for value in last_uses.get(i, ()):
                memory.poison(value)
        for value, out in zip(graph.outputs, outputs, strict=True):
            out[...] = self._operand(memory, value)

    def _compute(self, node: Node, operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        if self.interpret and isinstance(node.op, FusedSequence):
            return node.op.interpret(*operands)
        return node.op.reference(*operands)

    def _operand(self, memory: _Memory, value: Value) -> np.ndarray:
        if isinstance(value, Constant):
            wide = self.wide and "float" in value.dtype
            return value.data.astype(np.float64) if wide else value.data
        return memory.read(value)


class _Memory:
    """The arena, and the arrays outside of it that hold the graph's inputs and outputs."""

    def __init__(self, plan: Plan, wide: bool) -> None:
        self._plan = plan
        self._wide = wide
        self._scale = _widening(plan, wide)
        size = plan.arena.bytes * self._scale
        try:
            self._arena = np.full(size, _POISON, np.uint8)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"graph {plan.graph.name!r}: there is no memory for its values, {size} bytes"
            ) from error
        self._outside: dict[Value, np.ndarray] = {}

    def adopt(self, value: Value, array: np.ndarray) -> None:
        self._outside[value] = array

    def _root(self, root: Value) -> np.ndarray:
        """The array of a value that has storage of its own."""
        if root in self._outside:
            return self._outside[root]
        dtype = _dtype(root, self._wide)
        offset = self._plan.arena.offsets.get(root)
        if offset is None:
            poison = np.full(root.type.size * dtype.itemsize, _POISON, np.uint8)
            self._outside[root] = poison.view(dtype).reshape(root.shape)
            return self._outside[root]
        begin = offset * self._scale
        part = self._arena[begin : begin + root.type.size * dtype.itemsize]
        return part.view(dtype).reshape(root.shape)

    def _place(self, value: Value) -> np.ndarray:
        """The view of a value in its storage."""
        root = self._root(self._plan.roots[value])
        placement = self._plan.annotations.placements.get(value)
        if placement is None:
            return root.reshape(value.shape)
        axis = channel_axis(value)
        part = slice(placement.channel, placement.channel + value.shape[axis])
        return root[(slice(None),) * axis + (part,)]

    def read(self, value: Value) -> np.ndarray:
        return self._place(value)

    def write(self, value: Value, result: np.ndarray) -> None:
        view = self._place(value)
        if np.shares_memory(view, result):  # a view has its operand's elements already
            return
        is_rounded = value.dtype == "bfloat16" and not self._wide
        view[...] = rounded_to(value.dtype, result) if is_rounded else result

    def poison(self, root: Value) -> None:
        """Overwrites storage that nothing may read any more."""
        offset = self._plan.arena.offsets[root] * self._scale
        size = root.type.size * ITEMSIZE[root.dtype] * self._scale
        self._arena[offset : offset + size] = _POISON


def _dtype(value: Value, wide: bool) -> np.dtype:
    """The dtype in which NumPy computes a value."""
    return np.dtype(np.float64) if wide and "float" in value.dtype else numpy_dtype(value.dtype)


def _widening(plan: Plan, wide: bool) -> int:
    """The factor from planned bytes to NumPy's: more than 1 for float64 and bfloat16."""
    factors = (_dtype(v, wide).itemsize // ITEMSIZE[v.dtype] for v in plan.arena.offsets)
    return max(factors, default=1)


def _ends(plan: Plan) -> dict[int, list[Value]]:
    """By a node's number, the values whose storage it is the last to use."""
    last_uses: dict[int, list[Value]] = {}
    for life in lifetimes(plan.graph, plan.annotations):
        last_uses.setdefault(life.last, []).append(life.value)
    return last_uses
