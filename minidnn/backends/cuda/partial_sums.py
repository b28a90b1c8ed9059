"""Channel sums in parts: the grid of a sweep (:class:`SumsGrid`), the partial sums that its blocks
write (:class:`PartialSums`), and the kernels that combine these.

The grid follows from shapes and layouts alone.  In channels-last tensors a thread has one pack of
channels, at every ``step``-th pixel.  The grids of float32 sums never change, as their bits would.
Half-precision sums take blocks whose warps have few idle threads, whatever their width: a warp of
which a quarter has no channels takes as long as a full one.
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
"""The most threads of a block."""
_COLUMNS = 8
"""Neighbouring channels whose parts a block combines: as many as one access to memory reads."""
_ROWS = THREADS // _COLUMNS
_OWN = 32
"""The most parts of a variance that a thread keeps in registers."""
LARGEST = literal(float(np.finfo(np.float32).max))


@dataclass(frozen=True)
class Total:
    """A sum or a mean.

    Attributes:
        number: of the result.
    """

    node: Node
    number: int

    #: For each channel, the accumulators of a thread, and the numbers that a block writes.
    sums = kept = 1

    @property
    def added(self) -> Value:
        """The value whose elements are added."""
        return self.node.inputs[0]


@dataclass(frozen=True)
class MeanAndVariance:
    """A variance and its mean, which is computed in any case.

    Attributes:
        number: of the result that the variance is.
        mean: the number of the result that the mean is; None if it is no result.
    """

    variance: Node
    number: int
    mean: int | None

    #: As those of a :class:`Total`.
    sums, kept = 2, 3

    @property
    def added(self) -> Value:
        """The value whose variance it is."""
        return self.variance.inputs[0]


@dataclass(frozen=True)
class PartialSums:
    """The partial sums that blocks write to the workspace: one for each sum, part and channel.

    A variance and its mean have three: the shift from which distances are taken; the mean of these
    distances, whose digits would be lost if the shift were added; and the sum of the squared
    distances from shift plus mean.

    Attributes:
        found: the reductions.
        dtypes: of the results that are sums, by their numbers.
        channels: how many there are, those of each group counted.
        size: packs of a part; the last part may have fewer.
        packs: packs of all parts.
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
        """How many parts there are."""
        return -(-self.packs // self.size)

    @property
    def stride(self) -> int:
        """Partial sums of one sum: one for each part and channel."""
        return self.count * self.channels

    @property
    def bytes(self) -> int:
        """The size of the workspace."""
        return sum(each.kept for each in self.found) * self.stride * 4

    @property
    def elements(self) -> int:
        """Elements of a channel."""
        return self.packs * self.each

    def of_part(self, part: str) -> str:
        """The expression of how many elements of a channel a part has."""
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
        """Prints what a block writes for channel ``c`` of its part ``p``, packs ``begin`` to
        ``end``: the results, if there is one part, else partial sums.

        Args:
            sums: the expressions of the block's sums.
            firsts: for each variance, that of the shift from which distances were taken.
        """
        index, names, shifts = 0, iter(sums), iter(firsts)
        for each in self.found:
            if isinstance(each, Total):
                value = next(names)
                result = self.total(each, value)
                code.line(result if self.count == 1 else f"part[{self._place(index)}] = {value};")
            else:
                mean, squares, count = code.fresh(), code.fresh(), code.fresh()
                distances, squared = next(names), next(names)
                code.line(f"const float {count} = (end - begin) * {literal(float(self.each))};")
                code.line(f"const float {mean} = {distances} / {count};")
                code.line(f"float {squares} = {squared} - {distances} * {mean};")
                code.line(f"if ({squares} < 0.0f) {squares} = 0.0f;")  # by rounding
                # Not infinity - infinity:
                code.line(f"if ({squared} > {LARGEST}) {squares} = {squared};")
                origin = next(shifts)
                if self.count == 1:
                    if each.mean is not None:
                        code.line(self.result(each.mean, f"{origin} + {mean}"))
                    code.line(self.result(each.number, f"{squares} / {count}"))
                else:
                    for i, value in enumerate((origin, mean, squares)):
                        code.line(f"part[{self._place(index + i)}] = {value};")
            index += each.kept

    def _place(self, sum: int) -> str:
        """The index in the workspace of a sum, for part ``p`` and channel ``c``."""
        return f"({sum * self.count}ll + p) * {self.channels} + c"


def reduce_partial_sums(parts: PartialSums) -> Launch:
    """The kernel that combines parts: 32 threads of a block share those of a channel."""
    code = Code()
    columns = -(-parts.channels // _COLUMNS)
    head = ", ".join(("const float *part", *parts.results))
    with code.block(f'extern "C" __global__ void __launch_bounds__({THREADS}) @({head})'):
        code.line("MD_SHARED;")
        code.line("float *const shared = (float *)md_shared;")
        code.line(f"const int which = blockIdx.x / {columns};")
        channel = f"blockIdx.x % {columns} * {_COLUMNS} + threadIdx.x % {_COLUMNS}"
        code.line(f"const int c = {channel}, down = threadIdx.x / {_COLUMNS};")
        first = 0
        for i, each in enumerate(parts.found):
            with code.block(f"if (which == {i})"):
                code.line(f"const float *const from = part + {first * parts.stride}ll + c;")
                if isinstance(each, Total):
                    _add(code, parts, f"from[r * {parts.channels}ll]")
                    code.line(f"if (down == 0 && c < {parts.channels}) {parts.total(each, 'all')}")
                else:
                    _combine_moments(code, parts, each)
            first += each.kept
    return Launch.named("sum_parts", code, len(parts.found) * columns, THREADS, THREADS * 4)


def reduce_few_partial_sums(parts: PartialSums) -> Launch:
    """The kernel that combines few parts of many channels, a thread for each channel; it has no
    variances."""
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
                with code.unrolled(f"for (int r = 0; r < {parts.count}; r++)", 8):
                    code.line(f"total += from[r * {parts.channels}ll];")
                code.line(parts.total(each, "total"))
    return Launch.named("sum_parts", code, -(-parts.channels // THREADS), THREADS)


def _combine_moments(code: Code, parts: PartialSums, each: MeanAndVariance) -> None:
    """Prints the mean and then the variance of a channel.

    All means of parts become distances from ``base``, the shift of the first part.
    """
    count = parts.of_part("r")
    origin, mean, squares = (
        f"from[{i * parts.stride}ll + r * {parts.channels}ll]" for i in range(3)
    )
    code.line(f"const float base = c < {parts.channels} ? from[0] : 0.0f;")
    distance, rows = f"(({origin} - base) + {mean})", -(-parts.count // _ROWS)
    unrolled = rows if rows <= _OWN else None
    if unrolled:  # each thread reads its parts once, for both sums
        code.line(f"float apart[{unrolled}], squares[{unrolled}];")
        with _of_rows(code, parts, unrolled):
            code.line(f"apart[k] = {distance};")
            code.line(f"squares[k] = {squares};")
        distance, squares = "apart[k]", "squares[k]"
    _add(code, parts, f"{count} * {distance}", unrolled)
    code.line(f"const float mean = all / {literal(float(parts.elements))};")
    writes = f"if (down == 0 && c < {parts.channels})"
    if each.mean is not None:
        code.line(f"{writes} {parts.result(each.mean, 'base + mean')}")
    with code.block(""):
        _add(
            code,
            parts,
            f"{squares} + {count} * ({distance} - mean) * ({distance} - mean)",
            unrolled,
        )
        variance = f"all / {literal(float(parts.elements))}"
        code.line(f"{writes} {parts.result(each.number, variance)}")


@contextmanager
def _of_rows(code: Code, parts: PartialSums, unrolled: int | None = None) -> Iterator[None]:
    """A loop over the parts ``r`` of channel ``c`` that a thread adds; ``unrolled``, if given, is
    the most that a thread has, which ``k`` counts."""
    inside = f"c < {parts.channels} && r < {parts.count}"
    if unrolled is None:
        with code.unrolled(f"for (int r = down; {inside}; r += {_ROWS})", 16):
            yield
        return
    with code.unrolled(f"for (int k = 0; k < {unrolled}; k++)"):
        code.line(f"const int r = down + k * {_ROWS};")
        with code.block(f"if ({inside})"):
            yield


def _add(code: Code, parts: PartialSums, value: str, unrolled: int | None = None) -> None:
    """Prints ``all``, the sum of a value over the parts ``r`` of channel ``c``, in each thread of
    the channel; ``unrolled`` as for :func:`_of_rows`."""
    code.line("float total = 0.0f;")
    with _of_rows(code, parts, unrolled):
        code.line(f"total += {value};")
    code.line("__syncthreads();")
    code.line("shared[threadIdx.x] = total;")
    code.line("__syncthreads();")
    with code.block(f"for (int s = {_ROWS // 2}; s; s >>= 1)"):
        code.line(f"if (down < s) shared[threadIdx.x] += shared[threadIdx.x + s * {_COLUMNS}];")
        code.line("__syncthreads();")
    code.line(f"const float all = shared[threadIdx.x % {_COLUMNS}];")


_BLOCKS = 512
"""Blocks that keep every GPU busy, and run all at once if their threads have 64 registers each."""
_LEAST, _MOST, _MOST_NARROW = 4, 64, 256
"""Packs that a thread adds: at least, at most, and at most in half precision."""
_WIDTHS = (1, 2, 4, 8, 16, 32)
"""Candidates for how many neighbouring packs a block adds."""
_ROW = 64  # bytes
"""If a block reads shorter rows, memory moves more than is read."""
_BUSY = 0.75
"""The share of threads with a pack from which a long row gains more than idle threads cost."""
_AS_BUSY = 0.95
"""The share of the best utilization down to which longer rows are preferred, where blocks have as
many threads as a row needs."""
_WARP = 32


@dataclass(frozen=True)
class SumsGrid:
    """The threads of a block, which adds some channels of some pixels.

    Attributes:
        wide: neighbouring packs of channels that a block adds; 1 in planar tensors.
        step: packs of pixels, in the same channels, that a block adds at once.
        beside: blocks that share all channels.
        narrow: whether the grid is for half precision.
    """

    wide: int
    step: int
    beside: int
    narrow: bool

    @property
    def threads(self) -> int:
        return self.wide * self.step

    def part(self, count: int, groups: int) -> int:
        """How many of the ``count`` packs of pixels of a group a block adds, where so many groups
        have sums of their own."""
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
    """The grid of channels-last tensors, whose pixels have so many packs of channels."""
    if narrow:
        return _narrow_grid(packs, pack_bytes)
    wide = _wide(packs, pack_bytes)
    return SumsGrid(wide, THREADS // wide, -(-packs // wide), narrow)


def grid_of_planes(channels: int, narrow: bool) -> SumsGrid:
    """The grid of planar tensors: a block adds a single channel."""
    return SumsGrid(1, THREADS, channels, narrow)


def _wide(packs: int, pack_bytes: int) -> int:
    """How many neighbouring packs a block adds: long rows, if few threads are without a pack; else
    the width that leaves the fewest without one."""
    enough = [wide for wide in _WIDTHS if wide >= packs or wide * pack_bytes >= _ROW]
    slots = {wide: -(-packs // wide) * wide for wide in enough or _WIDTHS[-1:]}
    full = [wide for wide, threads in slots.items() if threads * _BUSY <= packs]
    return max(full) if full else min(slots, key=lambda wide: (slots[wide], -wide))


def _narrow_grid(packs: int, pack_bytes: int) -> SumsGrid:
    """The grid with the longest rows of those whose warps have the fewest idle threads, about."""
    grids: list[SumsGrid] = []
    for beside in range(-(-packs // THREADS), packs + 1):
        wide = -(-packs // beside)
        if wide * pack_bytes < _ROW and grids:
            break
        grids.append(SumsGrid(wide, THREADS // wide, -(-packs // wide), True))

    def utilization(grid: SumsGrid) -> float:
        warps = -(-grid.threads // _WARP)
        return packs * grid.step / (grid.beside * warps * _WARP)

    best = max(map(utilization, grids))
    return max(
        (grid for grid in grids if utilization(grid) >= _AS_BUSY * best), key=lambda g: g.wide
    )
