"""Prints windows over a tile of outputs, row after row, with work shared between neighbours.

Maxima are reduced along rows first, and two neighbouring outputs share the taps that they have in
common.  The order of a maximum changes no bit.  Sums keep the order of the reference: the taps of a
row from left to right, then the rows from top to bottom.

Where no operand is negative (see :mod:`.plans`), floats are compared as integers: then a maximum of
three is one instruction from sm_90 on, and NaN, whose sign bit is clear, is the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

import numpy as np

from minidnn.graph.expression import linearize
from minidnn.graph.window import Window, WindowAxis

from ...codegen import taps
from ...codegen.dialect import CUDA, literal
from ..prelude import TYPES
from .pack import Loader, Pack


@dataclass
class WindowPrinter:
    """Prints one window over ``rows`` by ``columns`` outputs."""

    pack: Pack
    window: Window
    rows: int
    columns: int
    load: Loader
    #: Whether no element is negative, and whether maxima of three are single instructions.
    positive: bool = False
    triples: bool = False
    #: Rows of taps, reduced for each column of outputs, by row.
    row_results: dict[int, list[str]] = field(default_factory=dict)

    def results(self) -> Iterator[tuple[int, list[str]]]:
        """Yields each row with the names of its results (of sums, before they are divided)."""
        step = 1 if self._is_single else 2
        for first in range(0, self.rows, step):
            rows = range(first, min(first + step, self.rows))
            taps = [taps_of(self.window.whole[0], row) for row in rows]
            for offset in sorted({o for row in taps for o in row}):
                if offset not in self.row_results:
                    self.row_results[offset] = self._row(offset)
            columns: list[list[str]] = []
            for column in range(self.columns):
                ranges = [[self.row_results[o][column] for o in row] for row in taps]
                columns.append(self._reduced(ranges))
            for i, row in enumerate(rows):
                yield row, [names[i] for names in columns]

    @property
    def _is_single(self) -> bool:
        """Whether each output is reduced by itself."""
        return not shares(self.window, self.positive, self.triples)

    def _row(self, offset: int) -> list[str]:
        """Returns one row of taps, reduced for each column of outputs."""
        ranges = [taps_of(self.window.whole[1], column) for column in range(self.columns)]
        elements = {o: self.load(offset, o) for o in sorted({o for r in ranges for o in r})}
        totals = []
        step = 1 if self._is_single else 2
        for first in range(0, self.columns, step):
            together = ranges[first : first + step]
            totals += self._reduced([[elements[o] for o in r] for r in together])
        return totals

    def _reduced(self, ranges: list[list[str]]) -> list[str]:
        return reduce_ranges(self.pack, self.window, ranges, self.positive)


def shares(window: Window, positive: bool, triples: bool) -> bool:
    """Whether two neighbouring outputs are reduced together: not sums, nor maxima of which three
    operands take one instruction."""
    return window.combiner.chooses and not (window.reduction == "max" and positive and triples)


def reduce_ranges(pack: Pack, window: Window, ranges: list[list[str]], positive: bool) -> list[str]:
    """Reduces each list to its maximum or its sum; two maxima reduce what they share once."""
    if len(ranges) == 2 and window.combiner.chooses:
        first, second = ranges
        shared = [name for name in first if name in second]
        if len(shared) > 1:
            middle = _chain(pack, window, shared, positive)
            before = [name for name in first if name not in shared]
            after = [name for name in second if name not in shared]
            return [
                _chain(pack, window, [*before, middle], positive),
                _chain(pack, window, [middle, *after], positive),
            ]
    return [_chain(pack, window, names, positive) for names in ranges]


def _chain(pack: Pack, window: Window, names: list[str], positive: bool) -> str:
    """Combines elements one after another, and returns the name of the result."""
    total = names[0]
    for name in names[1:]:
        fresh = pack.code.fresh()
        pack.declare(fresh, combine_text(pack, window, pack.at(total), pack.at(name), positive))
        total = fresh
    return total


def combine_text(pack: Pack, window: Window, a: str, b: str, positive: bool) -> str:
    """Returns the expression that combines two elements."""
    if window.reduction == "max":
        return pack.maximum(a, b, positive)
    return taps.combine_text(CUDA, window.combiner, a, b)


def identity_text(pack: Pack, window: Window) -> str:
    """Returns what positions outside of the plane count as: the identity of the reduction."""
    return pack.least if window.reduction == "max" else literal(window.combiner.identity)


def taps_of(axis: WindowAxis, output: int) -> list[int]:
    """Offsets of an output's taps from the first tap of output 0."""
    return [output * axis.stride + tap * axis.dilation for tap in range(axis.kernel)]


