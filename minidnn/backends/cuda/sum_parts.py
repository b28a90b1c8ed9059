"""Sums over all axes but channels: how blocks and threads share what a sweep adds up, what blocks
leave of sums, and the kernel that joins it.

The grid follows from shapes and layouts alone.  Of channels side by side a thread has one pack, at
every ``step``-th pixel.  What float32 has here never changes, as its bits would; sums of halves
take blocks of whole warps but for a few threads, of whatever numbers these consist: a warp of which
a quarter has no channels computes no less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...graph.ir import Node, Value
from ...graph.operators import Reduce
from ..codegen.code import Code
from ..codegen.dialect import literal
from .kernels import Launch
from .prelude import TYPES

THREADS = 256
"""Most of a block."""
_COLUMNS = 8
"""Channels side by side that a block joins the parts of: what one access to memory reads."""
_ROWS = THREADS // _COLUMNS
_OWN = 32
"""So many parts of a variance a thread keeps in registers."""
LARGEST = literal(float(np.finfo(np.float32).max))


@dataclass(frozen=True)
class Total:
    """A sum or a mean.

    Attributes:
        number: of the result.
    """

    node: Node
    number: int

    sums = kept = 1

    @property
    def added(self) -> Value:
        return self.node.inputs[0]


@dataclass(frozen=True)
class MeanAndVariance:
    """A variance and the mean that it is around, which is computed in any case.

    Attributes:
        number: of the result that the variance is.
        mean: of that which the mean is, if it is one.
    """

    variance: Node
    number: int
    mean: int | None

    sums, kept = 2, 3

    @property
    def added(self) -> Value:
        return self.variance.inputs[0]


@dataclass(frozen=True)
class SumParts:
    """What blocks leave: for each sum, part and channel a number.

    Of a mean and a variance these are what distances were taken from, the distances' mean, whose
    digits would be lost in their sum, and the squares of distances from that.

    Attributes:
        dtypes: of the results that are sums, by their numbers.
        size: packs of a part, but for the last.
        packs: of all of them.
        each: elements of a channel in a pack.
    """

    found: tuple[Total | MeanAndVariance, ...]
    dtypes: Mapping[int, str]
    channels: int
    size: int
    packs: int
    each: int

    @property
    def count(self) -> int:
        return -(-self.packs // self.size)

    @property
    def stride(self) -> int:
        """Numbers of one sum."""
        return self.count * self.channels

    @property
    def bytes(self) -> int:
        return sum(each.kept for each in self.found) * self.stride * 4

    @property
    def elements(self) -> int:
        """Of a channel."""
        return self.packs * self.each

    def of_part(self, part: str) -> str:
        """How many elements of a channel a part has."""
        last = self.packs - (self.count - 1) * self.size
        full, rest = (literal(float(n * self.each)) for n in (self.size, last))
        return f"({part} == {self.count - 1} ? {rest} : {full})"

    @property
    def results(self) -> list[str]:
        """The parameters of a kernel that writes the results."""
        return [f"{TYPES[dtype]} *y{i}" for i, dtype in self.dtypes.items()]

    def result(self, number: int, value: str) -> str:
        """The line that writes a result of channel ``c``."""
        return f"y{number}[c] = md_as<{TYPES[self.dtypes[number]]}>({value});"

    def total(self, each: Total, value: str) -> str:
        """The line that writes a sum or a mean of channel ``c``."""
        op = each.node.op
        assert isinstance(op, Reduce)
        if op.how == "mean":
            value = f"{value} / {literal(float(self.elements))}"
        return self.result(each.number, value)

    def print_part(self, code: Code, sums: Sequence[str], firsts: Iterable[str]) -> None:
        """Prints what a block leaves of channel ``c``, part ``p`` from ``begin`` to ``end``: the
        results, if it has added all.

        Args:
            sums: of the block.
            firsts: for each of the moments, from what distances were taken.
        """
        place, names, first = 0, iter(sums), iter(firsts)
        for each in self.found:
            if isinstance(each, Total):
                value = next(names)
                whole = self.total(each, value)
                code.line(whole if self.count == 1 else f"part[{self._place(place)}] = {value};")
            else:
                mean, squares, many = code.fresh(), code.fresh(), code.fresh()
                one, two = next(names), next(names)
                code.line(f"const float {many} = (end - begin) * {literal(float(self.each))};")
                code.line(f"const float {mean} = {one} / {many};")
                code.line(f"float {squares} = {two} - {one} * {mean};")
                code.line(f"if ({squares} < 0.0f) {squares} = 0.0f;")  # by rounding
                code.line(f"if ({two} > {LARGEST}) {squares} = {two};")  # not infinity - infinity
                origin = next(first)
                if self.count == 1:
                    if each.mean is not None:
                        code.line(self.result(each.mean, f"{origin} + {mean}"))
                    code.line(self.result(each.number, f"{squares} / {many}"))
                else:
                    for i, value in enumerate((origin, mean, squares)):
                        code.line(f"part[{self._place(place + i)}] = {value};")
            place += each.kept

    def _place(self, sum: int) -> str:
        return f"({sum * self.count}ll + p) * {self.channels} + c"


def join_parts(parts: SumParts) -> Launch:
    """The kernel that joins parts: threads of a block take every 32nd of a channel's."""
    code = Code()
    columns = -(-parts.channels // _COLUMNS)
    head = ", ".join(("const float *part", *parts.results))
    with code.block(f'extern "C" __global__ void __launch_bounds__({THREADS}) @({head})'):
        code.line("MD_SHARED;")
        code.line("float *const shared = (float *)md_shared;")
        code.line(f"const int which = blockIdx.x / {columns};")
        place = f"blockIdx.x % {columns} * {_COLUMNS} + threadIdx.x % {_COLUMNS}"
        code.line(f"const int c = {place}, down = threadIdx.x / {_COLUMNS};")
        first = 0
        for i, each in enumerate(parts.found):
            with code.block(f"if (which == {i})"):
                code.line(f"const float *const from = part + {first * parts.stride}ll + c;")
                if isinstance(each, Total):
                    _add(code, parts, f"from[r * {parts.channels}ll]")
                    code.line(f"if (down == 0 && c < {parts.channels}) {parts.total(each, 'all')}")
                else:
                    _join_moments(code, parts, each)
            first += each.kept
    return Launch.named("sum_parts", code, len(parts.found) * columns, THREADS, THREADS * 4)


def join_few(parts: SumParts) -> Launch:
    """The kernel that joins a few parts of many channels, each by a thread; of sums alone."""
    code = Code()
    head = ", ".join(("const float *part", *parts.results))
    with code.block(f'extern "C" __global__ void __launch_bounds__({THREADS}) @({head})'):
        code.line(f"const int c = blockIdx.x * {THREADS} + threadIdx.x;")
        code.line(f"if (c >= {parts.channels}) return;")
        for i, each in enumerate(parts.found):
            assert isinstance(each, Total), each
            with code.block(""):
                code.line(f"const float *const from = part + {i * parts.stride}ll + c;")
                code.line("float total = 0.0f;")
                code.line("#pragma unroll 8")
                with code.block(f"for (int r = 0; r < {parts.count}; r++)"):
                    code.line(f"total += from[r * {parts.channels}ll];")
                code.line(parts.total(each, "total"))
    return Launch.named("sum_parts", code, -(-parts.channels // THREADS), THREADS)


def _join_moments(code: Code, parts: SumParts, each: MeanAndVariance) -> None:
    """The mean of parts' means, and the squares of distances from it; all by distances from what
    those of the first part are taken from."""
    many = parts.of_part("r")
    origin, mean, squares = (
        f"from[{i * parts.stride}ll + r * {parts.channels}ll]" for i in range(3)
    )
    code.line(f"const float base = c < {parts.channels} ? from[0] : 0.0f;")
    apart, rows = f"(({origin} - base) + {mean})", -(-parts.count // _ROWS)
    own = rows if rows <= _OWN else None
    if own:  # what a thread adds is read once
        code.line(f"float apart[{own}], squares[{own}];")
        with _of_rows(code, parts, own):
            code.line(f"apart[k] = {apart};")
            code.line(f"squares[k] = {squares};")
        apart, squares = "apart[k]", "squares[k]"
    _add(code, parts, f"{many} * {apart}", own)
    code.line(f"const float mean = all / {literal(float(parts.elements))};")
    writes = f"if (down == 0 && c < {parts.channels})"
    if each.mean is not None:
        code.line(f"{writes} {parts.result(each.mean, 'base + mean')}")
    with code.block(""):
        _add(code, parts, f"{squares} + {many} * ({apart} - mean) * ({apart} - mean)", own)
        variance = f"all / {literal(float(parts.elements))}"
        code.line(f"{writes} {parts.result(each.number, variance)}")


@contextmanager
def _of_rows(code: Code, parts: SumParts, own: int | None = None) -> Iterator[None]:
    """A loop over the parts ``r`` of channel ``c`` that a thread adds; ``own``: of so many at most,
    which ``k`` counts."""
    inside = f"c < {parts.channels} && r < {parts.count}"
    if own is None:
        code.line("#pragma unroll 16")
        with code.block(f"for (int r = down; {inside}; r += {_ROWS})"):
            yield
        return
    code.line("#pragma unroll")
    with code.block(f"for (int k = 0; k < {own}; k++)"):
        code.line(f"const int r = down + k * {_ROWS};")
        with code.block(f"if ({inside})"):
            yield


def _add(code: Code, parts: SumParts, value: str, own: int | None = None) -> None:
    """Prints ``all``, the sum of a value of the parts ``r`` of channel ``c``, which every thread of
    the channel then has; ``own`` as for :func:`_of_rows`."""
    code.line("float total = 0.0f;")
    with _of_rows(code, parts, own):
        code.line(f"total += {value};")
    code.line("__syncthreads();")
    code.line("shared[threadIdx.x] = total;")
    code.line("__syncthreads();")
    with code.block(f"for (int s = {_ROWS // 2}; s; s >>= 1)"):
        code.line(f"if (down < s) shared[threadIdx.x] += shared[threadIdx.x + s * {_COLUMNS}];")
        code.line("__syncthreads();")
    code.line(f"const float all = shared[threadIdx.x % {_COLUMNS}];")


_BLOCKS = 512
"""So many blocks keep every card busy, and run all at once where each has 64 registers a thread."""
_LEAST, _MOST, _MOST_NARROW = 4, 64, 256
"""Elements of a channel that a thread adds, in packs."""
_WIDTHS = (1, 2, 4, 8, 16, 32)
"""How many packs side by side a block adds."""
_ROW = 64  # bytes
"""Of shorter rows memory moves more than is read."""
_BUSY = 0.75
"""Where so many of the threads have a pack, a long row gains more than idle ones cost."""
_AS_BUSY = 0.95
"""Long rows are worth that, where threads are as many as the row needs."""
_WARP = 32


@dataclass(frozen=True)
class SumsGrid:
    """The threads of a block: ``wide`` packs side by side, and ``step`` of them below each other.

    Attributes:
        beside: so many blocks have the packs of a row.
        narrow: whether it is chosen for halves.
    """

    wide: int
    step: int
    beside: int
    narrow: bool

    @property
    def threads(self) -> int:
        return self.wide * self.step

    def part(self, count: int, groups: int) -> int:
        """How many of ``count`` packs below each other a block adds, where so many groups have sums
        of their own."""
        blocks, step = groups * self.beside, self.step
        most = _MOST_NARROW if self.narrow else _MOST
        if groups > 1 and blocks * 2 >= _BLOCKS:
            parts = -(-count // (step * most))
            return step * -(-count // (step * parts))
        packs = -(-count * blocks // (step * _BLOCKS))
        if self.narrow:  # no more blocks than run at once
            packs = -(-count // (step * max(1, _BLOCKS // blocks)))
        return step * max(_LEAST, min(most, packs))


def grid_of_columns(packs: int, pack_bytes: int, narrow: bool) -> SumsGrid:
    """The grid of so many packs of channels side by side."""
    if narrow:
        return _busy_grid(packs, pack_bytes)
    wide = _wide(packs, pack_bytes)
    return SumsGrid(wide, THREADS // wide, -(-packs // wide), narrow)


def grid_of_planes(channels: int, narrow: bool) -> SumsGrid:
    """That of channels whose pixels lie side by side."""
    return SumsGrid(1, THREADS, channels, narrow)


def _wide(packs: int, pack_bytes: int) -> int:
    """How many packs side by side a block adds: long rows, if few threads are without a pack; else
    those that leave the fewest without one."""
    enough = [wide for wide in _WIDTHS if wide >= packs or wide * pack_bytes >= _ROW]
    taken = {wide: -(-packs // wide) * wide for wide in enough or _WIDTHS[-1:]}
    full = [wide for wide, threads in taken.items() if threads * _BUSY <= packs]
    return max(full) if full else min(taken, key=lambda wide: (taken[wide], -wide))


def _busy_grid(packs: int, pack_bytes: int) -> SumsGrid:
    """The longest rows among the grids that leave the fewest of their warps' threads idle."""
    grids: list[SumsGrid] = []
    for beside in range(-(-packs // THREADS), packs + 1):
        wide = -(-packs // beside)
        if wide * pack_bytes < _ROW and grids:
            break
        grids.append(SumsGrid(wide, THREADS // wide, -(-packs // wide), True))

    def busy(grid: SumsGrid) -> float:
        warps = -(-grid.threads // _WARP)
        return packs * grid.step / (grid.beside * warps * _WARP)

    most = max(map(busy, grids))
    return max((grid for grid in grids if busy(grid) >= _AS_BUSY * most), key=lambda g: g.wide)
