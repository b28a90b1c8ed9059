"""Kernels that reduce values along axes: sums, means, products and extremes, and the indices of
maxima; also averages of whole planes.

An average of a plane adds each row, then the sums of the rows, as the reference does (see
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
from .expressions import STORED, is_integer_dtype, read, stored
from .kernels import Launch
from .machine import Machine
from .prelude import TYPES
from .strided import Strided, element_of
from .tensor import Tensor

BLOCK = 128
_FEW = 32
"""The most elements that a single thread reduces."""
_MANY, _MOST = 8192, 1024
"""From so many elements on, a block has so many threads."""

COMBINE = {
    "sum": "{0} + {1}",
    "mean": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "md_max({0}, {1})",
    "min": "md_min({0}, {1})",
}
_COMBINE_INTEGERS = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "{0} > {1} ? {0} : {1}",
    "min": "{0} < {1} ? {0} : {1}",
}
_LEAST = "(-9223372036854775807ll - 1)"
_FIRST_INTEGERS = {"sum": "0", "prod": "1", "max": _LEAST, "min": "9223372036854775807ll"}
IDENTITIES = {"sum": "0.0f", "mean": "0.0f", "prod": "1.0f"}
IDENTITIES |= {"max": literal(float("-inf")), "min": literal(float("inf"))}


def print_reduce(op: Reduce, type: TensorType, x: Strided) -> Launch:
    """The kernel that reduces a value; pointers are input and output.

    A thread computes a result of few elements, and a block one of many.
    """
    shape = type.shape
    kept = [axis for axis in range(type.rank) if axis not in op.dims]
    outputs, count = prod(shape[a] for a in kept), prod(shape[a] for a in op.dims)
    is_integer = is_integer_dtype(type.dtype)
    combines, first = (_COMBINE_INTEGERS, _FIRST_INTEGERS) if is_integer else (COMBINE, IDENTITIES)
    by_block = count > _FEW
    threads = _MOST if count >= _MANY else BLOCK
    kind = "long long" if is_integer else "float"
    result_type = op.dtype or type.dtype
    head = f"const {STORED[type.dtype]} *x, {STORED[result_type]} *y"
    code = Code()
    with code.block(f'extern "C" __global__ void __launch_bounds__({threads}) @({head})'):
        if by_block:
            code.line("const long long o = blockIdx.x;")
        else:
            code.line(f"const long long o = blockIdx.x * {BLOCK}ll + threadIdx.x;")
            code.line(f"if (o >= {outputs}) return;")
        code.line(f"const long long first = {_place('o', shape, kept)};")
        blocks = Blocks(
            code, kind, first[op.how], combines[op.how], count, threads if by_block else 1
        )
        with blocks.each("value", "r"):
            code.line(f"const long long from = first + {_place('r', shape, op.dims)};")
            element = read(f"x[{element_of('from', shape, x)}]", type.dtype, is_integer)
            blocks.add(element)
        if by_block:
            reduce_block(code, "value", combines[op.how], kind=kind, threads=threads)
            code.line("if (threadIdx.x) return;")
        result = f"value / {literal(float(count))}" if op.how == "mean" else "value"
        code.line(f"y[o] = {stored(result, result_type)};")
    if by_block:
        size = 8 if is_integer else 4
        return Launch.named("reduce", code, outputs, threads, threads // 32 * size)
    return Launch.named("reduce", code, -(-outputs // BLOCK), BLOCK)


def print_argmax(op: ArgMax, type: TensorType, x: Strided) -> Launch:
    """The kernel of the index of the largest element along an axis.  A thread computes a result of
    few elements, and a warp one of many.

    NaN counts as the largest; of equal elements the first counts, or the last (``op.last``).
    """
    dim = op.dim % type.rank
    outer, length = prod(type.shape[:dim]), type.shape[dim]
    inner = prod(type.shape[dim + 1 :])
    code = Code()
    is_integer = is_integer_dtype(type.dtype)
    kind = "long long" if is_integer else "float"
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
        with code.unrolled(f"for (long long i = {begin}; i < {length}; i += {lanes})", 4):
            code.line(f"const long long from = first + i * {inner};")
            element = read(f"x[{element_of('from', type.shape, x)}]", type.dtype, is_integer)
            code.line(f"const {kind} one = {element};")
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


def reduce_block(
    code: Code,
    value: str,
    combine: str,
    declared: bool = False,
    kind: str = "float",
    threads: int = BLOCK,
) -> None:
    """Prints the reduction of ``value`` over a block, in a fixed order; all threads end with the
    result.

    Args:
        declared: whether the kernel has declared the shared memory for it.
        kind: the C++ type of the value.
    """
    if not declared:
        code.line("MD_SHARED;")
        code.line(f"{kind} *part = ({kind} *)md_shared;")
    with code.block("for (int s = 16; s; s >>= 1)"):  # the result of a warp is in its lane 0
        code.line(f"const {kind} other = __shfl_down_sync(0xffffffffu, {value}, s);")
        code.line(f"{value} = {combine.format(value, 'other')};")
    code.line(f"if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = {value};")
    code.line("__syncthreads();")
    code.line(f"{value} = part[0];")
    code.line(
        f"for (int w = 1; w < {threads // 32}; w++) {value} = {combine.format(value, 'part[w]')};"
    )
    code.line("__syncthreads();")


@dataclass(frozen=True)
class Blocks:
    """Prints how a thread reduces every ``step``-th of ``count`` elements, from its own on, or all
    of them (``step=1``).  It reduces blocks of sixteen, then sixteen blocks, and so on, so that
    rounding errors stay small.

    Attributes:
        kind: the C++ type of an accumulator.
        start: the identity of the reduction.
        combine: the expression that combines ``{0}`` and ``{1}``.
    """

    code: Code
    kind: str
    start: str
    combine: str
    count: int
    step: int

    @contextmanager
    def each(self, name: str, index: str) -> Iterator[None]:
        """Declares ``name``, the result.  What is printed meanwhile is the loop's body for element
        ``index``, and calls :meth:`add`."""
        code, kind = self.code, self.kind
        begin = "threadIdx.x" if self.step > 1 else "0"
        code.line(f"{kind} {name} = {self.start};")
        per_thread = -(-self.count // self.step)
        if per_thread <= LONG:
            loop = f"long long {index} = {begin}; {index} < {self.count}; {index} += {self.step}"
            with code.block(f"for ({loop})"):
                code.line(f"{kind} &block = {name};")
                yield
            return
        levels = 1
        while LONG ** (levels + 1) < per_thread:
            levels += 1
        with code.block(""):
            code.line(f"{kind} level[{levels}];")
            code.line(f"for (int l = 0; l < {levels}; l++) level[l] = {self.start};")
            code.line("int blocks = 0;")
            span = self.step * LONG
            loop = f"long long b = {begin}; b < {self.count}; b += {span}"
            with code.block(f"for ({loop})"):
                code.line(
                    f"const long long past = b + {span} < {self.count} ? b + {span} : {self.count};"
                )
                code.line(f"{kind} block = {self.start};")
                loop = f"long long {index} = b; {index} < past; {index} += {self.step}"
                with code.unrolled(f"for ({loop})", LONG):
                    yield
                code.line(f"level[0] = {self.combine.format('level[0]', 'block')};")
                code.line("blocks++;")
                for low in range(levels - 1):
                    with code.block(f"if (blocks % {LONG ** (low + 1)} == 0)"):
                        combined = self.combine.format(f"level[{low + 1}]", f"level[{low}]")
                        code.line(f"level[{low + 1}] = {combined};")
                        code.line(f"level[{low}] = {self.start};")
            combined = self.combine.format(name, "level[l]")
            code.line(f"for (int l = 0; l < {levels}; l++) {name} = {combined};")

    def add(self, value: str) -> None:
        """Prints how an element is combined with those of its block."""
        self.code.line(f"const {self.kind} element = {value};")
        self.code.line(f"block = {self.combine.format('block', 'element')};")


def _place(index: str, shape: Sequence[int], axes: Sequence[int]) -> str:
    """The offset of element ``index``, counted over some axes, in the dense value."""
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


def averages_images(batch: int, x: Tensor) -> bool:
    """Whether :func:`print_image_average` reads values of a layout: with contiguous pixels or
    channels, and with rows whose sums fit in shared memory."""
    if x.is_planar:
        return x.rows * 4 <= _MOST_SHARED
    shared_bytes = x.rows * _PLANE_PACKS * (_ACCESS // x.itemsize) * 4
    return x.channel == 1 and shared_bytes <= _MOST_SHARED and batch < 1 << 16


def print_image_average(batch: int, x: Tensor, y: Tensor, machine: Machine) -> Launch:
    """The kernel that averages each plane as a whole.

    Threads of a block add rows; the sums of rows are then added in order.
    """
    if x.is_planar:
        return _planar_average(batch, x, y)
    return _channels_last_average(batch, x, y, machine)


def _planar_average(batch: int, x: Tensor, y: Tensor) -> Launch:
    """A block averages some planes; a thread adds a row, in packs as wide as alignment allows."""
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
            offset = f"plane / {x.channels} * {x.image} + plane % {x.channels} * {x.channel}"
            code.line(f"const auto row = x + ({offset} + i % {rows} * {x.row} + {x.offset});")
            _add_row(code, x.columns, lanes)
            code.line("sums[i] = sum;")
        code.line("__syncthreads();")
        code.line(f"const long long plane = blockIdx.x * {planes}ll + threadIdx.x;")
        code.line(f"if (threadIdx.x >= {planes} || plane >= {count}) return;")
        _add_sums(code, rows, f"sums[threadIdx.x * {rows} + {{}}]")
        code.line(f"total /= {rows * x.columns}.0f;")
        offset = f"plane / {x.channels} * {y.image} + plane % {x.channels} * {y.channel}"
        code.line(f"y[{offset} + {y.offset}] = md_as<{TYPES[y.dtype]}>(total);")
    return _average(code, (-(-count // planes), 1, 1), threads, planes * rows)


def _channels_last_average(batch: int, x: Tensor, y: Tensor, machine: Machine) -> Launch:
    """A block averages a few packs of channels of an image; a thread adds rows of a pack."""
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
            place = f"h * {wide * lanes} + threadIdx.x % {wide} * {lanes} + j"
            code.unrolled_line(f"for (int j = 0; j < {lanes}; j++) sums[{place}] = sum[j];")
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
    """Declares ``sum``, that of the contiguous pixels at ``row``; ``lanes`` are loaded at once."""

    def add(begin: str, end: str, to: str) -> None:
        with code.block(f"for (int w = {begin}; w < {end}; w += {lanes})"):
            code.line(f"float one[{lanes}];")
            code.line(f"md_load<{lanes}>(one, row + w);")
            code.unrolled_line(f"for (int j = 0; j < {lanes}; j++) {to} += one[j];")

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
        chunks = f"for (int i = b; i < end; i += {LONG})"
        packs = f"for (int p = 0; p < {LONG}; p += {lanes})"
        with code.unrolled(chunks, 4), code.unrolled(packs):
            code.line("if (i + p >= end) break;")
            code.line(f"float one[{lanes}];")
            code.line(f"md_load<{lanes}>(one, row + i + p);")
            code.unrolled_line(f"for (int j = 0; j < {lanes}; j++) part[p + j] += one[j];")
        with code.unrolled(f"for (int half = {LONG // 2}; half; half >>= 1)"):
            code.unrolled_line("for (int p = 0; p < half; p++) part[p] += part[p + half];")
        code.line("levels[0] += part[0];")
        code.line("blocks++;")
        with code.block("for (int l = 0, k = blocks; k % 16 == 0; l++, k /= 16)"):
            code.line("levels[l + 1] += levels[l];")
            code.line("levels[l] = 0.0f;")
    code.line("for (int l = 0; l < 5; l++) levels[l + 1] += levels[l];")
    code.line("sum = levels[5];")


def _add_packs(code: Code, x: Tensor, lanes: int) -> None:
    """Declares ``sum``, the sums of row ``h`` for ``lanes`` neighbouring channels."""
    if x.columns <= LONG:
        code.line(f"float sum[{lanes}] = {{}};")
        with code.unrolled(f"for (int w = 0; w < {x.columns}; w++)", 8):
            code.line(f"float one[{lanes}];")
            code.line(f"md_load<{lanes}>(one, x + h * {x.row}ll + w * {x.pixel}ll);")
            code.unrolled_line(f"for (int j = 0; j < {lanes}; j++) sum[j] += one[j];")
        return

    def load_tap(w: str) -> str:
        code.line(f"float one[{lanes}];")
        code.line(f"md_load<{lanes}>(one, x + h * {x.row}ll + ({w}) * {x.pixel}ll);")
        return "one"

    def declare(name: str, text: str) -> None:
        code.line(f"float {name}[{lanes}];")
        assign(name, text)

    def assign(name: str, text: str) -> None:
        code.unrolled_line(f"for (int j = 0; j < {lanes}; j++) {name}[j] = {text};")

    TapLoop(code, "int", declare, assign, "{}[j]".format, CUDA).print("sum", x.columns, load_tap)


def _add_sums(code: Code, count: int, place: str) -> None:
    """Declares ``total``, the sum of ``count`` sums of rows, in shared memory at ``place``."""
    if count <= LONG:
        code.line("float total = 0.0f;")
        code.line("#pragma unroll 8")
        code.line(f"for (int h = 0; h < {count}; h++) total += {place.format('h')};")
        return

    def load_tap(h: str) -> str:
        code.line(f"const float one = {place.format(h)};")
        return "one"

    def declare(name: str, text: str) -> None:
        code.line(f"float {name} = {text};")

    def assign(name: str, text: str) -> None:
        code.line(f"{name} = {text};")

    TapLoop(code, "int", declare, assign, str, CUDA).print("total", count, load_tap)


def _average(code: Code, blocks: tuple[int, int, int], threads: int, sums: int) -> Launch:
    """The launch of an average whose blocks have so many sums in shared memory."""
    return Launch(KernelSource.named("average", str(code)), blocks, (threads, 1, 1), sums * 4)


def _lanes(x: Tensor, batch: int) -> int:
    """Channels of one access, as wide as alignment allows."""
    lanes = _ACCESS // x.itemsize
    steps = (x.channels, x.offset, x.pixel, x.row, *((x.image,) if batch > 1 else ()))
    while any(step % lanes for step in steps):
        lanes //= 2
    return lanes
