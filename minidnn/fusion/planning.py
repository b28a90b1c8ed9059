"""Planning: from a sequence and its schedule to the kernel plan and its binding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from minidnn.errors import GraphError
from minidnn.fusion.operations import Operation, Vector, lower
from minidnn.fusion.plan import Binding, Buffer, KernelPlan, Plane, PlanOperation, PlanStep, Slot
from minidnn.fusion.sequence import Schedule
from minidnn.fusion.sequence import Sequence as Part
from minidnn.graph.expression import argument, linearize
from minidnn.graph.ir import Graph, Value
from minidnn.graph.window import Window


def build_plan(body: Graph, schedule: Schedule) -> tuple[KernelPlan, Binding]:
    """Returns the plan of a sequence given as a graph of fusable nodes, and its binding.

    GraphError if the schedule does not suit the sequence.
    """
    stack = lower(body.nodes, body.outputs)
    sequence = Part(stack.steps, body.outputs, stack.batch, stack.channels)
    frame = stack.frame
    if schedule.stage and sequence.staged:
        sequence, frame = sequence.with_staged_inputs(frame)
    _check(sequence, schedule)
    return _Builder(sequence, schedule, frame).build()


def _check(sequence: Part, schedule: Schedule) -> None:
    """Raises GraphError if the schedule does not suit the sequence."""
    whole = sequence.anchor.type.plane[2:]
    if min(schedule.rows, schedule.columns, schedule.strips) < 1:
        raise GraphError(f"schedule {schedule}: rows, columns and strips must be at least 1")
    if sequence.needs_whole_plane and (schedule.rows < whole[0] or schedule.columns < whole[1]):
        raise GraphError(
            f"schedule {schedule}: strides of this sequence do not agree, so that its patch must "
            f"be the whole plane, {whole[0]}x{whole[1]}"
        )


class _Builder:
    """Numbers the values of a sequence and writes its plan."""

    def __init__(self, sequence: Part, schedule: Schedule, frame: dict[Value, int]) -> None:
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
        """The channel axis, cut wherever a computed value or an operand of a concatenation begins
        or ends."""
        cuts: set[int] = set()
        for operation in self.sequence.operations:
            begin, end = self._channels(operation.output)
            cuts.update((begin, end))
            if operation.is_concat:
                for value in operation.operands:
                    begin += value.type.plane[1]
                    cuts.add(begin)
        ordered = sorted(cuts)
        return tuple(pairwise(ordered))

    def _channels(self, value: Value) -> tuple[int, int]:
        """The first channel of a value on the frame, and the end of its channels."""
        begin = self.frame[value]
        return (begin, begin + value.type.plane[1])

    def _slots(self, operation: Operation) -> list[Slot | None]:
        """For each operand the input slot that it is read from; None for computed ones."""
        place = self.frame[operation.output]
        slots: list[Slot | None] = []
        for value in operation.operands:
            if value in self.sequence.inputs:
                one_channel = value.type.plane[1] == 1 != operation.output.type.plane[1]
                alone = one_channel and not operation.is_concat
                slots.append(Slot(value, 0 if alone else place))
            else:
                slots.append(None)
            if operation.is_concat:
                place += value.type.plane[1]
        return slots

    def _operation(self, operation: Operation, begin: int, end: int) -> PlanOperation | None:
        """An operation on a segment of channels; None if its output has no channels there."""
        first, past = self._channels(operation.output)
        if not first <= begin < end <= past:
            return None
        slots = self._slots(operation)
        operands = tuple(
            self.numbers[value if slot is None else slot]
            for value, slot in zip(operation.operands, slots, strict=True)
        )
        result = self.numbers[operation.output]
        if not operation.is_concat:
            vectors = tuple(self.vectors[vector] for vector in operation.vectors)
            return PlanOperation(result, operands, vectors, operation.window, operation.code)
        place = first
        for value, number in zip(operation.operands, operands, strict=True):
            if place <= begin and end <= place + value.type.plane[1]:
                return PlanOperation(result, (number,), code=linearize(argument(0)))
            place += value.type.plane[1]
        raise AssertionError("segments are cut at the edges of a concatenation's operands")

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
        """Whether some operation broadcasts a value of one channel."""
        return any(
            value in operation.operands
            and not operation.is_concat
            and operation.output.type.plane[1] != 1
            for operation in self.sequence.operations
        )

    def _with_buffers(self, plan: KernelPlan) -> tuple[Plane, ...]:
        """The planes with their buffers: storages, sizes and shifts."""
        over = self.sequence.overwritten if self.schedule.in_place else {}
        shifts: dict[int, int] = {}
        storages: dict[int, list[int]] = {}
        root: dict[int, int] = {}
        windows = {s.operations[0].operands[0]: s.operations[0].window for s in self.sequence.steps}
        for value in self.sequence.buffered:
            number = self.numbers[value]
            below = over.get(value)
            if below is None:
                root[number], shifts[number] = number, 0
            else:
                source, window = self.numbers[below], windows[below]
                assert window is not None
                root[number] = root[source]
                shifts[number] = shifts[source] - window.rows.padding[0]
            storages.setdefault(root[number], []).append(number)
        heights = _rows_held(plan, list(storages.values()), shifts)
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


def _rows_held(
    plan: KernelPlan, storages: Sequence[Sequence[int]], shifts: Mapping[int, int]
) -> list[int]:
    """Returns for each storage the rows from the first to the last that are needed at once.

    ``storages`` are the planes that share each one, ``shifts`` what is added to the number of a
    plane's row to give its row in the storage.
    """
    follower = _Follower(plan, storages, shifts)
    for task in plan.tasks():
        follower.follow(task)
    return follower.held


class _Follower:
    """Follows tasks patch by patch, and finds the most rows that each storage holds."""

    def __init__(
        self, plan: KernelPlan, storages: Sequence[Sequence[int]], shifts: Mapping[int, int]
    ) -> None:
        self.plan = plan
        self.storages = storages
        self.shifts = shifts
        self.held = [1] * len(storages)
        root = {number: i for i, members in enumerate(storages) for number in members}
        #: For each plane the steps that read it, once for each operation there with its window.
        self.readers: dict[int, list[tuple[int, Window | None]]] = {number: [] for number in root}
        #: For each step the planes that it writes, and the storages that it touches.
        self.results: list[list[int]] = []
        self.touched: list[list[int]] = []
        for i, step in enumerate(plan.steps):
            operations = step.operations
            computed = {o.result for o in operations}
            results = [number for number in root if number in computed]
            reads = [
                r for o in operations for r in o.reads if r[0] in root and r[0] not in computed
            ]
            for number, window in reads:
                self.readers[number].append((i, window))
            self.results.append(results)
            touched = (*results, *(number for number, _ in reads))
            self.touched.append(list(dict.fromkeys(root[number] for number in touched)))

    def follow(self, task: list[tuple[int, int, bool]]) -> None:
        """Follows a task; ``task`` is its own patches."""
        steps = self.plan.steps
        done = [step.rows.interval(*task[0])[0] for step in steps]
        stop = [step.rows.interval(*task[-1])[1] for step in steps]
        ends: dict[int, int] = {}
        for patch in self.plan.led(task):
            for i, step in enumerate(steps):
                begin, end = step.rows.interval(*patch)
                begin = max(begin, done[i])
                if begin >= end:
                    continue
                ends.update(dict.fromkeys(self.results[i], end))
                for storage in self.touched[i]:
                    self._hold(storage, i, begin, ends, done, stop)
                done[i] = end

    def _hold(
        self,
        storage: int,
        step: int,
        begin: int,
        ends: Mapping[int, int],
        done: Sequence[int],
        stop: Sequence[int],
    ) -> None:
        """Accounts for the rows that a storage holds while a step computes rows from ``begin``
        on."""
        first: int | None = None
        last = 0
        for number in self.storages[storage]:
            end = ends.get(number, 0)
            needs = [
                self._first_read(number, window, done[reader])
                for reader, window in self.readers[number]
                if done[reader] < stop[reader]
            ]
            if number in self.results[step]:
                needs.append(begin)
            low = min(needs, default=end)
            if low < end:
                low, end = low + self.shifts[number], end + self.shifts[number]
                first, last = (low, end) if first is None else (min(first, low), max(last, end))
        if first is not None:
            self.held[storage] = max(self.held[storage], last - first)

    def _first_read(self, number: int, window: Window | None, row: int) -> int:
        """The first row of a plane that a reader needs for a row of its own."""
        if window is None:
            return row
        return min(max(0, window.rows.first(row)), self.plan.planes[number].extent[0])
