"""The steps of the ladders of convolutions and of copies on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..cuda.convolution import CONVOLUTION
from ..shapes import ConvolutionShape, convolve
from ..step import KERNELS, Ladder, Parameters
from . import convolution
from .machine import CHAINS, CpuMachine, CpuWork
from .step import IspcStep

PIECE = 1 << 14
"""Floats of a task."""


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
    """Why tiles do not cover a result."""
    positions, vectors = parameters["POSITIONS"], parameters.get("VECTORS", 1)
    if positions > shape.out_width:
        return f"POSITIONS={positions}; rows of the result have {shape.out_width}"
    if (blocks := -(-shape.filters // lanes)) % vectors:
        return f"VECTORS={vectors}; the {blocks} vectors of filters are no multiple"
    return None


def _even(shape: ConvolutionShape, lanes: int) -> dict[str, int]:
    """Of tiles of 2 x 2 outputs."""
    down, across = (-(-size // 2) for size in convolution.sizes_of(shape))
    sizes = {"EVEN_HEIGHT": 2 * down + 2, "EVEN_WIDTH": 2 * across + 2}
    return _numbers(shape, lanes) | {"TILES_DOWN": down, "TILES_ACROSS": across} | sizes


def _lines(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> int:
    return shape.batch * -(-shape.out_height // 2)


def _no_winograd(shape: ConvolutionShape, parameters: Parameters, lanes: int) -> str | None:
    """Why there are no tiles of a shape that are transformed."""
    window = (shape.window_height, shape.window_width)
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


def _step(name: str, **given: Any) -> IspcStep:
    return IspcStep(name=name, source=KERNELS / "convolution_cpu" / f"{name}.ispc", **given)


_MOST_STACK = 1 << 20
_BLOCKED = {"x": convolution.image, "y": convolution.result}
_PACKED = _BLOCKED | {"w": convolution.weights}
_TILE = {"POSITIONS": 7, "VECTORS": 2}
_blocked = partial(_step, tasks=_rows, numbers=_numbers, packs=_BLOCKED)
_tiled = partial(_blocked, packs=_PACKED, work=convolution.tile, refusal=_no_tile)


CONVOLUTION_CPU = Ladder(
    "conv-cpu",
    "convolution, forward, float32, on a CPU",
    ConvolutionShape(batch=1, channels=64, height=56, width=56, filters=64, padding=1),
    (
        _step("scalar", tasks=_planes, work=convolution.scalar),
        _step("plane", tasks=_planes, work=convolution.plane, helps=("empty lanes",)),
        _blocked("blocked", work=partial(convolution.blocks, gathered=True)),
        _blocked("packed", packs=_PACKED, work=convolution.blocks, helps=("gathers", "load units")),
        _tiled("positions", parameters={"POSITIONS": 14}, helps=("latency",)),
        _tiled("tile", parameters=_TILE, helps=("load units", "issue")),
        _tiled("chunks", tasks=_groups, parameters=_TILE | {"CHUNK": 32}, helps=("L2", "memory")),
        _step(
            "winograd",
            tasks=_lines,
            numbers=_even,
            packs=_BLOCKED | {"x": convolution.even_image, "w": convolution.transformed_weights},
            work=convolution.winograd,
            refusal=_no_winograd,
            parameters={"TILES": 7, "VECTORS": 2},
            helps=("arithmetic",),
        ),
        _tiled(
            "fused", packs=_PACKED | {"bias": convolution.bias}, parameters=_TILE, helps=("memory",)
        ),
    ),
    convolve,
    {name: replace(shape, batch=1) for name, shape in CONVOLUTION.shapes.items()},
)


@dataclass(frozen=True)
class CopyShape:
    """Pieces of 16,384 floats that are copied."""

    pieces: int = 2048

    def __post_init__(self) -> None:
        if not 1 <= self.pieces < 1 << 17:
            raise UnsupportedError(f"pieces={self.pieces}; valid are 1 to {(1 << 17) - 1}")

    @property
    def piece(self) -> int:
        """Floats of a piece."""
        return PIECE

    @property
    def terms(self) -> int:
        """A copy rounds nothing."""
        return 0

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.pieces * PIECE, "y": self.pieces * PIECE}

    @property
    def operations(self) -> int:
        """None."""
        return 0


def copied(shape: CopyShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result in float64."""
    return operands["x"].astype(np.float64)


def _tasks(shape: CopyShape, parameters: Parameters, lanes: int) -> int:
    return shape.pieces


def _copy_work(floats: int, lanes: int, gathered: float = 0.0) -> CpuWork:
    """A read, a write, and half of the loop for each vector; gathers read each lane."""
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


def _copy_step(name: str, **given: Any) -> IspcStep:
    return IspcStep(
        name=name, source=KERNELS / "memory_cpu" / f"{name}.ispc", tasks=_tasks, **given
    )


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
