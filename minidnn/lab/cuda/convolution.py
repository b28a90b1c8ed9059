"""The ladder of forward convolutions on a GPU: each step's launch, and the blocks it refuses.

:mod:`.convolution_work` describes the memory accesses and the arithmetic of the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ..operands import ConvolutionShape, convolve
from ..step import Block, Ladder, Parameters
from . import fft_work
from .convolution_work import direct, halo, halo_float16, implicit, tensor, unfold
from .step import CudaStep, KernelBefore, Sizes, why_no_patches, why_no_static

SHAPE = ConvolutionShape(1, 4, 4, 4, 1, 2, 2)
"""The worked example: an image of four channels of 4 x 4, and one filter of four 2 x 2 planes."""
IMAGE = """1 2 0 1; 0 1 3 2; 1 2 1 0; 2 1 0 1 | 1 0 1 2; 2 1 0 1; 0 1 2 1; 1 0 1 0
    | 0 1 2 1; 1 2 0 1; 1 1 0 2; 2 0 1 0 | 1 2 1 0; 2 0 1 1; 0 1 2 2; 1 0 1 1"""
FILTER = "1 0; 0 1 | 0 1; 1 0 | 1 0; 0 1 | 0 1; 1 0"
CHANGES: tuple[Mapping[str, int], ...] = (
    {},
    {"padding": 1},
    {"stride": 2},
    {"dilation": 2},
    {"stride": 2, "padding": 1, "dilation": 2},
)


def planes(text: str) -> np.ndarray:
    """Parses planes that bars separate, their rows separated by semicolons, into a flat array."""
    return np.array([row.split() for row in text.replace("|", ";").split(";")], np.float32).ravel()


def worked(changes: Mapping[str, int]) -> np.ndarray:
    """The result of the worked example with this padding, stride and dilation."""
    shape = replace(SHAPE, **changes)
    return convolve(shape, {"x": planes(IMAGE), "w": planes(FILTER)})[0, 0]


def worked_examples() -> str:
    """The image, the filter and the results of the worked example, as text."""
    image, filters = (
        planes(text).reshape(4, size, size) for text, size in ((IMAGE, 4), (FILTER, 2))
    )
    lines = ["image, channel after channel", *_beside(image), "", "filter", *_beside(filters)]
    for changes in CHANGES:
        title = ", ".join(f"{name} {number}" for name, number in changes.items())
        lines += ["", title or "stride 1, padding 0, dilation 1", *_beside([worked(changes)])]
    lines += [
        "",
        "The first number of the first result: 1*1 + 1*1 of the first channel, 0*1 + 2*1 of the",
        "second, 0*1 + 2*1 of the third, 2*1 + 2*1 of the fourth.",
    ]
    return "\n".join(lines)


def _beside(matrices: np.ndarray | list[np.ndarray]) -> list[str]:
    rows = zip(*matrices, strict=True)
    return [
        "   " + "     ".join(" ".join(f"{n:2.0f}" for n in row) for row in parts) for parts in rows
    ]


_CONSTANT_FLOATS = 16384


def _plane(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Tiles of the output plane along x and y of the grid, filters along z."""
    across, down = shape.tiles(block)
    return (across, down, shape.filters), (*block, 1), 0


