"""Kernels that join elements along axes: sums, means and extremes, places of maxima.

Averages of whole planes add each row, then the rows, as the reference does (see
``graph.window.sum_taps``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, prod

from ...graph.operators import ArgMax, Reduce
from ...graph.types import TensorType
from ...graph.window import LONG
from ..codegen.code import Code
from ..codegen.dialect import CUDA, literal
from ..codegen.kernel import KernelSource
from ..codegen.taps import TapLoop
from .expressions import STORED, is_whole, read, stored
from .kernels import Launch
from .machine import Machine
from .prelude import TYPES
from .strided import Strided, element_of
from .tensor import Tensor

BLOCK = 128
_FEW = 32
"""Up to that many elements a thread joins by itself."""
_MANY, _MOST = 8192, 1024
"""Of so many elements a block has so many threads."""

_JOIN = {
    "sum": "{0} + {1}",
    "mean": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "md_max({0}, {1})",
    "min": "md_min({0}, {1})",
}
_JOIN_WHOLE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "{0} > {1} ? {0} : {1}",
    "min": "{0} < {1} ? {0} : {1}",
}
_LEAST = "(-9223372036854775807ll - 1)"
_FIRST_WHOLE = {"sum": "0", "prod": "1", "max": _LEAST, "min": "9223372036854775807ll"}
_EDGE = float("inf")
_FIRST = {"sum": "0.0f", "mean": "0.0f", "prod": "1.0f"}
_FIRST |= {"max": literal(-_EDGE), "min": literal(_EDGE)}


def print_reduce(op: Reduce, type: TensorType, x: Strided) -> Launch:
    """The kernel over a value; pointers are input and output.  A thread or a block makes one."""
    shape = type.shape
    kept = [axis for axis in range(type.rank) if axis not in op.dims]
    outputs, count = prod(shape[a] for a in kept), prod(shape[a] for a in op.dims)
    whole = is_whole(type.dtype)
    joins, first = (_JOIN_WHOLE, _FIRST_WHOLE) if whole else (_JOIN, _FIRST)
    wide = count > _FEW and not whole
    threads = _MOST if count >= _MANY else BLOCK
    result_type = op.dtype or type.dtype
    head = f"const {STORED[type.dtype]} *x, {STORED[result_type]} *y"
    code = Code()
    with code.block(f'extern "C" __global__ void __launch_bounds__({threads}) @({head})'):
        if wide:
            code.line("const long long o = blockIdx.x;")
        else:
            code.line(f"const long long o = blockIdx.x * {BLOCK}ll + threadIdx.x;")
            code.line(f"if (o >= {outputs}) return;")
        code.line(f"const long long first = {_place('o', shape, kept)};")
        kind = "long long" if whole else "float"
        blocks = Blocks(code, kind, first[op.how], joins[op.how], count, threads if wide else 1)
        with blocks.each("value", "r"):
            code.line(f"const long long from = first + {_place('r', shape, op.dims)};")
            one = read(f"x[{element_of('from', shape, x)}]", type.dtype, whole)
            blocks.add(one)
        if wide:
            join_block(code, "value", _JOIN[op.how], threads=threads)
            code.line("if (threadIdx.x) return;")
        result = f"value / {literal(float(count))}" if op.how == "mean" else "value"
        code.line(f"y[o] = {stored(result, result_type)};")
    if wide:
        return Launch.named("reduce", code, outputs, threads, threads // 32 * 4)
    return Launch.named("reduce", code, -(-outputs // BLOCK), BLOCK)


def print_argmax(op: ArgMax, type: TensorType, x: Strided) -> Launch:
    """The kernel of the place of the largest element; a thread makes one, or a warp of many.

    NaN counts as the largest; of several the first counts, or the last.
    """
    dim = op.dim % type.rank
    outer, length = prod(type.shape[:dim]), type.shape[dim]
    inner = prod(type.shape[dim + 1 :])
    code = Code()
    whole = is_whole(type.dtype)
    kind = "long long" if whole else "float"
    lanes = 32 if length > _FEW else 1
    threads = outer * inner * lanes
    head = f"const {STORED[type.dtype]} *x, long long *y"
    equal = "one == best || (one != one && best != best)"
    more = "one > best || (one != one && best == best)"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const long long t = (blockIdx.x * {BLOCK}ll + threadIdx.x) / {lanes};")
        code.line(f"if (t >= {outer * inner}) return;")
        code.line(f"const long long first = t / {inner} * {length * inner} + t % {inner};")
        code.line(f"{kind} best = 0;")
        code.line("long long place = -1;")
        begin = f"threadIdx.x % {lanes}"
        code.line("#pragma unroll 4")
        with code.block(f"for (long long i = {begin}; i < {length}; i += {lanes})"):
            code.line(f"const long long from = first + i * {inner};")
            one = read(f"x[{element_of('from', type.shape, x)}]", type.dtype, whole)
            code.line(f"const {kind} one = {one};")
            with code.block(f"if (place < 0 || {f'{more} || {equal}' if op.last else more})"):
                code.line("best = one;")
                code.line("place = i;")
        with code.block(f"for (int s = {lanes // 2}; s; s >>= 1)"):
            code.line(f"const {kind} one = __shfl_down_sync(0xffffffffu, best, s);")
            code.line("const long long i = __shfl_down_sync(0xffffffffu, place, s);")
            nearer = f"i {'>' if op.last else '<'} place"
            with code.block(f"if ({more} || (({equal}) && {nearer}))"):
                code.line("best = one;")
                code.line("place = i;")
        code.line(f"if (threadIdx.x % {lanes} == 0) y[t] = place;")
    return Launch.named("argmax", code, -(-threads // BLOCK), BLOCK)


def join_block(
    code: Code, value: str, join: str, declared: bool = False, threads: int = BLOCK
) -> None:
    """All threads of the block end with the same joined value, in a fixed order."""
    if not declared:
        code.line("MD_SHARED;")
        code.line("float *part = (float *)md_shared;")
    other = join.format(value, f"__shfl_down_sync(0xffffffffu, {value}, s)")
    code.line(f"for (int s = 16; s; s >>= 1) {value} = {other};  // of lane 0")
    code.line(f"if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = {value};")
    code.line("__syncthreads();")
    code.line(f"{value} = part[0];")
    code.line(
        f"for (int w = 1; w < {threads // 32}; w++) {value} = {join.format(value, 'part[w]')};"
    )
    code.line("__syncthreads();")


@dataclass(frozen=True)
class Blocks:
    """Prints how a thread joins every ``step``-th of ``count`` elements, from its own on, or all of
    them (``step=1``): sixteen at a time, these again, and so on, so that errors stay small.

    Attributes:
        kind: the type of what is joined; ``start`` joins with anything to that.
        join: joins ``{0}`` and ``{1}``.
    """

    code: Code
    kind: str
    start: str
    join: str
    count: int
    step: int

    @contextmanager
    def each(self, name: str, index: str) -> Iterator[None]:
        """Declares ``name``; what is printed meanwhile is done for each ``index``, and calls
        :meth:`add`."""
        code, kind = self.code, self.kind
        begin = "threadIdx.x" if self.step > 1 else "0"
        code.line(f"{kind} {name} = {self.start};")
        each = -(-self.count // self.step)
        if each <= LONG:
            loop = f"long long {index} = {begin}; {index} < {self.count}; {index} += {self.step}"
            with code.block(f"for ({loop})"):
                code.line(f"{kind} &block = {name};")
                yield
            return
        levels = 1
        while LONG ** (levels + 1) < each:
            levels += 1
        with code.block(""):
            code.line(f"{kind} level[{levels}];")
            code.line(f"for (int l = 0; l < {levels}; l++) level[l] = {self.start};")
            code.line("int blocks = 0;")
            most = self.step * LONG
            loop = f"long long b = {begin}; b < {self.count}; b += {most}"
            with code.block(f"for ({loop})"):
                code.line(
                    f"const long long past = b + {most} < {self.count} ? b + {most} : {self.count};"
                )
                code.line(f"{kind} block = {self.start};")
                loop = f"long long {index} = b; {index} < past; {index} += {self.step}"
                code.line(f"#pragma unroll {LONG}")
                with code.block(f"for ({loop})"):
                    yield
                code.line(f"level[0] = {self.join.format('level[0]', 'block')};")
                code.line("blocks++;")
                for low in range(levels - 1):
                    with code.block(f"if (blocks % {LONG ** (low + 1)} == 0)"):
                        joined = self.join.format(f"level[{low + 1}]", f"level[{low}]")
                        code.line(f"level[{low + 1}] = {joined};")
                        code.line(f"level[{low}] = {self.start};")
            joined = self.join.format(name, "level[l]")
            code.line(f"for (int l = 0; l < {levels}; l++) {name} = {joined};")

    def add(self, value: str) -> None:
        """Joins an element."""
        self.code.line(f"const {self.kind} element = {value};")
        self.code.line(f"block = {self.join.format('block', 'element')};")


def _place(index: str, shape: Sequence[int], axes: Sequence[int]) -> str:
    """Where element ``index`` over some axes lies in the dense value."""
    terms, inner = [], prod(shape[a] for a in axes)
    for axis in axes:
        inner //= shape[axis]
        if shape[axis] > 1:
            terms.append(f"{index} / {inner} % {shape[axis]} * {prod(shape[axis + 1 :])}")
    return " + ".join(terms) or "0"


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
