"""The kernel plan: one fused kernel, free of any device.

A plan says everything that a printer prints: the buffers of values, the extents of loops, and
what is computed at each position.  Printers decide nothing.  Plans are plain
values: equal plans, which share one compiled kernel, are equal Python objects and have one text,
in every process.  Batch size, numbers of channels and pointers are not part of a plan but of its
:class:`Binding`.

The loops of a plan::

    for each image, each segment of channels, each task (a column of `strips` patches):
        for each of its patches, from top to bottom, `lead` more above them first:
            for each step:
                rows    = those of the step's extent that no earlier patch of the task computed
                          and that one of its own patches needs
                columns = the step's extent along columns
                for each position: window, code; keep in registers, buffers, outputs

Results are rounded to their dtype where they are stored, and as soon as they are computed where
others read them.  Choosing the largest or the smallest, and changing signs, give the same before
rounding and after it, so a result that only such code reads is rounded after that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.fusion.geometry import Extent
from minidnn.fusion.operations import Vector, reads
from minidnn.fusion.sequence import Schedule
from minidnn.graph.expression import Instruction
from minidnn.graph.ir import Value
from minidnn.graph.types import rounded_to
from minidnn.graph.window import Window


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where the patch keeps a plane: row r is row ``(r + shift) % rows`` of a storage.

    Its first column is the first that the patch needs of any plane in that storage.  Planes share a
    storage where one overwrites the other.
    """

    storage: int
    rows: int
    columns: int
    shift: int = 0

    def __str__(self) -> str:
        shift = f" + {self.shift}" if self.shift else ""
        return f"buffer b{self.storage}, {self.rows}x{self.columns}{shift}"


