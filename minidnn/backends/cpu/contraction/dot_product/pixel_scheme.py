"""How the gradient of a convolution for its weight is cut into products of pairs of pixels: how
pixels are packed, what a task sums up, and where all of that lies in its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from minidnn.graph.operators import Conv2dWeightGradient

from ...isa import Isa
from ...tensor import Tensor
from .products import LINE, PAIRS, Products

LANES = 16
_ENOUGH_TASKS = 32
"""So many tasks keep all threads busy: then the batch is not cut."""
_PIXELS = 1024
"""Of a chunk, at most, unless one row has more: its packed values stay in a second-level cache."""
_SUMS_BYTES = 448 << 10
"""Of a task, at most: they stay there, too."""
_ROWS = 256
"""Of pixels that a task packs, at most."""


@dataclass(frozen=True)
class PixelScheme:
    """How pixels are packed and sums are cut.

    Attributes:
        batch: images.
        x, gradient: how the operands lie.
        rows: of pixels in a product, ``row_tiles`` of which a task has.
        vectors: of output channels in a product, ``out_tiles`` of which a task has.
        images, height: images of a chunk, and rows of the gradient of each.
        parts: of the batch.
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
        """Whether each tap of a row has rows of pixels of its own."""
        return self.x.block == 1

    @property
    def taps(self) -> tuple[int, int]:
        """Of a product's rows."""
        rows, columns = self.op.kernel
        return (rows, 1) if self.is_spread else (rows, columns)

    @property
    def rows_of_group(self) -> int:
        """Rows of pixels of all input channels of a group."""
        return self.inputs * prod(self.op.kernel) // prod(self.taps)

    @property
    def across(self) -> int:
        """Tasks that have all rows of pixels between them."""
        return -(-self.rows_of_group // (self.rows * self.row_tiles))

    @property
    def out_tasks(self) -> int:
        """Tasks that have all output channels of a group between them."""
        return -(-self.outputs // (self.vectors * self.out_tiles * LANES))

    @property
    def tasks(self) -> int:
        """Of one part."""
        return self.groups * self.out_tasks * self.across

    # Where pixels lie

    @cached_property
    def phases(self) -> tuple[list[int], list[int]]:
        """The first rows and columns of the input that taps read, up to one stride."""
        op = self.op.convolution
        rows, columns = (
            sorted({tap * apart % step for tap in range(count)})
            for count, apart, step in zip(self.taps, op.dilation, op.stride, strict=True)
        )
        return rows, columns

    def reach(self, axis: int) -> int:
        """How many rows or columns of a phase the last tap lies behind the first."""
        op = self.op.convolution
        return (self.taps[axis] - 1) * op.dilation[axis] // op.stride[axis]

    @property
    def width(self) -> int:
        """Pixels from a packed row to the next: an even number."""
        return -(-(self.gradient.columns + self.reach(1)) // 2) * 2

    @property
    def packed_height(self) -> int:
        return self.height + self.reach(0)

    @property
    def pixels(self) -> int:
        """Of a phase of all images of a chunk."""
        return self.images * self.packed_height * self.width

    @property
    def blocks(self) -> int:
        """Lines of pixels that are multiplied."""
        last = (self.images - 1) * self.packed_height + self.height
        return -(-last * self.width // PAIRS.block)

    @property
    def step(self) -> int:
        """Bytes from a row of pixels to the next: few numbers, which stand in the text, and not
        such that rows collide in caches."""
        rows, columns = self.phases
        pixels = len(rows) * len(columns) * self.pixels + PAIRS.block + self.reach(1)
        return -(-2 * pixels // 1024) * 1024 + LINE

    @property
    def shifts(self) -> list[int]:
        """Pixels that each tap begins behind a row's first."""
        op, (rows, columns) = self.op.convolution, self.phases
        found = []
        for down in range(self.taps[0]):
            for across in range(self.taps[1]):
                y, x = down * op.dilation[0], across * op.dilation[1]
                phase = rows.index(y % op.stride[0]) * len(columns) + columns.index(
                    x % op.stride[1]
                )
                place = y // op.stride[0] * self.width + x // op.stride[1]
                found.append(phase * self.pixels + place)
        return found

    @property
    def chunks_of_image(self) -> int:
        return -(-self.gradient.rows // self.height)

    @property
    def chunks(self) -> int:
        return -(-self.batch // self.images) * self.chunks_of_image

    # Memory

    @property
    def tile(self) -> int:
        """Sums of a product."""
        return self.rows * self.vectors * LANES

    @property
    def sums(self) -> int:
        """Sums of a task."""
        return self.out_tiles * self.row_tiles * prod(self.taps) * self.tile

    @property
    def scratch(self) -> dict[str, int]:
        """The bytes of a task's memory, by name."""
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
        """Of a task."""
        return sum(map(_up, self.scratch.values()))

    def products(self) -> Products:
        return Products(PAIRS, self.rows, self.vectors, self.step, self.tiles)

    def numbers(self) -> dict[str, int]:
        """What the kernel reads, by name."""
        op, x, g = self.op.convolution, self.x, self.gradient
        rows, columns = self.phases
        ends = np.cumsum([0, *(_up(bytes) for bytes in self.scratch.values())])
        places = {f"{name}_at": int(at) for name, at in zip(self.scratch, ends, strict=False)}
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
            **{"down": op.stride[0], "over": op.stride[1], "apart": op.dilation[1]},
            **{"before_y": op.padding[0][0], "before_x": op.padding[1][0]},
            **{"phase_rows": len(rows), "phase_columns": len(columns)},
            **places,
        }

    def table(self) -> np.ndarray:
        """The numbers, the phases and the shifts, seen as float32."""
        rows, columns = self.phases
        told = [*self.numbers().values(), *rows, *columns, *self.shifts]
        return np.array(told, np.int32).view(np.float32)


def _up(bytes: int) -> int:
    return -(-bytes // LINE) * LINE


def choose_pixels(
    op: Conv2dWeightGradient, batch: int, x: Tensor, gradient: Tensor, isa: Isa
) -> PixelScheme:
    """How a gradient is computed."""
    tiles = isa.products == "tiles"
    vectors = min(2, -(-gradient.channels // op.convolution.groups // LANES))
    least = PixelScheme(op, batch, x, gradient, tiles, 32 if tiles else 8, 1, vectors, 1)
    taps = prod(least.taps)
    most = 4 if taps > 1 else 8
    out_tiles = _shared(-(-least.outputs // (vectors * LANES)), most)
    room = min(_SUMS_BYTES // (4 * out_tiles * taps * least.tile), _ROWS // least.rows)
    unit = max(1, LANES // least.rows)  # tasks begin with whole blocks of channels
    row_tiles = unit * _shared(-(-least.rows_of_group // (least.rows * unit)), room // unit)
    if least.is_spread:  # so few that their weights are written in one piece
        row_tiles = -(-least.rows_of_group // least.rows)
    found = PixelScheme(
        *(op, batch, x, gradient, tiles, least.rows, row_tiles, vectors, out_tiles),
        height=gradient.rows,
    )
    pixels = _PIXELS if taps > 1 else _PIXELS // 2
    if found.pixels > pixels:
        most = max(1, pixels // found.width - found.reach(0))
        height = _shared(gradient.rows, most)
        found = replace(found, height=height)
    else:
        found = replace(found, images=_shared(batch, pixels // found.pixels))
    parts = min(found.chunks, -(-_ENOUGH_TASKS // found.tasks))
    return replace(found, parts=parts)


def _shared(count: int, most: int) -> int:
    """So many of ``count`` at a time, at most ``most``, that the last time has nearly as many."""
    return -(-count // -(-count // max(1, most)))
