"""Interpolation: resized images (``torch.nn.functional.interpolate``) and ``grid_sample``.

The indices and weights of a resized image are computed in float32 beforehand, as PyTorch does.
``grid_sample`` is composed of other operators: the indices and weights of its taps are formulas of
the grid, a gather picks the elements, and weighted sums are formulas again.  So its gradients
follow from those of formulas and of gathering.  Where a coordinate is not finite, its index is 0,
and its weight is NaN if ``padding="zeros"`` or the mode is "bicubic", as on PyTorch's CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant, floor, fma, rint, where
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype

_ONE = np.float32(1)

#: The free parameter of the cubic convolution kernel, as PyTorch sets it.
_CUBIC = np.float32(-0.75)


@dataclass(frozen=True)
class Axis:
    """The sizes of an axis before and after resizing.

    If ``factor`` is given, outputs are ``1 / factor`` input elements apart, whatever the ratio of
    the sizes is.
    """

    size: int
    outputs: int
    factor: float | None = None

    @property
    def step(self) -> np.float32:
        if self.factor:
            return np.float32(1 / self.factor)
        return np.float32(np.float32(self.size) / np.float32(self.outputs))

    def places(self, corners: bool) -> np.ndarray:
        """The coordinate of each output, in elements of the input."""
        out = np.arange(self.outputs, dtype=np.float32)
        if corners:
            return out * (np.float32(self.size - 1) / np.float32(max(self.outputs - 1, 1)))
        return (out + np.float32(0.5)) * self.step - np.float32(0.5)


def nearest(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Nearest-neighbour interpolation along the axes after the channels."""
    return _taken(x, {d: _nearest(a.size, a.outputs, a.step) for d, a in enumerate(axes, 2)})


def _nearest(size: int, outputs: int, step: np.float32) -> np.ndarray:
    """The index of the element for each output.

    Where there are as many outputs as elements, or twice as many, PyTorch ignores the step.
    """
    out = np.arange(outputs)
    if outputs == size:
        return out
    if outputs == 2 * size:
        return out // 2
    return np.minimum((out.astype(np.float32) * step).astype(np.int64), size - 1)


def nearest_exact(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Nearest-neighbour interpolation that takes the element at the middle of each output."""
    indices = {}
    for d, axis in enumerate(axes, 2):
        middles = (np.arange(axis.outputs, dtype=np.float32) + np.float32(0.5)) * axis.step
        indices[d] = np.minimum(middles.astype(np.int64), axis.size - 1)
    return _taken(x, indices)


def linear(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Linear interpolation between the two elements around each output, along each axis.

    ``corners`` aligns the outermost outputs with the outermost elements.
    """
    if any(axis.outputs == axis.size for axis in axes):
        # Along such an axis PyTorch adds each element to 0 times itself: infinity becomes NaN.
        x = apply(ops.Formula(argument(0) + argument(0) * 0.0, title="Weighted"), x)
    for d, axis in enumerate(axes, 2):
        if axis.outputs == axis.size:
            continue
        coordinates = np.maximum(axis.places(corners), np.float32(0))
        below = np.minimum(coordinates.astype(np.int64), axis.size - 1)
        weights = np.clip(coordinates - below.astype(np.float32), np.float32(0), _ONE)
        above = np.minimum(below + 1, axis.size - 1)
        x = _weighted(x, d, [(below, _ONE - weights), (above, weights)])
    return x


def cubic(x: Value, axes: Sequence[Axis], corners: bool = False) -> Value:
    """Cubic interpolation of the four elements around each output, along each axis."""
    for d, axis in enumerate(axes, 2):
        coordinates = axis.places(corners)
        below = np.minimum(np.floor(coordinates).astype(np.int64), axis.size - 1)
        fraction = np.clip(coordinates - below.astype(np.float32), np.float32(0), _ONE)
        distances = (fraction + _ONE, fraction, _ONE - fraction, np.float32(2) - fraction)
        taps = [
            (np.clip(below + offset, 0, axis.size - 1), _cubic(distance))
            for offset, distance in zip((-1, 0, 1, 2), distances, strict=True)
        ]
        x = _weighted(x, d, taps)
    return x


def _cubic(distance: np.ndarray) -> np.ndarray:
    """The weight of an element at a distance from 0 to 2."""
    a, x = _CUBIC, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far).astype(np.float32)


def _taken(x: Value, indices_by_axis: dict[int, np.ndarray]) -> Value:
    indices = [
        tuple(indices_by_axis[a].tolist()) if a in indices_by_axis else None
        for a in range(x.type.rank)
    ]
    return apply(ops.Take(tuple(indices)), x)


