"""How the operands of a convolution lie in blocks of channels, and what steps read and compute."""

from __future__ import annotations

import numpy as np

from ..shapes import ConvolutionShape
from ..step import Parameters
from .machine import CpuMachine, CpuWork

_WINOGRAD = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])


def image(
    shape: ConvolutionShape, x: np.ndarray, lanes: int, border: int | None = None
) -> np.ndarray:
    """Images: (batch, blocks of channels, rows, columns, lanes), with their border of zeros."""
    planes = x.reshape(shape.batch, shape.channels, shape.height, shape.width)
    edge = (shape.padding if border is None else border,) * 2
    return _in_blocks(np.pad(planes, [(0, 0), (0, 0), edge, edge]), lanes)


def result(shape: ConvolutionShape, y: np.ndarray, lanes: int) -> np.ndarray:
    """The result: (batch, blocks of filters, rows, columns, lanes)."""
    return _in_blocks(
        y.reshape(shape.batch, shape.filters, shape.out_height, shape.out_width), lanes
    )


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
    return _in_blocks(np.pad(planes, [(0, 0), (0, 0), down, across]), lanes)


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


def _in_blocks(planes: np.ndarray, lanes: int) -> np.ndarray:
    filled = _filled(planes, 1, lanes)
    batch, channels, rows, columns = filled.shape
    blocks = filled.reshape(batch, channels // lanes, lanes, rows, columns)
    return np.ascontiguousarray(blocks.transpose(0, 1, 3, 4, 2))


def _filled(array: np.ndarray, axis: int, lanes: int) -> np.ndarray:
    """With zeros at the end of an axis, to whole blocks."""
    missing = -array.shape[axis] % lanes
    return np.pad(array, [(0, missing if at == axis else 0) for at in range(array.ndim)])


def scalar(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """A product: two reads, four comparisons, places, and the loop."""
    products = shape.operations / 2
    return CpuWork(products, 2 * products, 12 * products, 1, 4.0 * sum(shape.operands.values()))


def plane(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """Vectors of columns, which a stride spreads."""
    lanes = machine.lanes
    vectors = -(-shape.out_width // lanes)
    products = vectors * shape.out_height * shape.batch * shape.filters * shape.terms
    spread = shape.stride > 1
    read = lanes if spread else 1
    near = 4.0 * shape.operands["x"] * shape.filters
    return CpuWork(
        products,
        (read + 1) * products,
        (7 + read) * products,
        1,
        near,
        gathered=read / (read + 1) if spread else 0.0,
        lanes=lanes,
    )


def _vectors(shape: ConvolutionShape, lanes: int, positions: int) -> float:
    """Vector multiply-adds where lanes are filters, and rows are computed in whole tiles."""
    columns = -(-shape.out_width // positions) * positions
    blocks = -(-shape.filters // lanes)
    return columns * shape.out_height * shape.batch * blocks * shape.terms


def blocks(
    shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine, *, gathered: bool = False
) -> CpuWork:
    """One vector at a time: a number of the image, and a vector of weights."""
    products, lanes = _vectors(shape, machine.lanes, 1), machine.lanes
    read = lanes if gathered else 1
    return CpuWork(
        products,
        (read + 1) * products,
        (read + 4) * products,
        1,
        _weights_read(shape, machine, 1, shape.channels, products),
        gathered=read / (read + 1) if gathered else 0.0,
        lanes=lanes,
    )


def tile(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """Tiles of registers."""
    positions, vectors = parameters["POSITIONS"], parameters.get("VECTORS", 1)
    chunk = min(parameters.get("CHUNK", shape.channels), shape.channels)
    products = _vectors(shape, machine.lanes, positions)
    reads = products * (1 / vectors + 1 / positions)
    sums = shape.operands["y"] / machine.lanes * 2 * (-(-shape.channels // chunk) - 1)
    return CpuWork(
        products,
        reads + sums,
        products * (1 + 1 / positions + 4 / (positions * vectors)) + sums,
        positions * vectors,
        _weights_read(shape, machine, vectors, chunk, products / (positions * vectors)),
        lanes=machine.lanes,
    )


def winograd(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """Products of transformed tiles, and the transforms: 16 numbers of the image and 32 additions a
    tile and channel, 16 and 24 back."""
    tiles, vectors = parameters["TILES"], parameters["VECTORS"]
    down, across = (shape.out_height + 1) // 2, (shape.out_width + 1) // 2
    groups = shape.batch * down * -(-across // tiles)
    inner, outer = (-(-count // machine.lanes) for count in (shape.channels, shape.filters))
    products = groups * tiles * 16.0 * shape.channels * outer
    there, back = groups * tiles * inner, groups * tiles * outer
    weights = 4.0 * 16 * shape.channels * outer * machine.lanes
    return CpuWork(
        products,
        products * (1 / vectors + 1 / tiles) + 16 * there + 16 * back,
        products * (1 + 1 / tiles + 4 / (tiles * vectors)) + (32 + 32) * there + (24 + 36) * back,
        tiles * vectors,
        4.0 * sum(shape.operands.values()) + weights * groups,
        lanes=machine.lanes,
    )


def _weights_read(
    shape: ConvolutionShape, machine: CpuMachine, vectors: int, channels: int, terms: float
) -> float:
    """Bytes of weights that come from beyond the first cache, where a group of filters does not
    fit it; beside the operands, each once.  ``terms``: products that a tile of registers sums, of
    all tiles."""
    once = 4.0 * sum(shape.operands.values())
    group = 4 * vectors * machine.lanes * channels * shape.taps
    if group <= machine.l1_bytes:
        return once
    return once + 4.0 * vectors * machine.lanes * terms
