"""The steps of the ladder of convolutions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..step import Block, Ladder, LadderStep, Parameters, Sizes
from .shape import ConvolutionShape, convolve
from .work import direct, halo

_FOLDER = Path(__file__).parent
_CONSTANT_FLOATS = 16384


def _plane(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Tiles of the plane, and a filter for each layer of blocks."""
    across, down = shape.tiles(block)
    return (across, down, shape.filters), (*block, 1), 0


def _positions(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Positions in their order, whatever the block's form; then filters, then images."""
    threads = block[0] * block[1]
    blocks = -(-shape.out_height * shape.out_width // threads)
    return (blocks, shape.filters, shape.batch), (threads, 1, 1), 0


def _halo(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Tiles of the plane in their order, groups of filters, images; a tile with its halo and, of
    several filters, their weights in shared memory."""
    across, down = shape.tiles(block)
    group = parameters.get("GROUP", 1)
    width, height = shape.halo(block)
    floats = width * height + (group * shape.taps if "GROUP" in parameters else 0)
    grid = (across * down, -(-shape.filters // group), shape.batch)
    return grid, (*block, 1), 4 * floats


def _plain_only(shape: ConvolutionShape, block: Block, parameters: Parameters) -> str | None:
    if (shape.stride, shape.padding, shape.dilation) == (1, 0, 1):
        return None
    return (
        f"stride {shape.stride}, padding {shape.padding}, dilation {shape.dilation}; this step "
        "knows stride 1, padding 0, dilation 1"
    )


def _fits_constant_memory(
    shape: ConvolutionShape, block: Block, parameters: Parameters
) -> str | None:
    if (count := shape.operands["w"]) <= _CONSTANT_FLOATS:
        return None
    return f"{count} weights; constant memory holds {_CONSTANT_FLOATS}"


NAIVE = LadderStep(
    "naive",
    "one thread an output",
    "A thread computes one position of one filter's plane, and loops over images, channels and "
    "window. Nothing is kept: each product reads its two factors from memory.",
    "Two reads a multiply-add keep the load units busy, not the arithmetic: expect a few percent "
    "of the peak. Narrow blocks make a warp read pieces of several rows.",
    _FOLDER,
    _plane,
    partial(direct, instructions=7, images_in_turn=True),
    refusal=_plain_only,
)
GENERAL = LadderStep(
    "general",
    "padding, stride and dilation",
    "The window's place is computed from stride, padding and dilation, and what lies outside the "
    "image is skipped.",
    "Two comparisons and more address arithmetic for each product: slower than before on the same "
    "shape. With a stride, a warp's reads spread over as many times the bytes.",
    _FOLDER,
    _plane,
    partial(direct, instructions=13, images_in_turn=True),
)
COALESCED = LadderStep(
    "coalesced",
    "neighbouring threads, neighbouring addresses",
    "Positions of the plane are numbered in the order in which they lie in memory, so that a "
    "warp's 32 outputs are neighbours whatever the width of the plane; images become blocks, too.",
    "Fewer sectors for each of a warp's accesses, and no idle threads at the edges of rows. More "
    "blocks, so that small planes fill the GPU.",
    _FOLDER,
    _positions,
    partial(direct, instructions=13, in_order=True),
)
CONSTANT = LadderStep(
    "constant",
    "filters in constant memory",
    "All threads of a warp want the same weight at the same time. Constant memory has a cache of "
    "its own that gives one word to all of them, and leaves the load units to the image. It holds "
    "64 KiB.",
    "Half the requests to L1; where filters fit at all.",
    _FOLDER,
    _positions,
    partial(direct, instructions=12, in_order=True, constant=True),
    refusal=_fits_constant_memory,
    constants={"weights": "w"},
)
TILED = LadderStep(
    "tiled",
    "a tile with its halo in shared memory",
    "Windows of neighbouring outputs overlap. A block copies what all its outputs need of a "
    "channel once to shared memory, waits, and reads it from there; comparisons with the image's "
    "edges are made once for each number, not for each product.",
    "Reads from global memory fall by about the size of the window. Each product still reads "
    "shared memory, so that the load units remain the limit.",
    _FOLDER,
    _halo,
    partial(halo, instructions=7),
)
UNROLLED = LadderStep(
    "unrolled",
    "compiled for one window",
    "Window, stride, dilation and block stand in the text as numbers. The compiler writes loops "
    "over the window out, and addresses in the tile become constants of the instructions.",
    "Most instructions that were not multiply-adds or reads disappear; more registers.",
    _FOLDER,
    _halo,
    halo,
)
REGISTERS = LadderStep(
    "registers",
    "several filters a thread",
    "A thread keeps the sums of GROUP filters in registers, and uses each number that it reads "
    "of the tile for all of them. Their weights are copied to shared memory as well, where one "
    "read serves a warp.",
    "The tile is copied and read GROUP times less often; registers grow, occupancy may fall.",
    _FOLDER,
    _halo,
    halo,
    {"GROUP": 8},
)
FUSED = LadderStep(
    "fused",
    "bias and ReLU before the store",
    "The sum is in a register when it is complete: adding the bias and taking the larger of it "
    "and zero there costs two instructions an output.",
    "The time of the step before; kernels of their own would read and write the result once more.",
    _FOLDER,
    _halo,
    halo,
    {"GROUP": 8},
)

CONVOLUTION = Ladder(
    "conv",
    "convolution, forward, float32, NCHW",
    ConvolutionShape(batch=32, channels=32, height=58, width=58, filters=32),
    (NAIVE, GENERAL, COALESCED, CONSTANT, TILED, UNROLLED, REGISTERS, FUSED),
    convolve,
)
