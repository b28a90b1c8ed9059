"""What the patches of a sequence count up to: elements, operations, reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from minidnn._cached_property import cached_property
from minidnn.fusion.geometry import Extent
from minidnn.fusion.operations import Operation
from minidnn.graph.ir import Value


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
