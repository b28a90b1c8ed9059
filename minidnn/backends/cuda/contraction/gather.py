"""Images of few channels, gathered for tensor cores.

A convolution of three channels leaves most of a tensor core's inner dimension empty.  With stride
s, the pixels of each s x s block side by side (space to depth) make s * s times as many channels,
and a convolution of stride 1 with fewer taps.  The gathered image includes the padding, and its
channels are padded to a whole access of 16 bytes.

    y[o] = sum over i of w[i] x[s o + i - p],  i = s b + d
         = sum over b, d of w'[b, d] g[o + b, d],  g[q, d] = x[s q + d - p],  w'[b, d] = w[s b + d]

In tf32 cuDNN's engines take 32 channels of a tap at once, of which such blocks have 4 to 12.  There
blocks are as wide as the window and overlap, so that more is written, and each row of the window is
one tap: on an H200 ResNet's first convolution took 0.66 of the time at batch 32.  In float16 and
bfloat16 our own kernels read neighbouring blocks from shared memory, and writing more took longer.
Blocks of more than 48 channels would take too much memory for what they save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....cudnn.graph.spec import ALIGNMENT
from ....graph.operators import Conv2d
from ....graph.types import INT8_DTYPES, ITEMSIZE
from ....kernels.ir import Param, Write, select
from ....kernels.ops.planes import PlaneGrid
from ...codegen.code import Code
from ..kernels import ANY_SIZE, Launch
from ..prelude import TYPES
from ..tensor import Tensor

Pair = tuple[int, int]
_FEW_CHANNELS = 4
_AT_ONCE = 32  # channels of a tap that engines take at once, in tf32
_WIDEST = 48  # channels of a block that is as wide as the window
_ACCESS = 16  # bytes
_THREADS = 128


@dataclass(frozen=True)
class Gathering:
    """How an image is gathered into blocks.

    Attributes:
        stride: the distance of blocks, in rows and columns of the image.
        padding: rows and columns of padding before the first ones.
        columns: columns of a block: as many as the stride, or as a whole window.
        fill: the value of the padding.
    """

    stride: Pair
    padding: Pair
    columns: int
    fill: int = 0

    def channels(self, channels: int, dtype: str) -> int:
        """Channels of the gathered image, padded to an integer of accesses."""
        lanes = _ACCESS // ITEMSIZE[dtype]
        return -(-channels * self.stride[0] * self.columns // lanes) * lanes

    def taps(self, kernel: Pair) -> Pair:
        """Blocks that a window reads, down and across."""
        rows, columns = kernel
        return -(-rows // self.stride[0]), -(-columns // self.columns)

    def gathered(self, x: Tensor, output: Pair, taps: Pair) -> Tensor:
        """The layout of the gathered image for an output of that size: dense, channels last."""
        rows, columns = (o + t - 1 for o, t in zip(output, taps, strict=True))
        wide = self.channels(x.channels, x.dtype)
        row = columns * wide
        return Tensor(x.dtype, wide, rows, columns, rows * row, 1, row, wide)

    def filter(self, weight: np.ndarray, dtype: str) -> np.ndarray:
        """The filter (O, C, KH, KW) for gathered images, as (O, rows, columns, channels)."""
        out, channels, *kernel = weight.shape
        down, across = self.stride[0], self.columns
        rows, columns = self.taps((kernel[0], kernel[1]))
        padded = np.zeros((out, channels, rows * down, columns * across), weight.dtype)
        padded[:, :, : kernel[0], : kernel[1]] = weight
        blocks = padded.reshape(out, channels, rows, down, columns, across)
        ordered = blocks.transpose(0, 2, 4, 3, 5, 1).reshape(out, rows, columns, -1)
        filled = np.zeros((out, rows, columns, self.channels(channels, dtype)), weight.dtype)
        filled[..., : ordered.shape[-1]] = ordered
        return filled


def gather_of(
    stride: Pair, padding: Pair, kernel: Pair, channels: int, dtype: str, fill: int = 0
) -> Gathering:
    """How a convolution with that many channels gathers its image; "float32" stands for tf32."""
    narrow, wide = (channels * stride[0] * columns for columns in (stride[1], kernel[1]))
    spans_window = dtype == "float32" and narrow < _AT_ONCE and wide <= _WIDEST
    return Gathering(stride, padding, kernel[1] if spans_window else stride[1], fill)


def print_gather(batch: int, x: Tensor, made: Tensor, how: Gathering) -> Launch:
    """The kernel that gathers; its pointers are the image and the blocks.  A thread writes 16 bytes
    of a block and the next thread the next ones, so the writes of a warp are contiguous."""
    lanes = _ACCESS // made.itemsize
    chunks = made.channels // lanes
    count = batch * made.rows * made.columns * chunks
    index = "unsigned int" if count < 1 << 31 else "unsigned long long"
    code = Code()
    head = f"const {TYPES[x.dtype]} *x, {TYPES[made.dtype]} *y"
    with code.block(f'extern "C" __global__ void __launch_bounds__({_THREADS}) @({head})'):
        code.line(f"const {index} t = ({index})blockIdx.x * {_THREADS} + threadIdx.x;")
        code.line(f"if (t >= {count}u) return;")
        code.line(f"const int first = t % {chunks}u * {lanes};")
        code.line(f"const {index} block = t / {chunks}u;")
        code.line(f"const int left = block % {made.columns}u * {how.stride[1]} - {how.padding[1]};")
        code.line(f"const {index} line = block / {made.columns}u;")
        code.line(f"const int top = line % {made.rows}u * {how.stride[0]} - {how.padding[0]};")
        code.line(f"x += (long long)(line / {made.rows}u) * {x.image} + {x.offset};")
        code.line(f"float r[{lanes}];")
        with code.unrolled(f"for (int i = 0; i < {lanes}; i++)"):
            wide = x.channels * how.columns
            code.line(f"const int down = (first + i) / {wide}, rest = (first + i) % {wide};")
            code.line(f"const int row = top + down, column = left + rest / {x.channels};")
            inside = f"(unsigned)row < {x.rows}u && (unsigned)column < {x.columns}u"
            code.line(f"const bool inside = down < {how.stride[0]} && {inside};")
            offset = f"rest % {x.channels} * {x.channel} + row * {x.row} + column * {x.pixel}"
            if x.image >= 1 << 31:
                offset = offset.replace("* ", "* (long long)")
            code.line(f"r[i] = inside ? md_value(x[{offset}]) : {how.fill}.0f;")
        code.line(f"md_store<{lanes}>(y + (long long)t * {lanes}, r);")
    return Launch.named("gather", code, -(-count // _THREADS), _THREADS)


def print_gather_for_any_size(batch: int, x: Tensor, made: Tensor, how: Gathering) -> Launch:
    """The same for images of any spatial size; a thread writes one number."""
    grid = PlaneGrid(batch, made, ANY_SIZE)
    image, result = Param("x", x.dtype), Param("y", made.dtype, is_written=True)
    wide = x.channels * how.columns
    within_row = grid.c % wide
    row = grid.y * how.stride[0] + (grid.c // wide - how.padding[0])
    column = grid.x * how.stride[1] + (within_row // x.channels - how.padding[1])
    inside = (grid.c < how.stride[0] * wide) & (row >= 0) & (row < grid.size("rows", x.rows))
    inside = inside & (column >= 0) & (column < grid.size("columns", x.columns))
    offset = grid.place(image, x, row, column, within_row % x.channels)
    number = select(inside, image[offset].cast("float32"), float(how.fill)).cast(made.dtype)
    written = Write(result, grid.place(result, made), number)
    return Launch.of(grid.kernel("gather", (image, result), (written,)))


def wants_gather(op: Conv2d, weight: Sequence[int], precision: str) -> bool:
    """Whether a convolution's image is gathered for tensor cores: it has few channels, or, in int8
    and uint8, channels that do not fill whole accesses."""
    plain = op.groups == 1 and op.dilation == (1, 1)
    if precision in INT8_DTYPES:
        return plain and weight[1] % ALIGNMENT != 0
    return plain and weight[1] <= _FEW_CHANNELS and precision != "float32"


def gather_precision(dtype: str, tf32: bool) -> str:
    """The precision in which a contraction of images of that dtype is computed."""
    return "tf32" if tf32 and dtype not in INT8_DTYPES else dtype
