"""Planning: from a sequence and its schedule to the kernel plan and its binding."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from minidnn.errors import GraphError
from minidnn.fusion.buffer_rows import rows_held
from minidnn.fusion.operations import Operation, Vector, lower
from minidnn.fusion.plan import Binding, Buffer, KernelPlan, Plane, PlanOperation, PlanStep, Slot
from minidnn.fusion.sequence import Schedule, Sequence
from minidnn.graph.expression import argument, linearize
from minidnn.graph.ir import Graph, Value


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
