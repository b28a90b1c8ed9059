"""Kernels that move elements: between layouts, into slices of concatenations, and channels that are
gathered from one or several tensors.

To gather channels of channels-last tensors, a block collects those of some pixels in shared memory,
source after source, so that neighbouring threads read neighbouring channels, and then writes them
in packs.  Elements are moved as integers of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from ...graph.operators import TakeChannels
from ...graph.types import TensorType
from ...kernels.ops.indexing import lower_take_channels
from ...kernels.ops.pitched import Pitched
from ..codegen.code import Code
from ..codegen.kernel import KernelSource
from .kernels import SCHEDULE, Launch
from .pointwise import print_pointwise
from .prelude import TYPES
from .tensor import Tensor, has_contiguous_channels

THREADS = 256
TILES = (64, 32)
"""The side of a block's tile of channels and pixels; the smaller if the larger gives few blocks."""
PLENTY = 512
"""Blocks that keep every multiprocessor busy."""
FEW_CHANNELS = 8
"""The most channels of which a thread moves all those of a pixel."""

_MOST_IN_Z = 65535  # blocks of a grid
_WIDEST = 16  # bytes of one access


def print_copy(batch: int, source: Tensor, target: Tensor) -> Launch:
    """The kernel that copies a value; pointers are source and target."""
    if source.dtype == "int32":  # the same bits are moved
        source, target = (replace(t, dtype="float32") for t in (source, target))
    if source.rows * source.columns > 1 and source.channels > 1:
        ways = ((source, target), (target, source))
        if any(has_contiguous_channels(one) and _is_last(other) for one, other in ways):
            few = source.channels <= FEW_CHANNELS or batch > _MOST_IN_Z
            return (_few if few else _tiled)(batch, source, target)
    return print_pointwise(batch, [source], target)


def _is_last(t: Tensor) -> bool:
    """Whether channels are contiguous, and the pixels of an image have a single stride."""
    return t.channel == 1 and t.row == t.columns * t.pixel


