"""Alias analysis at each call: whether memory that a program writes to is also another tensor's.

A program writes in place once everything is computed.  This gives the network's own results only if
no other argument, parameter or buffer shares the memory that is written to.  Views of that memory
are also as captured only where the strides are those of the capture.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import torch

from minidnn.frontends.torch.captured import Captured

#: A tensor's memory: the address of its first byte, and the address after its last byte.
_Extent = tuple[int, int]
_ADDRESS = torch.Tensor.data_ptr


class Overlaps:
    """Finds overlapping memory among the arguments, parameters and buffers of one program."""

    def __init__(self, captured: Captured, stay: Container[int] = ()) -> None:
        """stay: the places of arguments that are the same tensors at most calls: weights."""
        written = {*captured.counted, *(node for _, node in captured.writes)}
        given = [(place, node in written) for node, place in captured.given.items()]
        self._held = list(captured.held.values())
        self._stay = [place for place, _ in given if place in stay]
        self._given = [(place, is_it) for place, is_it in given if place not in stay]
        #: Whether each tensor that is held or stays is written to.
        self._are_written = [
            *(node in written for node in captured.held),
            *(is_it for place, is_it in given if place in stay),
        ]
        written_given = {place: node for node, place in captured.given.items() if node in written}
        self._written = list(written_given)
        self._steps = [_steps(node.meta["val"]) for node in written_given.values()]
        #: The strides of the tensors that are written to, when they last matched the capture.
        self._strides: list[tuple[int, ...]] | None = None
        self._known = _Known([], _Regions(()), _Regions(()), False)

    def are_in(self, leaves: Sequence[Any]) -> bool:
        """Whether memory that is written to is also another argument's, parameter's or buffer's.

        leaves: the leaves of the arguments.
        """
        known = self._known_of(leaves)
        if known.meet:
            return True
        extents = [(extent_of(leaves[place]), written) for place, written in self._given]
        for index, (extent, written) in enumerate(extents):
            if (known.every if written else known.written).meet(extent):
                return True
            if written and any(
                _meet(extent, other) for place, (other, _) in enumerate(extents) if place != index
            ):
                return True
        return False

    def _known_of(self, leaves: Sequence[Any]) -> _Known:
        """The memory of the tensors that are held or stay, computed again if an address changes."""
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
    """Whether an extent that is written to overlaps any other of these extents."""
    end = end_of_written = 0  # of the extents that begin before
    pairs = [(e, w) for e, w in zip(extents, are_written, strict=True) if e is not None]
    for (first, last), is_written in sorted(pairs):
        if first < (end if is_written else end_of_written):
            return True
        end = max(end, last)
        end_of_written = max(end_of_written, last) if is_written else end_of_written
    return False


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides of the axes with more than one element."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


class _Known(NamedTuple):
    """The memory of the tensors that are held or stay, as of one call.

    Attributes:
        addresses: of each tensor.
        every: their memory.
        written: the memory of those that are written to.
        meet: whether one of these overlaps another tensor.
    """

    addresses: list[int]
    every: _Regions
    written: _Regions
    meet: bool


class _Regions:
    """A union of extents, as disjoint intervals in ascending order."""

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
        """Whether an extent overlaps any of these."""
        if extent is None:
            return False
        last = (
            bisect_right(self._starts, extent[1] - 1) - 1
        )  # of the intervals that begin before its end
        return last >= 0 and self._ends[last] > extent[0]


def extent_of(tensor: Any) -> _Extent | None:
    """The extent of a strided tensor; None for one without elements, and for all other objects."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return None
    if not tensor.numel():
        return None
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _meet(one: _Extent | None, other: _Extent | None) -> bool:
    return one is not None and other is not None and one[0] < other[1] and other[0] < one[1]
