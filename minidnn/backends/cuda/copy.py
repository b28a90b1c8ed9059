"""Kernels that place elements: between layouts, into slices of joined values, and channels that are
picked of one or several images.

Where channels that are picked lie side by side, a block gathers those of some pixels in shared
memory, source after source, so that neighbouring threads read neighbouring channels, and writes
them in packs.  Elements are moved as integers of their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from ...graph.operators import TakeChannels
from ...graph.types import ITEMSIZE, TensorType
from ...kernels.ops.indexing import lower_take_channels
from ...kernels.ops.pitched import Pitched
from ..codegen.code import Code
from ..codegen.kernel import KernelSource
from .kernels import SCHEDULE, Launch
from .pointwise import print_pointwise
from .prelude import TYPES
from .tensor import Tensor, has_whole_planes

THREADS = 256
TILES = (64, 32)
"""Channels and pixels of a block; the smaller where the larger makes too few blocks."""
PLENTY = 512
"""Blocks that keep every multiprocessor busy."""
FEW_CHANNELS = 8
"""Up to that many channels a thread moves all of a pixel's."""

_MOST_IN_Z = 65535
_WIDEST = 16  # bytes of one access


def print_copy(batch: int, source: Tensor, target: Tensor) -> Launch:
    """The kernel that copies a value; pointers are source and target."""
    if source.dtype == "int32":  # the same bits are moved
        source, target = (replace(t, dtype="float32") for t in (source, target))
    if source.rows * source.columns > 1 and source.channels > 1:
        ways = ((source, target), (target, source))
        if any(has_whole_planes(one) and _is_last(other) for one, other in ways):
            few = source.channels <= FEW_CHANNELS or batch > _MOST_IN_Z
            return (_few if few else _tiled)(batch, source, target)
    return print_pointwise(batch, [source], target)


def _is_last(t: Tensor) -> bool:
    return t.channel == 1 and t.row == t.columns * t.pixel


