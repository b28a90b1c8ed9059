"""Executes a kernel plan with NumPy, patch by patch, exactly as a printed kernel would.

This is what makes everything after it safe: every plan can be compared with the reference
before any code is printed.  Buffers remember which positions they hold; reading one that the
plan did not compute, or writing an output position twice or never, is a PlanError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from minidnn.errors import MiniDNNError
from minidnn.fusion.plan import Binding, KernelPlan, Plane, PlanOperation, PlanStep
from minidnn.graph import expression as scalar
from minidnn.graph.types import INT8_DTYPES, numpy_dtype, saturated
from minidnn.graph.window import Evaluation

Span = tuple[int, int]


class PlanError(MiniDNNError, AssertionError):
    """A plan reads what it did not compute, or does not write its outputs exactly once."""


def interpret(
    plan: KernelPlan,
    binding: Binding,
    inputs: Sequence[np.ndarray],
    vectors: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """Returns the outputs of a plan, each of shape (batch, channels, rows, columns).

    ``inputs`` are arrays of that rank in the order of ``binding.inputs``, ``vectors`` of rank 1 in
    the order of ``binding.vectors``.  If any is of float64, so is every floating-point result.
    """
    outputs = []
    written = []
    wide = any(array.dtype == np.float64 for array in (*inputs, *vectors))
    for slot in binding.outputs:
        shape = slot.value.type.plane
        outputs.append(np.empty(shape, _dtype(slot.value.dtype, wide)))
        written.append(np.zeros(shape[1:], int))
    for segment, channels in enumerate(binding.segments):
        for rows in plan.tasks():
            for columns in plan.patches(1):
                task = _Task(plan, binding, segment, channels, rows, columns, inputs, vectors, wide)
                task.run(outputs, written)
    for i, counts in enumerate(written):
        if not (counts == 1).all():
            wrong = np.argwhere(counts != 1)[0]
            raise PlanError(f"output {i}: position {wrong} is written {counts[tuple(wrong)]} times")
    return outputs


def _dtype(name: str, wide: bool) -> np.dtype:
    return np.dtype(np.float64) if wide and "float" in name else numpy_dtype(name)


def _as(dtype: np.dtype, array: np.ndarray) -> np.ndarray:
    """Results in the dtype that they are stored in."""
    return saturated(dtype.name, array) if dtype.name in INT8_DTYPES else array.astype(dtype)


def _float(array: np.ndarray) -> np.ndarray:
    """Values as they are computed with and kept: int8 and uint8 as float32."""
    return array.astype(np.float32) if array.dtype.name in INT8_DTYPES else array


@dataclass
class _Storage:
    """The rows of the planes that share one storage."""

    data: np.ndarray
    #: Which plane's row each row of the storage holds, or -1, and which row of it.
    plane: np.ndarray
    row: np.ndarray
    #: The columns that each plane's rows hold.
    columns: dict[int, Span] = field(default_factory=dict)


@dataclass
class _Task:
    """One task on one segment of channels."""

    plan: KernelPlan
    binding: Binding
    segment: int
    channels: Span
    strips: list[tuple[int, int, bool]]
    columns: tuple[int, int, bool]
    inputs: Sequence[np.ndarray]
    vectors: Sequence[np.ndarray]
    wide: bool
    storages: dict[int, _Storage] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    registers: dict[int, np.ndarray] = field(default_factory=dict)

    def run(self, outputs: list[np.ndarray], written: list[np.ndarray]) -> None:
        for number, step in enumerate(self.plan.steps):
            self.done[number] = step.rows.interval(*self.strips[0])[0]
        for strip in self.plan.led(self.strips):
            for number, step in enumerate(self.plan.steps):
                operations = step.segments[self.segment]
                begin, end = step.rows.interval(*strip)
                begin = max(begin, self.done[number])
                columns = step.columns.interval(*self.columns)
                if operations and columns[0] < columns[1]:
                    for rows in self._turns(begin, end):
                        self._step(step, rows, columns, outputs, written)
                self.done[number] = max(end, self.done[number])

    def _turns(self, begin: int, end: int) -> list[Span]:
        """The rows that are computed at once: row by row, if results overwrite operands in
        place."""
        if self.plan.schedule.in_place:
            return [(row, row + 1) for row in range(begin, end)]
        return [(begin, end)] if begin < end else []

    def _step(
        self,
        step: PlanStep,
        rows: Span,
        columns: Span,
        outputs: list[np.ndarray],
        written: list[np.ndarray],
    ) -> None:
        self.registers.clear()
        for operation in step.segments[self.segment]:
            result = self._compute(operation, rows, columns)
            self.registers[operation.result] = result
            plane = self.plan.planes[operation.result]
            if plane.buffer is not None:
                self._keep(operation.result, plane, result, rows, columns)
            if plane.output is not None:
                self._write(plane, result, rows, columns, outputs, written)

    def _compute(self, operation: PlanOperation, rows: Span, columns: Span) -> np.ndarray:
        plane = self.plan.planes[operation.result]
        dtype = _dtype(plane.dtype, self.wide)
        if operation.window is not None:
            return _as(dtype, self._window(operation, rows, columns))
        at = (np.arange(*rows), np.arange(*columns))
        tensors = [_float(self._read(number, plane, *at)) for number in operation.operands]
        vectors = [self._vector(number) for number in operation.vectors]
        return _as(dtype, scalar.run(operation.code, [*tensors, *vectors]))

    def _window(self, operation: PlanOperation, rows: Span, columns: Span) -> np.ndarray:
        """The result of a window operation at rows and columns."""
        window = operation.window
        assert window is not None
        under, here = operation.operands[: window.under], operation.operands[window.under :]
        plane, result = self.plan.planes[under[0]], self.plan.planes[operation.result]
        at = (np.arange(*rows), np.arange(*columns))

        def read(operand: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
            number = under[operand]
            return self._gather(number, self.plan.planes[number], rows, columns)

        compute = np.result_type(_dtype(plane.dtype, self.wide), np.float32)
        planes = (self.binding.batch, self.channels[1] - self.channels[0])
        evaluation = Evaluation(window, plane.extent, read, planes, compute)
        return evaluation.at(*at, [self._read(number, result, *at) for number in here])

    def _read(
        self, number: int, reader: Plane, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """A plane at the positions of its point-wise reader, which may broadcast an input."""
        if number in self.registers:
            return self.registers[number]
        plane = self.plan.planes[number]
        if plane.input is not None:
            if plane.extent[0] == 1 != reader.extent[0]:
                rows = np.zeros(1, int)
            if plane.extent[1] == 1 != reader.extent[1]:
                columns = np.zeros(1, int)
        return self._gather(number, plane, rows, columns)

    def _gather(
        self, number: int, plane: Plane, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """A plane at positions inside of its extent, from an input or a buffer."""
        if plane.input is not None:
            array = self.inputs[plane.input]
            if not plane.one_channel:
                shift = self.binding.inputs[plane.input].channel
                array = array[:, self.channels[0] - shift : self.channels[1] - shift]
            return array[:, :, rows[:, None], columns]
        buffer = plane.buffer
        storage = None if buffer is None else self.storages.get(buffer.storage)
        if buffer is None or storage is None or number not in storage.columns:
            raise PlanError(f"p{number} is read before it is computed")
        buffer_rows = (rows + buffer.shift) % buffer.rows
        first, end = storage.columns[number]
        lost = (storage.row[buffer_rows] != rows) | (storage.plane[buffer_rows] != number)
        if lost.any() or columns.min() < first or columns.max() >= end:
            held = sorted(storage.row[storage.plane == number])
            raise PlanError(
                f"p{number}: rows {rows.min()}..{rows.max()}, columns {columns.min()}.."
                f"{columns.max()} are read, but the buffer holds rows {held}, "
                f"columns {first}..{end - 1}"
            )
        return storage.data[:, :, buffer_rows[:, None], columns - first]

    def _vector(self, number: int) -> np.ndarray:
        shift = self.binding.vectors[number].channel
        part = self.vectors[number][self.channels[0] - shift : self.channels[1] - shift]
        return part[:, None, None]

    def _keep(
        self, number: int, plane: Plane, result: np.ndarray, rows: Span, columns: Span
    ) -> None:
        """Stores a result in its buffer."""
        assert plane.buffer is not None
        buffer = plane.buffer
        height, width = buffer.rows, buffer.columns
        if buffer.storage not in self.storages:
            data = np.full((*result.shape[:2], height, width), np.nan, _float(result).dtype)
            free = np.full(height, -1)
            self.storages[buffer.storage] = _Storage(data, free, free.copy())
        storage = self.storages[buffer.storage]
        if columns[1] - columns[0] > width or rows[1] - rows[0] > height:
            raise PlanError(f"p{number}: {rows}x{columns} do not fit the buffer {plane.buffer}")
        buffer_rows = (np.arange(*rows) + buffer.shift) % height
        storage.data[:, :, buffer_rows, : columns[1] - columns[0]] = result
        storage.plane[buffer_rows] = number
        storage.row[buffer_rows] = np.arange(*rows)
        storage.columns[number] = columns

    def _write(
        self,
        plane: Plane,
        result: np.ndarray,
        rows: Span,
        columns: Span,
        outputs: list[np.ndarray],
        written: list[np.ndarray],
    ) -> None:
        """Stores the part of a result that this task owns."""
        assert plane.output is not None and plane.owned is not None
        top = plane.owned[0].interval(*self.strips[0])[0]
        bottom = plane.owned[0].interval(*self.strips[-1])[1]
        left, right = plane.owned[1].interval(*self.columns)
        top, bottom = max(top, rows[0]), min(bottom, rows[1])
        left, right = max(left, columns[0]), min(right, columns[1])
        if top >= bottom or left >= right:
            return
        shift = self.binding.outputs[plane.output].channel
        channels = slice(self.channels[0] - shift, self.channels[1] - shift)
        part = result[
            :, :, top - rows[0] : bottom - rows[0], left - columns[0] : right - columns[0]
        ]
        outputs[plane.output][:, channels, top:bottom, left:right] = part
        written[plane.output][channels, top:bottom, left:right] += 1
