"""Sequences: runs of a stack's steps, how they are cut into patches, and what that costs.

The cost of a sequence is predicted as for a roofline: bytes to and from memory over bandwidth,
operations (with what patches compute twice) over peak, and bytes to and from the patch over
the patch's bandwidth; the largest of the three, plus overheads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil

from minidnn._cached_property import cached_property
from minidnn.fusion.device import Device
from minidnn.fusion.geometry import (
    Counts,
    Extent,
    extents,
    owned,
    peak,
    peak_live_planes,
    scales,
    stays_in_registers,
    tasks_at_once,
    window_temporaries,
)
from minidnn.fusion.operations import Operation, Stack, Step, copy_operation
from minidnn.graph.ir import Value
from minidnn.graph.types import ITEMSIZE
from minidnn.graph.window import Window

FAR_ONCE = 0.15
FAR_AGAIN = 1.0
"""The relative extra time of reads that the nearest cache no longer holds when a window comes to
them: once, and again for the next rows where not even one window's rows fit.  Measured on Zen 5
with chains of 3x3 windows in planes of 28 to 400 columns."""


CODE_BYTES = 128
"""Bytes of instructions for each operation per element of planes in registers, of which a thread
has several: 40 KB for 300 operations on an H100."""

WAITS = 4
"""A patch of a task that keeps rows begins with a wait for memory, about as long as so many step
overheads."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a sequence is cut into patches.

    A patch is ``rows`` by ``columns`` positions of the anchor (:attr:`Sequence.anchor`).  A task
    computes ``strips`` patches one below the other.  With more than one, rows that the next
    patch needs again stay in rolling buffers; with one, every patch recomputes its halo, as
    BrainSlug does.  ``stage`` copies inputs that windows read into the patch first.
    ``in_place`` lets the result of a window overwrite what the window reads, row after row: for
    workers that compute rows in order.
    """

    rows: int
    columns: int
    strips: int = 1
    stage: bool = False
    in_place: bool = False

    def __str__(self) -> str:
        rolling = f" x {self.strips} rolling" if self.strips > 1 else ""
        flags = f"{' staged' if self.stage else ''}{' in place' if self.in_place else ''}"
        return f"{self.rows}x{self.columns}{rolling}{flags}"


@dataclass(frozen=True, slots=True)
class Price:
    """The predicted cost of a sequence: seconds, and what they follow from."""

    seconds: float
    #: Bytes read from and written to main memory.
    bytes: int
    #: Scalar operations, with those on halos that are computed more than once.
    operations: float
    #: Bytes that the buffers of one patch take.
    buffer_bytes: int
    tasks: int
    #: Operations over those of computing every element once.
    redundancy: float


class Sequence:
    """Consecutive steps of a stack that become one kernel."""

    def __init__(
        self, steps: Iterable[Step], outputs: Iterable[Value], batch: int, channels: int
    ) -> None:
        self.steps: tuple[Step, ...] = tuple(steps)
        self.operations: tuple[Operation, ...] = tuple(
            operation for step in self.steps for operation in step.operations
        )
        #: Values that are needed outside, in order.
        self.outputs: tuple[Value, ...] = tuple(outputs)
        self.batch = batch
        self.channels = channels
        computed = {operation.output for operation in self.operations}
        #: Tensors read from outside, in order of appearance.
        self.inputs: tuple[Value, ...] = tuple(
            dict.fromkeys(v for o in self.operations for v in o.operands if v not in computed)
        )

    @classmethod
    def of(cls, stack: Stack, first: int, last: int) -> Sequence:
        """Returns the steps ``first`` to ``last`` of a stack, both included, as a sequence."""
        steps = stack.steps[first : last + 1]
        stack_outputs = set(stack.outputs)
        outputs = {
            operation.output
            for step in steps
            for operation in step.operations
            if operation.output in stack_outputs
            or any(not first <= i <= last for i in stack.readers.get(operation.output, ()))
        }
        # In the nodes' order, as the region's body will have them: the anchor depends on it.
        ordered = sorted(outputs, key=stack.position.__getitem__)
        return cls(steps, ordered, stack.batch, stack.channels)

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """All that prices depend on: sequences that repeat in a network have equal ones."""
        numbers: dict[Value, int] = {}

        def number(value: Value) -> tuple[int, object]:
            return (numbers.setdefault(value, len(numbers)), value.type)

        steps = tuple(
            tuple(
                (o.window, o.operations, number(o.output), *map(number, o.operands))
                for o in step.operations
            )
            for step in self.steps
        )
        return (steps, tuple(map(number, self.outputs)), self.batch, self.channels)

    @cached_property
    def anchor(self) -> Value:
        """The value along whose plane patches are cut: the smallest output, the last of several, or
        the operand of a window with a fractional stride, if that is smaller."""

        def area(value: Value) -> int:
            return value.type.plane[2] * value.type.plane[3]

        reads = (read for operation in self.operations for read in operation.reads)
        under = (v for v, w in reads if w is not None and any(a.stride < 1 for a in w.axes))
        values = (*under, *self.outputs)
        smallest = min(map(area, values))
        return [value for value in values if area(value) == smallest][-1]

    @cached_property
    def extents(self) -> tuple[dict[Value, Extent], dict[Value, Extent]]:
        """What a patch needs of every value, along rows and along columns."""
        return (
            extents(self.steps, self.outputs, self.anchor, 0),
            extents(self.steps, self.outputs, self.anchor, 1),
        )

    @cached_property
    def owned(self) -> dict[Value, tuple[Extent, Extent]]:
        """The part of each output that a patch writes."""
        known = [scales(self.operations, self.anchor, axis) for axis in (0, 1)]
        return {
            value: (
                owned(value, self.anchor, known[0], 0),
                owned(value, self.anchor, known[1], 1),
            )
            for value in self.outputs
        }

    @cached_property
    def needs_whole_plane(self) -> bool:
        """Whether only whole planes can be patches."""
        return any(e.scale == 0 for extents in self.owned.values() for e in extents)

    @cached_property
    def buffered(self) -> tuple[Value, ...]:
        """Values of the sequence that are read by windows or in a later step: they are kept in
        buffers of the patch.  All others stay in registers."""
        step_of = {o.output: i for i, step in enumerate(self.steps) for o in step.operations}
        buffered_values: dict[Value, None] = {}
        for i, step in enumerate(self.steps):
            for operation in step.operations:
                for value, window in operation.reads:
                    if value in step_of and (window or step_of[value] < i):
                        buffered_values[value] = None
        return tuple(buffered_values)

    @cached_property
    def staged(self) -> tuple[Value, ...]:
        """Inputs that windows read, which a schedule may copy into the patch first."""
        return tuple(
            value
            for value in self.inputs
            if any((value, o.window) in o.reads for o in self.operations if o.window is not None)
        )

    def patch_counts(self, schedule: Schedule) -> tuple[int, int, int]:
        """Patches along rows, tasks along rows, and tasks along columns, for each image and channel
        block."""
        _, _, rows, columns = self.anchor.type.plane
        strips = ceil(rows / schedule.rows)
        return strips, ceil(strips / schedule.strips), ceil(columns / schedule.columns)

    def price(self, schedule: Schedule, device: Device) -> Price | None:
        """The predicted cost; None if the patch's buffers do not fit the device."""
        _, columns = self.extents
        _, down, across = self.patch_counts(schedule)
        batch, channels = self.batch, self.channels
        item = ITEMSIZE[self.anchor.dtype]
        tall = schedule.rows * schedule.strips
        counted = self._counts.elements(tall, schedule.columns)
        sizes = {
            value: device.lanes * item * count * columns[value].span(schedule.columns)
            for value, count in self._held_rows(schedule).items()
        }
        if device.reuses_buffers and schedule.strips == 1:
            buffer_bytes = peak(self.steps, sizes)
        else:
            buffer_bytes = sum(sizes.values())
        kept = self._kept_bytes(schedule, device)
        if buffer_bytes > device.local_bytes and kept is None:
            return None
        each = self._counts.operations[device.shares]
        work = float(sum(count * counted[value] for value, count in each.items()))
        useful = float(sum(count * value.type.size for value, count in each.items()))
        moved = sum(v.type.bytes for v in (*self.inputs, *self.outputs))
        local = 0.0
        if kept is None:
            local = self._local_bytes(schedule, device, counted, item)
        tasks = batch * ceil(channels / device.lanes) * down * across
        idle = ceil(tasks / device.workers) * device.workers / tasks
        strips = ceil(tall / schedule.rows) + (self.lead(schedule) if schedule.strips > 1 else 0)
        turns = tasks * strips * len(self.steps) / device.workers
        memory = moved / device.bandwidth
        if device.register_bytes:
            # Elements that patches share are read again, mostly from a cache twice as fast.
            read = sum(counted[v] * ITEMSIZE[v.dtype] for v in self.inputs)
            again = read - sum(v.type.bytes for v in self.inputs)
            memory += max(0, again) / (2 * device.bandwidth)
        inside = idle * max(work / device.operations, local / device.local_bandwidth)
        far = self._far_bytes(schedule, device, counted, item)
        inside += idle * far / device.local_bandwidth
        side_by_side = tasks_at_once(device, buffer_bytes, kept)
        inside += turns * device.step_overhead / side_by_side
        if kept is not None:
            code = CODE_BYTES * work / (tasks * schedule.rows * schedule.columns)
            if code > device.code_bytes:
                inside += tasks / device.workers * code * device.code_seconds
        both = max(memory, inside)
        if device.in_order or device.register_bytes:
            # Only other tasks can hide what one task waits for memory.
            both += min(memory, inside) / side_by_side**2
        if device.register_bytes and schedule.strips > 1:
            waits = WAITS * tasks * strips / device.workers
            both += waits * device.step_overhead / side_by_side
        seconds = device.overhead + both
        return Price(seconds, moved, work, buffer_bytes, tasks, work / useful if useful else 1.0)

    @cached_property
    def _counts(self) -> Counts:
        _, _, rows, columns = self.anchor.type.plane
        near = {*self.buffered, *self.inputs}
        return Counts(self.operations, self.extents, (rows, columns), near)

    @cached_property
    def stays_in_registers(self) -> bool:
        """Whether threads could keep whole planes in registers from step to step."""
        return stays_in_registers(self.steps, self.inputs)

    def _kept_bytes(self, schedule: Schedule, device: Device) -> int | None:
        """Bytes of one channel's planes in registers, as float32; None if they do not stay
        there."""
        _, _, rows, columns = self.anchor.type.plane
        whole = (schedule.rows, schedule.columns, schedule.strips) == (rows, columns, 1)
        if not device.register_bytes or not whole or not self.stays_in_registers:
            return None
        planes = peak_live_planes(self.steps, self.buffered) + window_temporaries(
            self.steps, self.inputs
        )
        bytes = planes * rows * columns * 4
        return bytes if bytes <= device.register_bytes else None

    def lead(self, schedule: Schedule) -> int:
        """Patches before the first in which a task already computes what the first one needs, so
        that no patch computes more rows than another."""
        strips, tasks, _ = self.patch_counts(schedule)
        if min(strips, schedule.strips) == 1:
            return 0
        rows, _ = self.extents
        halos = [
            (e.high - (0 if tasks == 1 else e.low)) / e.scale for e in rows.values() if e.scale
        ]
        return max(0, *(ceil(halo / schedule.rows) for halo in halos))

    def _held_rows(self, schedule: Schedule) -> dict[Value, int]:
        """About how many rows each buffer needs; of values that share one, the first has the rows
        of all."""
        rows, _ = self.extents
        buffers = (*self.buffered, *(self.staged if schedule.stage else ()))
        held: dict[Value, int] = {}
        for value in buffers:
            need, first = rows[value], self._bottom[value] if schedule.in_place else value
            if schedule.strips == 1:
                # A plane that overwrites another one begins some rows above it.
                above = held[first] + 1 if first in held else 0
                held[first] = max(above, need.span(schedule.rows))
            elif first in held:
                held[first] += self._lags[value]
            else:
                count = need.size if need.scale == 0 else min(need.size, need.scale * schedule.rows)
                held[first] = count + self._lags[value]
        return held

    @cached_property
    def _bottom(self) -> dict[Value, Value]:
        """For each value in a buffer the first value in that buffer."""
        bottom: dict[Value, Value] = {value: value for value in self.staged}
        for value in self.buffered:
            below = self.overwritten.get(value)
            bottom[value] = value if below is None else bottom[below]
        return bottom

    @cached_property
    def _lags(self) -> dict[Value, int]:
        """For each value the most rows before its newest ones that a reader still needs."""
        lags: dict[Value, int] = {}
        for operation in self.operations:
            for value, window in operation.reads:
                lag = self._lag(value, operation.output, window)
                lags[value] = max(lags.get(value, 0), lag)
        return lags

    def _lag(self, value: Value, reader: Value, window: Window | None) -> int:
        """How many rows before the newest ones of a value a reader still needs."""
        rows, _ = self.extents
        have, wanted = rows[value], rows[reader]
        if have.scale == 0 or wanted.scale == 0:
            return 0
        first = wanted.high if window is None else window.rows.first(wanted.high)
        return max(0, have.high - first)

    @cached_property
    def overwritten(self) -> dict[Value, Value]:
        """For each value that may overwrite another one in place: the other.

        The other is read by a window alone, which moves by one position, keeps the plane's size and
        reads each element before it is overwritten if rows and columns are computed in order.
        """
        buffered = set(self.buffered)
        readers: dict[Value, list[Operation]] = {}
        for operation in self.operations:
            for value in operation.operands:
                readers.setdefault(value, []).append(operation)
        below: dict[Value, Value] = {}
        for step in self.steps:
            window = step.operations[0].window
            source = step.operations[0].operands[0]
            if window is None or len(readers[source]) > 1 or source not in buffered:
                continue
            if source in self.outputs or not _moves_by_one(window, source, step.extent):
                continue
            results = [o.output for o in step.operations if o.output in buffered]
            if results and all(
                o.window is None or o.window.reduction == window.reduction
                for o in readers[results[0]]
            ):
                below[results[0]] = source
        return below

    def _local_bytes(
        self, schedule: Schedule, device: Device, counted: Mapping[Value, int], item: int
    ) -> float:
        """Bytes that steps write to the patch, and that they read from it and, several times, from
        inputs."""
        buffers = (*self.buffered, *(self.staged if schedule.stage else ()))
        written = sum(counted[value] for value in buffers)
        reads = self._counts.reads[device.shares].items()
        return (written + sum(count * counted[value] for value, count in reads)) * item

    def _far_bytes(
        self, schedule: Schedule, device: Device, counted: Mapping[Value, int], item: int
    ) -> float:
        """Bytes that windows read from beyond the nearest cache, each times its relative extra
        time."""
        if not device.near_bytes:
            return 0.0
        rows, columns = self.extents
        total = 0.0
        for operation in self.operations:
            source = operation.operands[0]
            if operation.window is None or source in self.inputs or rows[source].scale == 0:
                continue
            row = columns[source].span(schedule.columns) * device.lanes * item
            axis = operation.window.rows
            patch = min(rows[source].scale * schedule.rows, rows[source].size) * row
            if patch <= device.near_bytes:
                continue
            slower = FAR_ONCE
            if (axis.reach + axis.stride) * row > device.near_bytes:
                slower += FAR_AGAIN * min(patch / device.near_bytes - 1.0, 1.0)
            total += slower * (operation.shared_taps * counted[operation.output])
        return total * item

    def candidates(self, device: Device, rolling: bool = True) -> Iterator[Schedule]:
        """Schedules worth pricing: strips over the whole width, square tiles, whole planes."""
        _, _, rows, columns = self.anchor.type.plane
        stage = device.stages_inputs and bool(self.staged)
        if device.register_bytes:
            # Otherwise windows may as well read inputs through the caches, and windows that
            # compute what they reduce read them from global memory in any case.
            windows = [o.window for o in self.operations if o.window is not None]
            plain = all(window.is_plain for window in windows)
            stage = stage and plain and self.stays_in_registers
        place = device.in_order
        whole = Schedule(rows, columns, 1, stage, place)
        yield whole
        # Of planes that stay in registers only edges are moved: no patches of them are cheaper.
        kept = self._kept_bytes(whole, device) is not None
        if self.needs_whole_plane or (kept and self.batch * self.channels >= 2 * device.workers):
            return
        sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size < max(rows, columns)]
        for size in sizes:
            if size < rows:
                yield Schedule(size, columns, 1, stage, place)
                if rolling and (self.buffered or stage) and size <= 8:
                    for pieces in (1, 2, 4):
                        strips = ceil(ceil(rows / size) / pieces)
                        if strips > 1:
                            yield Schedule(size, columns, strips, stage, place)
            if size < columns:
                yield Schedule(min(size, rows), size, 1, stage, place)

    def with_staged_inputs(self, frame: dict[Value, int]) -> tuple[Sequence, dict[Value, int]]:
        """Returns the sequence with steps before it that copy the inputs that windows read, and the
        frame with the copies on it: each has the channels of the window's result."""
        copies: dict[tuple[Value, int], Value] = {}
        first: dict[tuple[int, int], Step] = {}
        steps = []
        for step in self.steps:
            operations = []
            for operation in step.operations:
                operands = list(operation.operands)
                for i, (value, window) in enumerate(operation.reads):
                    if window is None or value not in self.inputs:
                        continue
                    place = frame[operation.output]
                    if (value, place) not in copies:
                        copy = Value(value.type, f"{value.name}.staged")
                        copies[value, place] = copy
                        extent = (value.type.plane[2], value.type.plane[3])
                        first.setdefault(extent, Step(0, extent)).operations.append(
                            copy_operation(value, copy)
                        )
                    operands[i] = copies[value, place]
                operations.append(replace(operation, operands=tuple(operands)))
            steps.append(Step(step.level, step.extent, operations))
        staged = Sequence([*first.values(), *steps], self.outputs, self.batch, self.channels)
        return staged, {**frame, **{copy: place for (_, place), copy in copies.items()}}


def _moves_by_one(window: Window, source: Value, extent: tuple[int, int]) -> bool:
    """Whether a narrow window moves by one position and keeps the size of the source's plane."""
    narrow = window.columns.kernel <= (8 if window.combiner.chooses else 4)
    return (
        narrow
        and window.is_plain
        and source.type.plane[2:] == extent
        and all(a.stride == a.dilation == 1 and a.padding[0] < a.kernel for a in window.axes)
    )
