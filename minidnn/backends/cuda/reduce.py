"""Kernels that join elements along axes: sums, means and extremes, places of maxima."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from ...graph.operators import ArgMax, Reduce
from ...graph.types import TensorType
from ...graph.window import LONG
from ..codegen.code import Code
from ..codegen.dialect import literal
from .expressions import STORED, is_whole, read, stored
from .kernels import Launch
from .strided import Strided, element_of

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
