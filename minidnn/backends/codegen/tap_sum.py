"""Prints the sum of a window's taps along an axis, as ISPC or CUDA C++.

The order is that of ``graph.window.sum_taps``.  The sixteen sums of a block are made one after
another, as they are needed when halves are added to halves, so that four numbers are all that
waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ...graph.window import LONG
from .code import Code

_BLOCK = LONG * LONG


@dataclass(frozen=True)
class TapSum:
    """How a sum is printed: ``index`` is the type of counters, ``declare`` makes a variable and
    ``assign`` sets one, both of an expression in which ``at`` names variables."""

    code: Code
    index: str
    declare: Callable[[str, str], None]
    assign: Callable[[str, str], None]
    at: Callable[[str], str]

    def print(self, name: str, count: int, tap: Callable[[str], str]) -> None:
        """Declares ``name`` and adds ``count`` taps to it; ``tap`` prints how the one of an index
        is read, and names it."""
        self.declare(name, "0.0f")
        if count <= LONG:
            self._added(name, name, "0", str(count), 1, tap)
            return
        blocks = -(-count // _BLOCK)
        levels = [name]
        while LONG ** len(levels) < blocks:
            levels.append(f"{name}_{len(levels)}")
            self.declare(levels[-1], "0.0f")
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
                    self.assign(low, "0.0f")
        for low, high in pairwise(levels):
            self._add(high, low)
        if len(levels) > 1:
            self.assign(name, self.at(levels[-1]))

    def _block(self, name: str, begin: str, end: str, tap: Callable[[str], str]) -> None:
        code, turn = self.code, f"{name}_i"
        waiting = [f"{name}_w{bit}" for bit in range(4)]
        total = f"{name}_s"
        for each in (*waiting, total):
            self.declare(each, "0.0f")
        with code.block(f"for ({self.index} {turn} = 0; {turn} < {LONG}; {turn}++)"):
            moved = (("1", "<< 3"), ("2", "<< 1"), ("4", ">> 1"), ("8", ">> 3"))
            first = " | ".join(f"(({turn} & {bit}) {by})" for bit, by in moved)
            code.line(f"const {self.index} {name}_j = {first};")
            self.assign(total, "0.0f")
            self._added(name, total, f"{begin} + {name}_j", end, LONG, tap)
            for bit, half in enumerate(waiting):
                with code.block(f"if (({turn} & {1 << bit}) == 0)"):
                    self.assign(half, self.at(total))
                    code.line("continue;")
                self.assign(total, f"{self.at(half)} + {self.at(total)}")

    def _added(
        self, name: str, total: str, begin: str, end: str, step: int, tap: Callable[[str], str]
    ) -> None:
        k = f"{name}_k"
        with self.code.block(f"for ({self.index} {k} = {begin}; {k} < {end}; {k} += {step})"):
            self._add(total, tap(k))

    def _add(self, total: str, other: str) -> None:
        self.assign(total, f"{self.at(total)} + {self.at(other)}")
