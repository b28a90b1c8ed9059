"""Resize: each axis by itself, every output a weighted sum of a few inputs; and reading by a grid.

Positions and weights follow the definition of ONNX's Resize (opset 19) and are computed here, in
float64; what runs is picking, and sums of products.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.library import LONGEST_TABLE, check_shape
from minidnn.graph import operators as ops
from minidnn.graph.expression import fma
from minidnn.graph.ir import Value
from minidnn.graph.resize import PADDINGS, grid_sample
from minidnn.graph.types import FLOATS

_family = Family("resize")
CONVERTERS = _family.converters

#: With so many weighted inputs for an output, taking them one by one is no way to do it.
_MOST_TAPS = 64


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized."""

    size: int
    scale: float
    outputs: int
    #: Where the part of the input that is resized begins and ends, in parts of the axis.
    region: tuple[float, float]

    def positions(self, mode: str) -> np.ndarray:
        """Where each output lies in the input."""
        out = np.arange(self.outputs, dtype=np.float64)
        size, scale = self.size, self.scale
        exact = scale * size
        if mode == "asymmetric":
            return out / scale
        if mode == "align_corners":
            return out * (size - 1) / (exact - 1) if exact != 1 else np.zeros_like(out)
        if mode == "pytorch_half_pixel" and self.outputs == 1:
            return np.zeros_like(out)
        if mode == "tf_half_pixel_for_nn":
            return (out + 0.5) / scale
        if mode == "tf_crop_and_resize":
            # In float32, as the region is: in more digits, places between two are no ties.
            first, last = (np.float32(edge) for edge in self.region)
            whole = np.float32(size - 1)
            if self.outputs == 1:
                return np.full_like(out, np.float32(0.5) * (first + last) * whole)
            step = (last - first) * whole / np.float32(self.outputs - 1)
            return np.asarray(first * whole + out.astype(np.float32) * step, np.float64)
        # Added in this order, which decides where places between two fall.
        offset = size / 2 * (1 - self.outputs / exact) if mode == "half_pixel_symmetric" else 0.0
        return offset + (out + 0.5) / scale - 0.5


@_family("Resize", "Upsample")
def _resize(call: OnnxCall) -> Value:
    """Nearest, linear and cubic, the last two of floating-point numbers; not with an axis where an
    output weights more than 64 inputs."""
    x = call.operand(0)
    mode = call.choice("mode", "nearest", "nearest", "linear", "cubic")
    if mode != "nearest" and x.dtype not in FLOATS:
        raise call.refuse(f"its operand is {x.dtype}, with mode={mode!r}")
    positions, rounding = "asymmetric", "floor"
    if call.opset >= 11:
        modes = (
            *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
            *("asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"),
        )
        positions = call.choice("coordinate_transformation_mode", "half_pixel", *modes)
        roundings = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        rounding = call.choice("nearest_mode", "round_prefer_floor", *roundings)
    cubic = call.number("cubic_coeff_a", -0.75)
    outside = call.number("extrapolation_value", 0.0)
    exclude, antialias = call.flag("exclude_outside"), call.flag("antialias")
    for axis, how in _resized_axes(call, x).items():
        if how.outputs == how.size and how.scale == 1.0 and positions != "tf_crop_and_resize":
            continue
        places = how.positions(positions)
        if mode == "nearest":
            # Before opset 11 only tests say it: of 1 2 3 4 by 0.6, 1 and 3 are left.
            towards = "ceil" if call.opset < 11 and how.scale < 1 else rounding
            indices, weights = _nearest(places, towards)[:, None], np.ones((how.outputs, 1))
        else:
            scale = min(how.scale, 1.0) if antialias else 1.0
            indices, weights = _weighted(places, mode, cubic, scale)
            if exclude:
                weights = np.where((indices >= 0) & (indices < how.size), weights, 0.0)
            if exclude or antialias:
                weights /= weights.sum(axis=1, keepdims=True)
        if indices.shape[1] > _MOST_TAPS:
            raise call.refuse(f"an output of axis {axis} weights {indices.shape[1]} inputs")
        beyond = (places < 0) | (places > how.size - 1)
        fill = beyond & (positions == "tf_crop_and_resize")
        x = _taken(call.build, x, axis, np.clip(indices, 0, how.size - 1), weights, fill, outside)
    return x


#: ONNX's names of the modes, those of before opset 20 included.
_SAMPLING = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"}
_SAMPLING |= {"cubic": "bicubic", "bicubic": "bicubic"}


@_family("GridSample")
def _grid_sample(call: OnnxCall) -> Value:
    """Images, and volumes but in cubic mode."""
    mode = call.choice("mode", "bilinear", *_SAMPLING)
    padding = call.choice("padding_mode", "zeros", *PADDINGS)
    x, grid = call.operand(0), call.operand(1)
    if x.dtype not in FLOATS:
        raise call.refuse(f"its operand is {x.dtype}")
    return grid_sample(x, grid, _SAMPLING[mode], padding, call.flag("align_corners"))