def _weighted(x: Value, axis: int, taps: Sequence[tuple[np.ndarray, np.ndarray]]) -> Value:
    """The weighted sum of ``taps`` along an axis: pairs of element indices and their weights."""
    elements = [_taken(x, {axis: indices}) for indices, _ in taps]
    factors = [_along(x, axis, weights) for _, weights in taps]
    count = len(taps)
    body = argument(0) * argument(count)
    for tap in range(1, count):
        body = fma(argument(tap), argument(count + tap), body)
    return apply(ops.Formula(body, tensors=2 * count, title="Weighted"), *elements, *factors)


def _along(x: Value, axis: int, numbers: np.ndarray) -> Value:
    """A constant with one number for each position of an axis, which broadcasts over the others."""
    shape = [1] * x.type.rank
    shape[axis] = len(numbers)
    array = numbers.astype(numpy_dtype(x.dtype)).reshape(shape)
    type = TensorType(tuple(shape), x.dtype)
    return current_trace().constant(object(), "weights", type, lambda: array)


#: Interpolation functions by PyTorch's names of the modes.
MODES: dict[str, Callable[..., Value]] = {
    "nearest": nearest,
    "nearest-exact": nearest_exact,
    "linear": linear,
    "bilinear": linear,
    "bicubic": cubic,
}


GRID_MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")

#: The free parameter of the cubic convolution kernel, as PyTorch sets it.
_GRID_CUBIC = -0.75


def grid_sample(x: Value, grid: Value, mode: str, padding: str, corners: bool) -> Value:
    """The elements at the coordinates of a grid.

    Args:
        x: images (N, C, H, W), or volumes (N, C, D, H, W), which are not read with "bicubic".
        grid: (N, ..., 2) or (N, ..., 3), with as many axes as ``x``: the column first, then the
            row, then the plane, from -1 to 1.
        mode: one of :data:`GRID_MODES`.
        padding: how coordinates outside of the image are read, one of :data:`PADDINGS`.
        corners: whether -1 and 1 are the centres of the outermost elements, and not their edges.

    Raises:
        GraphError: the shapes or dtypes do not fit.
    """
    _check(x, grid, mode)
    images, channels, *sizes = x.shape
    count = prod(grid.shape[1:-1])
    axes = [_Axis(size, mode, padding, corners) for size in sizes]
    # Each formula begins with the grid itself: half precision has too few digits to store
    # coordinates in elements.
    coordinates = [_column(grid, column, count) for column in reversed(range(len(sizes)))]
    # Indices along each axis are computed once, not once for each tap of the other axes.
    indices = [
        [
            apply(ops.Formula(axis.place(tap), title="Place", dtype="int64"), coordinate)
            for tap in axis.taps
        ]
        for axis, coordinate in zip(axes, coordinates, strict=True)
    ]
    flat = apply(ops.View((images, channels, prod(sizes))), x)
    total: Value | None = None
    for taps in product(*(axis.taps for axis in axes)):
        tap_indices = [indices[d][tap] for d, tap in enumerate(taps)]
        picked = apply(ops.Gather(2, 1), flat, _flat(tap_indices, sizes))
        terms = [picked] if total is None else [picked, total]
        body = _grid_weighted(axes, taps, len(terms))
        total = apply(
            ops.Formula(body, len(terms) + len(axes), title="Weighted"), *terms, *coordinates
        )
    assert total is not None
    return apply(ops.View((images, channels, *grid.shape[1:-1])), total)


def _check(x: Value, grid: Value, mode: str) -> None:
    ranks = (4,) if mode == "bicubic" else (4, 5)
    if x.type.rank not in ranks or not x.type.size:
        valid = " or ".join(map(str, ranks))
        raise GraphError(
            f"grid_sample: input has shape {x.shape}, mode={mode!r}; valid is rank {valid} with "
            "elements"
        )
    if x.dtype not in FLOATS or x.dtype != grid.dtype:
        raise GraphError(
            f"grid_sample: input is {x.dtype} and grid {grid.dtype}; valid is one of "
            f"{', '.join(FLOATS)} for both"
        )
    axes = x.type.rank - 2
    fits = grid.type.rank == x.type.rank and grid.shape[0] == x.shape[0] and grid.shape[-1] == axes
    if not fits or not grid.type.size:
        sizes = ", ".join(("depth", "rows", "columns")[-axes:])
        raise GraphError(
            f"grid_sample: grid has shape {grid.shape} beside an input {x.shape}; valid is "
            f"({x.shape[0]}, {sizes}, {axes})"
        )


