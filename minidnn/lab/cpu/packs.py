"""How the operands of a convolution lie in blocks of channels."""

from __future__ import annotations

import numpy as np

from ..shapes import ConvolutionShape

_WINOGRAD = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])


def image(
    shape: ConvolutionShape, x: np.ndarray, lanes: int, border: int | None = None
) -> np.ndarray:
    """Images: (batch, blocks of channels, rows, columns, lanes), with their border of zeros."""
    planes = x.reshape(shape.batch, shape.channels, shape.height, shape.width)
    edge = (shape.padding if border is None else border,) * 2
    return _blocks(np.pad(planes, [(0, 0), (0, 0), edge, edge]), lanes)


def result(shape: ConvolutionShape, y: np.ndarray, lanes: int) -> np.ndarray:
    """The result: (batch, blocks of filters, rows, columns, lanes)."""
    return _blocks(y.reshape(shape.batch, shape.filters, shape.out_height, shape.out_width), lanes)


def weights(shape: ConvolutionShape, w: np.ndarray, lanes: int) -> np.ndarray:
    """Weights: (blocks of filters, channels, rows, columns, lanes)."""
    window = (shape.window_height, shape.window_width)
    filters = _filled(w.reshape(shape.filters, shape.channels, *window), 0, lanes)
    blocks = filters.reshape(-1, lanes, shape.channels, *window)
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 1))


def bias(shape: ConvolutionShape, bias: np.ndarray, lanes: int) -> np.ndarray:
    """A bias for each lane of each block of filters."""
    return _filled(bias, 0, lanes)


def even_image(shape: ConvolutionShape, x: np.ndarray, lanes: int) -> np.ndarray:
    """Images in blocks, with their border, and as many zeros behind as whole tiles of 2 x 2 outputs
    read."""
    planes = x.reshape(shape.batch, shape.channels, shape.height, shape.width)
    down, across = ((shape.padding, shape.padding + size % 2) for size in sizes_of(shape))
    return _blocks(np.pad(planes, [(0, 0), (0, 0), down, across]), lanes)


def sizes_of(shape: ConvolutionShape) -> tuple[int, int]:
    """Rows and columns of the result."""
    return shape.out_height, shape.out_width


def transformed_weights(shape: ConvolutionShape, w: np.ndarray, lanes: int) -> np.ndarray:
    """Windows of 3 x 3, transformed: (blocks of filters, 16, channels, lanes)."""
    windows = w.reshape(shape.filters, shape.channels, 3, 3).astype(np.float64)
    sixteen = (_WINOGRAD @ windows @ _WINOGRAD.T).reshape(shape.filters, shape.channels, 16)
    blocks = _filled(sixteen.astype(np.float32), 0, lanes)
    blocks = blocks.reshape(-1, lanes, shape.channels, 16)
    return np.ascontiguousarray(blocks.transpose(0, 3, 2, 1))


def _blocks(planes: np.ndarray, lanes: int) -> np.ndarray:
    filled = _filled(planes, 1, lanes)
    batch, channels, rows, columns = filled.shape
    blocks = filled.reshape(batch, channels // lanes, lanes, rows, columns)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def _filled(array: np.ndarray, axis: int, lanes: int) -> np.ndarray:
    """With zeros at the end of an axis, to whole blocks."""
    missing = -array.shape[axis] % lanes
    return np.pad(array, [(0, missing if at == axis else 0) for at in range(array.ndim)])
