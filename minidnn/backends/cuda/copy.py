"""Kernels that place elements: between layouts, and into slices of joined values."""

from __future__ import annotations

from ...cache import digest
from ..cpu.code import Code
from .dialect import TYPES
from .kernels import KernelSource, Launch
from .pointwise import print_pointwise
from .tensor import Tensor

TILE = 32
ROWS = 8
FEW_CHANNELS = 8
"""Up to that many channels a thread moves all of a pixel's."""

_MOST_IN_Z = 65535


def print_copy(batch: int, source: Tensor, target: Tensor) -> Launch:
    """The kernel that copies a value; pointers are source and target."""
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
    """A block transposes tiles of 32 channels by 32 pixels through shared memory."""
    plane, channels = source.rows * source.columns, source.channels
    code = Code()
    to_last = _is_planar(source)
    outer, inner = (channels, plane) if to_last else (plane, channels)
    # "inner" runs along the source's neighbours, "outer" along the target's.
    from_outer, to_inner = (
        (source.channel, target.pixel) if to_last else (source.pixel, target.channel)
    )
    with code.block(f'extern "C" __global__ void @({_parameters(source, target)})'):
        element = TYPES[source.dtype]
        code.line("MD_SHARED;")
        code.line(f"{element} (*tile)[{TILE + 1}] = ({element} (*)[{TILE + 1}])md_shared;")
        code.line(f"const int lane = threadIdx.x % {TILE}, row = threadIdx.x / {TILE};")
        code.line(f"const int inner = blockIdx.x * {TILE}, outer = blockIdx.y * {TILE};")
        code.line(f"x += blockIdx.z * {source.image}ll + {source.offset};")
        code.line(f"y += blockIdx.z * {target.image}ll + {target.offset};")
        with code.block(f"for (int k = row; k < {TILE}; k += {ROWS})"):
            code.line("const int o = outer + k, i = inner + lane;")
            code.line(f"if (o < {outer} && i < {inner}) tile[k][lane] = x[o * {from_outer}ll + i];")
        code.line("__syncthreads();")
        with code.block(f"for (int k = row; k < {TILE}; k += {ROWS})"):
            code.line("const int i = inner + k, o = outer + lane;")
            code.line(f"if (o < {outer} && i < {inner}) y[i * {to_inner}ll + o] = tile[lane][k];")
    grid = (-(-inner // TILE), -(-outer // TILE), batch)
    shared = TILE * (TILE + 1) * source.itemsize
    return _launch("transpose", code, grid, (TILE * ROWS, 1, 1), shared)


def _parameters(source: Tensor, target: Tensor) -> str:
    return f"const {TYPES[source.dtype]} *x, {TYPES[target.dtype]} *y"


def _launch(
    kind: str,
    code: Code,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int = 0,
) -> Launch:
    name = f"{kind}_{digest(str(code))[:20]}"
    return Launch(KernelSource(name, str(code).replace("@", name)), grid, block, shared_bytes)
