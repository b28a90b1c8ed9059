"""Resize, one axis after the other, and GridSample.

Each output along an axis is a weighted sum of a few inputs.  Positions and weights follow the
definition of ONNX's Resize (opset 19) and are computed here, in float64, when a model is imported;
the graph has gathers (Take) and a formula of sums of products.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.library import LONGEST_TABLE, check_shape
from minidnn.graph.expression import fma
from minidnn.graph.ir import Value
from minidnn.graph.resize import PADDINGS, grid_sample
from minidnn.graph.types import FLOATS

_family = Family("resize")
CONVERTERS = _family.converters

#: The most inputs that an output may weight: each of them is an operand of the graph.
_MOST_TAPS = 64
#: The most inputs in a row whose weights are computed.  In a longer row, more than _MOST_TAPS weigh
#: something: at least the inner half of it, where only cubic filters have roots, at most three.
_LONGEST_SPAN = 2 * _MOST_TAPS + 16


@dataclass(frozen=True)
class _Axis:
    """How one axis is resized: from ``size`` to ``outputs`` elements."""

    size: int
    scale: float
    outputs: int
    #: Begin and end of the region that is resized (``roi``), as fractions of the axis.
    region: tuple[float, float]

    def positions(self, mode: str) -> np.ndarray:
        """The input coordinate of each output, in the coordinate transformation mode ``mode``."""
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
            # In float32, as the region is: in float64, positions halfway would be no ties.
            first, last = (np.float32(edge) for edge in self.region)
            last_index = np.float32(size - 1)
            if self.outputs == 1:
                return np.full_like(out, np.float32(0.5) * (first + last) * last_index)
            step = (last - first) * last_index / np.float32(self.outputs - 1)
            return np.asarray(first * last_index + out.astype(np.float32) * step, np.float64)
        # The order of additions decides how positions halfway between two inputs round.
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
    for axis, spec in _resized_axes(call, x).items():
        if spec.outputs == spec.size and spec.scale == 1.0 and positions != "tf_crop_and_resize":
            continue
        coordinates = spec.positions(positions)
        is_outside = (coordinates < 0) | (coordinates > spec.size - 1)
        fill = is_outside & (positions == "tf_crop_and_resize")
        if mode == "nearest":
            # Before opset 11 only ONNX's tests define it: 1 2 3 4 scaled by 0.6 is 1 3.
            direction = "ceil" if call.opset < 11 and spec.scale < 1 else rounding
            indices = _nearest(coordinates, direction)[:, None]
            weights = np.ones((spec.outputs, 1))
        else:
            scale = min(spec.scale, 1.0) if antialias else 1.0
            if _span(mode, scale) > _LONGEST_SPAN:
                raise call.refuse(_too_many(axis, spec))
            indices, weights = _weighted(coordinates, mode, cubic, scale)
            if exclude:
                weights = np.where((indices >= 0) & (indices < spec.size), weights, 0.0)
            if exclude or antialias:
                total = weights.sum(axis=1, keepdims=True)
                if not total[~fill].all():
                    raise call.refuse(f"the weights of an output of axis {axis} sum to 0")
                weights /= np.where(fill[:, None], 1.0, total)
        if indices.shape[1] > _MOST_TAPS:
            raise call.refuse(_too_many(axis, spec))
        x = _taken(call.build, x, axis, np.clip(indices, 0, spec.size - 1), weights, fill, outside)
    return x


#: ONNX's names of GridSample's modes, those before opset 20 included, and PyTorch's.
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
    """Reads how each axis is resized, by axis."""
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
            common = min(scales) if policy == "not_larger" else max(scales)
            scales = [common] * len(axes)
            # Rounds half up.
            sizes = [floor(common * x.shape[axis] + 0.5) for axis in axes]
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
    """Reads scales or sizes of ``count`` axes, and the region that is resized."""
    region = [0.0] * count + [1.0] * count
    if call.opset < 9 and call.kind == "Upsample":
        scales, sizes = call.floats("scales"), None
    elif call.opset < 11:
        scales, sizes = _numbers(call, 1, "scales"), None
    else:
        region = _numbers(call, 1, "roi") or region
        scales, sizes = _numbers(call, 2, "scales"), call.known_ints(3, "sizes") or None
    values = sizes if sizes is not None else scales
    if values is None or len(values) != count or len(region) != 2 * count:
        raise GraphError(f"scales={scales}, sizes={sizes}, roi={region}; valid are {count}")
    return scales, sizes, region


def _numbers(call: OnnxCall, index: int, what: str) -> list[float] | None:
    array = call.maybe_known(index, what)
    if array is None or not array.size:
        return None
    return [float(number) for number in array.reshape(-1)]


def _nearest(coordinates: np.ndarray, rounding: str) -> np.ndarray:
    """The index of the input nearest to each coordinate, by ONNX's ``nearest_mode``."""
    if rounding == "round_prefer_floor":
        indices = np.ceil(coordinates - 0.5)
    elif rounding == "round_prefer_ceil":
        indices = np.floor(coordinates + 0.5)
    else:
        indices = np.floor(coordinates) if rounding == "floor" else np.ceil(coordinates)
    return np.asarray(indices, np.int64)


def _too_many(axis: int, spec: _Axis) -> str:
    return (
        f"an output of axis {axis}, whose scale is {spec.scale:g}, weights over {_MOST_TAPS} inputs"
    )


def _span(mode: str, scale: float) -> int:
    """How many inputs in a row have all that an output weights; some of these may weigh 0."""
    return 2 * ceil((1.0 if mode == "linear" else 2.0) / scale)


def _weighted(
    coordinates: np.ndarray, mode: str, a: float, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices (outputs, taps) of each output's inputs, and their weights.

    ``coordinates`` are the outputs' positions in the input, ``a`` is the cubic coefficient.  A
    ``scale`` below 1 widens the filter, so that all inputs count (antialiasing).
    """
    count = _span(mode, scale)
    first = np.floor(coordinates).astype(np.int64) - count // 2 + 1
    indices = first[:, None] + np.arange(count)
    distance = np.abs(coordinates[:, None] - indices) * scale
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
    """The weighted sums of inputs along one axis; ``outside`` where ``fill`` is set.

    ``indices`` and ``weights`` are (outputs, taps), ``fill`` is (outputs,).
    """
    if (weights == 1.0).all() and weights.shape[1] == 1:
        return build.take(x, axis, np.where(fill, -1, indices[:, 0]).tolist(), outside)
    dtype = np.dtype(x.dtype)
    shape = [1] * x.type.rank
    shape[axis] = len(indices)
    taps = [build.take(x, axis, column.tolist(), outside) for column in indices.T]
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
    return build.take(out, axis, (-1 if outer else i for i, outer in enumerate(fill)), outside)
