"""The steps of the ladder of gradients by the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..access import FMA_CYCLES, L1_CYCLES, Access, Work, lanes, sample
from ..convolution.ladder import CONVOLUTION
from ..convolution.shape import ConvolutionShape
from ..cuda_step import CudaStep, Sizes
from ..step import Block, Ladder, Parameters

_BLOCKS, _FILTERS = 36, 4
"""Blocks and filters that are looked at."""


@dataclass(frozen=True)
class InputGradientShape(ConvolutionShape):
    """The convolution whose gradient is computed: "g" is that of its result."""

    @property
    def terms(self) -> int:
        return self.filters * self.taps

    @property
    def operands(self) -> dict[str, int]:
        forward = super().operands
        return {"g": forward["y"], "w": forward["w"], "y": forward["x"]}

    @property
    def operations(self) -> int:
        """Those of the convolution."""
        return 2 * self.operands["g"] * self.channels * self.taps


def by_input(shape: InputGradientShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The gradient in float64."""
    plane = (shape.out_height, shape.out_width)
    g = operands["g"].reshape(shape.batch, shape.filters, -1).astype(np.float64)
    window = (shape.window_height, shape.window_width)
    w = operands["w"].reshape(shape.filters, shape.channels, *window).astype(np.float64)
    edge, step = shape.padding, shape.stride
    # What the last window covers may end beyond the padding.
    reach = [size + 2 * edge + step for size in (shape.height, shape.width)]
    y = np.zeros((shape.batch, shape.channels, *reach))
    for i, j in np.ndindex(*window):
        top, left = i * shape.dilation, j * shape.dilation
        seen = y[:, :, top : top + step * plane[0] : step, left : left + step * plane[1] : step]
        seen[:, :, : plane[0], : plane[1]] += (w[:, :, i, j].T @ g).reshape(
            shape.batch, shape.channels, *plane
        )
    return y[:, :, edge : edge + shape.height, edge : edge + shape.width]


def _sizes(shape: InputGradientShape, block: Block, parameters: Parameters) -> Sizes:
    """Numbers of an image in their order, groups of channels, images."""
    threads, group = block[0] * block[1], parameters.get("GROUP", 1)
    across = -(-shape.height * shape.width // threads)
    return (across, -(-shape.channels // group), shape.batch), (threads, 1, 1), 0


def _work(shape: InputGradientShape, block: Block, parameters: Parameters, *, look: int) -> Work:
    """``look``: instructions to find a position and its gradient."""
    group, threads = parameters.get("GROUP", 1), block[0] * block[1]
    groups = -(-shape.channels // group)
    across = -(-shape.height * shape.width // threads)
    chosen, some = sample(across, _BLOCKS), sample(shape.filters, _FILTERS)
    number = lanes(threads)
    place = chosen.reshape(-1, 1, 1, 1, 1) * threads + number
    i, j = np.divmod(np.arange(shape.taps).reshape(-1, 1, 1), shape.window_width)
    row = place // shape.width + shape.padding - i * shape.dilation
    column = place % shape.width + shape.padding - j * shape.dilation
    there = (number >= 0) & (place < shape.height * shape.width) & (row >= 0) & (column >= 0)
    there = there & (row % shape.stride == 0) & (column % shape.stride == 0)
    row, column = row // shape.stride, column // shape.stride
    there = there & (row < shape.out_height) & (column < shape.out_width)
    filter = some.reshape(1, -1, 1, 1, 1)
    at = (filter * shape.out_height + row) * shape.out_width + column
    there = np.broadcast_to(there, np.broadcast_shapes(at.shape, there.shape))
    times = across / len(chosen) * shape.filters / len(some) * shape.batch * groups
    g = Access("g", "global", np.where(there, at, -1).reshape(len(chosen), -1, 32), times)
    own = np.arange(min(group, shape.channels)).reshape(1, 1, 1, -1, 1, 1)
    at = (filter[..., None, :, :] * shape.channels + own) * shape.taps
    at = at + np.arange(shape.taps).reshape(1, 1, -1, 1, 1, 1)
    at = np.where(there[:, :, :, None], at, -1).reshape(len(chosen), -1, 32)
    # The last group may be a part of one; all are looked at as if they were the first.
    w = Access("w", "global", at, times * shape.channels / (groups * own.size))
    place = place.reshape(len(chosen), -1, 32)
    place = np.where((number >= 0) & (place < shape.height * shape.width), place, -1)
    stored = across / len(chosen) * shape.batch * shape.channels
    y = Access("y", "global", place, stored, store=True)
    looks = shape.terms * len(number) * across * shape.batch * groups
    chain = shape.terms * (L1_CYCLES + FMA_CYCLES)
    return Work((g, w, y), w.requests, looks * look + 2 * w.requests + g.requests, chain)


def _step(name: str, **given: Any) -> CudaStep:
    return CudaStep(name=name, source=Path(__file__).parent / f"{name}.cu", **given)


INPUT_GRADIENT = Ladder(
    "input-gradient",
    "the gradient of a convolution by its input, float32, NCHW",
    InputGradientShape(**vars(CONVOLUTION.shape)),
    (
        _step("naive", sizes=_sizes, work=partial(_work, look=24)),
        _step(
            "registers",
            sizes=_sizes,
            work=partial(_work, look=10),
            parameters={"GROUP": 8},
            helps=("load units", "L2", "latency", "issue"),
        ),
    ),
    by_input,
    {name: InputGradientShape(**vars(shape)) for name, shape in CONVOLUTION.shapes.items()},
)