def _few(batch: int, source: Tensor, target: Tensor) -> Launch:
    """A thread moves all channels of a pixel; neighbouring threads move neighbouring pixels."""
    plane = source.rows * source.columns
    code = Code()
    with code.block(f'extern "C" __global__ void @({_parameters(source, target)})'):
        code.line("const long long t = blockIdx.x * 256ll + threadIdx.x;")
        code.line(f"if (t >= {batch * plane}) return;")
        code.line(f"const long long n = t / {plane}, p = t % {plane};")
        code.line(f"x += n * {source.image} + p * {source.pixel} + {source.offset};")
        code.line(f"y += n * {target.image} + p * {target.pixel} + {target.offset};")
        with code.unrolled(f"for (int c = 0; c < {source.channels}; c++)"):
            code.line(f"y[c * {target.channel}ll] = x[c * {source.channel}ll];")
    return Launch.named("few", code, -(-batch * plane // 256), 256)


def _tiled(batch: int, source: Tensor, target: Tensor) -> Launch:
    """A block transposes a tile of channels and pixels through shared memory.

    Threads read packs along the contiguous axis of the source and write packs along that of the
    target, as wide as alignment allows: enough bytes have to be in flight to keep memory busy.
    """
    plane, channels = source.rows * source.columns, source.channels
    to_last = has_contiguous_channels(source)
    # "inner" is the contiguous axis of the source, "outer" that of the target.
    outer, inner = (channels, plane) if to_last else (plane, channels)
    from_outer, to_inner = (
        (source.channel, target.pixel) if to_last else (source.pixel, target.channel)
    )
    reads = _pack(source, inner, source.image, from_outer, source.offset)
    writes = _pack(target, outer, target.image, to_inner, target.offset)
    most, least = TILES
    tile = most if batch * -(-outer // most) * -(-inner // most) >= PLENTY else least
    element, pitch = TYPES[source.dtype], tile + 4 // source.itemsize
    code = Code()
    with code.block(f'extern "C" __global__ void @({_parameters(source, target)})'):
        code.line("MD_SHARED;")
        code.line(f"{element} (*tile)[{pitch}] = ({element} (*)[{pitch}])md_shared;")
        # Both axes of tiles share grid x, which alone has room for planes of any size.
        tiles = -(-inner // tile)
        code.line(f"const int inner = blockIdx.x % {tiles}u * {tile};")
        code.line(f"const int outer = blockIdx.x / {tiles}u * {tile};")
        code.line(f"x += blockIdx.z * {source.image}ll + {source.offset};")
        code.line(f"y += blockIdx.z * {target.image}ll + {target.offset};")
        # All loads of a thread are in flight before it waits for the first.
        across, rows = _shares(tile, reads)
        code.line(f"const int a = threadIdx.x % {across} * {reads}, b = threadIdx.x / {across};")
        code.line(f"md_pack<{reads}, {element}> packs[{-(-tile // rows)}];")
        shares = f"for (int k = 0; k < {tile}; k += {rows})"
        with code.unrolled(shares):
            code.line("const int o = outer + b + k, i = inner + a;")
            code.line(f"if (b + k < {tile} && o < {outer} && i < {inner})")
            address = f"(x + (o * {from_outer}ll + i))"
            word = f"md_word<{reads * source.itemsize}>::type"
            code.line(f"  packs[k / {rows}].word = *(const {word} *){address};")
        with code.unrolled(shares), code.unrolled(f"for (int j = 0; j < {reads}; j++)"):
            code.line(f"if (b + k < {tile}) tile[b + k][a + j] = packs[k / {rows}].items[j];")
        code.line("__syncthreads();")
        across, rows = _shares(tile, writes)
        code.line(f"const int c = threadIdx.x % {across} * {writes}, d = threadIdx.x / {across};")
        with code.unrolled(f"for (int k = d; k < {tile}; k += {rows})"):
            code.line("const int i = inner + k, o = outer + c;")
            code.line(f"if (o >= {outer} || i >= {inner}) continue;")
            code.line(f"md_pack<{writes}, {element}> pack;")
            item = "pack.items[j] = tile[c + j][k]"
            code.unrolled_line(f"for (int j = 0; j < {writes}; j++) {item};")
            address = f"y + (i * {to_inner}ll + o)"
            wide = writes > 1 or target.itemsize > 2
            code.line(
                f"md_write_word({address}, pack.word);" if wide else f"*({address}) = *pack.items;"
            )
    grid = (tiles * -(-outer // tile), 1, batch)
    kernel = KernelSource.named("transpose", str(code))
    return Launch(kernel, grid, (THREADS, 1, 1), tile * pitch * source.itemsize)


def _pack(tensor: Tensor, run: int, *steps: int) -> int:
    """The elements of one access: ``run`` are contiguous, and runs begin at multiples of steps."""
    return gcd(_WIDEST // tensor.itemsize, run, *steps)


def _shares(tile: int, pack: int) -> tuple[int, int]:
    """How many threads cover a row of a tile, and how many rows all threads cover at once."""
    across = tile // pack
    return across, THREADS // across


def _parameters(source: Tensor, target: Tensor) -> str:
    return f"const {TYPES[source.dtype]} *x, {TYPES[target.dtype]} *y"


ELEMENTS = (2048, 512)
"""Elements that a block gathers; the smaller if the larger gives too few blocks."""
ENOUGH = 264
"""Blocks that give every multiprocessor work."""
MOST_SIDE_BY_SIDE = 4096
"""The most channels of a pixel that fit in shared memory in any dtype."""

_RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def print_take_channels(
    op: TakeChannels, batch: int, sources: Sequence[Tensor], target: Tensor
) -> tuple[Launch, np.ndarray]:
    """The kernel that gathers channels, and its table; pointers are the sources, the table (int64),
    and the target.

    All have one layout.
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
    """The kernel of channels-last tensors, and its table: source by source, the channels that are
    picked, and in the upper 32 bits the channels of the target that they become."""
    channels = target.channels
    total = batch * target.rows * target.columns
    many, few = ELEMENTS
    pixels = max(1, (many if total * channels >= many * ENOUGH else few) // channels)
    pixels -= pixels % 8 if pixels > 8 else 0
    picks_of = [
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
        for k, (x, picks) in enumerate(zip(sources, picks_of, strict=True)):
            if picks:
                _print_read(code, k, x, len(picks), begin, pixels)
            begin += len(picks)
        for k, (_, picks) in enumerate(zip(sources, picks_of, strict=True)):
            if picks:
                _print_scatter(code, k, len(picks), pixels, channels)
        code.line("__syncthreads();")
        _print_write(code, target, pixels, total)
    blocks, shared_bytes = -(-total // pixels), pixels * channels * target.itemsize
    table = np.array([at | to << 32 for picks in picks_of for at, to in picks], np.int64)
    return Launch.named("channels", code, blocks, THREADS, shared_bytes), table


def _print_read(code: Code, k: int, x: Tensor, count: int, begin: int, pixels: int) -> None:
    """Prints the loads from source ``k``; a thread has all in flight before it waits for one."""
    rounds = -(-pixels * count // THREADS)
    code.line(f"{_raw(x)} v{k}[{rounds}];")
    code.line(f"int to{k}[{rounds}];")
    with code.unrolled(f"for (int j = 0; j < {rounds}; j++)"):
        code.line(f"const int t = threadIdx.x + j * {THREADS}, p = t / {count};")
        code.line(f"to{k}[j] = -1;")
        with code.block("if (p < most)"):
            code.line(f"const long long pick = picks[{begin} + t % {count}];")
            code.line(f"to{k}[j] = (int)(pick >> 32);")
            offset = f"(first + p) * {_pixel(x)} + {x.offset} + (int)pick"
            code.line(f"v{k}[j] = x{k}[{offset}];")


def _print_scatter(code: Code, k: int, count: int, pixels: int, channels: int) -> None:
    """Prints how the elements of source ``k`` are stored in the tile, at their target channels."""
    with code.unrolled(f"for (int j = 0; j < {-(-pixels * count // THREADS)}; j++)"):
        code.line(f"const int p = (threadIdx.x + j * {THREADS}) / {count};")
        code.line(f"if (to{k}[j] >= 0) tile[p * {channels} + to{k}[j]] = v{k}[j];")


def _print_write(code: Code, target: Tensor, pixels: int, total: int) -> None:
    """Prints the writes of the tile, in packs of each pixel, or of all if the target is dense."""
    channels = target.channels
    dense = _pixel(target) == channels
    if dense:
        pack = _pack(target, pixels * channels, total * channels, target.offset)
        packs = f"most * {channels} / {pack}"
    else:
        pack = _pack(target, channels, _pixel(target), target.offset)
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
    """The stride from one pixel to the next, also where images have a single one."""
    return tensor.image // (tensor.rows * tensor.columns)


def _copied(to: str, source: str, pack: int, target: Tensor) -> str:
    """The statement that copies a pack."""
    if pack == 1:
        return f"*({to}) = *({source});"
    word = f"md_word<{pack * target.itemsize}>::type"
    return f"*({word} *)({to}) = *(const {word} *)({source});"


def _head(sources: Sequence[Tensor], target: Tensor) -> str:
    pointers = [f"const {_raw(x)} *__restrict__ x{k}" for k, x in enumerate(sources)]
    pointers += ["const long long *__restrict__ picks", f"{_raw(target)} *__restrict__ y"]
    return f'extern "C" __global__ void @({", ".join(pointers)})'


def _raw(tensor: Tensor) -> str:
    """The integer type of an element's size."""
    return _RAW[tensor.itemsize]