@dataclass(frozen=True, slots=True)
class Plane:
    """A value of the kernel, of one channel: an input, or the result of an operation."""

    extent: tuple[int, int]
    dtype: str
    #: What a patch needs of it, along rows and columns.
    rows: Extent
    columns: Extent
    #: Its index among the kernel's inputs, or None; inputs may be broadcast along images or
    #: channels.
    input: int | None = None
    one_image: bool = False
    one_channel: bool = False
    #: Its index among the kernel's outputs, or None, and the part of it that a patch writes.
    output: int | None = None
    owned: tuple[Extent, Extent] | None = None
    #: Its buffer in the patch; None if it lives in registers only.
    buffer: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PlanOperation:
    """Computes plane ``result`` by a window over planes, or by code over planes and vectors.

    Arguments of the code are the operands first, then the vectors.
    """

    result: int
    operands: tuple[int, ...]
    vectors: tuple[int, ...] = ()
    window: Window | None = None
    code: tuple[Instruction, ...] = ()

    @property
    def reads(self) -> list[tuple[int, Window | None]]:
        """Its operands, each with the window that it is read under, if any."""
        return reads(self.operands, self.window)


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Operations at the same positions, for each segment of channels (empty: nothing to do)."""

    rows: Extent
    columns: Extent
    segments: tuple[tuple[PlanOperation, ...], ...]

    @property
    def operations(self) -> list[PlanOperation]:
        """The operations of all segments."""
        return [o for segment in self.segments for o in segment]


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One fused kernel.  ``anchor`` is the size of the plane along which patches are cut."""

    anchor: tuple[int, int]
    schedule: Schedule
    planes: tuple[Plane, ...]
    steps: tuple[PlanStep, ...]
    inputs: int
    outputs: int
    vectors: int
    #: Patches above the first that a task of several begins with; rows above the plane, and rows
    #: that the task's own patches do not need, are not computed.
    lead: int = 0
    #: The outputs of which only the sum over each plane is stored.
    summed: tuple[int, ...] = ()
    #: Those of them of which the variance over each plane is stored instead.
    spread: tuple[int, ...] = ()

    @property
    def operations(self) -> list[PlanOperation]:
        """The operations of all steps."""
        return [o for step in self.steps for o in step.operations]

    def patches(self, axis: int) -> list[tuple[int, int, bool]]:
        """The anchor's patches along an axis: begin, end, and whether it is the last."""
        size = self.anchor[axis]
        patch = (self.schedule.rows, self.schedule.columns)[axis]
        return [(b, min(b + patch, size), b + patch >= size) for b in range(0, size, patch)]

    def tasks(self) -> list[list[tuple[int, int, bool]]]:
        """For each task along rows its own patches."""
        strips = self.patches(0)
        count = self.schedule.strips
        return [strips[i : i + count] for i in range(0, len(strips), count)]

    def led(self, strips: list[tuple[int, int, bool]]) -> list[tuple[int, int, bool]]:
        """A task's patches, preceded by those that lead it."""
        first, rows = strips[0][0], self.schedule.rows
        begins = range(first - self.lead * rows, first, rows)
        return [*((b, b + rows, False) for b in begins), *strips]

    def __str__(self) -> str:
        lines = [f"kernel over {self.anchor[0]}x{self.anchor[1]} in patches of {self.schedule}"]
        for i, plane in enumerate(self.planes):
            kinds = [f"input {plane.input}"] if plane.input is not None else []
            how = "sum" if plane.output in self.summed else "output"
            how = "variance" if plane.output in self.spread else how
            kinds += [f"{how} {plane.output}"] if plane.output is not None else []
            kinds += [str(plane.buffer)] if plane.buffer else []
            where = ", ".join(kinds) or "register"
            lines.append(f"  p{i}: {plane.dtype} {plane.extent[0]}x{plane.extent[1]} ({where})")
        for number, step in enumerate(self.steps):
            lines.append(f"  step {number}")
            for segment, operations in enumerate(step.segments):
                for o in operations:
                    operands = ", ".join([*(f"p{i}" for i in o.operands)])
                    what = f"{o.window.reduction} window" if o.window else f"{len(o.code)} lines"
                    lines.append(f"    [{segment}] p{o.result} = {what} of {operands}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that a kernel reads or writes: its channel 0 is channel ``channel`` of the kernel's
    channel axis."""

    value: Value
    channel: int


@dataclass(frozen=True, slots=True)
class Binding:
    """What a plan is run on: tensors, vectors, its segments of the channel axis, and the batch."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    vectors: tuple[Vector, ...]
    segments: tuple[tuple[int, int], ...]
    batch: int

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The kernel's tensors in order."""
        return (*self.inputs, *self.outputs)

    def slot_of(self, plane: Plane) -> int | None:
        """The index of a plane among the slots; None if it lives within the kernel."""
        if plane.input is not None:
            return plane.input
        return None if plane.output is None else len(self.inputs) + plane.output


_CHOOSES = {"argument", "constant", "maximum", "minimum", "abs", "neg"}


def roundings(operations: Sequence[PlanOperation], planes: Sequence[Plane]) -> dict[int, str]:
    """Returns for each result of a segment's operations the dtype that it is rounded to before
    others of them read it.

    That is float32, which is no rounding, if the result is a number of its dtype already, if nobody
    reads it, or if only code that chooses reads it for results that are only stored.
    """
    strict: set[int] = set()
    for operation in reversed(operations):
        if operation.result in strict or not _chooses(operation, planes):
            strict.update(operation.operands)
    dtypes: dict[int, str] = {}
    unrounded: set[int] = set()
    for operation in operations:
        number = operation.result
        window = operation.window
        exact = (window is not None and window.chooses) or (
            _chooses(operation, planes) and unrounded.isdisjoint(operation.operands)
        )
        dtypes[number] = "float32"
        if not exact and number in strict:
            dtypes[number] = planes[number].dtype
        elif not exact:
            unrounded.add(number)
    return dtypes


def _chooses(operation: PlanOperation, planes: Sequence[Plane]) -> bool:
    """Whether an operation gives one of its operands, or a constant of their dtype, up to the
    sign."""
    dtype = planes[operation.result].dtype
    if operation.window is not None or operation.vectors:
        return False
    if any(planes[number].dtype != dtype for number in operation.operands):
        return False
    return chooses(operation.code, dtype)


def chooses(code: Sequence[Instruction], dtype: str) -> bool:
    """Whether straight-line code gives one of its arguments, or a constant that a dtype has, up to
    the sign."""
    constants = [float(line.value or 0.0) for line in code if line.op == "constant"]
    held = rounded_to(dtype, np.array(constants, np.float32)).astype(np.float64)
    return all(line.op in _CHOOSES for line in code) and held.tolist() == constants
