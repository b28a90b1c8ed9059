"""Prints how the taps of a window that computes what it joins become one number.

A GPU compares and selects at half the rate at which it adds and multiplies, so two kinds of taps
are printed with fewer selections than their expressions have, for the same bits:

- of a sum, those that add a number or nothing: the addition stands under the condition.  That
  leaves out zeros, which changes the sign of a sum of zeros alone, and the window's finish makes
  that positive in any case;
- of a maximum, those that give the tap's number if its element is no less than the window's, or
  NaN, and the same smaller number otherwise, where numbers fall from tap to tap: the first tap that
  fits decides.  Elements without a sign bit are compared as integers, in whose order NaN is the
  largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.graph.expression import Expression, argument, constant, evaluate, linearize, where
from minidnn.graph.scalar_ops import COMPARISONS
from minidnn.graph.window import Window

from ...codegen.dialect import CUDA, literal
from .pack import Pack
from .window import identity_text, join_text

_LEAST_NAN = "0x7f800001"
"""The bits of the NaN that is the smallest integer of those without a sign."""


@dataclass(frozen=True)
class Tap:
    """One tap of an output.

    Attributes:
        given: the elements under it.
        number: its number.
        test: the condition for it to lie in the plane; empty if it is known to.
    """

    given: Sequence[str]
    number: float
    test: str


@dataclass(frozen=True)
class TapJoin:
    """Joins the taps of outputs.

    Attributes:
        extent: of the planes.
        positive: whether no element of the first operand has its sign bit set.
    """

    pack: Pack
    window: Window
    extent: tuple[int, int]
    positive: bool

    def print(self, taps: Sequence[Sequence[Tap]], here: Sequence[str]) -> str:
        """The name of what rows of taps become, joined in the reference's order (of sums, before
        they are divided); ``here``: the operands at the output's own place."""
        if self._first_fit is not None and _fall([self._number(t) for row in taps for t in row]):
            return self._first([tap for row in taps for tap in row], here, self._first_fit)
        row_of = self._row if self._added is None else self._row_of_sum
        return self._chained([row_of(row, here) for row in taps])

    def _row(self, taps: Sequence[Tap], here: Sequence[str]) -> str:
        identity = identity_text(self.pack, self.window)
        names = []
        for tap in taps:
            text = self._computed(self.window.tap, tap, here)
            names.append(f"({tap.test} ? {text} : {identity})" if tap.test else text)
        return self._chained(names)

    def _computed(self, body: Expression, tap: Tap, here: Sequence[str]) -> str:
        code = self.pack.code
        given = [*tap.given, *here, literal(float(tap.number))]
        lines, text = CUDA.print_code(linearize(body), given, code.fresh)
        code.lines(lines)
        return text

    def _chained(self, names: Sequence[str]) -> str:
        """All joined, one after another.  A sum need not begin with zero, as its finish adds it."""
        total = names[0]
        for name in names[1:]:
            fresh = self.pack.code.fresh()
            self.pack.declare(fresh, join_text(self.pack, self.window, total, name, False))
            total = fresh
        return total

    # Sums of a number or nothing

    @cached_property
    def _added(self) -> tuple[Expression, Expression] | None:
        """The condition under which a tap adds a number, and that number; None of other taps."""
        tap = self.window.tap
        if self.window.join != "sum" or tap.op != "where":
            return None
        condition, number, other = tap.operands
        adds_or_not = condition.op in COMPARISONS and other == constant(0.0)
        return (condition, number) if adds_or_not else None

    def _row_of_sum(self, taps: Sequence[Tap], here: Sequence[str]) -> str:
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
        window's own element; None of other windows."""
        window = self.window
        if window.join != "max" or window.tap.op != "where" or window.reads_nothing(self.extent):
            return None
        (_, fits, other), last = window.tap.operands, window.under + window.here
        if other.op != "where" or other.operands[1].op != "constant":
            return None
        taken, least = argument(0), other.operands[1]
        if any(line.op == "argument" and line.value != last for line in linearize(fits)):
            return None
        for held in range(window.under, last):
            nan_fits = where(taken <= taken, least, fits)
            if window.tap == where(taken >= argument(held), fits, nan_fits):
                return fits, float(least.value or 0), held
        return None

    def _number(self, tap: Tap) -> float:
        assert self._first_fit is not None
        fits, least, _ = self._first_fit
        count = self.window.under + self.window.here
        given = [*np.zeros(count, np.float32), np.float32(tap.number)]
        found = float(evaluate(fits, given))
        return found if found > least else math.nan

    def _first(
        self, taps: Sequence[Tap], here: Sequence[str], first_fit: tuple[Expression, float, int]
    ) -> str:
        code = self.pack.code
        _, least, argument_number = first_fit
        held = here[argument_number - self.window.under]
        if self.positive:
            bits = code.fresh()
            code.line(f"const int {bits} = {held} <= {held} ? intbits({held}) : {_LEAST_NAN};")
        total = code.fresh()
        code.line(f"float {total} = {literal(least)};")
        for tap in reversed(taps):
            taken = tap.given[0]
            if self.positive:
                test = f"(int)intbits({taken}) >= {bits}"
            else:
                test = f"({taken} >= {held} | !({taken} <= {taken}))"
            test = f"({tap.test}) & ({test})" if tap.test else test
            number = literal(self._number(tap))
            code.line(f"{total} = {test} ? {number} : {total};")
        return total


def _fall(numbers: Sequence[float]) -> bool:
    """Whether each number is below the one before; not so of NaN."""
    return all(a > b for a, b in pairwise(numbers)) and not any(map(math.isnan, numbers))
