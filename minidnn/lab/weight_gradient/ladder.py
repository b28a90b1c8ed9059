"""The steps of the ladder of gradients by the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..access import FMA_CYCLES, L1_CYCLES, WARP, Access, Work, lanes, sample
from ..convolution.ladder import CONVOLUTION
from ..convolution.shape import ConvolutionShape
from ..cuda_step import CudaStep, Sizes
from ..step import Block, Ladder, Parameters

_BLOCKS, _POSITIONS = 36, 64
"""Blocks, and positions of each thread, that are looked at."""
_INSTRUCTIONS = 22
"""Of a product: reads, addresses, comparisons, the loop."""


@dataclass(frozen=True)
class WeightGradientShape(ConvolutionShape):
    """The convolution whose gradient is computed: "g" is that of its result."""

    @property
    def positions(self) -> int:
        """Of all images."""
        return self.batch * self.out_height * self.out_width

    @property
    def terms(self) -> int:
        return self.positions

    @property
    def operands(self) -> dict[str, int]:
        forward = super().operands
        return {"x": forward["x"], "g": forward["y"], "y": forward["w"]}

    @property
    def operations(self) -> int:
        """Those of the convolution."""
        return 2 * self.operands["y"] * self.positions


def by_weights(shape: WeightGradientShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The gradient in float64."""
    images = (shape.batch, shape.channels, shape.height, shape.width)
    edge = (shape.padding, shape.padding)
    x = np.pad(operands["x"].reshape(images).astype(np.float64), [(0, 0), (0, 0), edge, edge])
    plane = (shape.out_height, shape.out_width)
    g = operands["g"].reshape(shape.batch, shape.filters, *plane).astype(np.float64)
    y = np.zeros((shape.filters, shape.channels, shape.window_height, shape.window_width))
    step, past = shape.stride, shape.stride * np.array(plane)
    for i, j in np.ndindex(shape.window_height, shape.window_width):
        top, left = i * shape.dilation, j * shape.dilation
        seen = x[:, :, top : top + past[0] : step, left : left + past[1] : step]
        y[:, :, i, j] = np.tensordot(g, seen, ((0, 2, 3), (0, 2, 3)))
    return y


def _sizes(
    shape: WeightGradientShape, block: Block, parameters: Parameters, *, each: int = 1
) -> Sizes:
    """``each``: threads of a weight."""
    threads = block[0] * block[1]
    return (-(-each * shape.operands["y"] // threads), 1, 1), (threads, 1, 1), 0


def _whole_warps(shape: WeightGradientShape, block: Block, parameters: Parameters) -> str | None:
    if (threads := block[0] * block[1]) % WARP == 0:
        return None
    return f"{threads} threads a block; this step wants whole warps of {WARP}"


def _work(
    shape: WeightGradientShape, block: Block, parameters: Parameters, *, each: int = 1
) -> Work:
    """``each``: threads of a weight, which take positions in turns."""
    threads, weights = block[0] * block[1], shape.operands["y"]
    blocks, turns = -(-each * weights // threads), -(-shape.positions // each)
    chosen, some = sample(blocks, _BLOCKS), sample(turns, _POSITIONS)
    number = lanes(threads)
    thread = chosen.reshape(-1, 1, 1, 1) * threads + number
    weight, lane = thread // each, thread % each
    position = some.reshape(1, -1, 1, 1) * each + lane
    there = (number >= 0) & (weight < weights) & (position < shape.positions)
    filter, inner = np.divmod(weight, shape.channels * shape.taps)
    channel, tap = np.divmod(inner, shape.taps)
    plane = shape.out_height * shape.out_width
    image, at = np.divmod(position, plane)
    row = at // shape.out_width * shape.stride - shape.padding
    column = at % shape.out_width * shape.stride - shape.padding
    row = row + tap // shape.window_width * shape.dilation
    column = column + tap % shape.window_width * shape.dilation
    there = there & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    share, flat = blocks / len(chosen), (len(chosen), -1, WARP)
    from_x = ((image * shape.channels + channel) * shape.height + row) * shape.width + column
    from_g = (image * shape.filters + filter) * plane + at
    times = share * turns / len(some)
    x = Access("x", "global", np.where(there, from_x, -1).reshape(flat), times)
    g = Access("g", "global", np.where(there, from_g, -1).reshape(flat), times)
    writes = (number >= 0) & (weight < weights) & (lane == 0)
    y = Access("y", "global", np.where(writes, weight, -1).reshape(flat), share, store=True)
    chain = turns * (L1_CYCLES + FMA_CYCLES)
    return Work((x, g, y), x.requests, x.requests * _INSTRUCTIONS, chain, ("x", "g"))


def _step(name: str, **given: Any) -> CudaStep:
    return CudaStep(name=name, source=Path(__file__).parent / f"{name}.cu", **given)


WEIGHT_GRADIENT = Ladder(
    "weight-gradient",
    "the gradient of a convolution by its weights, float32, NCHW",
    WeightGradientShape(**vars(CONVOLUTION.shape)),
    (
        _step("naive", sizes=_sizes, work=_work),
        _step(
            "lanes",
            sizes=partial(_sizes, each=WARP),
            work=partial(_work, each=WARP),
            refusal=_whole_warps,
            helps=("uncoalesced accesses", "latency", "too few blocks", "tail", "load units"),
        ),
    ),
    by_weights,
    {name: WeightGradientShape(**vars(shape)) for name, shape in CONVOLUTION.shapes.items()},
)
