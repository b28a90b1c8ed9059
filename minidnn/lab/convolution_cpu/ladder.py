"""The steps of the ladder of convolutions on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..convolution.ladder import CONVOLUTION
from ..convolution.shape import ConvolutionShape, convolve
from ..cpu.step import IspcStep
from ..step import Ladder, Parameters
from . import packs, work


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
    down, across = (-(-size // 2) for size in packs.sizes_of(shape))
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
    return IspcStep(name=name, source=Path(__file__).parent / f"{name}.ispc", **given)


_MOST_STACK = 1 << 20
_BLOCKED = {"x": packs.image, "y": packs.result}
_PACKED = _BLOCKED | {"w": packs.weights}
_TILE = {"POSITIONS": 7, "VECTORS": 2}
_blocked = partial(_step, tasks=_rows, numbers=_numbers, packs=_BLOCKED)
_tiled = partial(_blocked, packs=_PACKED, work=work.tile, refusal=_no_tile)


def _on_one(shape: ConvolutionShape) -> ConvolutionShape:
    return replace(shape, batch=1)


CONVOLUTION_CPU = Ladder(
    "conv-cpu",
    "convolution, forward, float32, on a CPU",
    ConvolutionShape(batch=1, channels=64, height=56, width=56, filters=64, padding=1),
    (
        _step("scalar", tasks=_planes, work=work.scalar),
        _step("plane", tasks=_planes, work=work.plane, helps=("empty lanes",)),
        _blocked("blocked", work=partial(work.blocks, gathered=True)),
        _blocked("packed", packs=_PACKED, work=work.blocks, helps=("gathers", "load units")),
        _tiled("positions", parameters={"POSITIONS": 14}, helps=("latency",)),
        _tiled("tile", parameters=_TILE, helps=("load units", "issue")),
        _tiled("chunks", tasks=_groups, parameters=_TILE | {"CHUNK": 32}, helps=("L2", "memory")),
        _step(
            "winograd",
            tasks=_lines,
            numbers=_even,
            packs=_BLOCKED | {"x": packs.even_image, "w": packs.transformed_weights},
            work=work.winograd,
            refusal=_no_winograd,
            parameters={"TILES": 7, "VECTORS": 2},
            helps=("arithmetic",),
        ),
        _tiled("fused", packs=_PACKED | {"bias": packs.bias}, parameters=_TILE, helps=("memory",)),
    ),
    convolve,
    {name: _on_one(shape) for name, shape in CONVOLUTION.shapes.items()},
)
