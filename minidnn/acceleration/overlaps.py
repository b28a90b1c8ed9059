"""Whether what a program writes to lies apart from all else that it is given.

Writes are made once all is computed.  That is the same as when the network makes them only if
nobody reads their memory as something else's.  And what is a view of such memory is one only where
strides are those of the capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from minidnn.frontends.torch.captured import Captured

#: The first byte of a tensor's memory, and the one behind its last.
_Extent = tuple[int, int]


class Overlaps:
    """Looks for overlaps in the arguments of a program that writes to arguments or buffers."""

    def __init__(self, captured: Captured) -> None:
        written = {*captured.counted, *(node for _, node in captured.writes)}
        held = {node: extent_of(each.tensor) for node, each in captured.held.items()}
        self._held = _Regions(held.values())
        self._written_held = _Regions(held[node] for node in written if node in held)
        self._given = [(place, node in written) for node, place in captured.given.items()]
        self._strides = [
            (place, _steps(node.meta["val"]))
            for node, place in captured.given.items()
            if node in written
        ]
        self._within_held = any(
            one is not other and _meet(held[one], held[other])
            for one in written
            if one in held
            for other in held
        )

    def are_in(self, leaves: Sequence[Any]) -> bool:
        """Whether memory that is written to is also another argument's, parameter's or buffer's.

        leaves: those of the arguments.
        """
        if self._within_held:
            return True
        given = [(extent_of(leaves[place]), written) for place, written in self._given]
        for index, (extent, written) in enumerate(given):
            if (self._held if written else self._written_held).meet(extent):
                return True
            if written and any(
                _meet(extent, other) for place, (other, _) in enumerate(given) if place != index
            ):
                return True
        return False

    def are_strided_otherwise(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that is written to has other strides than when it was captured."""
        return any(_steps(leaves[place]) != steps for place, steps in self._strides)


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides of the axes along which there is more than one element."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


class _Regions:
    """Some memory, as extents that lie apart, in order."""

    def __init__(self, extents: Iterable[_Extent | None]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(each for each in extents if each is not None):
            if self._ends and start < self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            else:
                self._starts.append(start)
                self._ends.append(end)

    def meet(self, extent: _Extent | None) -> bool:
        if extent is None:
            return False
        last = bisect_right(self._starts, extent[1] - 1) - 1  # of those that begin before its end
        return last >= 0 and self._ends[last] > extent[0]


def extent_of(thing: Any) -> _Extent | None:
    """Where a tensor lies; None for all else, and for one without elements."""
    if not isinstance(thing, torch.Tensor) or thing.layout is not torch.strided:
        return None
    if not thing.numel():
        return None
    last = sum(
        (size - 1) * stride for size, stride in zip(thing.shape, thing.stride(), strict=True)
    )
    start = thing.data_ptr()
    return start, start + (last + 1) * thing.element_size()


def _meet(one: _Extent | None, other: _Extent | None) -> bool:
    return one is not None and other is not None and one[0] < other[1] and other[0] < one[1]
