"""The kernel plan: one fused kernel, free of any device.

A plan says everything that a printer prints: what lies where, which loops run over which
extents, and what is computed at each position.  Printers decide nothing.  Plans are plain
values: equal plans, which share one compiled kernel, are equal Python objects and have one
digest, in every process.  Batch size, numbers of channels and pointers are not part of a plan
but of its :class:`Binding`.

The loops of a plan::

    for each image, each segment of channels, each task (a column of `strips` patches):
        for each of its patches, from top to bottom, `lead` imagined ones above it first:
            for each step:
                rows    = those of the step's extent that no earlier patch of the task computed
                          and that one of its own patches needs
                columns = the step's extent along columns
                for each position: window, code; keep in registers, buffers, outputs
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from minidnn.errors import GraphError
from minidnn.fusion.geometry import Extent
from minidnn.fusion.held import rows_held
from minidnn.fusion.operations import Operation, Vector, lower
from minidnn.fusion.sequence import Schedule, Sequence
from minidnn.graph.expression import Instruction, argument, linearize
from minidnn.graph.ir import Graph, Value
from minidnn.graph.window import Window


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a plane lies in the patch: row r at ``(r + shift) % rows`` of a storage.

    Columns begin with the first that the patch needs of any plane in that storage.  Planes
    share a storage where one overwrites the other.
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
    """A value of the kernel, of one channel: an input, or computed by an operation."""

    extent: tuple[int, int]
    dtype: str
    #: What a patch needs of it, along rows and columns.
    rows: Extent
    columns: Extent
    #: Which of the kernel's inputs it is, or None; inputs may have only one image or channel
    #: for all.
    input: int | None = None
    one_image: bool = False
    one_channel: bool = False
    #: Which of the kernel's outputs it is, or None, and the part of it that a patch writes.
    output: int | None = None
    owned: tuple[Extent, Extent] | None = None
    #: Its buffer in the patch; None if it lives in registers only.
    buffer: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PlanOperation:
    """Computes plane ``result`` by a window over one plane, or by code over planes and vectors.

    Arguments of the code are the operands first, then the vectors.
    """

    result: int
    operands: tuple[int, ...]
    vectors: tuple[int, ...] = ()
    window: Window | None = None
    code: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Operations at the same positions, for each segment of channels (empty: nothing to do)."""

    rows: Extent
    columns: Extent
    segments: tuple[tuple[PlanOperation, ...], ...]


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
    #: Patches above the first that a task of several begins with; what lies above the plane or
    #: is not needed by the task's own patches is not computed.
    lead: int = 0

    def to_json(self) -> str:
        """The plan as canonical JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        """A name for the plan that is the same in every process."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

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
        """A task's patches, with those that lead it."""
        first, rows = strips[0][0], self.schedule.rows
        begins = range(first - self.lead * rows, first, rows)
        return [*((b, b + rows, False) for b in begins), *strips]

    def __str__(self) -> str:
        lines = [f"kernel over {self.anchor[0]}x{self.anchor[1]} in patches of {self.schedule}"]
        for i, plane in enumerate(self.planes):
            kinds = [f"input {plane.input}"] if plane.input is not None else []
            kinds += [f"output {plane.output}"] if plane.output is not None else []
            kinds += [str(plane.buffer)] if plane.buffer else []
            where = ", ".join(kinds) or "register"
            lines.append(f"  p{i}: {plane.dtype} {plane.extent[0]}x{plane.extent[1]} ({where})")
        for number, step in enumerate(self.steps):
            lines.append(f"  step {number}")
            for segment, operations in enumerate(step.segments):
                for o in operations:
                    operands = ", ".join([*(f"p{i}" for i in o.operands)])
                    what = f"{o.window.reduce} window" if o.window else f"{len(o.code)} lines"
                    lines.append(f"    [{segment}] p{o.result} = {what} of {operands}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor that a kernel reads or writes: channel 0 of ``value`` lies at ``channel`` of the
    kernel's channel axis."""

    value: Value
    channel: int


@dataclass(frozen=True, slots=True)
class Binding:
    """What a plan is run on: tensors, vectors, and where its segments of channels lie."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    vectors: tuple[Vector, ...]
    segments: tuple[tuple[int, int], ...]
    batch: int


def build_plan(body: Graph, schedule: Schedule) -> tuple[KernelPlan, Binding]:
    """The plan of a sequence given as a graph of fusable nodes, and its binding.

    GraphError if the schedule does not suit the sequence.
    """
    stack = lower(body.nodes, body.outputs)
    sequence = Sequence(stack.steps, body.outputs, stack.batch, stack.channels)
    frame = stack.frame
    if schedule.stage and sequence.staged:
        sequence, frame = sequence.with_staged_inputs(frame)
    _check(sequence, schedule)
    return _Builder(sequence, schedule, frame).build()


def _check(sequence: Sequence, schedule: Schedule) -> None:
    whole = sequence.anchor.type.plane[2:]
    if min(schedule.rows, schedule.columns, schedule.strips) < 1:
        raise GraphError(f"schedule {schedule}: rows, columns and strips must be at least 1")
    if sequence.is_whole and (schedule.rows < whole[0] or schedule.columns < whole[1]):
        raise GraphError(
            f"schedule {schedule}: strides of this sequence do not agree, so that its patch must "
            f"be the whole plane, {whole[0]}x{whole[1]}"
        )


class _Builder:
    """Numbers the values of a sequence and writes its plan."""

    def __init__(self, sequence: Sequence, schedule: Schedule, frame: dict[Value, int]) -> None:
        self.sequence = sequence
        self.schedule = schedule
        self.frame = frame
        self.inputs: dict[Slot, int] = {}
        self.vectors: dict[Vector, int] = {}
        self.numbers: dict[Value | Slot, int] = {}
        self.steps: list[PlanStep] = []

    def build(self) -> tuple[KernelPlan, Binding]:
        segments = self._segments()
        for operation in self.sequence.operations:
            for slot in self._slots(operation):
                if slot is not None:
                    self.inputs.setdefault(slot, len(self.inputs))
            for vector in operation.vectors:
                self.vectors.setdefault(vector, len(self.vectors))
        for slot, index in self.inputs.items():
            self.numbers[slot] = index
        for operation in self.sequence.operations:
            self.numbers[operation.output] = len(self.numbers)
        rows, columns = self.sequence.extents
        steps = []
        for step in self.sequence.steps:
            first = step.operations[0].output
            lists = tuple(
                tuple(p for o in step.operations if (p := self._operation(o, b, e)) is not None)
                for b, e in segments
            )
            steps.append(PlanStep(rows[first], columns[first], lists))
        anchor = self.sequence.anchor.type.plane
        plan = KernelPlan(
            anchor=(anchor[2], anchor[3]),
            schedule=self.schedule,
            planes=self._planes(),
            steps=tuple(steps),
            inputs=len(self.inputs),
            outputs=len(self.sequence.outputs),
            vectors=len(self.vectors),
            lead=self.sequence.lead(self.schedule),
        )
        plan = replace(plan, planes=self._with_buffers(plan))
        outputs = tuple(Slot(value, self.frame[value]) for value in self.sequence.outputs)
        binding = Binding(
            tuple(self.inputs), outputs, tuple(self.vectors), segments, self.sequence.batch
        )
        return plan, binding

    def _segments(self) -> tuple[tuple[int, int], ...]:
        """The channel axis, cut wherever a computed value or an operand of a join begins or
        ends."""
        cuts: set[int] = set()
        for operation in self.sequence.operations:
            place, past = self._channels(operation.output)
            cuts.update((place, past))
            if operation.is_join:
                for value in operation.operands:
                    place += value.type.plane[1]
                    cuts.add(place)
        ordered = sorted(cuts)
        return tuple(pairwise(ordered))

    def _channels(self, value: Value) -> tuple[int, int]:
        begin = self.frame[value]
        return (begin, begin + value.type.plane[1])

    def _slots(self, operation: Operation) -> list[Slot | None]:
        """For each operand the input slot that it is read from; None for computed ones."""
        place = self.frame[operation.output]
        slots: list[Slot | None] = []
        for value in operation.operands:
            if value in self.sequence.inputs:
                one_channel = value.type.plane[1] == 1 != operation.output.type.plane[1]
                alone = one_channel and not operation.is_join
                slots.append(Slot(value, 0 if alone else place))
            else:
                slots.append(None)
            if operation.is_join:
                place += value.type.plane[1]
        return slots

    def _operation(self, operation: Operation, begin: int, end: int) -> PlanOperation | None:
        """An operation on a segment of channels; None if its output does not lie there."""
        first, past = self._channels(operation.output)
        if not first <= begin < end <= past:
            return None
        slots = self._slots(operation)
        operands = tuple(
            self.numbers[value if slot is None else slot]
            for value, slot in zip(operation.operands, slots, strict=True)
        )
        result = self.numbers[operation.output]
        if not operation.is_join:
            vectors = tuple(self.vectors[vector] for vector in operation.vectors)
            return PlanOperation(result, operands, vectors, operation.window, operation.code)
        place = first
        for value, number in zip(operation.operands, operands, strict=True):
            if place <= begin and end <= place + value.type.plane[1]:
                return PlanOperation(result, (number,), code=linearize(argument(0)))
            place += value.type.plane[1]
        raise AssertionError("segments are cut at the edges of a join's operands")

    def _planes(self) -> tuple[Plane, ...]:
        rows, columns = self.sequence.extents
        channels, batch = self.sequence.channels, self.sequence.batch
        planes = []
        for slot, index in self.inputs.items():
            value = slot.value
            images, own, height, width = value.type.plane
            planes.append(
                Plane(
                    extent=(height, width),
                    dtype=value.dtype,
                    rows=rows[value],
                    columns=columns[value],
                    input=index,
                    one_image=images == 1 != batch,
                    one_channel=own == 1 != channels and self._is_broadcast(value),
                )
            )
        for operation in self.sequence.operations:
            value = operation.output
            is_output = value in self.sequence.outputs
            planes.append(
                Plane(
                    extent=(value.type.plane[2], value.type.plane[3]),
                    dtype=value.dtype,
                    rows=rows[value],
                    columns=columns[value],
                    output=self.sequence.outputs.index(value) if is_output else None,
                    owned=self.sequence.owned[value] if is_output else None,
                )
            )
        return tuple(planes)

    def _is_broadcast(self, value: Value) -> bool:
        return any(
            value in operation.operands
            and not operation.is_join
            and operation.output.type.plane[1] != 1
            for operation in self.sequence.operations
        )

    def _with_buffers(self, plan: KernelPlan) -> tuple[Plane, ...]:
        """The planes with their buffers: how large and where those are."""
        over = self.sequence.overwritten if self.schedule.in_place else {}
        shifts: dict[int, int] = {}
        storages: dict[int, list[int]] = {}
        home: dict[int, int] = {}
        windows = {s.operations[0].operands[0]: s.operations[0].window for s in self.sequence.steps}
        for value in self.sequence.buffered:
            number = self.numbers[value]
            below = over.get(value)
            if below is None:
                home[number], shifts[number] = number, 0
            else:
                source, window = self.numbers[below], windows[below]
                assert window is not None
                home[number] = home[source]
                shifts[number] = shifts[source] - window.rows.padding[0]
            storages.setdefault(home[number], []).append(number)
        heights = rows_held(plan, list(storages.values()), shifts)
        planes = list(plan.planes)
        columns = plan.patches(1)
        for i, members in enumerate(storages.values()):
            width = 0
            for patch in columns:
                spans = [planes[number].columns.interval(*patch) for number in members]
                width = max(width, max(e for _, e in spans) - min(b for b, _ in spans))
            for number in members:
                shift = shifts[number] % heights[i]
                planes[number] = replace(planes[number], buffer=Buffer(i, heights[i], width, shift))
        return tuple(planes)
