"""Prints windows as ISPC: several rows and columns of outputs at once, which share work.

Rows outside of the plane are read from a row that holds the window's identity, columns outside
of it from columns that hold it beside each row of a buffer: so there is one code for the inside
and the edges.  Maxima are taken down columns first; a column's maximum serves every output of its
row that reads it, and two neighbouring outputs share the part of the window that they have in
common.  A maximum keeps the order of its operands (of equal ones the last is taken), so sharing
changes no bit; sums keep the order of the reference, rows first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....graph.window import JOINS, JoinName, Window, WindowAxis
from ...codegen.code import Code
from ...codegen.dialect import ISPC, literal
from ...codegen.taps import join_text, print_count

CARRIED = 8
CARRIED_SUMS = 4
"""Windows at most that wide keep what the next output reads again (fusion.sequence overwrites
what such windows read)."""


def print_identity(join: JoinName) -> str:
    """What padding counts as, so that it changes no window."""
    return literal(JOINS[join].identity)


@dataclass
class WindowPrinter:
    """Prints one window over ``rows`` rows of outputs at once.

    ``load(row, column)`` is the element ``row`` rows and ``column`` columns from the first tap
    of the first output.
    """

    code: Code
    window: Window
    rows: int
    load: Callable[[int, int], str]
    #: Whether a maximum may lose a NaN.
    fast: bool

    @staticmethod
    def rows_at_once(window: Window) -> int:
        """Two where windows of neighbouring rows have rows in common."""
        axis = window.whole[0]
        return 2 if axis.dilation == 1 and axis.stride < axis.kernel <= CARRIED else 1

    @property
    def taken_rows(self) -> list[int]:
        """Rows that are read, counted from the first tap of the first output."""
        return sorted({o for r in range(self.rows) for o in _taps(self.window.whole[0], r)})

    @property
    def _carried(self) -> int:
        """How many columns one output and the next have in common, if they are kept."""
        axis = self.window.whole[1]
        most = CARRIED if self.window.joins.chooses else CARRIED_SUMS
        if axis.dilation > 1 or axis.kernel > most:
            return 0
        return max(0, axis.kernel - axis.stride)

    def begin(self) -> None:
        """What stands before the loop over columns."""
        for column in range(self._carried):
            self._take(column)

    def outputs(self, count: int) -> list[list[str]]:
        """Computes ``count`` columns of outputs; the names of the results, row by row."""
        across = self.window.whole[1]
        carried = self._carried
        columns = sorted({o for c in range(count) for o in _taps(across, c)})
        for column in columns:
            if column >= carried:
                self._take(column)
        if self.window.joins.chooses:
            found = [self._maxima(row, count) for row in range(self.rows)]
        else:
            found = self._sums(count)
        if carried:
            for column in range(carried):
                later = self._names(column + count * across.stride)
                self.code.lines(
                    f"{a} = {b};" for a, b in zip(self._names(column), later, strict=True)
                )
        return found

    def _names(self, column: int) -> list[str]:
        if self.window.joins.chooses:
            return [f"m{row}_{column}" for row in range(self.rows)]
        return [f"e{row}_{column}" for row in self.taken_rows]

    def _take(self, column: int) -> None:
        """Loads a column of elements; for a maximum, joins it for each row of outputs."""
        if not self.window.joins.chooses:
            for row, name in zip(self.taken_rows, self._names(column), strict=True):
                self.code.line(f"float {name} = {self.load(row, column)};")
            return
        elements = {}
        for row in self.taken_rows:
            elements[row] = self.code.fresh()
            self.code.line(f"float {elements[row]} = {self.load(row, column)};")
        ranges = [[elements[o] for o in _taps(self.window.whole[0], r)] for r in range(self.rows)]
        for name, value in zip(self._names(column), self._joined(ranges), strict=True):
            self.code.line(f"float {name} = {value};")

    def _maxima(self, row: int, count: int) -> list[str]:
        across = self.window.whole[1]
        ranges = [[f"m{row}_{o}" for o in _taps(across, c)] for c in range(count)]
        return self._joined(ranges)

    def _joined(self, ranges: list[list[str]]) -> list[str]:
        """The maximum of each list; of two lists, what they share is joined once."""
        if len(ranges) == 2:
            first, second = ranges
            shared = [name for name in first if name in second]
            if len(shared) > 1:
                middle = self._chain(shared)
                before = first[: len(first) - len(shared)]
                after = second[len(shared) :]
                return [self._chain([*before, middle]), self._chain([middle, *after])]
        return [self._chain(names) for names in ranges]

    def _chain(self, names: list[str]) -> str:
        total = names[0]
        for name in names[1:]:
            fresh = self.code.fresh()
            self.code.line(f"float {fresh} = {self._join(total, name)};")
            total = fresh
        return total

    def _join(self, a: str, b: str) -> str:
        if self.fast and self.window.join == "max":
            return f"({a} > {b} ? {a} : {b})"
        return join_text(ISPC, self.window.joins, a, b)

    def _sums(self, count: int) -> list[list[str]]:
        """Sums of rows, each used by every output that it belongs to, then of those."""
        down, across = self.window.whole
        identity = print_identity(self.window.join)
        sums: dict[tuple[int, int], str] = {}
        for row in self.taken_rows:
            for c in range(count):
                sums[row, c] = self._chain([f"e{row}_{o}" for o in _taps(across, c)])
        return [
            [
                # As the sum begins, with its identity: only minus zero is not the same.
                f"({self._join(self._chain([sums[o, c] for o in _taps(down, r)]), identity)})"
                for c in range(count)
            ]
            for r in range(self.rows)
        ]


def _taps(axis: WindowAxis, output: int) -> list[int]:
    return [output * axis.stride + tap * axis.dilation for tap in range(axis.kernel)]


def overhang(axis: WindowAxis, size: int) -> tuple[int, int]:
    """How many positions before and after the plane an output's taps reach."""
    last = axis.tap(axis.output_size(size) - 1, axis.kernel - 1)
    return axis.padding[0], max(0, last - (size - 1))


def print_divisor(window: Window, extent: tuple[int, int], row: str, column: str) -> str:
    """How many taps count at this position: a constant, or a formula of the position."""
    counts = window.divisors(extent)
    if all(len(set(table.tolist())) == 1 for table in counts):
        return f"({int(counts[0][0]) * int(counts[1][0])}.0f)"
    parts = []
    for name, axis, size, table in zip((row, column), window.whole, extent, counts, strict=True):
        if len(set(table.tolist())) == 1:
            parts.append(str(int(table[0])))
            continue
        parts.append(print_count(window, axis, name, size))
    return f"(uniform float)({parts[0]} * {parts[1]})"
