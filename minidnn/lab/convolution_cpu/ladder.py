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


def _step(name: str, **given: Any) -> IspcStep:
    return IspcStep(name=name, source=Path(__file__).parent / f"{name}.ispc", **given)


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
        _tiled("fused", packs=_PACKED | {"bias": packs.bias}, parameters=_TILE, helps=("memory",)),
    ),
    convolve,
    {name: _on_one(shape) for name, shape in CONVOLUTION.shapes.items()},
)
