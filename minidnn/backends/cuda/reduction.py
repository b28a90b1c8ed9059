"""Kernels of averages: adaptive pooling whose windows are not regular, and of whole planes.

Both add as the reference does, each row from left to right, then the rows.
"""

from __future__ import annotations

from math import gcd

from ...cache import digest
from ..cpu.code import Code
from .dialect import TYPES
from .kernels import KernelSource, Launch
from .tensor import Tensor

THREADS = 128
_ACCESS = 16  # bytes
_PLANE_THREADS = 256
_PLANE_PACKS = 8
_MOST_SHARED = 48 << 10
_ENOUGH_BLOCKS = 264
"""Two for each multiprocessor of an H200."""


def print_adaptive(batch: int, x: Tensor, y: Tensor) -> Launch:
    """The kernel that averages windows so that the result has the size of ``y``.

    Each row from left to right, then the rows, as the reference adds them.  A thread computes one
    element; neighbours are channels where those lie side by side, else pixels.
    """
    count = batch * y.channels * y.rows * y.columns
    code = Code()
    with code.block(
        f'extern "C" __global__ void @(const {TYPES[x.dtype]} *x, {TYPES[y.dtype]} *y)'
    ):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        sizes = {"c": y.channels, "i": y.rows, "j": y.columns}
        order = "cji" if y.channel == 1 and not y.is_planar else "jic"
        rest = "t"
        for axis in order:
            code.line(f"const int {axis} = {rest} % {sizes[axis]};")
            rest += f" / {sizes[axis]}"
        code.line(f"const long long n = {rest};")
        for low, high, index, given, made in (
            ("top", "bottom", "i", x.rows, y.rows),
            ("left", "right", "j", x.columns, y.columns),
        ):
            code.line(f"const int {low} = {index} * {given} / {made};")
            code.line(f"const int {high} = (({index} + 1) * {given} + {made - 1}) / {made};")
        code.line(f"x += n * {x.image} + c * {x.channel}ll + {x.offset};")
        code.line("float total = 0.0f;")
        with code.block("for (int h = top; h < bottom; h++)"):
            code.line("float sum = 0.0f;")
            with code.block("for (int w = left; w < right; w++)"):
                code.line(f"sum += md_value(x[h * {x.row}ll + w * {x.pixel}ll]);")
            code.line("total += sum;")
        code.line("total /= (float)((bottom - top) * (right - left));")
        place = f"n * {y.image} + c * {y.channel}ll + i * {y.row} + j * {y.pixel} + {y.offset}"
        code.line(f"y[{place}] = md_as<{TYPES[y.dtype]}>(total);")
    name = f"adaptive_{digest(str(code))[:20]}"
    source = KernelSource(name, str(code).replace("@", name))
    return Launch(source, (-(-count // THREADS), 1, 1), (THREADS, 1, 1))


def averages_planes(batch: int, x: Tensor) -> bool:
    """Whether :func:`print_plane_average` reads values that lie so: pixels or channels side by
    side, and rows whose sums fit shared memory."""
    if x.is_planar:
        return x.rows * 4 <= _MOST_SHARED
    bytes = x.rows * _PLANE_PACKS * (_ACCESS // x.itemsize) * 4
    return x.channel == 1 and bytes <= _MOST_SHARED and batch < 1 << 16


def print_plane_average(batch: int, x: Tensor, y: Tensor) -> Launch:
    """The kernel that averages whole planes.

    Threads of a block take rows; their sums are added in order once all are there.
    """
    return (_planar_average if x.is_planar else _average_side_by_side)(batch, x, y)


def _planar_average(batch: int, x: Tensor, y: Tensor) -> Launch:
    """A block averages some planes; a thread takes a row, in packs as wide as alignment allows."""
    count, rows = batch * x.channels, x.rows
    planes = max(1, _PLANE_THREADS // rows)
    threads = min(_PLANE_THREADS, planes * rows)
    lanes = gcd(_ACCESS // x.itemsize, x.columns, x.offset, x.channel, x.image)
    code = Code()
    head = f"const {TYPES[x.dtype]} *x, {TYPES[y.dtype]} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line("MD_SHARED;")
        code.line("float *const sums = (float *)md_shared;")
        with code.block(f"for (int i = threadIdx.x; i < {planes * rows}; i += {threads})"):
            code.line(f"const long long plane = blockIdx.x * {planes}ll + i / {rows};")
            code.line(f"if (plane >= {count}) break;")
            place = f"plane / {x.channels} * {x.image} + plane % {x.channels} * {x.channel}"
            code.line(f"const auto row = x + ({place} + i % {rows} * {x.row} + {x.offset});")
            code.line("float sum = 0.0f;")
            code.line("#pragma unroll 8")
            with code.block(f"for (int w = 0; w < {x.columns}; w += {lanes})"):
                code.line(f"float one[{lanes}];")
                code.line(f"md_load<{lanes}>(one, row + w);")
                code.line("#pragma unroll")
                code.line(f"for (int j = 0; j < {lanes}; j++) sum += one[j];")
            code.line("sums[i] = sum;")
        code.line("__syncthreads();")
        code.line(f"const long long plane = blockIdx.x * {planes}ll + threadIdx.x;")
        code.line(f"if (threadIdx.x >= {planes} || plane >= {count}) return;")
        code.line("float total = 0.0f;")
        code.line("#pragma unroll 8")
        code.line(f"for (int h = 0; h < {rows}; h++) total += sums[threadIdx.x * {rows} + h];")
        code.line(f"total /= {rows * x.columns}.0f;")
        place = f"plane / {x.channels} * {y.image} + plane % {x.channels} * {y.channel}"
        code.line(f"y[{place} + {y.offset}] = md_as<{TYPES[y.dtype]}>(total);")
    return _average(code, (-(-count // planes), 1, 1), threads, planes * rows)


def _average_side_by_side(batch: int, x: Tensor, y: Tensor) -> Launch:
    """Threads of a block take rows of a few packs of channels."""
    lanes = _lanes(x, batch)
    packs = x.channels // lanes
    wide = next(
        n
        for n in (_PLANE_PACKS, _PLANE_PACKS // 2, _PLANE_PACKS // 4)
        if batch * -(-packs // n) >= _ENOUGH_BLOCKS or n == _PLANE_PACKS // 4
    )
    down = min(x.rows, _PLANE_THREADS // wide)
    code = Code()
    head = f"const {TYPES[x.dtype]} *x, {TYPES[y.dtype]} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line("MD_SHARED;")
        code.line("float *const sums = (float *)md_shared;")
        code.line(f"const int pack = blockIdx.x * {wide} + threadIdx.x % {wide};")
        code.line("const long long n = blockIdx.y;")
        code.line(f"x += n * {x.image} + pack * {lanes} + {x.offset};")
        loop = f"for (int h = threadIdx.x / {wide}; h < {x.rows}; h += {down})"
        with code.block(f"if (pack < {packs}) {loop}"):
            code.line(f"float sum[{lanes}] = {{}};")
            code.line("#pragma unroll 8")
            with code.block(f"for (int w = 0; w < {x.columns}; w++)"):
                code.line(f"float one[{lanes}];")
                code.line(f"md_load<{lanes}>(one, x + h * {x.row}ll + w * {x.pixel}ll);")
                code.line("#pragma unroll")
                code.line(f"for (int j = 0; j < {lanes}; j++) sum[j] += one[j];")
            code.line("#pragma unroll")
            place = f"h * {wide * lanes} + threadIdx.x % {wide} * {lanes} + j"
            code.line(f"for (int j = 0; j < {lanes}; j++) sums[{place}] = sum[j];")
        code.line("__syncthreads();")
        with code.block(f"for (int i = threadIdx.x; i < {wide * lanes}; i += {wide * down})"):
            code.line(f"const int c = blockIdx.x * {wide * lanes} + i;")
            code.line(f"if (c >= {x.channels}) break;")
            code.line("float total = 0.0f;")
            code.line("#pragma unroll 8")
            code.line(f"for (int h = 0; h < {x.rows}; h++) total += sums[h * {wide * lanes} + i];")
            code.line(f"total /= {x.rows * x.columns}.0f;")
            place = f"n * {y.image} + c * {y.channel}ll + {y.offset}"
            code.line(f"y[{place}] = md_as<{TYPES[y.dtype]}>(total);")
    blocks = (-(-packs // wide), batch, 1)
    return _average(code, blocks, wide * down, x.rows * wide * lanes)


def _average(code: Code, blocks: tuple[int, int, int], threads: int, sums: int) -> Launch:
    name = f"average_{digest(str(code))[:20]}"
    source = KernelSource(name, str(code).replace("@", name))
    return Launch(source, blocks, (threads, 1, 1), sums * 4)


def _lanes(x: Tensor, batch: int) -> int:
    """Channels of one access, as wide as alignment allows."""
    lanes = _ACCESS // x.itemsize
    steps = (x.channels, x.offset, x.pixel, x.row, *((x.image,) if batch > 1 else ()))
    while any(step % lanes for step in steps):
        lanes //= 2
    return lanes
