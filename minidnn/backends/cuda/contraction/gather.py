"""Images of few channels, gathered for tensor cores.

A convolution of three channels leaves most of a tensor core's inner dimension empty.  With stride
s, the pixels of each s x s block side by side make s * s times as many channels and a convolution
of stride 1 with fewer taps; the padding is written, and channels are filled up to a whole access.

    y[o] = sum over i of w[i] x[s o + i - p],  i = s b + d
         = sum over b, d of w'[b, d] g[o + b, d],  g[q, d] = x[s q + d - p],  w'[b, d] = w[s b + d]
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ....cache import digest
from ....graph.types import ITEMSIZE
from ...cpu.code import Code
from ..dialect import TYPES
from ..kernels import KernelSource, Launch
from ..tensor import Tensor

Pair = tuple[int, int]
FEW_CHANNELS = 4
_ACCESS = 16  # bytes
_THREADS = 128


@dataclass(frozen=True)
class Gather:
    """How an image becomes blocks: ``stride`` and the padding before the first row and column."""

    stride: Pair
    padding: Pair

    def channels(self, channels: int, dtype: str) -> int:
        """Of the gathered image: a whole number of accesses."""
        lanes = _ACCESS // ITEMSIZE[dtype]
        return -(-channels * self.stride[0] * self.stride[1] // lanes) * lanes

    def taps(self, kernel: Pair) -> Pair:
        """Blocks that a window reads."""
        rows, columns = (-(-k // s) for k, s in zip(kernel, self.stride, strict=True))
        return rows, columns

    def gathered(self, x: Tensor, output: Pair, kernel: Pair) -> Tensor:
        """The image of blocks for an output of that size: dense, channels last."""
        rows, columns = (o + t - 1 for o, t in zip(output, self.taps(kernel), strict=True))
        wide = self.channels(x.channels, x.dtype)
        row = columns * wide
        return Tensor(x.dtype, wide, rows, columns, rows * row, 1, row, wide)

    def filter(self, weight: np.ndarray, dtype: str) -> np.ndarray:
        """The filter (O, C, KH, KW) for gathered images, as (O, rows, columns, channels)."""
        out, channels, *kernel = weight.shape
        down, across = self.stride
        rows, columns = self.taps((kernel[0], kernel[1]))
        wide = np.zeros((out, channels, rows * down, columns * across), weight.dtype)
        wide[:, :, : kernel[0], : kernel[1]] = weight
        blocks = wide.reshape(out, channels, rows, down, columns, across)
        ordered = blocks.transpose(0, 2, 4, 3, 5, 1).reshape(out, rows, columns, -1)
        made = np.zeros((out, rows, columns, self.channels(channels, dtype)), weight.dtype)
        made[..., : ordered.shape[-1]] = ordered
        return made


def print_gather(batch: int, x: Tensor, made: Tensor, how: Gather) -> Launch:
    """The kernel that gathers; pointers are the image and the blocks.  A thread makes one."""
    count = batch * made.rows * made.columns
    lanes = _ACCESS // made.itemsize
    code = Code()
    head = f"const {TYPES[x.dtype]} *x, {TYPES[made.dtype]} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const unsigned int t = blockIdx.x * {_THREADS} + threadIdx.x;")
        code.line(f"if (t >= {count}u) return;")
        code.line(f"const int q = t % {made.columns}u, p = t / {made.columns}u % {made.rows}u;")
        code.line(f"const long long n = t / {made.rows * made.columns}u;")
        code.line(f"x += n * {x.image} + {x.offset};")
        code.line(f"y += n * {made.image} + p * {made.row} + q * {made.pixel};")
        code.line(f"const int top = p * {how.stride[0]} - {how.padding[0]};")
        code.line(f"const int left = q * {how.stride[1]} - {how.padding[1]};")
        places = product(range(how.stride[0]), range(how.stride[1]), range(x.channels))
        values = [_value(x, *place) for place in places]
        values += ["0.0f"] * (made.channels - len(values))
        for first in range(0, made.channels, lanes):
            part = ", ".join(values[first : first + lanes])
            code.line(
                f"{{ const float r[{lanes}] = {{{part}}}; md_store<{lanes}>(y + {first}, r); }}"
            )
    name = f"gather_{digest(str(code))[:20]}"
    source = KernelSource(name, str(code).replace("@", name))
    return Launch(source, (-(-count // _THREADS), 1, 1), (_THREADS, 1, 1))


def _value(x: Tensor, down: int, across: int, channel: int) -> str:
    """A pixel's channel, or zero outside of the image."""
    row, column = f"(top + {down})", f"(left + {across})"
    inside = f"(unsigned){row} < {x.rows}u && (unsigned){column} < {x.columns}u"
    place = f"{channel * x.channel} + {row} * {x.row} + {column} * {x.pixel}"
    return f"({inside} ? md_value(x[{place}]) : 0.0f)"
