"""Interpolation of images to another size, by :mod:`minidnn.graph.resize`, and sampling at the
points of a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.call import AtenCall, leaves, takes
from minidnn.frontends.torch.aten.contraction import product
from minidnn.graph import operators as ops
from minidnn.graph import resize
from minidnn.graph.ir import Constant, Value
from minidnn.graph.resize import GRID_MODES, PADDINGS, grid_sample
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType, numpy_dtype


def _upsampled(call: AtenCall, interpolate: Callable[..., Value]) -> Value:
    x = call.tensor("input")
    corners = "align_corners" in call.names and bool(call["align_corners"])
    return interpolate(x, _axes(call, x), corners)


for _names, _interpolate in (
    ([f"upsample_nearest{axes}d.vec" for axes in (1, 2, 3)], resize.nearest),
    ([f"_upsample_nearest_exact{axes}d.vec" for axes in (1, 2, 3)], resize.nearest_exact),
    (
        ["upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec"],
        resize.linear,
    ),
    (["upsample_bicubic2d.vec"], resize.cubic),
):
    takes(*_names)(partial(_upsampled, interpolate=_interpolate))


@takes("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(call: AtenCall) -> Any:
    mode, padding = GRID_MODES[call["interpolation_mode"]], PADDINGS[call["padding_mode"]]
    x, grid = call.tensor("input"), call.tensor("grid")
    return grid_sample(x, grid, mode, padding, bool(call["align_corners"]))


@takes("affine_grid_generator.default")
def affine_grid(call: AtenCall) -> Any:
    """Computes a sampling grid: the affine transformation of all output coordinates, with one
    matrix for each image."""
    theta, size = call.tensor("theta"), [int(each) for each in call["size"]]
    axes = [_coordinates(each, bool(call["align_corners"])) for each in size[2:]]
    dtype = numpy_dtype(theta.dtype)

    def base() -> np.ndarray:
        mesh = np.meshgrid(*axes, indexing="ij")
        rows = [each.ravel() for each in reversed(mesh)]
        return np.stack([*rows, np.ones_like(rows[0])], 1)[None].astype(dtype)

    shape = (1, math.prod(size[2:]), len(axes) + 1)
    coordinates = Constant(TensorType(shape, theta.dtype), f"{call.node.name}.places", base)
    transformed = product(coordinates, apply(ops.Transpose((0, 2, 1)), theta))
    return apply(ops.View(call.result.shape), transformed)


def _coordinates(size: int, corners: bool) -> np.ndarray:
    """The coordinates of an axis's elements, from -1 to 1."""
    if corners:
        return np.linspace(-1, 1, size) if size > 1 else np.zeros(1)
    return (2 * np.arange(size) + 1) / size - 1


leaves(
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.vec",
    why="antialias=True: an output is made of as many elements as images become smaller",
)


def _axes(call: AtenCall, x: Value) -> list[resize.Axis]:
    """The spatial axes, with their scale factors where the call names these."""
    sizes = list(zip(x.shape[2:], call.result.shape[2:], strict=True))
    factors: Sequence[float | None] = call["scale_factors"] or (None,) * len(sizes)
    return [resize.Axis(*pair, factor) for pair, factor in zip(sizes, factors, strict=True)]
