"""Operations and steps: what a stack's layers map to (BrainSlug, section 3.2).

An operation computes one plane per channel from others, point by point or from windows.  A
step holds at most one window operation, first, and any number of point-wise ones; within a
step operations pass values in registers alone.  Steps are ordered by how many windows come
before them, so that any run of consecutive steps can become one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from minidnn._cached_property import cached_property
from minidnn.fusion.stacks import channel_frame, is_tensor_operand
from minidnn.graph.expression import Instruction, argument, linearize
from minidnn.graph.ir import Node, Value
from minidnn.graph.operator import Elementwise, Windowed
from minidnn.graph.operators import Concat
from minidnn.graph.scalar_ops import SCALAR_OPS
from minidnn.graph.window import Window

MOST_SHARED = 8
"""Taps along an axis, up to which neighbouring outputs of a window share work."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Vector:
    """A parameter with one element per channel, and its first channel on the frame."""

    value: Value
    channel: int


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """Computes ``output`` from ``operands``, either by a window or by straight-line code.

    Of a window's operands the first are read under it, the others at the output's position. A
    concatenation has neither: at each channel it is the one operand that has the channel.
    """

    output: Value
    operands: tuple[Value, ...]
    vectors: tuple[Vector, ...] = ()
    window: Window | None = None
    code: tuple[Instruction, ...] = ()

    @property
    def is_concat(self) -> bool:
        """Whether it is a concatenation."""
        return self.window is None and not self.code

    @property
    def reads(self) -> list[tuple[Value, Window | None]]:
        """Its operands, each with the window that it is read under, if any."""
        return reads(self.operands, self.window)

    @property
    def operations(self) -> int:
        """Scalar operations for one element."""
        if self.window is not None:
            return self.window.operations
        ops = SCALAR_OPS
        return sum(ops[i.op].operations for i in self.code if i.op in ops)

    @property
    def taps(self) -> int:
        """How many elements of an operand it reads for one of its own."""
        return 1 if self.window is None else self.window.taps

    @property
    def shared_taps(self) -> float:
        """The same where two rows are computed at once and keep the columns that they share."""
        if self.window is None or not shares_work(self.window):
            return self.taps
        down, across = self.window.whole
        both = (down.kernel + down.stride) / 2 if down.stride < down.kernel else down.kernel
        return both * min(across.kernel, across.stride)

    @property
    def shared_operations(self) -> int:
        """Scalar operations for one element where neighbouring outputs share the maxima of columns,
        or the sums of rows."""
        if self.window is None:
            return self.operations
        if not shares_work(self.window):
            return self.operations
        down, across = self.window.whole
        first, second = (down, across) if self.window.combiner.chooses else (across, down)
        fresh = min(second.stride, second.kernel)
        return fresh * max(1, first.kernel - 1) + second.kernel - 1


def shares_work(window: Window) -> bool:
    """Whether neighbouring outputs share work on a device that computes in order: if the window
    is not too wide to keep what they share in registers."""
    return window.is_plain and max(axis.kernel for axis in window.axes) <= MOST_SHARED


def reads(operands: Sequence[T], window: Window | None) -> list[tuple[T, Window | None]]:
    """Returns the operands of an operation, each with the window that it is read under, if any."""
    under = 0 if window is None else window.under
    return [(each, window if i < under else None) for i, each in enumerate(operands)]


@dataclass(eq=False)
class Step:
    """At most one window operation, first, and point-wise operations on planes of one size."""

    level: int
    extent: tuple[int, int]
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Stack:
    """A stack that is lowered to steps.

    ``frame`` has the first channel of each value that the stack computes, on its channel axis.
    Values from outside are not in it: a reader takes them at its own channels.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]
    steps: list[Step]
    frame: dict[Value, int]

    @cached_property
    def readers(self) -> dict[Value, tuple[int, ...]]:
        """The steps that read each value."""
        readers_of: dict[Value, dict[int, None]] = {}
        for i, step in enumerate(self.steps):
            for operation in step.operations:
                for value in operation.operands:
                    readers_of.setdefault(value, {})[i] = None
        return {value: tuple(steps) for value, steps in readers_of.items()}

    @cached_property
    def position(self) -> dict[Value, int]:
        """The index of each computed value's node."""
        return {node.output: i for i, node in enumerate(self.nodes)}

    @cached_property
    def channels(self) -> int:
        return max(place + value.type.plane[1] for value, place in self.frame.items())

    @property
    def batch(self) -> int:
        return self.nodes[0].output.type.plane[0]


def lower(nodes: Sequence[Node], outputs: Sequence[Value]) -> Stack:
    """Lowers ``nodes``, whose ``outputs`` are needed outside, to a stack."""
    frame = channel_frame(nodes)
    if frame is None:
        raise ValueError("the nodes' channels do not fit on one axis: this is no stack")
    home: dict[Value, Step] = {}
    level: dict[Value, int] = {}
    steps: list[Step] = []
    for node in nodes:
        operation = operation_of(node, frame[node.output])
        inside = [value for value in operation.operands if value in level]
        deepest = max((level[value] for value in inside), default=0)
        extent = node.output.type.plane[2:]
        if operation.window is not None:
            step = Step(deepest + 1, extent)
            steps.append(step)
        else:
            candidates = [home[v] for v in inside if level[v] == deepest] or [
                s for s in steps if s.level == 0 and s.extent == extent
            ]
            if candidates:
                step = max(candidates, key=steps.index)
            else:
                step = Step(0, extent)
                steps.append(step)
        step.operations.append(operation)
        home[node.output] = step
        level[node.output] = step.level
    order = sorted(range(len(steps)), key=lambda i: (steps[i].level, i))
    ordered = _late([steps[i] for i in order], set(outputs))
    return Stack(tuple(nodes), tuple(outputs), ordered, frame)


def _late(steps: Sequence[Step], outputs: set[Value]) -> list[Step]:
    """Returns the steps in an order in which results need not be kept for long: a step whose
    operands are kept in any case until its results are first read, or stored, stands just before
    that."""
    computed = {operation.output for step in steps for operation in step.operations}
    ordered: list[Step] = []
    for step in reversed(steps):
        results = {operation.output for operation in step.operations}
        index = 0
        if not results & outputs:
            first = next((i for i, other in enumerate(ordered) if _read(other) & results), 0)
            kept = results.union(outputs, *map(_read, ordered[first:]))
            if _read(step) & computed <= kept:
                index = first
        ordered.insert(index, step)
    return ordered


def _read(step: Step) -> set[Value]:
    """The values that a step reads."""
    return {value for operation in step.operations for value in operation.operands}


def operation_of(node: Node, channel: int) -> Operation:
    """Returns the operation that a fusable node maps to, its channels beginning at ``channel``."""
    op = node.op
    if isinstance(op, Windowed):
        return Operation(node.output, node.inputs, window=op.window())
    if isinstance(op, Concat):
        return Operation(node.output, node.inputs)
    assert isinstance(op, Elementwise)
    tensors = [v for i, v in enumerate(node.inputs) if is_tensor_operand(node, i)]
    vectors = [Vector(v, channel) for v in node.inputs[len(tensors) :]]
    return Operation(node.output, tuple(tensors), tuple(vectors), code=op.lines)


def copy_operation(value: Value, output: Value) -> Operation:
    """Returns the copy of a plane, by which an input comes into the patch before windows read
    it."""
    return Operation(output, (value,), code=linearize(argument(0)))
