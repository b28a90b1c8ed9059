"""Prints how a tile of outputs reads what lies under its window.

A position outside of the plane is the window's identity.  Where it is known that a tap of no
tile lies outside, nothing is tested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, gcd

from minidnn.graph.window import Window, WindowAxis

from ...codegen.code import Code
from ..prelude import TYPES
from .mapping import ThreadTile
from .pack import Pack, unit_pack
from .view import Lanes, PlaneView, Span, minus, plus, times
from .window import identity_text, taps_of


@dataclass
class Taps:
    """The elements under the windows of a tile at ``y``, ``x``, which are variables."""

    code: Code
    pack: Pack
    lanes: Lanes
    window: Window
    view: PlaneView
    rows: Span
    columns: Span
    tile: ThreadTile
    #: Stands behind the names of variables.
    tag: str = ""
    #: The condition for a row or column of taps to lie inside, by offset.
    row_tests: dict[int, str] = field(default_factory=dict)
    column_tests: dict[int, str] = field(default_factory=dict)
    #: Units of elements that were loaded together, by row and the first one's column.
    units: dict[tuple[int, int], str] = field(default_factory=dict)

    def begin(self) -> None:
        """Declares where the first tap lies: ``s`` and ``u``, from the first row and column that
        the patch has of the plane (of the plane itself, if rows are kept)."""
        down, across = self.window.whole
        origin = 0 if self.view.ring else self.view.rows.begin
        self.code.line(f"const int s{self.tag} = {minus(_begin('y', down), origin)};")
        column = minus(_begin("x", across), self.view.columns.begin)
        self.code.line(f"const int u{self.tag} = {column};")

    def test(self, row: int, column: int) -> str:
        """The condition for an element to lie inside; empty if it is known to."""
        column, _ = self._unit(column)
        if row not in self.row_tests:
            self._row(row)
        if column not in self.column_tests:
            self._column(column)
        return " && ".join(t for t in (self.row_tests[row], self.column_tests[column]) if t)

    def load(self, row: int, column: int) -> str:
        """Loads the element so far from the first tap; its variable."""
        name = f"e{self.tag}{row}_{column}"
        first, size = self._unit(column)
        if size > 1:
            unit = self._load_unit(row, first, size)
            value = unit_pack(self.code, size, self.view.dtype).element(unit, column - first)
            self.code.line(f"const float {name} = {value};")
            return name
        test = self.test(row, column)
        place = self.view.times(plus(f"u{self.tag}", column), self.view.column)
        outside = identity_text(self.pack, self.window)
        self.pack.load(name, f"w{self.tag}{row} + {place}", test, outside)
        return name

    def _unit(self, column: int) -> tuple[int, int]:
        """The first column of what is loaded with one, and how many they are: a whole unit where
        the tile needs all of it, else what a register holds."""
        most, phase = self._phase
        while most > self._least:
            first = column - (column + phase) % most
            if all(each in self._wanted for each in range(first, first + most)):
                return first, most
            most //= 2
        return column - (column + phase) % most, most

    @cached_property
    def _phase(self) -> tuple[int, int]:
        """How many neighbours are loaded at once, 1 if it is not known where they begin; and which
        of its unit the first tap of each tile is."""
        begin, axis = self.columns.begin, self.window.whole[1]
        if self.pack.size > 1 or not isinstance(begin, int):
            return 1, 0
        columns = self.tile.columns
        unit = gcd(self.view.unit, columns * axis.stride, max(self._least, columns))
        return unit, (begin * axis.stride - axis.padding[0]) % unit

    @property
    def _least(self) -> int:
        """How many elements a register holds."""
        return 1 if self.view.dtype == "float32" else 2

    @cached_property
    def _wanted(self) -> frozenset[int]:
        """The columns of the tile's taps, from the first."""
        axis = self.window.whole[1]
        return frozenset(tap for o in range(self.tile.columns) for tap in taps_of(axis, o))

    def _load_unit(self, row: int, first: int, size: int) -> str:
        """Loads neighbours as they lie, two in a register; their variable."""
        if (row, first) not in self.units:
            test = self.test(row, first)
            number = f"{first}".replace("-", "before")
            name, place = f"d{self.tag}{row}_{number}", plus(f"u{self.tag}", first)
            pack = unit_pack(self.code, size, self.view.dtype)
            outside = identity_text(pack, self.window) if self.window.join == "max" else pack.zero
            if size > self._least:
                pack.load(name, f"w{self.tag}{row} + {place}", test, outside)
            else:
                value = f"*(const unsigned int *)(w{self.tag}{row} + {place})"
                value = f"{test} ? {value} : {outside}" if test else value
                self.code.line(f"const unsigned int {name}[1] = {{{value}}};")
            self.units[row, first] = name
        return self.units[row, first]

    def _row(self, row: int) -> None:
        test, at = "", plus(f"s{self.tag}", row)
        if self.view.ring:
            test = f"(unsigned int)({at}) < {self.view.extent[0]}u"
        elif not _is_inside(self.view.rows, self.rows, self.tile.rows, self.window.whole[0], row):
            test = _within(at, self.view.rows)
        self.row_tests[row] = self._test(test, f"k{self.tag}{row}")
        type = TYPES[self.view.dtype]
        self.code.line(f"const {type} *w{self.tag}{row} = {self._pointer(at)};")

    def _column(self, column: int) -> None:
        test = ""
        span, axis = self.view.columns, self.window.whole[1]
        if not _is_inside(span, self.columns, self.tile.columns, axis, column):
            test = _within(plus(f"u{self.tag}", column), span)
        number = f"{column}".replace("-", "before")
        self.column_tests[column] = self._test(test, f"j{self.tag}{number}")

    def _test(self, text: str, name: str) -> str:
        if text:
            self.code.line(f"const bool {name} = {text};")
        return name if text else ""

    def _pointer(self, row: str) -> str:
        view = self.view
        slot = f"(int)((unsigned int)({row}) % {view.ring}u)" if view.ring else row
        terms = [view.pointer, view.times(slot, view.row)]
        if view.has_channel(self.lanes):
            terms.append(view.times("c", view.channel))
        return " + ".join(terms)


def _begin(name: str, axis: WindowAxis) -> str:
    return plus(times(name, axis.stride), -axis.padding[0])


def _within(position: str, span: Span) -> str:
    """Whether a position, counted from the span's begin, lies in it."""
    if span.size is not None:
        return f"(unsigned int)({position}) < {span.size}u"
    return f"(unsigned int)({position}) < (unsigned int)({minus(str(span.end), span.begin)})"


def _is_inside(has: Span, step: Span, tile: int, axis: WindowAxis, offset: int) -> bool:
    """Whether it is known that a tap lies in ``has`` for all tiles of a step."""
    if step.size is None or step.size == 0:
        return False
    if not all(isinstance(bound, int) for bound in (has.begin, has.end, step.begin)):
        return False
    assert isinstance(has.begin, int) and isinstance(has.end, int)
    assert isinstance(step.begin, int)
    last = step.begin + (ceil(step.size / tile) - 1) * tile
    low, high = (axis.first(output) + offset for output in (step.begin, last))
    return has.begin <= low and high < has.end
