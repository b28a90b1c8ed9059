"""Images of another size, and images read where a grid says, as PyTorch has them.

Which elements a resized image is made of, and their weights, is computed in float32, as PyTorch
does.  Reading by a grid is composed: where taps lie and what they weigh are formulas of the grid,
elements are picked by these places, and weighted sums are formulas again.  So gradients follow from
those of formulas and picking.  Of coordinates that are not finite, places are 0, and weights are
NaN where ``padding="zeros"`` or the mode is "bicubic", as on PyTorch's CPU.
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


GRID_MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")

#: What PyTorch takes for the free number of the cubic kernel.
_GRID_CUBIC = -0.75


def grid_sample(x: Value, grid: Value, mode: str, padding: str, corners: bool) -> Value:
    """The elements at the coordinates of a grid.

    Args:
        x: images (N, C, H, W), or volumes (N, C, D, H, W), which are not read with "bicubic".
        grid: (N, ..., 2) or (N, ..., 3), with as many axes as ``x``: the column first, then the
            row, then the plane, from -1 to 1.
        mode: one of :data:`GRID_MODES`.
        padding: what lies outside, one of :data:`PADDINGS`.
        corners: whether -1 and 1 are the centres of the outermost elements, and not their edges.

    Raises:
        GraphError: the shapes or dtypes do not fit.
    """
    _check(x, grid, mode)
    images, channels, *sizes = x.shape
    count = prod(grid.shape[1:-1])
    axes = [_Axis(size, mode, padding, corners) for size in sizes]
    # Formulas begin with the grid itself: a half has no digits for where it lies in elements.
    coordinates = [_column(grid, place, count) for place in reversed(range(len(sizes)))]
    # Places along each axis are computed once, not for each tap of the others.
    places = [
        [apply(ops.Formula(axis.place(tap), title="Place", dtype="int64"), at) for tap in axis.taps]
        for axis, at in zip(axes, coordinates, strict=True)
    ]
    flat = apply(ops.View((images, channels, prod(sizes))), x)
    found: Value | None = None
    for taps in product(*(axis.taps for axis in axes)):
        chosen = [places[d][tap] for d, tap in enumerate(taps)]
        picked = apply(ops.Gather(2, 1), flat, _flat(chosen, sizes))
        given = [picked] if found is None else [picked, found]
        body = _grid_weighted(axes, taps, len(given))
        found = apply(
            ops.Formula(body, len(given) + len(axes), title="Weighted"), *given, *coordinates
        )
    assert found is not None
    return apply(ops.View((images, channels, *grid.shape[1:-1])), found)


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


def _column(grid: Value, place: int, count: int) -> Value:
    """One coordinate of all places that are read: (N, 1, places)."""
    starts = (*(0 for _ in grid.shape[:-1]), place)
    one = ops.Slice(starts, (*grid.shape[:-1], 1), (1,) * grid.type.rank)
    return apply(ops.View((grid.shape[0], 1, count)), apply(one, grid))


def _flat(places: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Places within images, (N, places), of those along axes: in whole numbers, of which large
    images have more than float32 has."""
    steps = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    body = reduce(
        lambda total, d: total + argument(d) * float(steps[d]),
        range(1, len(sizes)),
        argument(0) * float(steps[0]),
    )
    found = apply(ops.Formula(body, len(places), title="Place"), *places)
    return apply(ops.View((found.shape[0], found.shape[2])), found)


def _grid_weighted(axes: Sequence[_Axis], taps: Sequence[int], given: int) -> Expression:
    """The weighted element of a tap, added to the sum of those before it if two are given; the
    coordinates of the grid follow."""
    weight, element = constant(1.0), argument(0)
    for d, (axis, tap) in enumerate(zip(axes, taps, strict=True), given):
        weight = weight * axis.weight(tap, argument(d))
        element = axis.within(tap, argument(d), element)
    return element * weight if given == 1 else argument(1) + element * weight


@dataclass(frozen=True)
class _Axis:
    """How one axis is read: each place by some taps, which are elements with weights."""

    size: int
    mode: str
    padding: str
    corners: bool

    @property
    def taps(self) -> range:
        return range({"nearest": 1, "bilinear": 2, "bicubic": 4}[self.mode])

    def _position(self, x: Expression) -> Expression:
        """Where a place lies in elements, of where it lies from -1 to 1; before padding in
        "bicubic", where each tap is padded."""
        size = float(self.size)
        at = (x + 1.0) / 2.0 * (size - 1.0) if self.corners else ((x + 1.0) * size - 1.0) / 2.0
        return at if self.mode == "bicubic" else self._padded(at)

    def place(self, tap: int) -> Expression:
        """The element that a tap is, moved inside."""
        return self._clipped(self._element(tap, argument(0)))

    def within(self, tap: int, x: Expression, value: Expression) -> Expression:
        """The value where a tap lies inside, else 0, also where it is not finite."""
        element = self._element(tap, x)
        return where(element >= 0.0, where(element <= self.size - 1.0, value, 0.0), 0.0)

    def weight(self, tap: int, x: Expression) -> Expression:
        if self.mode == "nearest":
            return constant(1.0)
        at = self._position(x)
        beyond = at - floor(at)
        if self.mode == "bilinear":
            return beyond if tap else floor(at) + 1.0 - at
        a = _GRID_CUBIC
        distance = (beyond + 1.0, beyond, 1.0 - beyond, 2.0 - beyond)[tap]
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
        """Moved inside, and what is not a number to the first element; flat at both ends."""
        last = float(self.size - 1)
        return where(at > 0.0, where(at < last, at, last), 0.0)

    def _reflected(self, at: Expression) -> Expression:
        """Mirrored at the centres of the outermost elements, or at their outer edges."""
        low, span = (0.0, self.size - 1.0) if self.corners else (-0.5, float(self.size))
        if not span:
            return constant(0.0)
        away = at - low
        away = where(away < 0.0, -away, away)
        turns = floor(away / span)
        beyond = away - turns * span
        is_odd = turns - 2.0 * floor(turns / 2.0)
        return where(is_odd > 0.5, span - beyond, beyond) + low