def _few(batch: int, source: Tensor, target: Tensor) -> Launch:
    """A thread moves all channels of a pixel: neighbouring threads, neighbouring pixels."""
    plane = source.rows * source.columns
    code = Code()
    with code.block(f'extern "C" __global__ void @({_parameters(source, target)})'):
        code.line("const long long t = blockIdx.x * 256ll + threadIdx.x;")
        code.line(f"if (t >= {batch * plane}) return;")
        code.line(f"const long long n = t / {plane}, p = t % {plane};")
        code.line(f"x += n * {source.image} + p * {source.pixel} + {source.offset};")
        code.line(f"y += n * {target.image} + p * {target.pixel} + {target.offset};")
        code.line("#pragma unroll")
        with code.block(f"for (int c = 0; c < {source.channels}; c++)"):
            code.line(f"y[c * {target.channel}ll] = x[c * {source.channel}ll];")
    return _launch("few", code, (-(-batch * plane // 256), 1, 1), (256, 1, 1))


def _tiled(batch: int, source: Tensor, target: Tensor) -> Launch:
    """A block transposes a tile of channels and pixels through shared memory.

    Threads read packs of the source's neighbours and write packs of the target's, each as wide as
    alignment allows: enough bytes have to be on their way for memory to be busy.
    """
    plane, channels = source.rows * source.columns, source.channels
    to_last = has_whole_planes(source)
    # "inner" runs along the source's neighbours, "outer" along the target's.
    outer, inner = (channels, plane) if to_last else (plane, channels)
    from_outer, to_inner = (
        (source.channel, target.pixel) if to_last else (source.pixel, target.channel)
    )
    reads = _pack(source, inner, (source.image, from_outer, source.offset))
    writes = _pack(target, outer, (target.image, to_inner, target.offset))
    most, least = TILES
    tile = most if batch * -(-outer // most) * -(-inner // most) >= PLENTY else least
    element, pitch = TYPES[source.dtype], tile + 4 // source.itemsize
    code = Code()
    with code.block(f'extern "C" __global__ void @({_parameters(source, target)})'):
        code.line("MD_SHARED;")
        code.line(f"{element} (*tile)[{pitch}] = ({element} (*)[{pitch}])md_shared;")
        # One after the other in x, which alone has room for the tiles of a plane of any size.
        tiles = -(-inner // tile)
        code.line(f"const int inner = blockIdx.x % {tiles}u * {tile};")
        code.line(f"const int outer = blockIdx.x / {tiles}u * {tile};")
        code.line(f"x += blockIdx.z * {source.image}ll + {source.offset};")
        code.line(f"y += blockIdx.z * {target.image}ll + {target.offset};")
        # All of a thread's packs are on their way before the first is waited for.
        across, rows = _shares(tile, reads)
        code.line(f"const int a = threadIdx.x % {across} * {reads}, b = threadIdx.x / {across};")
        code.line(f"md_pack<{reads}, {element}> packs[{-(-tile // rows)}];")
        code.line("#pragma unroll")
        with code.block(f"for (int k = 0; k < {tile}; k += {rows})"):
            code.line("const int o = outer + b + k, i = inner + a;")
            code.line(f"if (b + k < {tile} && o < {outer} && i < {inner})")
            place = f"(x + (o * {from_outer}ll + i))"
            word = f"md_word<{reads * source.itemsize}>::type"
            code.line(f"  packs[k / {rows}].word = *(const {word} *){place};")
        code.line("#pragma unroll")
        with code.block(f"for (int k = 0; k < {tile}; k += {rows})"):
            code.line("#pragma unroll")
            with code.block(f"for (int j = 0; j < {reads}; j++)"):
                code.line(f"if (b + k < {tile}) tile[b + k][a + j] = packs[k / {rows}].items[j];")
        code.line("__syncthreads();")
        across, rows = _shares(tile, writes)
        code.line(f"const int c = threadIdx.x % {across} * {writes}, d = threadIdx.x / {across};")
        code.line("#pragma unroll")
        with code.block(f"for (int k = d; k < {tile}; k += {rows})"):
            code.line("const int i = inner + k, o = outer + c;")
            code.line(f"if (o >= {outer} || i >= {inner}) continue;")
            code.line(f"md_pack<{writes}, {element}> pack;")
            code.line("#pragma unroll")
            code.line(f"for (int j = 0; j < {writes}; j++) pack.items[j] = tile[c + j][k];")
            place = f"y + (i * {to_inner}ll + o)"
            wide = writes > 1 or target.itemsize > 2
            code.line(
                f"md_write_word({place}, pack.word);" if wide else f"*({place}) = *pack.items;"
            )
    grid = (tiles * -(-outer // tile), 1, batch)
    return _launch("transpose", code, grid, (THREADS, 1, 1), tile * pitch * source.itemsize)


def _pack(tensor: Tensor, run: int, steps: Sequence[int]) -> int:
    """How many elements one access takes, of runs that begin at multiples of these steps."""
    most = _WIDEST // tensor.itemsize
    return gcd(most, run, *steps)


def _shares(tile: int, pack: int) -> tuple[int, int]:
    """How many threads take a row of a tile, and how many rows all threads take at once."""
    across = tile // pack
    return across, THREADS // across


def _parameters(source: Tensor, target: Tensor) -> str:
    return f"const {TYPES[source.dtype]} *x, {TYPES[target.dtype]} *y"


def _launch(
    kind: str,
    code: Code,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int = 0,
) -> Launch:
    return Launch(KernelSource.named(kind, str(code)), grid, block, shared_bytes)


ELEMENTS = (2048, 512)
"""What a block gathers at once; the fewer where the more make too few blocks."""
ENOUGH = 264
"""Blocks that give every multiprocessor work."""
MOST_SIDE_BY_SIDE = 4096
"""Channels of a pixel of which shared memory holds one in any dtype."""

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
    pixels = max(1, (many if total * channels >= many * ENOUGH else few) // channels)
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