def _column(grid: Value, index: int, count: int) -> Value:
    """One coordinate of all ``count`` points of the grid: (N, 1, count)."""
    starts = (*(0 for _ in grid.shape[:-1]), index)
    slice_op = ops.Slice(starts, (*grid.shape[:-1], 1), (1,) * grid.type.rank)
    return apply(ops.View((grid.shape[0], 1, count)), apply(slice_op, grid))


def _flat(indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Flat indices into images, (N, points), from indices along axes.

    They are computed in integers: large images have more elements than float32 has integers.
    """
    strides = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    body = reduce(
        lambda total, d: total + argument(d) * float(strides[d]),
        range(1, len(sizes)),
        argument(0) * float(strides[0]),
    )
    flat = apply(ops.Formula(body, len(indices), title="Place"), *indices)
    return apply(ops.View((flat.shape[0], flat.shape[2])), flat)


def _grid_weighted(axes: Sequence[_Axis], taps: Sequence[int], given: int) -> Expression:
    """The formula of a tap: the weighted element, added to the sum of earlier taps if there is one.

    Its arguments are the element, that sum if ``given`` is 2, and the coordinates of the grid.
    """
    weight, element = constant(1.0), argument(0)
    for d, (axis, tap) in enumerate(zip(axes, taps, strict=True), given):
        weight = weight * axis.weight(tap, argument(d))
        element = axis.within(tap, argument(d), element)
    return element * weight if given == 1 else argument(1) + element * weight


@dataclass(frozen=True)
class _Axis:
    """How ``grid_sample`` reads one axis: the elements and weights of the taps of a coordinate."""

    size: int
    mode: str
    padding: str
    corners: bool

    @property
    def taps(self) -> range:
        return range({"nearest": 1, "bilinear": 2, "bicubic": 4}[self.mode])

    def _position(self, x: Expression) -> Expression:
        """A coordinate in elements, from the grid's coordinate ``x`` from -1 to 1.

        Padding is applied, except in "bicubic", where it is applied to each tap.
        """
        size = float(self.size)
        at = (x + 1.0) / 2.0 * (size - 1.0) if self.corners else ((x + 1.0) * size - 1.0) / 2.0
        return at if self.mode == "bicubic" else self._padded(at)

    def place(self, tap: int) -> Expression:
        """The index of a tap's element, clamped to the axis."""
        return self._clipped(self._element(tap, argument(0)))

    def within(self, tap: int, x: Expression, value: Expression) -> Expression:
        """The value where a tap is inside the axis, else 0, also where its index is not finite."""
        element = self._element(tap, x)
        return where(element >= 0.0, where(element <= self.size - 1.0, value, 0.0), 0.0)

    def weight(self, tap: int, x: Expression) -> Expression:
        if self.mode == "nearest":
            return constant(1.0)
        at = self._position(x)
        fraction = at - floor(at)
        if self.mode == "bilinear":
            return fraction if tap else floor(at) + 1.0 - at
        a = _GRID_CUBIC
        distance = (fraction + 1.0, fraction, 1.0 - fraction, 2.0 - fraction)[tap]
        if tap in (1, 2):
            return ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
        return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a

    def _element(self, tap: int, x: Expression) -> Expression:
        at = self._position(x)
        if self.mode == "nearest":
            return rint(at)
        if self.mode == "bilinear":
            return floor(at) + float(tap)
        return self._padded(floor(at) + float(tap - 1))

    def _padded(self, at: Expression) -> Expression:
        if self.padding == "zeros":
            return at
        return self._clipped(at if self.padding == "border" else self._reflected(at))

    def _clipped(self, at: Expression) -> Expression:
        """The coordinate clamped to the axis, and NaN moved to the first element; its derivative is
        0 at and beyond both ends."""
        last = float(self.size - 1)
        return where(at > 0.0, where(at < last, at, last), 0.0)

    def _reflected(self, at: Expression) -> Expression:
        """Mirrored at the centres of the outermost elements, or at their outer edges."""
        low, span = (0.0, self.size - 1.0) if self.corners else (-0.5, float(self.size))
        if not span:
            return constant(0.0)
        distance = at - low
        distance = where(distance < 0.0, -distance, distance)
        reflections = floor(distance / span)
        beyond = distance - reflections * span
        is_odd = reflections - 2.0 * floor(reflections / 2.0)
        return where(is_odd > 0.5, span - beyond, beyond) + low
