"""Kernels that pick channels of one or several images.

Where they lie side by side, a block gathers the channels of some pixels in shared memory, source
after source, so that neighbouring threads read neighbouring channels, and writes them in packs.
Elements are moved as integers of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from ...graph.operators import TakeChannels
from ...graph.types import ITEMSIZE, TensorType
from ...kernels.ops.indexing import lower_take_channels
from ...kernels.ops.pitched import Pitched
from ..codegen.code import Code
from .kernels import SCHEDULE, Launch
from .tensor import Tensor

THREADS = 256
ELEMENTS = (2048, 512)
"""What a block gathers at once; the fewer where the more make too few blocks."""
PLENTY = 264
"""Blocks that give every multiprocessor work."""
MOST_SIDE_BY_SIDE = 4096
"""Channels of a pixel of which shared memory holds one in any dtype."""

_WIDEST = 16  # bytes of one access


_RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def print_take_channels(
    op: TakeChannels, batch: int, sources: Sequence[Tensor], target: Tensor
) -> tuple[Launch, np.ndarray]:
    """The kernel and its table; pointers are the sources, the table (int64), and the target.

    All lie in one layout.
    """
    if not all(tensor.is_planar for tensor in (*sources, target)):
        return _side_by_side(op, batch, sources, target)
    kernel = lower_take_channels(
        op, [_pitched(tensor, batch) for tensor in (*sources, target)], SCHEDULE
    )
    return Launch.of(kernel), kernel.tables[0]


def _pitched(x: Tensor, batch: int) -> Pitched:
    type = TensorType((batch, x.channels, x.rows, x.columns), x.dtype)
    return Pitched(type, x.image, x.offset)


def _side_by_side(
    op: TakeChannels, batch: int, sources: Sequence[Tensor], target: Tensor
) -> tuple[Launch, np.ndarray]:
    """The table: for each source the channels taken of it, and in the upper 32 bits those that
    they become."""
    channels, size = target.channels, ITEMSIZE[target.dtype]
    total = batch * target.rows * target.columns
    many, few = ELEMENTS
    pixels = max(1, (many if total * channels >= many * PLENTY else few) // channels)
    pixels -= pixels % 8 if pixels > 8 else 0
    taken = [
        [(channel, i) for i, (source, channel) in enumerate(op.picks) if source == k]
        for k in range(len(sources))
    ]
    code = Code()
    with code.block(_head(sources, target)):
        code.line("MD_SHARED;")
        code.line(f"{_raw(target)} *tile = ({_raw(target)} *)md_shared;")
        code.line(f"const long long first = blockIdx.x * {pixels}ll;")
        code.line(f"const int most = {total} - first < {pixels} ? {total} - first : {pixels};")
        begin = 0
        for k, (x, picks) in enumerate(zip(sources, taken, strict=True)):
            if picks:
                _print_read(code, k, x, len(picks), begin, pixels)
            begin += len(picks)
        for k, (_, picks) in enumerate(zip(sources, taken, strict=True)):
            if picks:
                _print_gathered(code, k, len(picks), pixels, channels)
        code.line("__syncthreads();")
        _print_write(code, target, pixels, total)
    blocks = -(-total // pixels)
    table = np.array([at | to << 32 for picks in taken for at, to in picks], np.int64)
    return Launch.named("channels", code, blocks, THREADS, pixels * channels * size), table


def _print_read(code: Code, k: int, x: Tensor, count: int, begin: int, pixels: int) -> None:
    """All of a thread's elements are on their way before the first is waited for."""
    rounds = -(-pixels * count // THREADS)
    code.line(f"{_raw(x)} v{k}[{rounds}];")
    code.line(f"int to{k}[{rounds}];")
    code.line("#pragma unroll")
    with code.block(f"for (int j = 0; j < {rounds}; j++)"):
        code.line(f"const int t = threadIdx.x + j * {THREADS}, p = t / {count};")
        code.line(f"to{k}[j] = -1;")
        with code.block("if (p < most)"):
            code.line(f"const long long pick = picks[{begin} + t % {count}];")
            code.line(f"to{k}[j] = (int)(pick >> 32);")
            place = f"(first + p) * {_pixel(x)} + {x.offset} + (int)pick"
            code.line(f"v{k}[j] = x{k}[{place}];")


def _print_gathered(code: Code, k: int, count: int, pixels: int, channels: int) -> None:
    code.line("#pragma unroll")
    with code.block(f"for (int j = 0; j < {-(-pixels * count // THREADS)}; j++)"):
        code.line(f"const int p = (threadIdx.x + j * {THREADS}) / {count};")
        code.line(f"if (to{k}[j] >= 0) tile[p * {channels} + to{k}[j]] = v{k}[j];")


def _print_write(code: Code, target: Tensor, pixels: int, total: int) -> None:
    """In packs: of all pixels where nothing lies between them, else of each."""
    channels, most = target.channels, _WIDEST // ITEMSIZE[target.dtype]
    dense = _pixel(target) == channels
    if dense:
        pack = gcd(most, pixels * channels, total * channels, target.offset)
        packs = f"most * {channels} / {pack}"
    else:
        pack = gcd(most, channels, _pixel(target), target.offset)
        packs = f"most * {channels // pack}"
    code.line(f"y += first * {_pixel(target)} + {target.offset};")
    with code.block(f"for (int t = threadIdx.x; t < {packs}; t += {THREADS})"):
        if dense:
            code.line(f"const int p = t * {pack};")
        else:
            across = channels // pack
            code.line(f"const int p = t / {across} * {_pixel(target)} + t % {across} * {pack};")
        code.line(_copied("y + p", f"tile + t * {pack}", pack, target))


def _pixel(tensor: Tensor) -> int:
    """From one pixel to the next, also of images of one."""
    return tensor.image // (tensor.rows * tensor.columns)


def _copied(to: str, source: str, pack: int, target: Tensor) -> str:
    size = pack * ITEMSIZE[target.dtype]
    if pack == 1:
        return f"*({to}) = *({source});"
    return f"*(md_word<{size}>::type *)({to}) = *(const md_word<{size}>::type *)({source});"


def _head(sources: Sequence[Tensor], target: Tensor) -> str:
    pointers = [f"const {_raw(x)} *__restrict__ x{k}" for k, x in enumerate(sources)]
    pointers += ["const long long *__restrict__ picks", f"{_raw(target)} *__restrict__ y"]
    return f'extern "C" __global__ void @({", ".join(pointers)})'


def _raw(tensor: Tensor) -> str:
    return _RAW[ITEMSIZE[tensor.dtype]]
