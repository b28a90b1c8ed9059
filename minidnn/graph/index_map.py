"""Where each element of an output lies in the input, axis by axis: what all moves come down to.

Transposing, slicing, repeating, padding, picking by constant indices, nearest neighbours and
windows side by side differ in this map only, so a backend needs one kernel for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from minidnn.graph.operator import Movement
from minidnn.graph.types import TensorType

#: Stands for a place outside of the input, which the fill is put for.
OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class IndexMap:
    """Element ``o`` of the output is element ``base + offsets[0][o[0]] + offsets[1][o[1]] + ...``
    of the dense input, or ``fill`` where one of these offsets is :data:`OUTSIDE`."""

    offsets: tuple[np.ndarray, ...]
    base: int = 0
    fill: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.offsets)

    def is_identity(self, shape: tuple[int, ...]) -> bool:
        """Whether it gives a value of that shape back as it is."""
        if self.shape != shape or self.base:
            return False
        strides = strides_of(shape)
        return all(
            np.array_equal(axis, np.arange(size) * stride)
            for axis, size, stride in zip(self.offsets, shape, strides, strict=True)
        )

    def collapsed(self) -> IndexMap:
        """The same map with as few axes as possible: those of one element dropped, neighbours
        that are walked as one joined."""
        base, kept = self.base, []
        for axis in self.offsets:
            if len(axis) == 1 and axis[0] != OUTSIDE:
                base += int(axis[0])
            else:
                kept.append(axis)
        joined: list[np.ndarray] = []
        for axis in kept:
            if joined and _is_nested(joined[-1], axis):
                joined[-1] = (joined[-1][:, None] + axis).ravel()
            else:
                joined.append(axis)
        return replace(self, offsets=tuple(joined), base=base)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """The output for an input."""
        where = np.full((1,) * len(self.offsets), self.base, np.int64)
        outside = np.zeros(where.shape, bool)
        for number, axis in enumerate(self.offsets):
            spread = axis.reshape((-1,) + (1,) * (len(self.offsets) - number - 1))
            where = where + np.maximum(spread, 0)
            outside = outside | (spread == OUTSIDE)
        if not x.size:
            return np.full(self.shape, self.fill, x.dtype)
        found = x.reshape(-1)[np.broadcast_to(where, self.shape)]
        return np.where(outside, np.asarray(self.fill, x.dtype), found) if outside.any() else found


def _is_nested(outer: np.ndarray, inner: np.ndarray) -> bool:
    """Whether the two axes are steps of one width through one axis."""
    if (outer == OUTSIDE).any() or (inner == OUTSIDE).any():
        return False
    step = int(inner[1] - inner[0])
    return np.array_equal(np.diff(inner), np.full(len(inner) - 1, step)) and np.array_equal(
        np.diff(outer), np.full(len(outer) - 1, step * len(inner))
    )


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """From one element to the next along each axis of a dense value."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Indexed(Movement):
    """A move that an :class:`IndexMap` describes."""

    @abstractmethod
    def index_map(self, shape: tuple[int, ...]) -> IndexMap:
        """The map for an input of that shape; GraphError if it does not fit."""

    @abstractmethod
    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The output's shape; raises GraphError if the input's does not fit."""

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        (x,) = self.operands(inputs)
        return (x.with_shape(self.shape_of(x.shape)),)

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return self.index_map(inputs[0].shape).apply(inputs[0])
