"""Prints windows as loops over their taps, in ISPC or CUDA C++: the general form of pooling.

A window (see :mod:`minidnn.graph.window`) reduces the taps of an output to one number.  Printed
loops combine taps in the order of ``graph.window.combine_taps``: a long axis is summed in blocks of
16 x 16 taps, whose sixteen partial sums are added pairwise.  They are computed in bit-reversed
order, so that four partial sums are the most that wait for their partner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ...graph.expression import linearize
from ...graph.window import COMBINERS, LONG, Axis, Combiner, Window, WindowAxis
from .code import Code
from .dialect import Dialect, literal

_BLOCK = LONG * LONG

UNROLLED_TAPS = 64
"""Windows with more taps are printed as loops."""


def is_looped(window: Window) -> bool:
    """Whether a window is printed as loops over its taps: it has many taps, or many along an axis,
    or neighbouring outputs share no partial result."""
    return not window.is_plain or window.taps > UNROLLED_TAPS or window.is_long


def combine_text(dialect: Dialect, combiner: Combiner, a: str, b: str) -> str:
    """The expression that combines two numbers, as a window's reduction does."""
    return dialect.inline(linearize(combiner.expression), (a, b))


@dataclass(frozen=True)
class TapLoop:
    """Prints the reduction of the taps along one axis.

    Attributes:
        code: where statements are added.
        index: the type of loop counters.
        declare: declares a variable, of its name and the expression of its value.
        assign: sets a variable, of its name and the expression of its value.
        at: the expression that reads a variable.
        dialect: the language that is printed.
        combiner: the reduction: a sum or a maximum.
    """

    code: Code
    index: str
    declare: Callable[[str, str], None]
    assign: Callable[[str, str], None]
    at: Callable[[str], str]
    dialect: Dialect
    combiner: Combiner = COMBINERS["sum"]

    @property
    def _identity(self) -> str:
        return literal(self.combiner.identity)

    def print(self, name: str, count: int, tap: Callable[[str], str]) -> None:
        """Declares ``name`` and reduces ``count`` taps into it.

        ``tap`` prints the statements that read the tap of an index, or ``continue`` where that tap
        does not exist, and returns its variable.
        """
        self.declare(name, self._identity)
        if count <= LONG or self.combiner.chooses:
            self._added(name, name, "0", str(count), 1, tap)
            return
        blocks = -(-count // _BLOCK)
        levels = [name]
        while LONG ** len(levels) < blocks:
            levels.append(f"{name}_{len(levels)}")
            self.declare(levels[-1], self._identity)
        code, begin, end = self.code, f"{name}_b", f"{name}_e"
        if len(levels) > 1:
            code.line(f"{self.index} {name}_n = 0;")
        with code.block(f"for ({self.index} {begin} = 0; {begin} < {count}; {begin} += {_BLOCK})"):
            past = f"{begin} + {_BLOCK} < {count} ? {begin} + {_BLOCK} : {count}"
            code.line(f"const {self.index} {end} = {past};")
            self._block(name, begin, end, tap)
            self._add(name, f"{name}_s")
            if len(levels) > 1:
                code.line(f"{name}_n++;")
            for level, (low, high) in enumerate(pairwise(levels), 1):
                with code.block(f"if ({name}_n % {LONG**level} == 0)"):
                    self._add(high, low)
                    self.assign(low, self._identity)
        for low, high in pairwise(levels):
            self._add(high, low)
        if len(levels) > 1:
            self.assign(name, self.at(levels[-1]))

    def _block(self, name: str, begin: str, end: str, tap: Callable[[str], str]) -> None:
        """Reduces up to 16 x 16 taps: sixteen strided partial results, combined pairwise."""
        code, counter = self.code, f"{name}_i"
        waiting = [f"{name}_w{bit}" for bit in range(4)]
        total = f"{name}_s"
        for variable in (*waiting, total):
            self.declare(variable, self._identity)
        with code.block(f"for ({self.index} {counter} = 0; {counter} < {LONG}; {counter}++)"):
            shifts = (("1", "<< 3"), ("2", "<< 1"), ("4", ">> 1"), ("8", ">> 3"))
            reversed_bits = " | ".join(f"(({counter} & {bit}) {by})" for bit, by in shifts)
            code.line(f"const {self.index} {name}_j = {reversed_bits};")
            self.assign(total, self._identity)
            self._added(name, total, f"{begin} + {name}_j", end, LONG, tap)
            for bit, partner in enumerate(waiting):
                with code.block(f"if (({counter} & {1 << bit}) == 0)"):
                    self.assign(partner, self.at(total))
                    code.line("continue;")
                self.assign(total, self._combined(partner, total))

    def _added(
        self, name: str, total: str, begin: str, end: str, step: int, tap: Callable[[str], str]
    ) -> None:
        """Reduces every ``step``-th tap into ``total``."""
        k = f"{name}_k"
        with self.code.block(f"for ({self.index} {k} = {begin}; {k} < {end}; {k} += {step})"):
            self._add(total, tap(k))

    def _add(self, total: str, other: str) -> None:
        self.assign(total, self._combined(total, other))

    def _combined(self, a: str, b: str) -> str:
        return combine_text(self.dialect, self.combiner, self.at(a), self.at(b))


@dataclass(frozen=True)
class TapPrinter:
    """Prints the window of one output, a loop over rows of taps and one over the taps of a row.

    Attributes:
        loop: prints the reduction along either axis.
        window: the window.
        extent: rows and columns of the plane that it reads.
        begin: prints the statements that a row of taps begins with.
        tap: prints the statements that compute a tap, of its number within the window, and returns
            its variable; ``sy`` and ``sx`` are then the tap's position.
    """

    loop: TapLoop
    window: Window
    extent: tuple[int, int]
    begin: Callable[[], None]
    tap: Callable[[str], str]

    def print(self, row: str, column: str) -> str:
        """Reduces the taps of the output at a position; returns the result's variable."""
        self.loop.print("total", self.window.rows.kernel, lambda k: self._row(row, column, k))
        return "total"

    def _row(self, row: str, column: str, k: str) -> str:
        down, across = self.window.axes
        number = self._place("y", down, row, k, self.extent[0])
        self.begin()

        def tap(k: str) -> str:
            along = self._place("x", across, column, k, self.extent[1])
            return self.tap(f"({number}) * {across.numbers} + {along}")

        self.loop.print("part", across.kernel, tap)
        return "part"

    def _place(self, name: str, axis: Axis, output: str, k: str, size: int) -> str:
        """Declares the position of a tap along an axis, and continues the loop where that tap does
        not exist; returns the tap's number."""
        declared, number, outside = tap_offset(name, axis, output, k, size)
        for variable, text in declared.items():
            self.loop.code.line(f"const {self.loop.index} {variable} = {text};")
        if outside:
            self.loop.code.line(f"if ({' || '.join(outside)}) continue;")
        return number


def tap_offset(
    name: str, axis: Axis, output: str, k: str, size: int
) -> tuple[dict[str, str], str, list[str]]:
    """The position of tap ``k`` of an output along an axis of ``size`` elements, as expressions.

    Returns:
        The variables to declare with their values, the first of which (``s`` and ``name``) is the
        position; the tap's number; and the conditions under which the tap does not exist.
    """
    variable, number = f"s{name}", f"t{name}"
    if isinstance(axis, WindowAxis):
        position = f"({output}) * {axis.stride} - {axis.padding[0]} + {k} * {axis.dilation}"
        last = axis.tap(axis.output_size(size) - 1, axis.kernel - 1)
        reaches_out = axis.first(0) < 0 or last >= size
        return (
            {variable: position},
            k,
            [f"{variable} < 0", f"{variable} >= {size}"] if reaches_out else [],
        )
    forward, before = axis.of, axis.of.padding[0]
    # The shift by whole strides keeps the dividend from being negative; it is undone afterwards.
    earliest = axis.first(0) - 1
    shift = before - forward.reach + forward.stride - earliest * forward.stride
    declared = {
        variable: f"(({output}) + {shift}) / {forward.stride} - {-earliest} + {k}",
        number: f"({output}) + {before} - {variable} * {forward.stride}",
    }
    outside = [f"{variable} < 0", f"{variable} >= {size}", f"{number} < 0"]
    if forward.dilation > 1:
        outside.append(f"{number} % {forward.dilation} != 0")
    return declared, f"{number} / {forward.dilation}" if forward.dilation > 1 else number, outside


def print_count(window: Window, axis: WindowAxis, at: str, size: int) -> str:
    """The number of taps that an average counts at a position of an axis of ``size`` elements, as
    an expression."""
    before, after = axis.padding if window.count_padding else (0, 0)
    start = f"(({at}) * {axis.stride} - {axis.padding[0]})"
    if axis.dilation > 1:
        step = axis.dilation  # taps from the first that counts to the last
        end = f"({size + after + step - 1} - {start}) / {step}"
        begin = f"({step - 1 - before} - {start}) / {step}"
        return f"max(0, min({axis.kernel}, {end}) - max(0, {begin}))"
    return f"(min({start} + {axis.kernel}, {size + after}) - max({start}, {-before}))"
