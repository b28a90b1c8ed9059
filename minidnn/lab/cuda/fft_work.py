"""The launches of a convolution by FFT, and the memory accesses and arithmetic of its kernels.

Overlapping input tiles and the filters are transformed, their spectra are multiplied as one complex
matrix product for each frequency, and the products are transformed back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..access import FMA_CYCLES, L2_CYCLES, SHARED_CYCLES, WARP, Access, Work, lanes, sample, turns
from ..operands import ConvolutionShape
from ..step import Block, Parameters
from .step import KernelBefore, Sizes, why_no_static

SIZES = (8, 16, 32)
_BLOCKS, _CHANNELS, _FREQUENCIES = 16, 4, 8
"""How many blocks, channels and frequencies are sampled."""
_EACH = 4
"""Rows, and columns, of the register tile of a thread in the complex product."""
_BUTTERFLY = 10
"""Instructions of a butterfly of two elements, six of them arithmetic."""
_COPY_INSTRUCTIONS = 20
"""Instructions to load or store one element, its address included."""


@dataclass(frozen=True)
class Tiles:
    """The tiling of a convolution's input for the FFT; tiles overlap by the window.

    Attributes:
        shape: of the convolution.
        block: threads of a block.
        size: rows, and columns, of a tile: a power of two.
    """

    shape: ConvolutionShape
    block: Block
    size: int

    @property
    def half(self) -> int:
        """Columns of a spectrum that are stored: the others are their conjugates."""
        return self.size // 2 + 1

    @property
    def frequencies(self) -> int:
        return self.size * self.half

    @property
    def of_block(self) -> int:
        """Tiles that a block transforms."""
        return self.block[0] * self.block[1] // self.size

    @property
    def threads(self) -> int:
        return self.of_block * self.size

    @property
    def outputs(self) -> tuple[int, int]:
        """Outputs of a tile, down and across."""
        shape = self.shape
        spans = ((shape.window_height - 1), (shape.window_width - 1))
        down, across = ((self.size - n * shape.dilation - 1) // shape.stride + 1 for n in spans)
        return down, across

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles of an image, down and across."""
        down, across = self.outputs
        return -(-self.shape.out_height // down), -(-self.shape.out_width // across)

    @cached_property
    def places(self) -> int:
        """Tiles of all images."""
        return self.shape.batch * self.grid[0] * self.grid[1]

    @property
    def shared_bytes(self) -> int:
        return 8 * self.threads * (self.size + 1)


def _tiles(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Tiles:
    return Tiles(shape, block, parameters["SIZE"])


def unfit(shape: ConvolutionShape, block: Block, parameters: Parameters) -> str | None:
    """Why this shape, or block, does not suit the FFT step; None if it does."""
    size, threads = parameters["SIZE"], block[0] * block[1]
    if size not in SIZES:
        return f"SIZE={size}; valid are {', '.join(map(str, SIZES))}"
    if threads < size:
        return f"a block of {threads} threads; this step wants {size} or more"
    window = max(shape.window_height, shape.window_width)
    if (span := (window - 1) * shape.dilation + 1) > size:
        return f"a window of {span} numbers; a tile has {size} a row"
    return why_no_static(8 * parameters["TILE_DEPTH"] * _EACH * sum(block))


def _of_images(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    return _transformed(_tiles(shape, block, parameters), shape.channels)


def sizes(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    """The launch of the inverse transform."""
    return _transformed(_tiles(shape, block, parameters), shape.filters)


def _transformed(tiles: Tiles, planes: int) -> Sizes:
    blocks = -(-tiles.places // tiles.of_block)
    return (blocks, planes, 1), (tiles.threads, 1, 1), tiles.shared_bytes


def _of_filters(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    tiles = _tiles(shape, block, parameters)
    blocks = -(-shape.channels * shape.filters // tiles.of_block)
    return (blocks, 1, 1), (tiles.threads, 1, 1), tiles.shared_bytes


def _of_products(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Sizes:
    tiles = _tiles(shape, block, parameters)
    across, down = -(-tiles.places // (_EACH * block[0])), -(-shape.filters // (_EACH * block[1]))
    return (across, down, tiles.frequencies), (*block, 1), 0


def scratch(shape: ConvolutionShape, block: Block, parameters: Parameters) -> dict[str, int]:
    """The arrays of spectra, in floats: two for each complex number."""
    tiles = _tiles(shape, block, parameters)
    each = 2 * tiles.frequencies
    return {
        "spectra_x": each * shape.channels * tiles.places,
        "spectra_w": each * shape.channels * shape.filters,
        "spectra_y": each * shape.filters * tiles.places,
    }


def _images(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    tiles = _tiles(shape, block, parameters)
    blocks = -(-tiles.places // tiles.of_block)
    sampled, planes = sample(blocks, _BLOCKS), sample(shape.channels, _CHANNELS)
    share = blocks * shape.channels / (len(sampled) * len(planes))
    element = turns(tiles.threads, tiles.of_block * tiles.size**2)
    tile, inner = np.divmod(element, tiles.size**2)
    flat_tile = sampled.reshape(-1, 1, 1, 1) * tiles.of_block + tile
    down, across = tiles.grid
    row = flat_tile // across % down * tiles.outputs[0] * shape.stride - shape.padding
    column = flat_tile % across * tiles.outputs[1] * shape.stride - shape.padding
    row, column = row + inner // tiles.size, column + inner % tiles.size
    active = (element >= 0) & (flat_tile < tiles.places) & (row >= 0) & (row < shape.height)
    active = active & (column >= 0) & (column < shape.width)
    plane = flat_tile // (down * across) * shape.channels + planes.reshape(1, -1, 1, 1)
    at = np.where(active, (plane * shape.height + row) * shape.width + column, -1)
    x = Access("x", "global", at.reshape(len(sampled), -1, WARP), share)
    frequency, tile = _frequencies(tiles)
    flat_tile = sampled.reshape(-1, 1, 1, 1) * tiles.of_block + tile
    at = (frequency * shape.channels + planes.reshape(1, -1, 1, 1)) * tiles.places + flat_tile
    at = np.where((frequency >= 0) & (flat_tile < tiles.places), 2 * at, -1)
    written = at.reshape(len(sampled), -1, WARP)
    spectra = Access("spectra_x", "global", written, share, store=True, width=2)
    return _transform(tiles, "x", (x, spectra), blocks * shape.channels)


def _filters(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    tiles = _tiles(shape, block, parameters)
    pairs = shape.channels * shape.filters
    blocks = -(-pairs // tiles.of_block)
    sampled = sample(blocks, _BLOCKS)
    share = blocks / len(sampled)
    element = turns(tiles.threads, tiles.of_block * tiles.size**2)
    tile, inner = np.divmod(element, tiles.size**2)
    row, column = np.divmod(inner, tiles.size)
    pair = sampled.reshape(-1, 1, 1) * tiles.of_block + tile
    active = (element >= 0) & (pair < pairs)
    for along, count in ((row, shape.window_height), (column, shape.window_width)):
        active = active & (along % shape.dilation == 0) & (along // shape.dilation < count)
    filter = pair % shape.filters * shape.channels + pair // shape.filters
    at = (filter * shape.window_height + row // shape.dilation) * shape.window_width
    w = Access("w", "global", np.where(active, at + column // shape.dilation, -1), share)
    frequency, tile = _frequencies(tiles)
    pair = sampled.reshape(-1, 1, 1) * tiles.of_block + tile
    at = np.where((frequency >= 0) & (pair < pairs), 2 * (frequency * pairs + pair), -1)
    spectra = Access("spectra_w", "global", at, share, store=True, width=2)
    return _transform(tiles, "w", (w, spectra), blocks)


def work(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    """Returns the work of the inverse transform."""
    tiles = _tiles(shape, block, parameters)
    blocks = -(-tiles.places // tiles.of_block)
    sampled, planes = sample(blocks, _BLOCKS), sample(shape.filters, _CHANNELS)
    share = blocks * shape.filters / (len(sampled) * len(planes))
    frequency, tile = _frequencies(tiles)
    flat_tile = sampled.reshape(-1, 1, 1, 1) * tiles.of_block + tile
    at = (frequency * shape.filters + planes.reshape(1, -1, 1, 1)) * tiles.places + flat_tile
    at = np.where((frequency >= 0) & (flat_tile < tiles.places), 2 * at, -1)
    spectra = Access("spectra_y", "global", at.reshape(len(sampled), -1, WARP), share, width=2)
    own_down, own_across = tiles.outputs
    down, across = tiles.grid
    element = turns(tiles.threads, tiles.of_block * own_down * own_across)
    flat_tile = sampled.reshape(-1, 1, 1, 1) * tiles.of_block + element // (own_down * own_across)
    row = flat_tile // across % down * own_down + element // own_across % own_down
    column = flat_tile % across * own_across + element % own_across
    active = (element >= 0) & (flat_tile < tiles.places)
    active = active & (row < shape.out_height) & (column < shape.out_width)
    plane = flat_tile // (down * across) * shape.filters + planes.reshape(1, -1, 1, 1)
    at = np.where(active, (plane * shape.out_height + row) * shape.out_width + column, -1)
    y = Access("y", "global", at.reshape(len(sampled), -1, WARP), share, store=True)
    return _transform(tiles, "y", (spectra, y), blocks * shape.filters)


def _frequencies(tiles: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """The frequencies that threads read or write, and their tiles in the block."""
    element = turns(tiles.threads, tiles.of_block * tiles.frequencies)
    return np.divmod(element, tiles.of_block)


def _transform(tiles: Tiles, name: str, accesses: tuple[Access, ...], blocks: float) -> Work:
    """Adds to ``accesses`` the 1-D transforms in shared memory: all rows and half of the columns of
    a block's tiles."""
    size, row = tiles.size, tiles.size + 1
    thread = lanes(tiles.threads)
    tile, own = np.divmod(thread, size)
    along = np.arange(size).reshape(-1, 1, 1)
    rows = np.where(thread >= 0, (tile * size + own) * row + along, -1)
    columns = (tile * size + along) * row + own
    columns = np.where((thread >= 0) & (own < tiles.half), columns, -1)
    shared: tuple[Access, ...] = tuple(
        Access(name, "shared", np.where(at >= 0, 2 * at, -1).reshape(1, -1, WARP), blocks, store, 2)
        for at in (rows, columns)
        for store in (False, True)
    )
    lines = blocks * len(thread) * 2
    butterflies = lines * size // 2 * (size.bit_length() - 1)
    copies = sum(one.requests for one in accesses)
    once = 2 * (SHARED_CYCLES + size // 2 * (size.bit_length() - 1) * FMA_CYCLES)
    return Work(
        (*accesses, *shared),
        6 * butterflies,
        _BUTTERFLY * butterflies
        + sum(one.requests for one in shared)
        + copies * _COPY_INSTRUCTIONS,
        L2_CYCLES + once,
    )


def _products(shape: ConvolutionShape, block: Block, parameters: Parameters) -> Work:
    tiles, deep = _tiles(shape, block, parameters), parameters["TILE_DEPTH"]
    rows, columns, threads = _EACH * block[1], _EACH * block[0], block[0] * block[1]
    down, across = -(-shape.filters // rows), -(-tiles.places // columns)
    steps, full_steps = -(-shape.channels // deep), max(1.0, shape.channels / deep)
    blocks = down * across * tiles.frequencies
    tops, lefts = sample(down, _CHANNELS) * rows, sample(across, _BLOCKS) * columns
    frequencies = sample(tiles.frequencies, _FREQUENCIES)

    def copied(name: str, first: np.ndarray, wide: int, count: int) -> tuple[Access, Access]:
        k, column = np.divmod(turns(threads, deep * wide), wide)
        column = np.where(k >= 0, column, 0)
        place = first.reshape(-1, 1, 1, 1) + column
        there = (k >= 0) & (k < shape.channels) & (place < count)
        at = (frequencies.reshape(1, -1, 1, 1) * shape.channels + k) * count + place
        at = np.where(there, 2 * at, -1).reshape(len(first), -1, WARP)
        times = blocks / (len(first) * len(frequencies)) * full_steps
        shared_index = np.where(k >= 0, 2 * (k * wide + column), -1)[None]
        return (
            Access(name, "global", at, times, width=2),
            Access(name, "shared", shared_index, blocks * steps, store=True, width=2),
        )

    thread = lanes(threads)
    k, each = np.arange(deep).reshape(-1, 1, 1, 1), np.arange(_EACH).reshape(-1, 1, 1)
    reads = [
        Access(
            name,
            "shared",
            np.where(thread >= 0, 2 * at, -1).reshape(1, -1, WARP),
            blocks * steps,
            width=2,
        )
        for name, at in (
            ("spectra_w", k * rows + thread // block[0] + each * block[1]),
            ("spectra_x", k * columns + thread % block[0] + each * block[0]),
        )
    ]
    row = tops.reshape(-1, 1, 1, 1, 1) + thread // block[0] + each.reshape(-1, 1, 1, 1) * block[1]
    column = lefts.reshape(-1, 1, 1, 1, 1, 1) + thread % block[0] + each * block[0]
    there = (thread >= 0) & (row < shape.filters) & (column < tiles.places)
    at = np.where(there, 2 * (row * tiles.places + column), -1).reshape(
        len(lefts) * len(tops), -1, WARP
    )
    y = Access("spectra_y", "global", at, blocks / (len(tops) * len(lefts)), store=True, width=2)
    of_w, of_x = (
        copied("spectra_w", tops, rows, shape.filters),
        copied("spectra_x", lefts, columns, tiles.places),
    )
    products = blocks * steps * len(thread) * deep * _EACH**2 * 4
    copies = sum(one.at.shape[1] / len(frequencies) for one in (of_w[0], of_x[0]))
    return Work(
        (*of_w, *of_x, *reads, y),
        products,
        products
        + sum(one.requests for one in reads)
        + blocks * steps * copies * _COPY_INSTRUCTIONS,
        steps * (L2_CYCLES + 2 * SHARED_CYCLES + deep * 4 * _EACH**2),
        ("spectra_x",),
    )


BEFORE: tuple[KernelBefore, ...] = (
    KernelBefore(name="images", sizes=_of_images, work=_images),
    KernelBefore(name="filters", sizes=_of_filters, work=_filters),
    KernelBefore(name="products", sizes=_of_products, work=_products),
)
"""The kernels that precede the inverse transform."""
