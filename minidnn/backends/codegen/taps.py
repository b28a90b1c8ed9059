"""Prints windows tap by tap, as ISPC or CUDA C++: any that can be described.

The order is that of ``graph.window.join_taps``.  The sixteen sums of a block are made one
after another, as they are needed when halves are added to halves, so that four numbers are all
that waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ...graph.expression import linearize
from ...graph.window import JOINS, LONG, Axis, Join, Window, WindowAxis
from .code import Code
from .dialect import Dialect, literal

_BLOCK = LONG * LONG

UNROLLED_TAPS = 64
"""Windows with more taps are loops."""


def is_looped(window: Window) -> bool:
    """Whether a window is printed tap by tap: it has many taps, or many along an axis, or
    neighbouring outputs share nothing that is joined."""
    return not window.is_plain or window.taps > UNROLLED_TAPS or window.is_long


def join_text(dialect: Dialect, join: Join, a: str, b: str) -> str:
    """Two numbers joined."""
    return dialect.inline(linearize(join.expression), (a, b))


@dataclass(frozen=True)
class TapLoop:
    """How taps along an axis are joined: ``index`` is the type of counters, ``declare`` makes a
    variable and ``assign`` sets one, both of an expression in which ``at`` names variables."""

    code: Code
    index: str
    declare: Callable[[str, str], None]
    assign: Callable[[str, str], None]
    at: Callable[[str], str]
    dialect: Dialect
    join: Join = JOINS["sum"]

    @property
    def _identity(self) -> str:
        return literal(self.join.identity)

    def print(self, name: str, count: int, tap: Callable[[str], str]) -> None:
        """Declares ``name`` and joins ``count`` taps to it; ``tap`` prints how the one of an index
        is read, and names it, or goes on with the next where there is none."""
        self.declare(name, self._identity)
        if count <= LONG or self.join.chooses:
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
        code, turn = self.code, f"{name}_i"
        waiting = [f"{name}_w{bit}" for bit in range(4)]
        total = f"{name}_s"
        for each in (*waiting, total):
            self.declare(each, self._identity)
        with code.block(f"for ({self.index} {turn} = 0; {turn} < {LONG}; {turn}++)"):
            moved = (("1", "<< 3"), ("2", "<< 1"), ("4", ">> 1"), ("8", ">> 3"))
            first = " | ".join(f"(({turn} & {bit}) {by})" for bit, by in moved)
            code.line(f"const {self.index} {name}_j = {first};")
            self.assign(total, self._identity)
            self._added(name, total, f"{begin} + {name}_j", end, LONG, tap)
            for bit, half in enumerate(waiting):
                with code.block(f"if (({turn} & {1 << bit}) == 0)"):
                    self.assign(half, self.at(total))
                    code.line("continue;")
                self.assign(total, self._joined(half, total))

    def _added(
        self, name: str, total: str, begin: str, end: str, step: int, tap: Callable[[str], str]
    ) -> None:
        k = f"{name}_k"
        with self.code.block(f"for ({self.index} {k} = {begin}; {k} < {end}; {k} += {step})"):
            self._add(total, tap(k))

    def _add(self, total: str, other: str) -> None:
        self.assign(total, self._joined(total, other))

    def _joined(self, a: str, b: str) -> str:
        return join_text(self.dialect, self.join, self.at(a), self.at(b))


@dataclass(frozen=True)
class TapPrinter:
    """Prints a window of one output, with ``loop``, over planes of ``extent``.

    ``begin`` prints what each row of taps begins with, and ``tap`` computes a tap, of its number,
    where ``sy`` and ``sx`` are its position; it gives the result's name.
    """

    loop: TapLoop
    window: Window
    extent: tuple[int, int]
    begin: Callable[[], None]
    tap: Callable[[str], str]

    def print(self, row: str, column: str) -> str:
        """Joins the taps of the output at a position; the result's name."""
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
        """Declares the position of a tap along an axis, and goes on with the next if there is
        none; its number."""
        declared, number, outside = tap_place(name, axis, output, k, size)
        for variable, text in declared.items():
            self.loop.code.line(f"const {self.loop.index} {variable} = {text};")
        if outside:
            self.loop.code.line(f"if ({' || '.join(outside)}) continue;")
        return number


def tap_place(
    name: str, axis: Axis, output: str, k: str, size: int
) -> tuple[dict[str, str], str, list[str]]:
    """Where tap ``k`` of an output lies along an axis of that size.

    Returns:
        What is declared, first ``s`` and the name, the position; the tap's number; and the
        conditions under which there is none.
    """
    at, number = f"s{name}", f"t{name}"
    if isinstance(axis, WindowAxis):
        place = f"({output}) * {axis.stride} - {axis.padding[0]} + {k} * {axis.dilation}"
        last = axis.tap(axis.output_size(size) - 1, axis.kernel - 1)
        reaches_out = axis.first(0) < 0 or last >= size
        return {at: place}, k, [f"{at} < 0", f"{at} >= {size}"] if reaches_out else []
    of, before = axis.of, axis.of.padding[0]
    # So many windows further on, numbers that are divided are not negative.
    first = axis.first(0) - 1
    shift = before - of.reach + of.stride - first * of.stride
    declared = {
        at: f"(({output}) + {shift}) / {of.stride} - {-first} + {k}",
        number: f"({output}) + {before} - {at} * {of.stride}",
    }
    outside = [f"{at} < 0", f"{at} >= {size}", f"{number} < 0"]
    if of.dilation > 1:
        outside.append(f"{number} % {of.dilation} != 0")
    return declared, f"{number} / {of.dilation}" if of.dilation > 1 else number, outside


def print_count(window: Window, axis: WindowAxis, at: str, size: int) -> str:
    """How many taps count at a position of an axis of that size."""
    before, after = axis.padding if window.count_padding else (0, 0)
    start = f"(({at}) * {axis.stride} - {axis.padding[0]})"
    if axis.dilation > 1:
        step = axis.dilation  # taps from the first that counts to the last
        end = f"({size + after + step - 1} - {start}) / {step}"
        begin = f"({step - 1 - before} - {start}) / {step}"
        return f"max(0, min({axis.kernel}, {end}) - max(0, {begin}))"
    return f"(min({start} + {axis.kernel}, {size + after}) - max({start}, {-before}))"
