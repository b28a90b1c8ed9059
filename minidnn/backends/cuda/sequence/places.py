"""Where the buffers of a patch lie in a block's shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidnn.graph.types import ITEMSIZE

from ....fusion.plan import KernelPlan

ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A buffer: bytes from the start of shared memory, and strides in elements."""

    offset: int
    dtype: str
    #: From one row, column and channel to the next.
    row: int
    column: int
    channel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """The buffers of a plan's storages, and bytes of shared memory."""

    of: Mapping[int, SharedBuffer]
    bytes: int


def place_buffers(plan: KernelPlan, group: int, planar: bool) -> SharedBuffers:
    """Places for ``group`` channels a block.

    Where patches keep nothing from one to the next, storages that
    are not in use at the same time lie over each other.
    """
    found: dict[int, SharedBuffer] = {}
    spans = _lifetimes(plan)
    order = sorted(spans, key=lambda storage: (spans[storage], storage))
    total = 0
    for storage in order:
        buffer, dtype = next(
            (p.buffer, p.dtype)
            for p in plan.planes
            if p.buffer is not None and p.buffer.storage == storage
        )
        assert buffer is not None
        if planar:
            row = buffer.columns
            column, channel = 1, row * buffer.rows
            size = channel * group
        else:
            row, column, channel = buffer.columns * group, group, 1
            size = row * buffer.rows
        taken = -(-size * ITEMSIZE[dtype] // ALIGNMENT) * ALIGNMENT
        begin, _ = spans[storage]
        near = [p for other, p in found.items() if spans[other][1] >= begin]
        offset = _first_gap(near, taken)
        found[storage] = SharedBuffer(offset, dtype, row, column, channel, taken)
        total = max(total, offset + taken)
    return SharedBuffers(found, total)


def _first_gap(near: list[SharedBuffer], size: int) -> int:
    offset = 0
    for place in sorted(near, key=lambda place: place.offset):
        if place.offset - offset >= size:
            break
        offset = max(offset, place.offset + place.bytes)
    return offset


def _lifetimes(plan: KernelPlan) -> dict[int, tuple[int, int]]:
    """For each storage the first and the last step that touches it; all, if rows are kept."""
    spans: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(plan.steps):
        for operation in step.operations:
            for number in (operation.result, *operation.operands):
                buffer = plan.planes[number].buffer
                if buffer is not None:
                    first, _ = spans.get(buffer.storage, (i, i))
                    spans[buffer.storage] = (first, i)
    if plan.schedule.strips > 1:
        return dict.fromkeys(spans, (0, len(plan.steps)))
    return spans
