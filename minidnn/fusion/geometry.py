"""Patch geometry: from a patch of the last output backwards to what it needs of every value.

Along each axis, the part of a value that belongs to the patch ``[begin, end)`` of the anchor
is ``[scale * begin + low, scale * end + high)``, cut to the value's true extent.  Positions
outside of the true extent are padding of the step that reads them; they are never computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

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
        """The positions for the anchor's ``[begin, end)``; ``last``: it ends at the end."""
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
        """Positions that a patch of that size needs at most (exact unless cut by an edge)."""
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
    """Positions of each value per position of the anchor along an axis.

    None if some value has no whole, single such number: then only whole planes are patches.
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
    found: dict[Value, int | Fraction] = {anchor: 1}
    pending = [anchor]
    while pending:
        value = pending.pop()
        for other, factor in links[value]:
            scale = found[value] * factor
            if other not in found:
                found[other] = scale
                pending.append(other)
            elif found[other] != scale:
                return None
    if len(found) < len(links) or any(scale.denominator != 1 for scale in found.values()):
        return None
    return {value: int(scale) for value, scale in found.items()}


def broadcasts(value: Value, reader: Value, axis: int) -> bool:
    """Whether a reader takes the value's only position for all of its own along an axis."""
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
        own = [operation.output for operation in step.operations]
        wanted = reduce(Extent.hull, (needs[value] for value in own if value in needs))
        needs.update(dict.fromkeys(own, wanted))
        for operation in step.operations:
            for value, window in operation.reads:
                if value not in own:
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
