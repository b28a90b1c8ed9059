"""What a patch takes of the memory that one worker keeps patches in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minidnn.fusion.device import Device
from minidnn.graph.ir import Value

if TYPE_CHECKING:
    from minidnn.fusion.sequence import Schedule, Sequence


def stays_in_registers(sequence: Sequence) -> bool:
    """Whether all planes have one size and windows move by one position: then threads can keep
    the same part of every plane in registers and exchange only its edges."""
    plane = sequence.anchor.type.plane[2:]
    values = (*sequence.inputs, *(o.output for o in sequence.operations))
    windows = [o.window for o in sequence.operations if o.window is not None]
    return (
        bool(windows)
        and all(value.type.plane[2:] == plane for value in values)
        and all(axis.stride == 1 for window in windows for axis in window.axes)
    )


def register_bytes(sequence: Sequence, schedule: Schedule) -> int | None:
    """What one channel's planes take in registers, as float32, where a result may take the place
    of what it is computed from; None if they cannot stay there."""
    _, _, rows, columns = sequence.anchor.type.plane
    whole = (schedule.rows, schedule.columns, schedule.strips) == (rows, columns, 1)
    if not whole or not stays_in_registers(sequence):
        return None
    spans = lifetimes(sequence, dict.fromkeys(sequence.buffered, 1))
    most = max((_held_at(spans, i, 1) for i in range(len(sequence.steps))), default=0)
    return max(1, most) * rows * columns * 4


def lifetimes(sequence: Sequence, sizes: Mapping[Value, int]) -> list[tuple[int, int, int]]:
    """For each value in a buffer the step that computes it (-1: it is copied there first), the
    last that reads it, and its size."""
    made = {o.output: i for i, step in enumerate(sequence.steps) for o in step.operations}
    last: dict[Value, int] = {}
    for i, step in enumerate(sequence.steps):
        for operation in step.operations:
            last.update(dict.fromkeys(operation.operands, i))
    return [(made.get(v, -1), last.get(v, made.get(v, -1)), size) for v, size in sizes.items()]


def peak(sequence: Sequence, sizes: Mapping[Value, int]) -> int:
    """The most that values in buffers take at once."""
    spans = lifetimes(sequence, sizes)
    steps = range(-1, len(sequence.steps))
    return max((_held_at(spans, i, 0) for i in steps), default=0)


def _held_at(spans: list[tuple[int, int, int]], step: int, before: int) -> int:
    """What lies in buffers at a step; ``before``: 1 if what it reads last may be overwritten."""
    return sum(size for begin, end, size in spans if begin <= step <= end - before)


def tasks_at_once(device: Device, bytes: int, kept: int | None) -> int:
    """How many tasks one worker computes side by side."""
    if not device.register_bytes:
        return 1
    if kept is not None:
        return max(1, min(32, device.register_bytes // kept))
    return max(1, min(16, device.local_bytes // max(1, bytes)))
