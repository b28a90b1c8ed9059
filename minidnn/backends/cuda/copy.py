"""Kernels that place elements: between layouts, and into slices of joined values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from ..codegen.code import Code
from ..codegen.kernel import KernelSource
from .kernels import Launch
from .pointwise import print_pointwise
from .prelude import TYPES
from .tensor import Tensor

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
        if any(_is_planar(one) and _is_last(other) for one, other in ways):
            few = source.channels <= FEW_CHANNELS or batch > _MOST_IN_Z
            return (_few if few else _tiled)(batch, source, target)
    return print_pointwise(batch, [source], target)


def _is_planar(t: Tensor) -> bool:
    return t.pixel == 1 and t.row == t.columns


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
    to_last = _is_planar(source)
    # "inner" runs along the source's neighbours, "outer" along the target's.
    outer, inner = (channels, plane) if to_last else (plane, channels)
    from_outer, to_inner = (
        (source.channel, target.pixel) if to_last else (source.pixel, target.channel)
    )
    reads = _pack(source, inner, (source.image, from_outer, source.offset))
    writes = _pack(target, outer, (target.image, to_inner, target.offset))
    tile = next(t for t in TILES if t == TILES[-1] or _blocks(batch, outer, inner, t) >= PLENTY)
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


def _blocks(batch: int, outer: int, inner: int, tile: int) -> int:
    return batch * -(-outer // tile) * -(-inner // tile)


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
