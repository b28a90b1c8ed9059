"""The ladders of a convolution's gradients: dgrad (by the input) and wgrad (by the weights).

The operand "g" is the gradient of the convolution's result, and "y" the gradient that is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..access import FMA_CYCLES, L1_CYCLES, WARP, Access, Work, lanes, sample
from ..operands import ConvolutionShape
from ..step import Block, Ladder, Parameters
from .convolution import CONVOLUTION
from .step import CudaStep, Sizes

_BLOCKS, _FILTERS, _POSITIONS = 36, 4, 64
"""How many blocks, filters, and positions of each thread, are sampled."""
_INSTRUCTIONS = 22
"""Instructions for each product of wgrad: loads, addresses, comparisons, the loop."""


@dataclass(frozen=True)
class InputGradientShape(ConvolutionShape):
    """The convolution whose gradient is computed; "g" is the gradient of its result."""

    @property
    def terms(self) -> int:
        return self.filters * self.taps

    @property
    def operands(self) -> dict[str, int]:
        forward = super().operands
        return {"g": forward["y"], "w": forward["w"], "y": forward["x"]}

    @property
    def operations(self) -> int:
        """As many as the forward convolution has."""
        return 2 * self.operands["g"] * self.channels * self.taps


def by_input(shape: InputGradientShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The gradient in float64."""
    plane = shape.result_shape[2:]
    g = operands["g"].reshape(shape.batch, shape.filters, -1).astype(np.float64)
    w = operands["w"].reshape(shape.filter_shape).astype(np.float64)
    edge, step = shape.padding, shape.stride
    # What the last window covers may end beyond the padding.
    extents = [size + 2 * edge + step for size in (shape.height, shape.width)]
    y = np.zeros((shape.batch, shape.channels, *extents))
    for i, j in np.ndindex(*w.shape[2:]):
        top, left = i * shape.dilation, j * shape.dilation
        pixels = y[:, :, top : top + step * plane[0] : step, left : left + step * plane[1] : step]
        pixels[:, :, : plane[0], : plane[1]] += (w[:, :, i, j].T @ g).reshape(
            shape.batch, shape.channels, *plane
        )
    return y[:, :, edge : edge + shape.height, edge : edge + shape.width]


