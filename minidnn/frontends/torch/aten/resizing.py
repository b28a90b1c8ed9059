"""Images of another size: nearest elements, and weighted neighbours.

Which elements these are, and their weights, is computed in float32, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import Call, leaves, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, fma
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType, numpy_dtype

_ONE = np.float32(1)

#: What PyTorch takes for the free number of the cubic kernel.
_CUBIC = np.float32(-0.75)


@takes(
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
)
def upsample_nearest(call: Call) -> Any:
    x = call.tensor("input")
    places = [_nearest(*axis) for axis in _axes(call, x)]
    return _taken(x, dict(enumerate(places, 2)))


def _nearest(size: int, outputs: int, step: np.float32) -> np.ndarray:
    """The element for each output.  Where there are as many or twice as many as before, PyTorch
    does not ask how far apart they lie."""
    out = np.arange(outputs)
    if outputs == size:
        return out
    if outputs == 2 * size:
        return out // 2
    return np.minimum((out.astype(np.float32) * step).astype(np.int64), size - 1)


@takes(
    "_upsample_nearest_exact1d.vec",
    "_upsample_nearest_exact2d.vec",
    "_upsample_nearest_exact3d.vec",
)
def upsample_nearest_exact(call: Call) -> Any:
    """The element in which the middle of an output lies."""
    x = call.tensor("input")
    places = {}
    for axis, (size, outputs, step) in enumerate(_axes(call, x), 2):
        middles = (np.arange(outputs, dtype=np.float32) + np.float32(0.5)) * step
        places[axis] = np.minimum(middles.astype(np.int64), size - 1)
    return _taken(x, places)


@takes("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def upsample_linear(call: Call) -> Any:
    x = call.tensor("input")
    axes = _axes(call, x)
    if any(outputs == size for size, outputs, _ in axes):
        # Along such an axis PyTorch adds each element to 0 times itself: infinity becomes NaN.
        x = apply(ops.Formula(argument(0) + argument(0) * 0.0, title="Weighted"), x)
    for axis, (size, outputs, step) in enumerate(axes, 2):
        if outputs == size:
            continue
        places = np.maximum(_places(call, size, outputs, step), np.float32(0))
        below = np.minimum(places.astype(np.int64), size - 1)
        weights = np.clip(places - below.astype(np.float32), np.float32(0), _ONE)
        above = np.minimum(below + 1, size - 1)
        x = _weighted(call, x, axis, [(below, _ONE - weights), (above, weights)])
    return x


@takes("upsample_bicubic2d.vec")
def upsample_bicubic(call: Call) -> Any:
    x = call.tensor("input")
    for axis, (size, outputs, step) in enumerate(_axes(call, x), 2):
        places = _places(call, size, outputs, step)
        below = np.minimum(np.floor(places).astype(np.int64), size - 1)
        apart = np.clip(places - below.astype(np.float32), np.float32(0), _ONE)
        distances = (apart + _ONE, apart, _ONE - apart, np.float32(2) - apart)
        taps = [
            (np.clip(below + offset, 0, size - 1), _cubic(distance))
            for offset, distance in zip((-1, 0, 1, 2), distances, strict=True)
        ]
        x = _weighted(call, x, axis, taps)
    return x


def _cubic(distance: np.ndarray) -> np.ndarray:
    """The weight of an element at that distance, from 0 to 2."""
    a, x = _CUBIC, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far).astype(np.float32)


leaves(
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.vec",
    why="antialias=True: an output is made of as many elements as images become smaller",
)


def _places(call: Call, size: int, outputs: int, step: np.float32) -> np.ndarray:
    """Where each output lies in the input."""
    out = np.arange(outputs, dtype=np.float32)
    if call["align_corners"]:
        return out * (np.float32(size - 1) / np.float32(max(outputs - 1, 1)))
    return (out + np.float32(0.5)) * step - np.float32(0.5)


def _axes(call: Call, x: Value) -> list[tuple[int, int, np.float32]]:
    """For each axis behind the channels the sizes before and after, and how far apart outputs lie
    in the input; it may be said by how much images grow, which need not be what their sizes say."""
    sizes = list(zip(x.shape[2:], call.result.shape[2:], strict=True))
    factors: Sequence[float | None] = call["scale_factors"] or (None,) * len(sizes)
    return [
        (
            size,
            outputs,
            np.float32(1 / factor) if factor else np.float32(size) / np.float32(outputs),
        )
        for (size, outputs), factor in zip(sizes, factors, strict=True)
    ]


def _taken(x: Value, places: dict[int, np.ndarray]) -> Value:
    every = [tuple(places[a].tolist()) if a in places else None for a in range(x.type.rank)]
    return apply(ops.Take(tuple(every)), x)


def _weighted(
    call: Call, x: Value, axis: int, taps: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Value:
    """The sum of elements along an axis, each by its weight."""
    ends = [_taken(x, {axis: places}) for places, _ in taps]
    factors = [
        _along(f"{call.node.name}.weight{axis}.{tap}", x, axis, weights)
        for tap, (_, weights) in enumerate(taps)
    ]
    count = len(taps)
    body = argument(0) * argument(count)
    for tap in range(1, count):
        body = fma(argument(tap), argument(count + tap), body)
    return apply(ops.Formula(body, tensors=2 * count, title="Weighted"), *ends, *factors)


def _along(name: str, x: Value, axis: int, numbers: np.ndarray) -> Constant:
    """Numbers for the places of an axis."""
    shape = [1] * x.type.rank
    shape[axis] = len(numbers)
    array = numbers.astype(numpy_dtype(x.dtype)).reshape(shape)
    return Constant(TensorType(tuple(shape), x.dtype), name, lambda: array)
