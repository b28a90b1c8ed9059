"""Prints how a tile of outputs loads the elements under its windows, and how taps that are computed
are reduced.

A position outside of the plane counts as the identity of the window's reduction.  Where it is known
that a tap of no tile is outside, nothing is tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, gcd, isnan, nan

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.graph.expression import Expression, argument, constant, evaluate, linearize, where
from minidnn.graph.scalar_ops import COMPARISONS
from minidnn.graph.window import Window, WindowAxis

from ...codegen.code import Code
from ...codegen.dialect import CUDA, literal
from ..prelude import TYPES
from .mapping import ThreadTile
from .pack import Pack, unit_pack
from .view import Lanes, PlaneView, Span, minus, plus, times
from .window import combine_text, identity_text, taps_of


@dataclass
class Taps:
    """The elements under the windows of a tile whose first output is at ``y``, ``x``, which are
    variables."""

    code: Code
    pack: Pack
    lanes: Lanes
    window: Window
    view: PlaneView
    rows: Span
    columns: Span
    tile: ThreadTile
    #: The suffix of the names of variables.
    tag: str = ""
    #: The condition for a row or column of taps to be inside of the plane, by offset.
    row_tests: dict[int, str] = field(default_factory=dict)
    column_tests: dict[int, str] = field(default_factory=dict)
    #: Vectors of elements that were loaded, by row and first column.
    units: dict[tuple[int, int], str] = field(default_factory=dict)

    def begin(self) -> None:
        """Declares the position of the first tap: ``s`` and ``u``, from the first row and column
        that the patch has of the plane (rows from the plane's own first, if they are kept in a
        ring)."""
        down, across = self.window.whole
        origin = 0 if self.view.ring else self.view.rows.begin
        self.code.line(f"const int s{self.tag} = {minus(_begin('y', down), origin)};")
        column = minus(_begin("x", across), self.view.columns.begin)
        self.code.line(f"const int u{self.tag} = {column};")

    def test(self, row: int, column: int) -> str:
        """Returns the condition for an element to be inside; empty if it is known to be."""
        column, _ = self._unit(column)
        if row not in self.row_tests:
            self._row(row)
        if column not in self.column_tests:
            self._column(column)
        return " && ".join(t for t in (self.row_tests[row], self.column_tests[column]) if t)

    def load(self, row: int, column: int) -> str:
        """Loads the element at an offset from the first tap, and returns its variable."""
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
        """The first column and the size of the vector that a column is loaded with: a whole unit
        where the tile needs all of it, else what one register holds."""
        size, phase = self._phase
        while size > self._least:
            first = column - (column + phase) % size
            if all(other in self._wanted for other in range(first, first + size)):
                return first, size
            size //= 2
        return column - (column + phase) % size, size

    @cached_property
    def _phase(self) -> tuple[int, int]:
        """The elements of a vector load, 1 if it is not known where tiles begin; and the offset of
        each tile's first tap in its vector."""
        begin, axis = self.columns.begin, self.window.whole[1]
        if self.pack.size > 1 or not isinstance(begin, int):
            return 1, 0
        columns = self.tile.columns
        unit = gcd(self.view.unit, columns * axis.stride, max(self._least, columns))
        return unit, (begin * axis.stride - axis.padding[0]) % unit

    @property
    def _least(self) -> int:
        """How many elements one register holds."""
        return 1 if self.view.dtype == "float32" else 2

    @cached_property
    def _wanted(self) -> frozenset[int]:
        """The columns of the tile's taps, counted from the first tap."""
        axis = self.window.whole[1]
        return frozenset(tap for o in range(self.tile.columns) for tap in taps_of(axis, o))

    def _load_unit(self, row: int, first: int, size: int) -> str:
        """Loads neighbouring elements as they are in memory, two of half precision in a register,
        and returns their variable."""
        if (row, first) not in self.units:
            test = self.test(row, first)
            number = f"{first}".replace("-", "before")
            name, place = f"d{self.tag}{row}_{number}", plus(f"u{self.tag}", first)
            pack = unit_pack(self.code, size, self.view.dtype)
            outside = (
                identity_text(pack, self.window) if self.window.reduction == "max" else pack.zero
            )
            if size > self._least:
                pack.load(name, f"w{self.tag}{row} + {place}", test, outside)
            else:
                value = f"*(const unsigned int *)(w{self.tag}{row} + {place})"
                value = f"{test} ? {value} : {outside}" if test else value
                self.code.line(f"const unsigned int {name}[1] = {{{value}}};")
            self.units[row, first] = name
        return self.units[row, first]

    def _row(self, row: int) -> None:
        """Declares the pointer to a row of taps, and its test."""
        test, at = "", plus(f"s{self.tag}", row)
        if self.view.ring:
            test = f"(unsigned int)({at}) < {self.view.extent[0]}u"
        elif not _is_inside(self.view.rows, self.rows, self.tile.rows, self.window.whole[0], row):
            test = _within(at, self.view.rows)
        self.row_tests[row] = self._test(test, f"k{self.tag}{row}")
        type = TYPES[self.view.dtype]
        self.code.line(f"const {type} *w{self.tag}{row} = {self._pointer(at)};")

    def _column(self, column: int) -> None:
        """Declares the test of a column of taps."""
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
    """The condition for a position, counted from the span's begin, to be in the span."""
    if span.size is not None:
        return f"(unsigned int)({position}) < {span.size}u"
    return f"(unsigned int)({position}) < (unsigned int)({minus(str(span.end), span.begin)})"