def _input_sizes(shape: InputGradientShape, block: Block, parameters: Parameters) -> Sizes:
    """Flat pixels of an image along x of the grid, groups of channels along y, images along z."""
    threads, group = block[0] * block[1], parameters.get("GROUP", 1)
    across = -(-shape.height * shape.width // threads)
    return (across, -(-shape.channels // group), shape.batch), (threads, 1, 1), 0


def _input_work(
    shape: InputGradientShape, block: Block, parameters: Parameters, *, look: int
) -> Work:
    """Returns the work of a dgrad step.  ``look``: instructions for each tap, to find the output
    position whose window covers the pixel, and its gradient."""
    group, threads = parameters.get("GROUP", 1), block[0] * block[1]
    groups = -(-shape.channels // group)
    across = -(-shape.height * shape.width // threads)
    sampled, filters = sample(across, _BLOCKS), sample(shape.filters, _FILTERS)
    thread = lanes(threads)
    pixel = sampled.reshape(-1, 1, 1, 1, 1) * threads + thread
    i, j = np.divmod(np.arange(shape.taps).reshape(-1, 1, 1), shape.window_width)
    row = pixel // shape.width + shape.padding - i * shape.dilation
    column = pixel % shape.width + shape.padding - j * shape.dilation
    active = (thread >= 0) & (pixel < shape.height * shape.width) & (row >= 0) & (column >= 0)
    active = active & (row % shape.stride == 0) & (column % shape.stride == 0)
    row, column = row // shape.stride, column // shape.stride
    active = active & (row < shape.out_height) & (column < shape.out_width)
    filter = filters.reshape(1, -1, 1, 1, 1)
    at = (filter * shape.out_height + row) * shape.out_width + column
    active = np.broadcast_to(active, np.broadcast_shapes(at.shape, active.shape))
    times = across / len(sampled) * shape.filters / len(filters) * shape.batch * groups
    g = Access("g", "global", np.where(active, at, -1).reshape(len(sampled), -1, 32), times)
    own = np.arange(min(group, shape.channels)).reshape(1, 1, 1, -1, 1, 1)
    at = (filter[..., None, :, :] * shape.channels + own) * shape.taps
    at = at + np.arange(shape.taps).reshape(1, 1, -1, 1, 1, 1)
    at = np.where(active[:, :, :, None], at, -1).reshape(len(sampled), -1, 32)
    # The last group may be partial; the accesses of the first stand for all.
    w = Access("w", "global", at, times * shape.channels / (groups * own.size))
    pixel = pixel.reshape(len(sampled), -1, 32)
    pixel = np.where((thread >= 0) & (pixel < shape.height * shape.width), pixel, -1)
    stored = across / len(sampled) * shape.batch * shape.channels
    y = Access("y", "global", pixel, stored, store=True)
    looks = shape.terms * len(thread) * across * shape.batch * groups
    chain = shape.terms * (L1_CYCLES + FMA_CYCLES)
    return Work((g, w, y), w.requests, looks * look + 2 * w.requests + g.requests, chain)


_input_step = partial(CudaStep.of, "input_gradient")

INPUT_GRADIENT = Ladder(
    "input-gradient",
    "the gradient of a convolution by its input, float32, NCHW",
    InputGradientShape(**vars(CONVOLUTION.shape)),
    (
        _input_step("naive", sizes=_input_sizes, work=partial(_input_work, look=24)),
        _input_step(
            "registers",
            sizes=_input_sizes,
            work=partial(_input_work, look=10),
            parameters={"GROUP": 8},
            helps=("load units", "L2", "latency", "issue"),
        ),
    ),
    by_input,
    {name: InputGradientShape(**vars(shape)) for name, shape in CONVOLUTION.shapes.items()},
)


@dataclass(frozen=True)
class WeightGradientShape(ConvolutionShape):
    """The convolution whose gradient is computed; "g" is the gradient of its result."""

    @property
    def positions(self) -> int:
        """Output positions of all images."""
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
        """As many as the forward convolution has."""
        return 2 * self.operands["y"] * self.positions


def by_weights(shape: WeightGradientShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The gradient in float64."""
    edge = (shape.padding, shape.padding)
    images = operands["x"].reshape(shape.image_shape).astype(np.float64)
    x = np.pad(images, [(0, 0), (0, 0), edge, edge])
    g = operands["g"].reshape(shape.result_shape).astype(np.float64)
    y = np.zeros(shape.filter_shape)
    step, past = shape.stride, shape.stride * np.array(g.shape[2:])
    for i, j in np.ndindex(*y.shape[2:]):
        top, left = i * shape.dilation, j * shape.dilation
        pixels = x[:, :, top : top + past[0] : step, left : left + past[1] : step]
        y[:, :, i, j] = np.tensordot(g, pixels, ((0, 2, 3), (0, 2, 3)))
    return y


def _weight_sizes(
    shape: WeightGradientShape, block: Block, parameters: Parameters, *, each: int = 1
) -> Sizes:
    """``each``: threads that compute one weight's gradient."""
    threads = block[0] * block[1]
    return (-(-each * shape.operands["y"] // threads), 1, 1), (threads, 1, 1), 0


def _whole_warps(shape: WeightGradientShape, block: Block, parameters: Parameters) -> str | None:
    if (threads := block[0] * block[1]) % WARP == 0:
        return None
    return f"{threads} threads a block; this step wants whole warps of {WARP}"


def _weight_work(
    shape: WeightGradientShape, block: Block, parameters: Parameters, *, each: int = 1
) -> Work:
    """Returns the work of a wgrad step.  ``each``: threads that share the positions of one weight,
    and combine their sums."""
    threads, weights = block[0] * block[1], shape.operands["y"]
    blocks, iteration_count = -(-each * weights // threads), -(-shape.positions // each)
    sampled, iterations = sample(blocks, _BLOCKS), sample(iteration_count, _POSITIONS)
    number = lanes(threads)
    thread = sampled.reshape(-1, 1, 1, 1) * threads + number
    weight, lane = thread // each, thread % each
    position = iterations.reshape(1, -1, 1, 1) * each + lane
    active = (number >= 0) & (weight < weights) & (position < shape.positions)
    filter, inner = np.divmod(weight, shape.channels * shape.taps)
    channel, tap = np.divmod(inner, shape.taps)
    plane = shape.out_height * shape.out_width
    image, at = np.divmod(position, plane)
    row = at // shape.out_width * shape.stride - shape.padding
    column = at % shape.out_width * shape.stride - shape.padding
    row = row + tap // shape.window_width * shape.dilation
    column = column + tap % shape.window_width * shape.dilation
    active = active & (row >= 0) & (row < shape.height) & (column >= 0) & (column < shape.width)
    share, flat = blocks / len(sampled), (len(sampled), -1, WARP)
    from_x = ((image * shape.channels + channel) * shape.height + row) * shape.width + column
    from_g = (image * shape.filters + filter) * plane + at
    times = share * iteration_count / len(iterations)
    x = Access("x", "global", np.where(active, from_x, -1).reshape(flat), times)
    g = Access("g", "global", np.where(active, from_g, -1).reshape(flat), times)
    writes = (number >= 0) & (weight < weights) & (lane == 0)
    y = Access("y", "global", np.where(writes, weight, -1).reshape(flat), share, store=True)
    chain = iteration_count * (L1_CYCLES + FMA_CYCLES)
    return Work((x, g, y), x.requests, x.requests * _INSTRUCTIONS, chain, ("x", "g"))


_weight_step = partial(CudaStep.of, "weight_gradient")

WEIGHT_GRADIENT = Ladder(
    "weight-gradient",
    "the gradient of a convolution by its weights, float32, NCHW",
    WeightGradientShape(**vars(CONVOLUTION.shape)),
    (
        _weight_step("naive", sizes=_weight_sizes, work=_weight_work),
        _weight_step(
            "lanes",
            sizes=partial(_weight_sizes, each=WARP),
            work=partial(_weight_work, each=WARP),
            refusal=_whole_warps,
            helps=("uncoalesced accesses", "latency", "too few blocks", "tail", "load units"),
        ),
    ),
    by_weights,
    {name: WeightGradientShape(**vars(shape)) for name, shape in CONVOLUTION.shapes.items()},
)