@dataclass(frozen=True)
class Finish:
    """Prints the finish of a window: what its reduced taps become, over planes of ``extent`` and
    ``dtype``.

    ``branch``: with a branch for tiny float32, which is a little faster unless it stands between
    loads.
    """

    pack: Pack
    window: Window
    extent: tuple[int, int]
    dtype: str
    branch: bool = False

    def print(self, name: str, total: str, row: str, column: str, rounded: str) -> str:
        """Prints the result at a position, rounded to a dtype, and returns its name: a new one,
        unless it is the total.

        The identity is added because the reference's sums begin with it: a sum of negative zeros is
        positive.
        """
        pack, window = self.pack, self.window
        if window.is_finished and window.combiner.chooses:
            return total
        if window.averages:
            text = average_text(self, pack.at(total), row, column)
            if rounded != "float32":
                text = f"md_round<{TYPES[rounded]}>({text})"
            pack.declare(name, text)
            return name
        combined = combine_text(pack, window, pack.at(total), identity_text(pack, window), False)
        constant, parts = count_parts(window, self.extent, row, column)
        count = f"(float)({' * '.join([str(constant), *parts])})"
        pack.compute(name, linearize(window.finish), [f"({combined})", count], rounded)
        return name


def average_text(finish: Finish, total: str, row: str, column: str) -> str:
    """Returns a sum divided by the number of taps that count at a position."""
    constant, parts = count_parts(finish.window, finish.extent, row, column)
    if not parts:
        return quotient_text(total, constant, finish.dtype, finish.branch)
    product = " * ".join([*([str(constant)] if constant != 1 else []), *parts])
    return f"({total} + 0.0f) / (float)({product})"


def count_parts(
    window: Window, extent: tuple[int, int], row: str, column: str
) -> tuple[int, list[str]]:
    """Returns the number of taps that count at a position: a constant, and further factors."""
    counts = window.divisors(extent)
    parts: list[str] = []
    constant = 1
    for name, axis, size, table in zip((row, column), window.axes, extent, counts, strict=True):
        if len(set(table.tolist())) == 1:
            constant *= int(table[0])
            continue
        before, after = axis.padding if window.count_padding else (0, 0)
        start = f"(({name}) * {axis.stride} - {axis.padding[0]})"
        low, past = -before, size + after
        if axis.dilation > 1:  # each tap by itself
            taps = [f"{start} + {tap * axis.dilation}" for tap in range(axis.kernel)]
            inside = " + ".join(f"({tap} >= {low} && {tap} < {past})" for tap in taps)
            parts.append(f"({inside})")
        else:
            parts.append(f"(min({start} + {axis.kernel}, {past}) - max({start}, {low}))")
    return constant, parts


def quotient_text(total: str, divisor: int, dtype: str, branch: bool = False) -> str:
    """Returns a sum of elements of ``dtype`` divided by an integer, as :class:`Finish` prints
    it."""
    if divisor > 0 and divisor & (divisor - 1) == 0:
        return f"({total} + 0.0f) * {1.0 / divisor!r}f"
    if not 3 <= divisor <= 64:
        return f"({total} + 0.0f) / {divisor}.0f"
    inverse = literal(float(np.float32(1.0) / np.float32(divisor)))
    if dtype == "float32":
        function = "md_quotient" if branch or divisor % 2 == 0 else "md_odd_quotient"
        return f"{function}({total} + 0.0f, {divisor}.0f, {inverse})"
    if product_is_enough(divisor):
        return f"md_fma({total}, {inverse}, 0.0f)"
    most, rest = map(literal, inverse_of(divisor))
    return f"md_narrow_quotient({total}, {most}, {rest})"


@cache
def product_is_enough(divisor: int) -> bool:
    """Whether a product with a divisor's inverse rounds to half precision as the quotient does.

    It does if both are on the same side of, or are, the midpoint of two neighbouring numbers, which
    has 12 bits in float16 and 9 in bfloat16.  Both grow with the dividend, so it is enough to test
    the dividend whose quotient is the midpoint, and its neighbours.  (Of tiny sums see
    ``md_narrow_quotient``.)
    """
    d, middle = np.float32(divisor), np.arange(1 << 11, 1 << 12, dtype=np.float32)
    inverse = np.float32(1.0) / d
    near = (np.nextafter(middle * d, to, dtype=np.float32) for to in (middle * 0, middle * 2 * d))
    return all(
        np.array_equal(np.sign(x * inverse - middle), np.sign(x / d - middle))
        for x in (middle * d, *near)
    )


def inverse_of(divisor: int) -> tuple[float, float]:
    """Returns 1 / divisor as the sum of two floats, the first of which is not above it."""
    exact = Fraction(1, divisor)
    high = np.float32(1.0) / np.float32(divisor)
    if Fraction(float(high)) > exact:
        high = np.nextafter(high, np.float32(0.0))
    return float(high), float(np.float32(float(exact - Fraction(float(high)))))
