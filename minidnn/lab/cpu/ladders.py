"""The ladders of convolutions and of copies on a CPU: operand layouts, work, and refusals.

Most convolution steps use a channel-blocked layout: a block has as many channels, or filters, as a
vector has lanes.  Each step has a function that returns its :class:`CpuWork` for the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from ...errors import UnsupportedError
from ..cuda.arrays import copied
from ..cuda.convolution import CONVOLUTION
from ..operands import ConvolutionShape, MovementShape, convolve
from ..step import Ladder, Parameters
from .machine import CHAINS, CpuMachine, CpuWork
from .step import IspcStep

_WINOGRAD = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]])


def image(
    shape: ConvolutionShape, x: np.ndarray, lanes: int, border: int | None = None
) -> np.ndarray:
    """Packs images as (batch, channel blocks, rows, columns, lanes), with a border of zeros, by
    default the padding."""
    edge = (shape.padding if border is None else border,) * 2
    return _in_blocks(np.pad(x.reshape(shape.image_shape), [(0, 0), (0, 0), edge, edge]), lanes)


def result(shape: ConvolutionShape, y: np.ndarray, lanes: int) -> np.ndarray:
    """Packs a result as (batch, filter blocks, rows, columns, lanes)."""
    return _in_blocks(y.reshape(shape.result_shape), lanes)


def weights(shape: ConvolutionShape, w: np.ndarray, lanes: int) -> np.ndarray:
    """Packs weights as (filter blocks, channels, rows, columns, lanes)."""
    filters = _filled(w.reshape(shape.filter_shape), 0, lanes)
    blocks = filters.reshape(-1, lanes, *filters.shape[1:])
    return np.ascontiguousarray(blocks.transpose(0, 2, 3, 4, 1))


def bias(shape: ConvolutionShape, bias: np.ndarray, lanes: int) -> np.ndarray:
    """Pads a bias with zeros to whole filter blocks."""
    return _filled(bias, 0, lanes)


def even_image(shape: ConvolutionShape, x: np.ndarray, lanes: int) -> np.ndarray:
    """Packs images as :func:`image`, with more zeros at the end of rows and columns: as many
    as whole tiles of 2 x 2 outputs read."""
    planes = x.reshape(shape.image_shape)
    down, across = ((shape.padding, shape.padding + size % 2) for size in sizes_of(shape))
    return _in_blocks(np.pad(planes, [(0, 0), (0, 0), down, across]), lanes)


def sizes_of(shape: ConvolutionShape) -> tuple[int, int]:
    """Rows and columns of the result."""
    return shape.out_height, shape.out_width


def transformed_weights(shape: ConvolutionShape, w: np.ndarray, lanes: int) -> np.ndarray:
    """Packs the Winograd transforms of 3 x 3 windows as (filter blocks, 16, channels, lanes)."""
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
    """Pads the end of an axis with zeros to a multiple of ``lanes``."""
    missing = -array.shape[axis] % lanes
    return np.pad(array, [(0, missing if at == axis else 0) for at in range(array.ndim)])


def scalar(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """Work without vectors: a product has two loads, four comparisons, addresses, and the loop."""
    products = shape.operations / 2
    return CpuWork(products, 2 * products, 12 * products, 1, 4.0 * sum(shape.operands.values()))


def plane(shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    """Work with lanes along columns: a stride above 1 turns vector loads into gathers."""
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
    """How many vector multiply-adds are executed if lanes are filters, and rows are computed in
    whole tiles of ``positions``."""
    columns = -(-shape.out_width // positions) * positions
    blocks = -(-shape.filters // lanes)
    return columns * shape.out_height * shape.batch * blocks * shape.terms


def blocks(
    shape: ConvolutionShape, parameters: Parameters, machine: CpuMachine, *, gathered: bool = False
) -> CpuWork:
    """Work with one accumulator: each product loads a float of the image and a vector of weights.
    ``gathered``: weights are not packed, so that a vector of them is a gather."""
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
    """Work with a register tile of POSITIONS by VECTORS accumulators."""
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
    """Work of Winograd F(2 x 2, 3 x 3): the products of transformed tiles, and the transforms, with
    16 loads and 32 additions a tile and channel for the image, 16 and 24 for the result."""
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
    """Bytes that are read from beyond L1: all operands once, and the weights for each register tile
    if those of a group of filters do not fit L1.  ``terms``: the sum over all register tiles of the
    products that each sums."""
    once = 4.0 * sum(shape.operands.values())
    group = 4 * vectors * machine.lanes * channels * shape.taps
    if group <= machine.l1_bytes:
        return once
    return once + 4.0 * vectors * machine.lanes * terms


PIECE = 1 << 14
"""Floats that a task copies."""


def _planes(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> int:
    return shape.batch * shape.filters


def _groups(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> int:
    blocks = -(-shape.filters // lanes)
    return shape.batch * (blocks // parameters.get("VECTORS", 1))


def _rows(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> int:
    return _groups(shape, parameters, lanes) * shape.out_height


def _numbers(shape: ConvolutionShape, lanes: int) -> dict[str, int]:
    return {
        "CHANNEL_BLOCKS": -(-shape.channels // lanes),
        "FILTER_BLOCKS": -(-shape.filters // lanes),
        "FULL_HEIGHT": shape.height + 2 * shape.padding,
        "FULL_WIDTH": shape.width + 2 * shape.padding,
    }


def _no_tile(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> str | None:
    """Why register tiles do not cover a result; None if they do."""
    positions, vectors = parameters["POSITIONS"], parameters.get("VECTORS", 1)
    if positions > shape.out_width:
        return f"POSITIONS={positions}; rows of the result have {shape.out_width}"
    if (blocks := -(-shape.filters // lanes)) % vectors:
        return f"VECTORS={vectors}; the {blocks} vectors of filters are no multiple"
    return None


def _even(shape: ConvolutionShape, lanes: int) -> dict[str, int]:
    """The constants of a step with tiles of 2 x 2 outputs."""
    down, across = (-(-size // 2) for size in sizes_of(shape))
    sizes = {"EVEN_HEIGHT": 2 * down + 2, "EVEN_WIDTH": 2 * across + 2}
    return _numbers(shape, lanes) | {"TILES_DOWN": down, "TILES_ACROSS": across} | sizes


def _lines(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> int:
    return shape.batch * -(-shape.out_height // 2)


def _no_winograd(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> str | None:
    """Why the Winograd step refuses a shape; None if it does not."""
    window = shape.filter_shape[2:]
    if (*window, shape.stride, shape.dilation) != (3, 3, 1, 1):
        return (
            f"a window of {window[0]} x {window[1]}, stride {shape.stride}, dilation "
            f"{shape.dilation}; this step knows 3 x 3, 1 and 1"
        )
    blocks, vectors = -(-shape.filters // lanes), parameters["VECTORS"]
    if blocks % vectors:
        return f"VECTORS={vectors}; the {blocks} vectors of filters are no multiple"
    channels = -(-shape.channels // lanes) * lanes
    if (asked := 64 * parameters["TILES"] * channels) > _MOST_STACK:
        return f"{asked} bytes of transformed tiles; there may be {_MOST_STACK}"
    return None


_step = partial(IspcStep.of, "convolution_cpu")
_MOST_STACK = 1 << 20
_BLOCKED = {"x": image, "y": result}
_PACKED = _BLOCKED | {"w": weights}
_TILE = {"POSITIONS": 7, "VECTORS": 2}
_blocked = partial(_step, tasks=_rows, numbers=_numbers, packs=_BLOCKED)
_tiled = partial(_blocked, packs=_PACKED, work=tile, refusal=_no_tile)


CONVOLUTION_CPU = Ladder(
    "conv-cpu",
    "convolution, forward, float32, on a CPU",
    ConvolutionShape(batch=1, channels=64, height=56, width=56, filters=64, padding=1),
    (
        _step("scalar", tasks=_planes, work=scalar),
        _step("plane", tasks=_planes, work=plane, helps=("empty lanes",)),
        _blocked("blocked", work=partial(blocks, gathered=True)),
        _blocked("packed", packs=_PACKED, work=blocks, helps=("gathers", "load units")),
        _tiled("positions", parameters={"POSITIONS": 14}, helps=("latency",)),
        _tiled("tile", parameters=_TILE, helps=("load units", "issue")),
        _tiled("chunks", tasks=_groups, parameters=_TILE | {"CHUNK": 32}, helps=("L2", "memory")),
        _step(
            "winograd",
            tasks=_lines,
            numbers=_even,
            packs=_BLOCKED | {"x": even_image, "w": transformed_weights},
            work=winograd,
            refusal=_no_winograd,
            parameters={"TILES": 7, "VECTORS": 2},
            helps=("arithmetic",),
        ),
        _tiled("fused", packs=_PACKED | {"bias": bias}, parameters=_TILE, helps=("memory",)),
    ),
    convolve,
    {name: replace(shape, batch=1) for name, shape in CONVOLUTION.shapes.items()},
)


@dataclass(frozen=True)
class CopyShape(MovementShape):
    """The size of a copy, in pieces of 16,384 floats."""

    pieces: int = 2048
    #: Floats in each piece.
    piece: ClassVar[int] = PIECE

    def __post_init__(self) -> None:
        if not 1 <= self.pieces < 1 << 17:
            raise UnsupportedError(f"pieces={self.pieces}; valid are 1 to {(1 << 17) - 1}")

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.pieces * PIECE, "y": self.pieces * PIECE}


def _tasks(shape: CopyShape, parameters: Parameters, lanes: int) -> int:
    return shape.pieces


def _copy_work(floats: int, lanes: int, gathered: float = 0.0) -> CpuWork:
    """Work of a copy: a load, a store, and half of the loop for each vector; ``gathered`` vectors
    are loaded and stored lane by lane."""
    vectors = floats / lanes
    reads = vectors * (2 * lanes if gathered else 2)
    return CpuWork(0.0, reads, reads + vectors, CHAINS, 8.0 * floats, gathered, lanes)


def _by_one(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _copy_work(shape.pieces * PIECE, 1)


def _by_vectors(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _copy_work(shape.pieces * PIECE, machine.lanes)


def _apart(shape: CopyShape, parameters: Parameters, machine: CpuMachine) -> CpuWork:
    return _copy_work(shape.pieces * PIECE, machine.lanes, gathered=1.0)


def _uneven(shape: CopyShape, parameters: Parameters, lanes: int) -> str | None:
    if PIECE % (lanes * parameters["STRIDE"]) == 0:
        return None
    return f"STRIDE={parameters['STRIDE']}; {PIECE // lanes} vectors of a piece are no multiple"


_copy_step = partial(IspcStep.of, "memory_cpu", tasks=_tasks)

MEMORY_CPU = Ladder(
    "memory-cpu",
    "a copy of floats, on a CPU",
    CopyShape(),
    (
        _copy_step("scalar", work=_by_one),
        _copy_step("apart", work=_apart, parameters={"STRIDE": 32}, refusal=_uneven),
        _copy_step("vectors", work=_by_vectors, helps=("empty lanes", "gathers", "issue")),
        _copy_step("streamed", work=_by_vectors, helps=("memory",)),
    ),
    copied,
    {"L2": CopyShape(4), "L3": CopyShape(64), "memory": CopyShape(2048)},
)
