"""Patch geometry: from a patch of the last output backwards to what it needs of every value.

Along each axis, the part of a value that belongs to the patch ``[begin, end)`` of the anchor
is ``[scale * begin + low, scale * end + high)``, cut to the value's true extent.  Positions
outside of the true extent are padding of the step that reads them; they are never computed.

The memory that a patch takes of one worker, and what the patches of a sequence add up to (elements,
operations, reads), follow from their extents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate
from math import prod
from typing import Literal

from minidnn._cached_property import cached_property
from minidnn.fusion.device import Device
from minidnn.fusion.operations import Operation, Step
from minidnn.graph.ir import Value
from minidnn.graph.window import Window


@dataclass(frozen=True, slots=True)
class Extent:
    """What a patch needs of one value along one axis; ``scale == 0`` means all of it."""

    size: int
    scale: int = 0
    low: int = 0
    high: int = 0
    #: Whether the last patch needs everything up to the end, as outputs do that no reader
    #: of the anchor reaches.
    to_end: bool = False

    def interval(self, begin: int, end: int, last: bool) -> tuple[int, int]:
        """The positions that the anchor's ``[begin, end)`` needs; ``last``: whether it is the last
        patch."""
        if self.scale == 0:
            return (0, self.size)
        first = min(max(self.scale * begin + self.low, 0), self.size)
        past = self.size if last and self.to_end else self.scale * end + self.high
        return (first, min(max(past, first), self.size))

    def hull(self, other: Extent) -> Extent:
        """The smallest extent that covers both."""
        if self.scale != other.scale:
            return Extent(self.size)
        return Extent(
            self.size,
            self.scale,
            min(self.low, other.low),
            max(self.high, other.high),
            self.to_end or other.to_end,
        )

    def span(self, patch: int) -> int:
        """The most positions that a patch of that size needs (exact unless cut by an edge)."""
        if self.scale == 0:
            return self.size
        return min(self.size, self.scale * patch + self.high - self.low)

    def total(self, patch: int, anchor: int) -> int:
        """Positions that all patches of an anchor of that size need, counted as often as they
        are needed: the sum of the lengths of :meth:`interval`."""
        count = -(-anchor // patch)
        if self.scale == 0:
            return self.size * count
        step = self.scale * patch
        last = self.size if self.to_end else min(max(self.scale * anchor + self.high, 0), self.size)
        ends = _clipped_sum(step + self.high, step, count - 1, self.size) + last
        return ends - _clipped_sum(self.low, step, count, self.size)


def _clipped_sum(first: int, step: int, count: int, most: int) -> int:
    """The sum of ``first + step * i`` for i < count, each cut to 0 .. most."""
    below = min(max(-(first // step), 0), count)
    inside = min(max(-((first - most) // step), below), count)
    middle = inside - below
    return middle * first + step * (below + inside - 1) * middle // 2 + most * (count - inside)


def scales(operations: Sequence[Operation], anchor: Value, axis: int) -> dict[Value, int] | None:
    """Returns the positions of each value per position of the anchor along an axis.

    None if some value has no single integer of that kind: then only whole planes are patches.
    """
    links: dict[Value, list[tuple[Value, int | Fraction]]] = {}
    for operation in operations:
        links.setdefault(operation.output, [])
        for value, window in operation.reads:
            if broadcasts(value, operation.output, axis) and window is None:
                continue
            stride = 1 if window is None else window.axes[axis].stride
            back = 1 if stride == 1 else 1 / Fraction(stride)
            links[operation.output].append((value, stride))
            links.setdefault(value, []).append((operation.output, back))
    ratios: dict[Value, int | Fraction] = {anchor: 1}
    pending = [anchor]
    while pending:
        value = pending.pop()
        for other, factor in links[value]:
            scale = ratios[value] * factor
            if other not in ratios:
                ratios[other] = scale
                pending.append(other)
            elif ratios[other] != scale:
                return None
    if len(ratios) < len(links) or any(scale.denominator != 1 for scale in ratios.values()):
        return None
    return {value: int(scale) for value, scale in ratios.items()}


def broadcasts(value: Value, reader: Value, axis: int) -> bool:
    """Whether a reader uses the value's only position for all of its own along an axis."""
    return value.type.plane[2 + axis] == 1 != reader.type.plane[2 + axis]


