"""Images of another size: nearest elements, and weighted neighbours, as PyTorch has them.

Which elements these are, and their weights, is computed in float32, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, fma
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import TensorType, numpy_dtype

_ONE = np.float32(1)

#: What PyTorch takes for the free number of the cubic kernel.
_CUBIC = np.float32(-0.75)


@dataclass(frozen=True)
class Axis:
    """The sizes of an axis before and after; outputs may lie ``1 / factor`` elements apart, which
    need not be what the sizes say."""

    size: int
    outputs: int
    factor: float | None = None

    @property
    def step(self) -> np.float32:
        if self.factor:
            return np.float32(1 / self.factor)
        return np.float32(np.float32(self.size) / np.float32(self.outputs))

    def places(self, corners: bool) -> np.ndarray:
        """Where each output lies in the input."""
        out = np.arange(self.outputs, dtype=np.float32)
        if corners:
            return out * (np.float32(self.size - 1) / np.float32(max(self.outputs - 1, 1)))
        return (out + np.float32(0.5)) * self.step - np.float32(0.5)


def nearest(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """The element for each output, of the axes behind the channels."""
    return _taken(x, {d: _nearest(a.size, a.outputs, a.step) for d, a in enumerate(axes, 2)})


def _nearest(size: int, outputs: int, step: np.float32) -> np.ndarray:
    """The element for each output.  Where there are as many or twice as many as before, PyTorch
    does not ask how far apart they lie."""
    out = np.arange(outputs)
    if outputs == size:
        return out
    if outputs == 2 * size:
        return out // 2
    return np.minimum((out.astype(np.float32) * step).astype(np.int64), size - 1)


def nearest_exact(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """The element in which the middle of an output lies."""
    places = {}
    for d, axis in enumerate(axes, 2):
        middles = (np.arange(axis.outputs, dtype=np.float32) + np.float32(0.5)) * axis.step
        places[d] = np.minimum(middles.astype(np.int64), axis.size - 1)
    return _taken(x, places)


def linear(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Each output from the two elements around it, along each axis; ``corners`` says that the
    outermost ones stay in their places."""
    if any(axis.outputs == axis.size for axis in axes):
        # Along such an axis PyTorch adds each element to 0 times itself: infinity becomes NaN.
        x = apply(ops.Formula(argument(0) + argument(0) * 0.0, title="Weighted"), x)
    for d, axis in enumerate(axes, 2):
        if axis.outputs == axis.size:
            continue
        places = np.maximum(axis.places(corners), np.float32(0))
        below = np.minimum(places.astype(np.int64), axis.size - 1)
        weights = np.clip(places - below.astype(np.float32), np.float32(0), _ONE)
        above = np.minimum(below + 1, axis.size - 1)
        x = _weighted(x, d, [(below, _ONE - weights), (above, weights)])
    return x


def cubic(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Each output from the four elements around it, along each axis."""
    for d, axis in enumerate(axes, 2):
        places = axis.places(corners)
        below = np.minimum(np.floor(places).astype(np.int64), axis.size - 1)
        apart = np.clip(places - below.astype(np.float32), np.float32(0), _ONE)
        distances = (apart + _ONE, apart, _ONE - apart, np.float32(2) - apart)
        taps = [
            (np.clip(below + offset, 0, axis.size - 1), _cubic(distance))
            for offset, distance in zip((-1, 0, 1, 2), distances, strict=True)
        ]
        x = _weighted(x, d, taps)
    return x


def _cubic(distance: np.ndarray) -> np.ndarray:
    """The weight of an element at that distance, from 0 to 2."""
    a, x = _CUBIC, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far).astype(np.float32)


def _taken(x: Value, places: dict[int, np.ndarray]) -> Value:
    every = [tuple(places[a].tolist()) if a in places else None for a in range(x.type.rank)]
    return apply(ops.Take(tuple(every)), x)


def _weighted(x: Value, axis: int, taps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Value:
    """The sum of elements along an axis, each by its weight."""
    ends = [_taken(x, {axis: places}) for places, _ in taps]
    factors = [_along(x, axis, weights) for _, weights in taps]
    count = len(taps)
    body = argument(0) * argument(count)
    for tap in range(1, count):
        body = fma(argument(tap), argument(count + tap), body)
    return apply(ops.Formula(body, tensors=2 * count, title="Weighted"), *ends, *factors)


def _along(x: Value, axis: int, numbers: np.ndarray) -> Value:
    """Numbers for the places of an axis."""
    shape = [1] * x.type.rank
    shape[axis] = len(numbers)
    array = numbers.astype(numpy_dtype(x.dtype)).reshape(shape)
    type = TensorType(tuple(shape), x.dtype)
    return current_trace().constant(object(), "weights", type, lambda: array)


#: By PyTorch's names of the modes.
MODES: dict[str, Callable[..., Value]] = {
    "nearest": nearest,
    "nearest-exact": nearest_exact,
    "linear": linear,
    "bilinear": linear,
    "bicubic": cubic,
}