def _is_inside(has: Span, step: Span, tile: int, axis: WindowAxis, offset: int) -> bool:
    """Whether a row or column of taps is known to be in ``has`` for all tiles of a step."""
    if step.size is None or step.size == 0:
        return False
    if not all(isinstance(bound, int) for bound in (has.begin, has.end, step.begin)):
        return False
    assert isinstance(has.begin, int) and isinstance(has.end, int)
    assert isinstance(step.begin, int)
    last = step.begin + (ceil(step.size / tile) - 1) * tile
    low, high = (axis.first(output) + offset for output in (step.begin, last))
    return has.begin <= low and high < has.end


_LEAST_NAN = "0x7f800001"
"""The bits of the smallest NaN without a sign, as integers are compared."""


@dataclass(frozen=True)
class Tap:
    """One tap of an output.

    Attributes:
        given: the names of the elements under it, one for each operand under the window.
        number: its index among the taps of the window.
        test: the condition for it to be in the plane; empty if it is known to be.
    """

    given: Sequence[str]
    number: float
    test: str


@dataclass(frozen=True)
class TapReduction:
    """Reduces the taps of outputs of a window that computes what it reduces.

    A GPU compares and selects at half the rate at which it adds and multiplies, so two kinds of
    taps are printed with fewer selections than their expressions have, for the same bits:

    - taps of a sum that add a number or nothing: the addition becomes conditional.  That leaves
      out zeros, which changes the sign of a sum of zeros alone, and the window's finish makes that
      positive in any case;
    - taps of a maximum that give the tap's number if its element is no less than the window's own,
      or NaN, and the same smaller number otherwise, where numbers fall from tap to tap: the first
      tap that fits decides.  Elements without a sign bit are compared as integers, in whose order
      NaN is the largest.

    Attributes:
        extent: of the planes.
        positive: whether no element of the first operand has its sign bit set.
    """

    pack: Pack
    window: Window
    extent: tuple[int, int]
    positive: bool

    def print(self, taps: Sequence[Sequence[Tap]], here: Sequence[str]) -> str:
        """Reduces rows of taps in the reference's order, and returns the name of the result (of
        sums, before they are divided); ``here``: the operands at the output's own position."""
        if self._first_fit is not None and _fall([self._number(t) for row in taps for t in row]):
            return self._first([tap for row in taps for tap in row], here, self._first_fit)
        row_of = self._row if self._added is None else self._row_of_sum
        return self._chained([row_of(row, here) for row in taps])

    def _row(self, taps: Sequence[Tap], here: Sequence[str]) -> str:
        """Reduces one row of taps."""
        identity = identity_text(self.pack, self.window)
        names = []
        for tap in taps:
            text = self._computed(self.window.tap, tap, here)
            names.append(f"({tap.test} ? {text} : {identity})" if tap.test else text)
        return self._chained(names)

    def _computed(self, body: Expression, tap: Tap, here: Sequence[str]) -> str:
        """Returns an expression of a tap's elements, the operands ``here`` and the tap's number."""
        code = self.pack.code
        arguments = [*tap.given, *here, literal(float(tap.number))]
        lines, text = CUDA.print_code(linearize(body), arguments, code.fresh)
        code.lines(lines)
        return text

    def _chained(self, names: Sequence[str]) -> str:
        """Combines all, one after another.  A sum need not begin with zero, as its finish adds
        it."""
        total = names[0]
        for name in names[1:]:
            fresh = self.pack.code.fresh()
            self.pack.declare(fresh, combine_text(self.pack, self.window, total, name, False))
            total = fresh
        return total

    # Sums of a number or nothing

    @cached_property
    def _added(self) -> tuple[Expression, Expression] | None:
        """The condition under which a tap adds a number, and that number; None if taps have another
        form."""
        tap = self.window.tap
        if self.window.reduction != "sum" or tap.op != "where":
            return None
        condition, number, other = tap.operands
        adds_or_not = condition.op in COMPARISONS and other == constant(0.0)
        return (condition, number) if adds_or_not else None

    def _row_of_sum(self, taps: Sequence[Tap], here: Sequence[str]) -> str:
        """Adds up one row of taps that add a number or nothing."""
        assert self._added is not None
        condition, number = self._added
        code, total = self.pack.code, self.pack.code.fresh()
        for i, tap in enumerate(taps):
            test = self._test(condition, tap, here)
            text = self._computed(number, tap, here)
            if i == 0:
                code.line(f"float {total} = {test} ? {text} : 0.0f;")
            else:
                code.line(f"if ({test}) {total} += {text};")
        return total

    def _test(self, condition: Expression, tap: Tap, here: Sequence[str]) -> str:
        operands = [self._computed(each, tap, here) for each in condition.operands]
        text = f" {COMPARISONS[condition.op]} ".join(operands)
        return f"(({tap.test}) & ({text}))" if tap.test else f"({text})"

    # Maxima of numbers of taps

    @cached_property
    def _first_fit(self) -> tuple[Expression, float, int] | None:
        """What a tap gives that fits, what one gives that does not, and which argument is the
        window's own element; None if taps have another form."""
        window = self.window
        if (
            window.reduction != "max"
            or window.tap.op != "where"
            or window.reads_nothing(self.extent)
        ):
            return None
        (_, fits, other), last = window.tap.operands, window.under + window.here
        if other.op != "where" or other.operands[1].op != "constant":
            return None
        element, least = argument(0), other.operands[1]
        if any(line.op == "argument" and line.value != last for line in linearize(fits)):
            return None
        for held in range(window.under, last):
            nan_fits = where(element <= element, least, fits)
            if window.tap == where(element >= argument(held), fits, nan_fits):
                return fits, float(least.value or 0), held
        return None

    def _number(self, tap: Tap) -> float:
        """What a tap gives if it fits; NaN if that is not above what taps give that do not fit."""
        assert self._first_fit is not None
        fits, least, _ = self._first_fit
        count = self.window.under + self.window.here
        arguments = [*np.zeros(count, np.float32), np.float32(tap.number)]
        number = float(evaluate(fits, arguments))
        return number if number > least else nan

    def _first(
        self, taps: Sequence[Tap], here: Sequence[str], first_fit: tuple[Expression, float, int]
    ) -> str:
        """Reduces taps to the number of the first that fits, from the last tap to the first."""
        code = self.pack.code
        _, least, argument_number = first_fit
        held = here[argument_number - self.window.under]
        if self.positive:
            bits = code.fresh()
            code.line(f"const int {bits} = {held} <= {held} ? intbits({held}) : {_LEAST_NAN};")
        total = code.fresh()
        code.line(f"float {total} = {literal(least)};")
        for tap in reversed(taps):
            element = tap.given[0]
            if self.positive:
                test = f"(int)intbits({element}) >= {bits}"
            else:
                test = f"({element} >= {held} | !({element} <= {element}))"
            test = f"({tap.test}) & ({test})" if tap.test else test
            number = literal(self._number(tap))
            code.line(f"{total} = {test} ? {number} : {total};")
        return total


def _fall(numbers: Sequence[float]) -> bool:
    """Whether each number is less than the one before; false if one is NaN."""
    return all(a > b for a, b in pairwise(numbers)) and not any(map(isnan, numbers))
