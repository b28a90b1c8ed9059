"""Images of another size: nearest elements, and weighted neighbours.

Which elements these are, and their weights, is computed in float32, as PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, fma
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType, numpy_dtype

_ONE = np.float32(1)


@takes("upsample_nearest2d.vec")
def upsample_nearest2d(call: Call) -> Any:
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


@takes("upsample_bilinear2d.vec")
def upsample_bilinear2d(call: Call) -> Any:
    x = call.tensor("input")
    corners = bool(call["align_corners"])
    for axis, (size, outputs, step) in enumerate(_axes(call, x), 2):
        if outputs == size:
            continue
        out = np.arange(outputs, dtype=np.float32)
        if corners:
            places = out * (np.float32(size - 1) / np.float32(max(outputs - 1, 1)))
        else:
            places = np.maximum((out + np.float32(0.5)) * step - np.float32(0.5), np.float32(0))
        below = np.minimum(places.astype(np.int64), size - 1)
        weights = np.clip(places - below.astype(np.float32), np.float32(0), _ONE)
        above = np.minimum(below + 1, size - 1)
        ends = [_taken(x, {axis: below}), _taken(x, {axis: above})]
        factors = [
            _along(f"{call.node.name}.{name}{axis}", x, axis, part)
            for name, part in (("below", _ONE - weights), ("above", weights))
        ]
        weighted = fma(argument(1), argument(3), argument(0) * argument(2))
        x = apply(ops.Formula(weighted, tensors=4, title="Weighted"), *ends, *factors)
    return x


def _axes(call: Call, x: Value) -> list[tuple[int, int, np.float32]]:
    """For rows and columns the sizes before and after, and how far apart outputs lie in the input;
    it may be said by how much images grow, which need not be what their sizes say."""
    if x.type.rank != 4:
        raise Refused(f"input has shape {x.shape}; known is (N, C, H, W)")
    sizes = zip(x.shape[2:], call.result.shape[2:], strict=True)
    factors: Sequence[float | None] = call["scale_factors"] or (None, None)
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


def _along(name: str, x: Value, axis: int, numbers: np.ndarray) -> Constant:
    """Numbers for the places of an axis."""
    shape = [1] * x.type.rank
    shape[axis] = len(numbers)
    array = numbers.astype(numpy_dtype(x.dtype)).reshape(shape)
    return Constant(TensorType(tuple(shape), x.dtype), name, lambda: array)