def _in_order(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Flat output positions along x of the grid, whatever the block's shape; filters along y,
    images along z."""
    threads = block[0] * block[1]
    blocks = -(-shape.out_height * shape.out_width // threads)
    return (blocks, shape.filters, shape.batch), (threads, 1, 1), 0


def _halo(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Flat tiles of the output plane along x of the grid, groups of filters along y, images along
    z.  Shared memory holds an input tile with its halo and, with GROUP, the group's weights."""
    outputs = (block[0] * parameters.get("POSITIONS", 1), block[1])
    across, down = shape.tiles(outputs)
    group = parameters.get("GROUP", 1)
    width, height = shape.halo(outputs)
    floats = width * height + (group * shape.taps if "GROUP" in parameters else 0)
    grid = (across * down, -(-shape.filters // group), shape.batch)
    return grid, (*block, 1), 4 * floats


def _implicit(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """N tiles (output positions of all images) along x of the grid, M tiles (filters) along y; a
    thread computes 8 by 8 outputs."""
    positions = shape.batch * shape.out_height * shape.out_width
    grid = (-(-positions // (8 * block[0])), -(-shape.filters // (8 * block[1])), 1)
    return grid, (*block, 1), 0


def _unfold(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """Output positions of all images along x of the grid, the K axis along y."""
    positions, threads = shape.batch * shape.out_height * shape.out_width, block[0] * block[1]
    return (-(-positions // threads), shape.terms, 1), (threads, 1, 1), 0


def _matrix(shape: ConvolutionShape, block: Block, parameters: Parameters) -> dict[str, int]:
    """The im2col matrix, in floats: K rows, a column for each output position."""
    return {"matrix": shape.terms * shape.batch * shape.out_height * shape.out_width}


def _unfit_tensor(shape: ConvolutionShape, block: Block, parameters: Parameters) -> str | None:
    deep, down = parameters["TILE_DEPTH"], block[1] // 8
    if (reason := why_no_patches(block)) is not None:
        return reason
    if deep % 16 or deep // 2 % down:
        return f"TILE_DEPTH={deep}; this step wants a multiple of 16 and of {2 * down}"
    words = 8 * block[1] * (deep // 2 + 4) + deep // 2 * (8 * block[0] + 8)
    return why_no_static(8 * words)


def _unfit_patches(shape: ConvolutionShape, block: Block, parameters: Parameters) -> str | None:
    deep, stages = parameters["TILE_DEPTH"], parameters.get("STAGES", 2)
    if (reason := why_no_patches(block)) is not None:
        return reason
    if stages < 2:
        return f"STAGES={stages}; this step wants 2 or more"
    if deep % (block[1] // 8):
        return f"TILE_DEPTH={deep}; this step wants a multiple of {block[1] // 8} with this block"
    if block[0] * block[1] % deep:
        return f"TILE_DEPTH={deep}; this step wants a divisor of {block[0] * block[1]} threads"
    return why_no_static(4 * stages * deep * (8 * block[0] + 8 * block[1] + 4))


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


def _whole_vectors(shape: ConvolutionShape, block: Block, parameters: Parameters) -> str | None:
    if parameters["GROUP"] % 4 == 0:
        return None
    return f"GROUP={parameters['GROUP']}; this step wants a multiple of 4"


_step = partial(CudaStep.of, "convolution")
_by_plane = partial(_step, sizes=_plane)
_by_position = partial(_step, sizes=_in_order)
_tiled = partial(_step, sizes=_halo, work=halo)
_POSITIONS = {"GROUP": 8, "POSITIONS": 4}
_vectors = partial(
    _tiled, work=partial(halo, width=4), parameters=_POSITIONS, refusal=_whole_vectors
)
_product = partial(_step, sizes=_implicit, work=implicit, refusal=_unfit_patches)


def _layer(channels: int, filters: int, size: int, window: int, stride: int) -> ConvolutionShape:
    """A layer of a network on 32 images, with a padding of half its window."""
    square = {"height": size, "width": size, "window_height": window, "window_width": window}
    padding = window // 2
    return ConvolutionShape(32, channels, filters=filters, stride=stride, padding=padding, **square)


_LAYERS = (
    (3, 64, 224, 7, 2),
    (64, 64, 56, 3, 1),
    (128, 128, 28, 3, 1),
    (256, 256, 14, 3, 1),
    (512, 512, 7, 3, 1),
    (64, 256, 56, 1, 1),
    (256, 512, 56, 1, 2),
    (48, 192, 35, 5, 1),
)
"""Typical layers: channels, filters, image size, window size, stride."""

CONVOLUTION = Ladder(
    "conv",
    "convolution, forward, float32, NCHW",
    ConvolutionShape(batch=32, channels=32, height=58, width=58, filters=32),
    (
        _by_plane(
            "naive",
            work=partial(direct, instructions=(10, 22, 20), images_in_turn=True),
            refusal=_plain_only,
        ),
        _by_plane("general", work=partial(direct, instructions=(16, 22, 20), images_in_turn=True)),
        _by_position(
            "coalesced",
            work=partial(direct, instructions=(16, 22, 20), in_order=True),
            helps=("uncoalesced accesses", "too few blocks", "tail"),
        ),
        _by_position("readonly", work=partial(direct, instructions=(16, 22, 20), in_order=True)),
        _by_position(
            "texture",
            work=partial(direct, instructions=(16, 22, 20), in_order=True, padded=True),
        ),
        _by_position(
            "constant",
            work=partial(direct, instructions=(15, 22, 20), in_order=True, constant=True),
            refusal=_fits_constant_memory,
            constants={"weights": "w"},
            helps=("load units",),
        ),
        _tiled(
            "tiled",
            work=partial(halo, instructions=(12, 12, 11)),
            helps=("load units", "L2", "uncoalesced accesses"),
        ),
        _tiled("unrolled", helps=("issue",)),
        _tiled("registers", parameters={"GROUP": 8}, helps=("shared memory", "L2", "latency")),
        _tiled("positions", parameters=_POSITIONS, helps=("shared memory", "L2", "latency")),
        _vectors("vectors", helps=("shared memory", "issue")),
        _vectors(
            "bounds", parameters={**_POSITIONS, "RESIDENT": 2}, helps=("occupancy", "latency")
        ),
        _vectors("fused", helps=("memory",)),
        _vectors("halves", work=halo_float16, helps=("memory", "L2")),
        _product(
            "columns",
            work=partial(implicit, unfolded=True),
            parameters={"TILE_DEPTH": 8, "RESIDENT": 2},
            before=(KernelBefore(name="unfold", sizes=_unfold, work=unfold),),
            scratch=_matrix,
            helps=("shared memory", "issue", "latency", "load units"),
        ),
        _product(
            "implicit",
            parameters={"TILE_DEPTH": 8, "RESIDENT": 2},
            helps=("shared memory", "issue", "latency", "load units", "memory"),
        ),
        _product(
            "async",
            parameters={"TILE_DEPTH": 8, "STAGES": 3, "RESIDENT": 2},
            helps=("latency", "occupancy"),
        ),
        _step(
            "fft",
            sizes=fft_work.sizes,
            work=fft_work.work,
            parameters={"SIZE": 16, "TILE_DEPTH": 8},
            refusal=fft_work.unfit,
            before=fft_work.BEFORE,
            scratch=fft_work.scratch,
            helps=("arithmetic",),
        ),
        _product(
            "tensor",
            work=tensor,
            parameters={"TILE_DEPTH": 32, "RESIDENT": 2},
            refusal=_unfit_tensor,
            helps=("arithmetic", "shared memory", "memory", "L2"),
        ),
    ),
    convolve,
    {
        f"{channels}-{filters}@{size},{window}/{stride}": _layer(
            channels, filters, size, window, stride
        )
        for channels, filters, size, window, stride in _LAYERS
    },
    worked_examples,
)
