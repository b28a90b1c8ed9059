"""What patches take of the memory that one worker keeps them in, and what those of a sequence count
up to: elements, operations, reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Literal

from minidnn._cached_property import cached_property
from minidnn.fusion.device import Device
from minidnn.fusion.geometry import Extent
from minidnn.fusion.operations import Operation, Step
from minidnn.graph.ir import Value
from minidnn.graph.window import Window


class Counts:
    """Counts that schedules of one sequence have in common, each found once.

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
        """Scalar operations for one element of each value that is computed, by whether
        neighbouring ones share work."""
        return {
            shares: {o.output: o.shared_operations if shares else o.operations for o in self._of}
            for shares in (False, True)
        }

    @cached_property
    def reads(self) -> dict[bool, dict[Value, float]]:
        """How many elements that do not lie in registers are read for one of each value, by
        whether neighbouring ones share what they read."""
        operands = {o: sum(value in self._near for value in o.operands) for o in self._of}
        return {
            shares: {
                o.output: (o.shared_taps if shares else o.taps) * count
                for o, count in operands.items()
            }
            for shares in (False, True)
        }


MOST_TAPS = 8
"""Along each axis: windows that compute what they join are written out tap by tap."""


def stays_in_registers(steps: Sequence[Step], inputs: Iterable[Value]) -> bool:
    """Whether all planes have one size, but for inputs of one number, and windows move by one
    position: then threads can keep the same part of every plane in registers and exchange only its
    edges."""
    operations = [operation for step in steps for operation in step.operations]
    under = {value for o in operations for value, window in o.reads if window is not None}
    given = [v for v in inputs if v in under or v.type.plane[2:] != (1, 1)]
    planes = {v.type.plane[2:] for v in (*given, *(o.output for o in operations))}
    windows = [o.window for o in operations if o.window is not None]
    return (
        len(planes) == 1
        and bool(windows)
        and all(window.is_plain or _is_written_out(window) for window in windows)
        and all(axis.stride == 1 for window in windows for axis in window.axes)
    )


def _is_written_out(window: Window) -> bool:
    return max(axis.kernel for axis in window.axes) <= MOST_TAPS


def most_kept(steps: Sequence[Step], buffered: Iterable[Value]) -> int:
    """How many planes lie between steps at once, where a result may take the place of what it is
    computed from."""
    return max(1, *_held(steps, dict.fromkeys(buffered, 1), 0))


def most_beside(steps: Sequence[Step], inputs: Iterable[Value]) -> int:
    """How many planes threads have beside those that lie between steps, while a window computes
    what it joins: its results, and those of its operands that are inputs."""
    given, found = set(inputs), [0]
    for operation in (operation for step in steps for operation in step.operations):
        window = operation.window
        if window is not None and not window.is_plain:
            found.append(1 + len(given.intersection(operation.operands[: window.under])))
    return max(found)


def peak(steps: Sequence[Step], sizes: Mapping[Value, int]) -> int:
    """The most that values in buffers take at once."""
    return max(0, *_held(steps, sizes, 1))


def _held(steps: Sequence[Step], sizes: Mapping[Value, int], last: Literal[0, 1]) -> list[int]:
    """What values take before the first step and during each; during the step that reads a value
    last it still has its place (1) or not (0)."""
    changes = [0] * (len(steps) + 2)
    for begin, end, size in _lifetimes(steps, sizes):
        changes[begin + 1] += size
        changes[end + 1 + last] -= size
    return list(accumulate(changes[:-1]))


def _lifetimes(steps: Sequence[Step], sizes: Mapping[Value, int]) -> list[tuple[int, int, int]]:
    """For each value the step that computes it (-1: it is copied there first), the last that
    reads it, and its size."""
    made = {o.output: i for i, step in enumerate(steps) for o in step.operations}
    last = {v: i for i, step in enumerate(steps) for o in step.operations for v in o.operands}
    return [(made.get(v, -1), last.get(v, made.get(v, -1)), size) for v, size in sizes.items()]


def tasks_at_once(device: Device, bytes: int, kept: int | None) -> int:
    """How many tasks one worker computes side by side; ``kept``: bytes of a task's planes in
    registers, if they stay there."""
    if not device.register_bytes:
        return 1
    if kept is not None:
        return max(1, min(32, device.register_bytes // kept))
    return max(1, min(16, device.local_bytes // max(1, bytes)))