def extents(
    steps: Sequence[Step], outputs: Sequence[Value], anchor: Value, axis: int
) -> dict[Value, Extent]:
    """What a patch of the anchor needs along one axis of every value that is read or computed.

    ``steps`` stand in the order in which they run.  All planes of a step are computed at the
    same positions.  Each output is needed so that the patches of the anchor together cover
    all of it.
    """
    known = scales([o for step in steps for o in step.operations], anchor, axis)
    needs: dict[Value, Extent] = {}

    def need(value: Value, extent: Extent) -> None:
        needs[value] = needs[value].hull(extent) if value in needs else extent

    for value in outputs:
        need(value, owned(value, anchor, known, axis))
    for step in reversed(steps):
        results = [operation.output for operation in step.operations]
        wanted = reduce(Extent.hull, (needs[value] for value in results if value in needs))
        needs.update(dict.fromkeys(results, wanted))
        for operation in step.operations:
            for value, window in operation.reads:
                if value not in results:
                    need(value, _read(operation, value, window, wanted, axis))
    return needs


def owned(value: Value, anchor: Value, known: Mapping[Value, int] | None, axis: int) -> Extent:
    """The part of an output that a patch of the anchor writes: these parts tile the output."""
    size = value.type.plane[2 + axis]
    if known is None:
        return Extent(size)
    return Extent(size, known[value], to_end=known[value] * anchor.type.plane[2 + axis] < size)


def _read(
    operation: Operation,
    value: Value,
    window: Window | None,
    wanted: Extent,
    axis: int,
) -> Extent:
    """What computing ``wanted`` of an operation's output needs of one operand."""
    size = value.type.plane[2 + axis]
    if wanted.scale == 0:
        return Extent(size)
    if window is None:
        if broadcasts(value, operation.output, axis):
            return Extent(size)
        return Extent(size, wanted.scale, wanted.low, wanted.high, wanted.to_end)
    along = window.axes[axis]
    low, past = along.first(wanted.low), along.past(wanted.high)
    return Extent(size, int(wanted.scale * along.stride), low, past, wanted.to_end)


class Counts:
    """Counts that the schedules of one sequence have in common, each computed once.

    Args:
        operations: of the sequence.
        extents: what a patch needs of every value, along rows and along columns.
        size: rows and columns of the anchor.
        near: values that are read from the patch or from outside, not from registers.
    """

    def __init__(
        self,
        operations: tuple[Operation, ...],
        extents: tuple[Mapping[Value, Extent], Mapping[Value, Extent]],
        size: tuple[int, int],
        near: Collection[Value],
    ) -> None:
        self._of = operations
        self._extents = extents
        self._size = size
        self._near = near
        self._totals: dict[tuple[int, int], dict[Value, int]] = {}

    def elements(self, rows: int, columns: int) -> dict[Value, int]:
        """Elements that all patches of that size need of each value, counted as often as they
        are needed."""
        down, across = self._along(0, rows), self._along(1, columns)
        return {value: down[value] * across[value] * self._planes[value] for value in down}

    def _along(self, axis: int, patch: int) -> dict[Value, int]:
        if (axis, patch) not in self._totals:
            size = self._size[axis]
            needs = self._extents[axis].items()
            self._totals[axis, patch] = {v: extent.total(patch, size) for v, extent in needs}
        return self._totals[axis, patch]

    @cached_property
    def _planes(self) -> dict[Value, int]:
        return {value: prod(value.type.plane[:2]) for value in self._extents[0]}

    @cached_property
    def operations(self) -> dict[bool, dict[Value, int]]:
        """Scalar operations for one element of each value that is computed, by whether neighbouring
        elements share work."""
        return {
            shares: {o.output: o.shared_operations if shares else o.operations for o in self._of}
            for shares in (False, True)
        }

    @cached_property
    def reads(self) -> dict[bool, dict[Value, float]]:
        """Elements that are read from outside of registers for one element of each value, by
        whether neighbouring elements share what they read."""
        operands = {o: sum(value in self._near for value in o.operands) for o in self._of}
        return {
            shares: {
                o.output: (o.shared_taps if shares else o.taps) * count
                for o, count in operands.items()
            }
            for shares in (False, True)
        }