def _resized_axes(call: OnnxCall, x: Value) -> dict[int, _Axis]:
    rank = x.type.rank
    listed = call.ints("axes")
    axes = list(range(rank)) if listed is None else call.axes(listed, rank)
    policy = call.choice(
        "keep_aspect_ratio_policy", "stretch", "stretch", "not_larger", "not_smaller"
    )
    scales, sizes, region = _wanted(call, len(axes))
    if not x.type.size:
        raise GraphError(f"input {x.shape} has no elements")
    if sizes is not None:
        scales = [size / x.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        if policy != "stretch":
            one = min(scales) if policy == "not_larger" else max(scales)
            scales = [one] * len(axes)
            # Halves up.
            sizes = [floor(one * x.shape[axis] + 0.5) for axis in axes]
    assert scales is not None
    if sizes is None:
        sizes = [floor(scale * x.shape[axis]) for axis, scale in zip(axes, scales, strict=True)]
    check_shape("its output", sizes)
    if min(sizes) < 1 or max(sizes) > LONGEST_TABLE or not all(0 < s < 1e6 for s in scales):
        raise GraphError(f"scales={scales}, sizes={sizes}; valid are sizes to {LONGEST_TABLE}")
    return {
        axis: _Axis(x.shape[axis], scale, size, (region[i], region[len(axes) + i]))
        for i, (axis, scale, size) in enumerate(zip(axes, scales, sizes, strict=True))
    }


def _wanted(call: OnnxCall, count: int) -> tuple[list[float] | None, list[int] | None, list[float]]:
    """Scales or sizes, and the region that is resized."""
    region = [0.0] * count + [1.0] * count
    if call.opset < 9 and call.kind == "Upsample":
        scales, sizes = call.floats("scales"), None
    elif call.opset < 11:
        scales, sizes = _numbers(call, 1, "scales"), None
    else:
        region = _numbers(call, 1, "roi") or region
        scales, sizes = _numbers(call, 2, "scales"), call.known_ints(3, "sizes") or None
    given = sizes if sizes is not None else scales
    if given is None or len(given) != count or len(region) != 2 * count:
        raise GraphError(f"scales={scales}, sizes={sizes}, roi={region}; valid are {count}")
    return scales, sizes, region


def _numbers(call: OnnxCall, index: int, what: str) -> list[float] | None:
    array = call.maybe_known(index, what)
    if array is None or not array.size:
        return None
    return [float(number) for number in array.reshape(-1)]


def _nearest(places: np.ndarray, rounding: str) -> np.ndarray:
    if rounding == "round_prefer_floor":
        found = np.ceil(places - 0.5)
    elif rounding == "round_prefer_ceil":
        found = np.floor(places + 0.5)
    else:
        found = np.floor(places) if rounding == "floor" else np.ceil(places)
    return np.asarray(found, np.int64)


def _weighted(
    places: np.ndarray, mode: str, a: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """The inputs that each output is made of, and their weights; a scale below 1 widens the
    kernel, so that what is left out counts, too."""
    support = (1.0 if mode == "linear" else 2.0) / scale
    count = 2 * ceil(support)
    first = np.floor(places).astype(np.int64) - count // 2 + 1
    indices = first[:, None] + np.arange(min(count, _MOST_TAPS + 1))
    distance = np.abs(places[:, None] - indices) * scale
    if mode == "linear":
        weights = np.maximum(0.0, 1.0 - distance)
    else:
        near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
        far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    used = (weights != 0).any(axis=0)
    used[np.argmax(weights.sum(axis=0))] = True
    return indices[:, used], weights[:, used]


def _taken(
    build: Builder,
    x: Value,
    axis: int,
    indices: np.ndarray,
    weights: np.ndarray,
    fill: np.ndarray,
    outside: float,
) -> Value:
    """The sum of weighted inputs along one axis."""

    def picked(chosen: Sequence[int]) -> Value:
        every: list[tuple[int, ...] | None] = [None] * x.type.rank
        every[axis] = tuple(int(i) for i in chosen)
        return build.apply(ops.Take(tuple(every), outside), x)

    if (weights == 1.0).all() and weights.shape[1] == 1:
        return picked(np.where(fill, -1, indices[:, 0]).tolist())
    dtype = np.dtype(x.dtype)
    shape = [1] * x.type.rank
    shape[axis] = len(indices)
    taps = [picked(column.tolist()) for column in indices.T]
    factors = [build.constant(w.astype(dtype).reshape(shape)) for w in weights.T]
    count = len(taps)
    out = build.pointwise(
        "Weighted",
        lambda *v: functools.reduce(
            lambda total, i: fma(v[i], v[count + i], total), range(1, count), v[0] * v[count]
        ),
        *taps,
        *factors,
    )
    if not fill.any():
        return out
    chosen: list[tuple[int, ...] | None] = [None] * x.type.rank
    chosen[axis] = tuple(-1 if outer else i for i, outer in enumerate(fill))
    return build.apply(ops.Take(tuple(chosen), outside), out)
