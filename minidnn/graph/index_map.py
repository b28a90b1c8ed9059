"""Index maps: for each element of an output, the offset of its element in the input, as a sum of
one term for each axis.

Transposing, slicing, broadcasting, padding, taking by constant indices, nearest neighbours and
unfolding are such maps, so a backend needs one kernel for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from minidnn.graph.operator import Movement
from minidnn.graph.types import TensorType

#: An offset that stands for no element of the input: the output gets the fill value.
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
        """Whether the map returns a value of ``shape`` unchanged."""
        if self.shape != shape or self.base:
            return False
        strides = strides_of(shape)
        return all(
            np.array_equal(axis, np.arange(size) * stride)
            for axis, size, stride in zip(self.offsets, shape, strides, strict=True)
        )

    def collapsed(self) -> IndexMap:
        """The same map with as few axes as possible: axes of one element are dropped, and
        neighbouring axes with one common stride are merged."""
        base, kept = self.base, []
        for axis in self.offsets:
            if len(axis) == 1 and axis[0] != OUTSIDE:
                base += int(axis[0])
            else:
                kept.append(axis)
        merged: list[np.ndarray] = []
        for axis in kept:
            if merged and _is_nested(merged[-1], axis):
                merged[-1] = (merged[-1][:, None] + axis).ravel()
            else:
                merged.append(axis)
        return replace(self, offsets=tuple(merged), base=base)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """The output for the input ``x``, computed with NumPy."""
        offsets = np.full((1,) * len(self.offsets), self.base, np.int64)
        outside = np.zeros(offsets.shape, bool)
        for number, axis in enumerate(self.offsets):
            axis_offsets = axis.reshape((-1,) + (1,) * (len(self.offsets) - number - 1))
            offsets = offsets + np.maximum(axis_offsets, 0)
            outside = outside | (axis_offsets == OUTSIDE)
        if not x.size:
            return np.full(self.shape, self.fill, x.dtype)
        elements = x.reshape(-1)[np.broadcast_to(offsets, self.shape)]
        return (
            np.where(outside, np.asarray(self.fill, x.dtype), elements)
            if outside.any()
            else elements
        )


def _is_nested(outer: np.ndarray, inner: np.ndarray) -> bool:
    """Whether two neighbouring axes together walk through the input with one stride."""
    if not outer.size or not inner.size or (outer == OUTSIDE).any() or (inner == OUTSIDE).any():
        return False
    step = int(inner[1] - inner[0])
    return np.array_equal(np.diff(inner), np.full(len(inner) - 1, step)) and np.array_equal(
        np.diff(outer), np.full(len(outer) - 1, step * len(inner))
    )


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """The stride of each axis of a dense value, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


class Indexed(Movement):
    """The base class of moves that an :class:`IndexMap` describes."""

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
