"""The scheme of bf16 dot products for the weight gradient of a convolution: how pixels are packed,
which sums a task computes, and the layout of its scratch.

The terms of these products are pixels, so a word is a pair of neighbouring pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from minidnn.graph.operators import Conv2dWeightGradient

from ...isa import Isa
from ...tensor import Tensor
from .products import BF16_PAIR, LINE, Products

LANES = 16
_ENOUGH_TASKS = 32
"""So many tasks keep all threads busy: then there is no split-K over the batch."""
_PIXELS = 1024
"""Pixels of a chunk, at most, unless one row has more: packed they stay in a second-level cache."""
_SUMS_BYTES = 448 << 10
"""Bytes of a task's sums, at most: they stay in that cache, too."""
_ROWS = 256
"""Rows of pixels that a task packs, at most."""


@dataclass(frozen=True)
class PixelScheme:
    """How pixels are packed, and how sums are split among tasks.

    A row of pixels is a packed row of one input channel: M of the products.  Vectors of output
    channels are N, pixels are K.

    Attributes:
        batch: images.
        x, gradient: the layouts of the operands.
        tiles: whether AMX tiles compute the products, or vectors.
        rows: rows of pixels in a register tile; a task has ``row_tiles`` of these tiles.
        vectors: vectors of output channels in a register tile; a task has ``out_tiles`` of these.
        images, height: images of a chunk of pixels, and rows of the gradient of each.
        parts: split-K: parts that the chunks of all images are split into.
    """

    op: Conv2dWeightGradient
    batch: int
    x: Tensor
    gradient: Tensor
    tiles: bool
    rows: int
    row_tiles: int
    vectors: int
    out_tiles: int
    images: int = 1
    height: int = 1
    parts: int = 1

    @property
    def groups(self) -> int:
        return self.op.convolution.groups

    @property
    def inputs(self) -> int:
        """Input channels of a group."""
        return self.x.channels // self.groups

    @property
    def outputs(self) -> int:
        """Output channels of a group."""
        return self.gradient.channels // self.groups

    @property
    def is_spread(self) -> bool:
        """Whether each tap of a kernel row has rows of pixels of its own."""
        return self.x.block == 1

    @property
    def taps(self) -> tuple[int, int]:
        """Rows and columns of taps that read the same packed rows of pixels."""
        rows, columns = self.op.kernel
        return (rows, 1) if self.is_spread else (rows, columns)

    @property
    def rows_of_group(self) -> int:
        """Rows of pixels of all input channels of a group."""
        return self.inputs * prod(self.op.kernel) // prod(self.taps)

    @property
    def across(self) -> int:
        """Tasks that share all rows of pixels."""
        return -(-self.rows_of_group // (self.rows * self.row_tiles))

    @property
    def out_tasks(self) -> int:
        """Tasks that share all output channels of a group."""
        return -(-self.outputs // (self.vectors * self.out_tiles * LANES))

    @property
    def tasks(self) -> int:
        """Tasks of one part (of split-K)."""
        return self.groups * self.out_tasks * self.across

    # The layout of packed pixels

    @cached_property
    def phases(self) -> tuple[list[int], list[int]]:
        """The phases of the strides that taps read: the first row and first column of each."""
        convolution = self.op.convolution
        rows, columns = (
            sorted({tap * dilation % stride for tap in range(taps)})
            for taps, dilation, stride in zip(
                self.taps, convolution.dilation, convolution.stride, strict=True
            )
        )
        return rows, columns

    def reach(self, axis: int) -> int:
        """How many rows or columns of a phase there are from the first tap to the last."""
        convolution = self.op.convolution
        return (self.taps[axis] - 1) * convolution.dilation[axis] // convolution.stride[axis]

    @property
    def width(self) -> int:
        """Pixels from a packed row of an image to the next: an even number."""
        return -(-(self.gradient.columns + self.reach(1)) // 2) * 2

    @property
    def packed_height(self) -> int:
        return self.height + self.reach(0)

    @property
    def pixels(self) -> int:
        """Pixels of a phase, of all images of a chunk."""
        return self.images * self.packed_height * self.width

    @property
    def blocks(self) -> int:
        """Lines of pixels (blocks of terms) that a product multiplies."""
        last = (self.images - 1) * self.packed_height + self.height
        return -(-last * self.width // BF16_PAIR.block)

    @property
    def step(self) -> int:
        """Bytes from a row of pixels to the next.  It is a constant of the text, so it has few
        values; none is such that rows map to the same sets of a cache."""
        rows, columns = self.phases
        pixels = len(rows) * len(columns) * self.pixels + BF16_PAIR.block + self.reach(1)
        return -(-2 * pixels // 1024) * 1024 + LINE

    @property
    def shifts(self) -> list[int]:
        """The offset of each tap from the first pixel of a row, in pixels."""
        convolution, (rows, columns) = self.op.convolution, self.phases
        shifts = []
        for down in range(self.taps[0]):
            for across in range(self.taps[1]):
                y, x = down * convolution.dilation[0], across * convolution.dilation[1]
                phase = rows.index(y % convolution.stride[0]) * len(columns) + columns.index(
                    x % convolution.stride[1]
                )
                offset = y // convolution.stride[0] * self.width + x // convolution.stride[1]
                shifts.append(phase * self.pixels + offset)
        return shifts

    @property
    def chunks_of_image(self) -> int:
        return -(-self.gradient.rows // self.height)

    @property
    def chunks(self) -> int:
        return -(-self.batch // self.images) * self.chunks_of_image

    # Memory

    @property
    def tile(self) -> int:
        """Sums of a product, that is, of a register tile."""
        return self.rows * self.vectors * LANES

    @property
    def sums(self) -> int:
        """Sums of a task."""
        return self.out_tiles * self.row_tiles * prod(self.taps) * self.tile

    @property
    def scratch(self) -> dict[str, int]:
        """The arrays in a task's scratch: bytes by name."""
        return {
            "sums": 4 * self.sums,
            "lines": 4 * LANES * self.vectors * 16 * self.blocks * self.out_tiles,
            "rows": self.step * self.rows * self.row_tiles,
            "exact": self.step * self.rows,
            "turned": 2 * LANES * self.pixels,
            "product": 4 * self.tile,
            "offsets": 4 * self.blocks,
            "ordered": 4 * LANES * self.rows * self.row_tiles * prod(self.taps),
            "seen": LINE,
        }

    @property
    def scratch_bytes(self) -> int:
        """Bytes of a task's scratch."""
        return sum(map(_up, self.scratch.values()))

    def products(self) -> Products:
        return Products(BF16_PAIR, self.rows, self.vectors, self.step, self.tiles)

    def numbers(self) -> dict[str, int]:
        """The numbers that the kernel reads when it runs, by name."""
        convolution, x, g = self.op.convolution, self.x, self.gradient
        rows, columns = self.phases
        ends = np.cumsum([0, *(_up(bytes) for bytes in self.scratch.values())])
        offsets = {f"{name}_at": int(at) for name, at in zip(self.scratch, ends, strict=False)}
        return {
            **{"inputs": self.inputs, "outputs": self.outputs},
            **{"batch": self.batch, "across": self.across, "out_tasks": self.out_tasks},
            **{"tasks": self.tasks, "parts": self.parts, "chunks": self.chunks},
            **{"row_tiles": self.row_tiles, "out_tiles": self.out_tiles, "images": self.images},
            **{"height": self.height, "packed_height": self.packed_height, "width": self.width},
            **{"of_image": self.chunks_of_image, "pixels": self.pixels, "blocks": self.blocks},
            **{"group_rows": self.rows_of_group, "sums_floats": self.sums},
            **{"taps": prod(self.taps), "kernel_columns": self.op.kernel[1]},
            **{"x_image": x.image, "x_plane": x.plane, "x_rows": x.rows, "x_columns": x.columns},
            **{"g_image": g.image, "g_plane": g.plane, "g_rows": g.rows, "g_columns": g.columns},
            **{
                "down": convolution.stride[0],
                "over": convolution.stride[1],
                "apart": convolution.dilation[1],
            },
            **{"before_y": convolution.padding[0][0], "before_x": convolution.padding[1][0]},
            **{"phase_rows": len(rows), "phase_columns": len(columns)},
            **offsets,
        }

    def table(self) -> np.ndarray:
        """The numbers, the phases and the shifts as int32, viewed as float32 like all constants."""
        rows, columns = self.phases
        integers = [*self.numbers().values(), *rows, *columns, *self.shifts]
        return np.array(integers, np.int32).view(np.float32)


def _up(bytes: int) -> int:
    return -(-bytes // LINE) * LINE


def choose_pixels(
    op: Conv2dWeightGradient, batch: int, x: Tensor, gradient: Tensor, isa: Isa
) -> PixelScheme:
    """The scheme of a weight gradient on tensors of these layouts."""
    tiles = isa.bfloat16_products == "tiles"
    vectors = min(2, -(-gradient.channels // op.convolution.groups // LANES))
    single = PixelScheme(op, batch, x, gradient, tiles, 32 if tiles else 8, 1, vectors, 1)
    taps = prod(single.taps)
    most = 4 if taps > 1 else 8
    out_tiles = _shared(-(-single.outputs // (vectors * LANES)), most)
    most_tiles = min(_SUMS_BYTES // (4 * out_tiles * taps * single.tile), _ROWS // single.rows)
    unit = max(1, LANES // single.rows)  # tasks begin with whole blocks of channels
    row_tiles = unit * _shared(-(-single.rows_of_group // (single.rows * unit)), most_tiles // unit)
    if single.is_spread:  # so few that their weights are written in one piece
        row_tiles = -(-single.rows_of_group // single.rows)
    scheme = PixelScheme(
        *(op, batch, x, gradient, tiles, single.rows, row_tiles, vectors, out_tiles),
        height=gradient.rows,
    )
    pixels = _PIXELS if taps > 1 else _PIXELS // 2
    if scheme.pixels > pixels:
        most = max(1, pixels // scheme.width - scheme.reach(0))
        height = _shared(gradient.rows, most)
        scheme = replace(scheme, height=height)
    else:
        scheme = replace(scheme, images=_shared(batch, pixels // scheme.pixels))
    parts = min(scheme.chunks, -(-_ENOUGH_TASKS // scheme.tasks))
    return replace(scheme, parts=parts)


def _shared(count: int, most: int) -> int:
    """The size, at most ``most``, of nearly equal parts of ``count``."""
    return -(-count // -(-count // max(1, most)))
