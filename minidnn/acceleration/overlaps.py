"""Whether what a program writes to lies apart from all else that it is given.

Writes are made once all is computed.  That is the same as when the network makes them only if
nobody reads their memory as something else's.  And what is a view of such memory is one only where
strides are those of the capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch

from minidnn.frontends.torch.captured import Captured

#: The first byte of a tensor's memory, and the one behind its last.
_Extent = tuple[int, int]
_ADDRESS = torch.Tensor.data_ptr


class Overlaps:
    """Looks for overlaps in the arguments of a program that writes to arguments or buffers."""

    def __init__(self, captured: Captured, stay: Container[int] = ()) -> None:
        """stay: the places of arguments that are the same tensors at most calls, as weights are."""
        written = {*captured.counted, *(node for _, node in captured.writes)}
        given = [(place, node in written) for node, place in captured.given.items()]
        self._held = list(captured.held.values())
        self._stay = [place for place, _ in given if place in stay]
        self._given = [(place, is_it) for place, is_it in given if place not in stay]
        #: Which of the tensors that are held or stay are written to.
        self._are_written = [
            *(node in written for node in captured.held),
            *(is_it for place, is_it in given if place in stay),
        ]
        written_given = {place: node for node, place in captured.given.items() if node in written}
        self._written = list(written_given)
        self._steps = [_steps(node.meta["val"]) for node in written_given.values()]
        #: The strides of what is written to, as they were when they were last found the same.
        self._strides: list[tuple[int, ...]] | None = None
        self._known = _Known([], _Regions(()), _Regions(()), False)

    def are_in(self, leaves: Sequence[Any]) -> bool:
        """Whether memory that is written to is also another argument's, parameter's or buffer's.

        leaves: those of the arguments.
        """
        known = self._known_of(leaves)
        if known.meet:
            return True
        given = [(extent_of(leaves[place]), written) for place, written in self._given]
        for index, (extent, written) in enumerate(given):
            if (known.every if written else known.written).meet(extent):
                return True
            if written and any(
                _meet(extent, other) for place, (other, _) in enumerate(given) if place != index
            ):
                return True
        return False

    def _known_of(self, leaves: Sequence[Any]) -> _Known:
        """Where what is held or stays lies: looked at again once it lies elsewhere."""
        tensors = [each.tensor for each in self._held]
        tensors += map(leaves.__getitem__, self._stay)
        addresses = list(map(_ADDRESS, tensors))
        known = self._known
        if addresses != known.addresses:
            every = [*map(extent_of, tensors)]
            written = [*compress(every, self._are_written)]
            meet = _any_meet(every, self._are_written)
            known = self._known = _Known(addresses, _Regions(every), _Regions(written), meet)
        return known

    def are_strided_otherwise(self, leaves: Sequence[Any]) -> bool:
        """Whether a tensor that is written to has other strides than when it was captured."""
        tensors = list(map(leaves.__getitem__, self._written))
        strides = list(map(torch.Tensor.stride, tensors))
        if strides == self._strides:
            return False
        if list(map(_steps, tensors)) != self._steps:
            return True
        self._strides = strides
        return False


def _any_meet(extents: Iterable[_Extent | None], are_written: Iterable[bool]) -> bool:
    """Whether what is written to meets anything else of it."""
    end = end_of_written = 0  # of those that begin before
    found = [(e, w) for e, w in zip(extents, are_written, strict=True) if e is not None]
    for (first, last), is_written in sorted(found):
        if first < (end if is_written else end_of_written):
            return True
        end = max(end, last)
        end_of_written = max(end_of_written, last) if is_written else end_of_written
    return False


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides of the axes along which there is more than one element."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


class _Known(NamedTuple):
    """What is known of tensors that are held or stay: all of it of one moment."""

    addresses: list[int]
    every: _Regions
    written: _Regions
    meet: bool


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
