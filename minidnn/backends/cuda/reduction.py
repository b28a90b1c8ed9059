"""Kernels of averages of whole planes, which add each row, then the rows, as the reference does
(see ``graph.window.sum_taps``)."""

from __future__ import annotations

from math import gcd

from ...graph.window import LONG
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from ..codegen.kernel import KernelSource
from ..codegen.taps import TapLoop
from .kernels import Launch
from .machine import Machine
from .prelude import TYPES
from .tensor import Tensor

_ACCESS = 16  # bytes
_PLANE_THREADS = 256
_PLANE_PACKS = 8
_MOST_SHARED = 48 << 10


def averages_planes(batch: int, x: Tensor) -> bool:
    """Whether :func:`print_plane_average` reads values that lie so: pixels or channels side by
    side, and rows whose sums fit shared memory."""
    if x.is_planar:
        return x.rows * 4 <= _MOST_SHARED
    bytes = x.rows * _PLANE_PACKS * (_ACCESS // x.itemsize) * 4
    return x.channel == 1 and bytes <= _MOST_SHARED and batch < 1 << 16


def print_plane_average(batch: int, x: Tensor, y: Tensor, machine: Machine) -> Launch:
    """The kernel that averages whole planes.

    Threads of a block take rows; their sums are added in order once all are there.
    """
    if x.is_planar:
        return _planar_average(batch, x, y)
    return _average_side_by_side(batch, x, y, machine)


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
            _add_row(code, x.columns, lanes)
            code.line("sums[i] = sum;")
        code.line("__syncthreads();")
        code.line(f"const long long plane = blockIdx.x * {planes}ll + threadIdx.x;")
        code.line(f"if (threadIdx.x >= {planes} || plane >= {count}) return;")
        _add_sums(code, rows, f"sums[threadIdx.x * {rows} + {{}}]")
        code.line(f"total /= {rows * x.columns}.0f;")
        place = f"plane / {x.channels} * {y.image} + plane % {x.channels} * {y.channel}"
        code.line(f"y[{place} + {y.offset}] = md_as<{TYPES[y.dtype]}>(total);")
    return _average(code, (-(-count // planes), 1, 1), threads, planes * rows)


def _average_side_by_side(batch: int, x: Tensor, y: Tensor, machine: Machine) -> Launch:
    """Threads of a block take rows of a few packs of channels."""
    lanes = _lanes(x, batch)
    packs = x.channels // lanes
    wide = next(
        n
        for n in (_PLANE_PACKS, _PLANE_PACKS // 2, _PLANE_PACKS // 4)
        if batch * -(-packs // n) >= 2 * machine.multiprocessors or n == _PLANE_PACKS // 4
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
            _add_packs(code, x, lanes)
            code.line("#pragma unroll")
            place = f"h * {wide * lanes} + threadIdx.x % {wide} * {lanes} + j"
            code.line(f"for (int j = 0; j < {lanes}; j++) sums[{place}] = sum[j];")
        code.line("__syncthreads();")
        with code.block(f"for (int i = threadIdx.x; i < {wide * lanes}; i += {wide * down})"):
            code.line(f"const int c = blockIdx.x * {wide * lanes} + i;")
            code.line(f"if (c >= {x.channels}) break;")
            _add_sums(code, x.rows, f"sums[{{}} * {wide * lanes} + i]")
            code.line(f"total /= {x.rows * x.columns}.0f;")
            place = f"n * {y.image} + c * {y.channel}ll + {y.offset}"
            code.line(f"y[{place}] = md_as<{TYPES[y.dtype]}>(total);")
    blocks = (-(-packs // wide), batch, 1)
    return _average(code, blocks, wide * down, x.rows * wide * lanes)


def _add_row(code: Code, columns: int, lanes: int) -> None:
    """Declares ``sum``, that of the pixels side by side at ``row``, so many loaded at once."""

    def add(begin: str, end: str, to: str) -> None:
        with code.block(f"for (int w = {begin}; w < {end}; w += {lanes})"):
            code.line(f"float one[{lanes}];")
            code.line(f"md_load<{lanes}>(one, row + w);")
            code.line("#pragma unroll")
            code.line(f"for (int j = 0; j < {lanes}; j++) {to} += one[j];")

    code.line("float sum = 0.0f;")
    if columns <= LONG:
        code.line("#pragma unroll 8")
        add("0", str(columns), "sum")
        return
    code.line("float levels[6] = {};")
    code.line("int blocks = 0;")
    with code.block(f"for (int b = 0; b < {columns}; b += {LONG * LONG})"):
        code.line(f"const int end = b + {LONG * LONG} < {columns} ? b + {LONG * LONG} : {columns};")
        code.line(f"float part[{LONG}] = {{}};")
        code.line("#pragma unroll 4")
        with code.block(f"for (int i = b; i < end; i += {LONG})"):
            code.line("#pragma unroll")
            with code.block(f"for (int p = 0; p < {LONG}; p += {lanes})"):
                code.line("if (i + p >= end) break;")
                code.line(f"float one[{lanes}];")
                code.line(f"md_load<{lanes}>(one, row + i + p);")
                code.line("#pragma unroll")
                code.line(f"for (int j = 0; j < {lanes}; j++) part[p + j] += one[j];")
        code.line("#pragma unroll")
        with code.block(f"for (int half = {LONG // 2}; half; half >>= 1)"):
            code.line("#pragma unroll")
            code.line("for (int p = 0; p < half; p++) part[p] += part[p + half];")
        code.line("levels[0] += part[0];")
        code.line("blocks++;")
        with code.block("for (int l = 0, k = blocks; k % 16 == 0; l++, k /= 16)"):
            code.line("levels[l + 1] += levels[l];")
            code.line("levels[l] = 0.0f;")
    code.line("for (int l = 0; l < 5; l++) levels[l + 1] += levels[l];")
    code.line("sum = levels[5];")


def _add_packs(code: Code, x: Tensor, lanes: int) -> None:
    """Declares ``sum``, those of row ``h`` of so many channels side by side."""
    if x.columns <= LONG:
        code.line(f"float sum[{lanes}] = {{}};")
        code.line("#pragma unroll 8")
        with code.block(f"for (int w = 0; w < {x.columns}; w++)"):
            code.line(f"float one[{lanes}];")
            code.line(f"md_load<{lanes}>(one, x + h * {x.row}ll + w * {x.pixel}ll);")
            code.line("#pragma unroll")
            code.line(f"for (int j = 0; j < {lanes}; j++) sum[j] += one[j];")
        return

    def one(w: str) -> str:
        code.line(f"float one[{lanes}];")
        code.line(f"md_load<{lanes}>(one, x + h * {x.row}ll + ({w}) * {x.pixel}ll);")
        return "one"

    def declare(name: str, text: str) -> None:
        code.line(f"float {name}[{lanes}];")
        assign(name, text)

    def assign(name: str, text: str) -> None:
        code.line("#pragma unroll")
        code.line(f"for (int j = 0; j < {lanes}; j++) {name}[j] = {text};")

    TapLoop(code, "int", declare, assign, "{}[j]".format, CUDA).print("sum", x.columns, one)


def _add_sums(code: Code, count: int, place: str) -> None:
    """Declares ``total``, that of the rows' sums in shared memory."""
    if count <= LONG:
        code.line("float total = 0.0f;")
        code.line("#pragma unroll 8")
        code.line(f"for (int h = 0; h < {count}; h++) total += {place.format('h')};")
        return

    def one(h: str) -> str:
        code.line(f"const float one = {place.format(h)};")
        return "one"

    def declare(name: str, text: str) -> None:
        code.line(f"float {name} = {text};")

    def assign(name: str, text: str) -> None:
        code.line(f"{name} = {text};")

    TapLoop(code, "int", declare, assign, str, CUDA).print("total", count, one)


def _average(code: Code, blocks: tuple[int, int, int], threads: int, sums: int) -> Launch:
    return Launch(KernelSource.named("average", str(code)), blocks, (threads, 1, 1), sums * 4)


def _lanes(x: Tensor, batch: int) -> int:
    """Channels of one access, as wide as alignment allows."""
    lanes = _ACCESS // x.itemsize
    steps = (x.channels, x.offset, x.pixel, x.row, *((x.image,) if batch > 1 else ()))
    while any(step % lanes for step in steps):
        lanes //= 2
    return lanes