MOST_TAPS = 8
"""The most taps along each axis of a window that computes what it reduces, and is unrolled."""


def stays_in_registers(steps: Sequence[Step], inputs: Iterable[Value]) -> bool:
    """Whether all planes have one size, except for inputs with one element for a plane, and windows
    have stride 1: then threads can keep the same part of every plane in registers and exchange only
    its edges."""
    operations = [operation for step in steps for operation in step.operations]
    under = {value for o in operations for value, window in o.reads if window is not None}
    full_inputs = [v for v in inputs if v in under or v.type.plane[2:] != (1, 1)]
    planes = {v.type.plane[2:] for v in (*full_inputs, *(o.output for o in operations))}
    windows = [o.window for o in operations if o.window is not None]
    return (
        len(planes) == 1
        and bool(windows)
        and all(window.is_plain or _is_written_out(window) for window in windows)
        and all(axis.stride == 1 for window in windows for axis in window.axes)
    )


def _is_written_out(window: Window) -> bool:
    """Whether a window's taps can be unrolled."""
    return max(axis.kernel for axis in window.axes) <= MOST_TAPS


def peak_live_planes(steps: Sequence[Step], buffered: Iterable[Value]) -> int:
    """Returns how many planes are kept between steps at once, where a result may replace what it is
    computed from."""
    return max(1, *_held_elements(steps, dict.fromkeys(buffered, 1), 0))


def window_temporaries(steps: Sequence[Step], inputs: Iterable[Value]) -> int:
    """Returns how many planes threads have in addition to those between steps, while a window
    computes what it reduces: its results, and those of its operands that are inputs."""
    input_set, counts = set(inputs), [0]
    for operation in (operation for step in steps for operation in step.operations):
        window = operation.window
        if window is not None and not window.is_plain:
            counts.append(1 + len(input_set.intersection(operation.operands[: window.under])))
    return max(counts)


def peak(steps: Sequence[Step], sizes: Mapping[Value, int]) -> int:
    """The most that values in buffers take at once, in the unit of ``sizes``."""
    return max(0, *_held_elements(steps, sizes, 1))


def _held_elements(
    steps: Sequence[Step], sizes: Mapping[Value, int], last: Literal[0, 1]
) -> list[int]:
    """What values take before the first step and during each; during the step that reads a value
    last it still counts (``last`` is 1) or not (0)."""
    changes = [0] * (len(steps) + 2)
    for begin, end, size in _lifetimes(steps, sizes):
        changes[begin + 1] += size
        changes[end + 1 + last] -= size
    return list(accumulate(changes[:-1]))


def _lifetimes(steps: Sequence[Step], sizes: Mapping[Value, int]) -> list[tuple[int, int, int]]:
    """Returns for each value the step that computes it (-1: it is copied to the patch first), the
    last that reads it, and its size."""
    made = {o.output: i for i, step in enumerate(steps) for o in step.operations}
    last = {v: i for i, step in enumerate(steps) for o in step.operations for v in o.operands}
    return [(made.get(v, -1), last.get(v, made.get(v, -1)), size) for v, size in sizes.items()]


def tasks_at_once(device: Device, bytes: int, kept: int | None) -> int:
    """Returns how many tasks of ``bytes`` one worker computes concurrently; ``kept``: bytes of a
    task's planes in registers, if they stay there."""
    if not device.register_bytes:
        return 1
    if kept is not None:
        return max(1, min(32, device.register_bytes // kept))
    return max(1, min(16, device.local_bytes // max(1, bytes)))
