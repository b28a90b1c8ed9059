"""Expressions as kernels compute them: of whole numbers, rounded to halves, and where threads of a
warp part (see :mod:`.prelude`, *Warps*).

Results of float16 and bfloat16 take fewer instructions (:func:`narrowed`).  Exact divisions and
functions that err by about one unit in the last place of float32 are far finer than such a result,
and their instructions, not memory, are what kernels would then wait for.  So ``exp``, ``tanh``,
``erf`` and divisions become what the prelude calls ``md_narrow_...``.  NaN, infinities and limits
stay what they are.

What divides by ``c + exp(u)`` with a positive ``c``, as a sigmoid does, multiplies by the inverse,
which several quotients share; a quotient whose divisor is above 2^126 is then 0.  Beside functions
and quotients, a product that one sum alone reads is added without being rounded before.  Code that
has neither stays what it is, and so do its bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite

import numpy as np

from ...graph.expression import Instruction
from ...graph.types import HALVES, INTEGERS
from ..codegen.dialect import CUDA
from ..codegen.functions import BOUNDS, WHOLE_FUNCTIONS
from .prelude import TYPES

_FUNCTIONS = {"exp": "narrow_exp", "tanh": "narrow_tanh", "erf": "narrow_erf"}
_LEAST_OFFSET = 2.0**-60
"""What is added to an exponential hides whether tiny ones are numbers or 0."""
_NORMAL = (2.0**-100, 2.0**100)
"""Divisors whose inverse is computed here."""


def print_as(
    dtype: str, code: Sequence[Instruction], arguments: Sequence[str], fresh: Callable[[], str]
) -> tuple[list[str], str]:
    """As :meth:`..codegen.dialect.Dialect.print_code`, for a result that is of this dtype where it
    lies in memory, whether it is rounded to that here or later."""
    return CUDA.print_code(narrowed(code) if dtype in HALVES else code, arguments, fresh)


def narrowed(code: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The code with cheaper instructions, which the dialect of CUDA alone knows."""
    if not any(line.op in _FUNCTIONS or line.op == "div" for line in code):
        return tuple(code)
    return _Narrowing(code).made


class _Narrowing:
    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        self.reads = Counter(i for line in code for i in line.operands)
        self.lines: list[Instruction] = []
        #: Where what an instruction computes stands among the new lines.
        self.at: list[int] = []
        self.flushed = self._exponentials_of_sums()
        for place, line in enumerate(code):
            self.at.append(self._narrow(place, line))
        self.made = self._live()

    def _live(self) -> tuple[Instruction, ...]:
        """The new lines that the result needs."""
        needed = {self.at[-1]}
        for place in range(self.at[-1], -1, -1):
            if place in needed:
                needed.update(self.lines[place].operands)
        order = {place: number for number, place in enumerate(sorted(needed))}
        return tuple(
            Instruction(line.op, tuple(order[i] for i in line.operands), line.value)
            for line in map(self.lines.__getitem__, order)
        )

    def _exponentials_of_sums(self) -> set[int]:
        """The exponentials that only sums with a positive number read."""
        sums = [i for i in range(len(self.code)) if self._exponential(i) is not None]
        counts = Counter(self._exponential(i) for i in sums)
        return {i for i, count in counts.items() if i is not None and self.reads[i] == count}

    def _exponential(self, place: int) -> int | None:
        """The exponential to which an instruction adds a positive number, if it does."""
        line = self.code[place]
        if line.op != "add":
            return None
        for offset, other in (line.operands, line.operands[::-1]):
            number = self.code[offset]
            if number.op == "constant" and self.code[other].op == "exp":
                return other if float(number.value or 0.0) >= _LEAST_OFFSET else None
        return None

    def _narrow(self, place: int, line: Instruction) -> int:
        operands = tuple(self.at[i] for i in line.operands)
        if place in self.flushed:
            return self._add("flushed_exp", *operands)
        if line.op in _FUNCTIONS:
            return self._add(_FUNCTIONS[line.op], *operands)
        if line.op == "div":
            return self._quotient(line)
        if line.op == "add":
            return self._sum(line)
        return self._add(line.op, *operands, value=line.value)

    def _quotient(self, line: Instruction) -> int:
        dividend, divisor = line.operands
        number = self.code[divisor]
        x, d = self.at[dividend], self.at[divisor]
        if self._exponential(divisor) is not None:
            inverse = self._add("inverse", d)
            one = self.code[dividend]
            if one.op == "constant" and one.value == 1.0:
                return inverse
            return self._add("mul", x, inverse)
        if number.op == "constant" and (parts := _inverse_of(float(number.value or 0.0))):
            high, low = (self._add("constant", value=part) for part in parts)
            return self._add("fma", x, high, self._add("mul", x, low))
        return self._add("narrow_div", x, d)

    def _sum(self, line: Instruction) -> int:
        """A sum, with one of its operands as a product that is not rounded."""
        for place, other in (line.operands[::-1], line.operands):
            if place == other or self.reads[place] != 1:
                continue
            sign = self.code[place].op == "neg"
            product = self.code[place].operands[0] if sign else place
            if sign and self.reads[product] != 1:
                continue
            made = self.lines[self.at[product]]
            if made.op == "mul":
                a, b = made.operands
                a = self._add("neg", a) if sign else a
                return self._add("fma", a, b, self.at[other])
        return self._add("add", *(self.at[i] for i in line.operands))

    def _add(self, op: str, *operands: int, value: float | int | None = None) -> int:
        self.lines.append(Instruction(op, operands, value))
        return len(self.lines) - 1


def _inverse_of(divisor: float) -> tuple[float, float] | None:
    """What ``1 / divisor`` is as a sum of two float32 numbers of one sign, so that infinity times
    both is infinity; None if they are not normal."""
    divisor = float(np.float32(divisor))
    if not isfinite(divisor) or not _NORMAL[0] <= abs(divisor) <= _NORMAL[1]:
        return None
    exact = 1.0 / divisor
    high = np.float32(exact)
    if abs(float(high)) >= abs(exact):
        high = np.nextafter(high, np.float32(0.0))
    return float(high), float(np.float32(exact - float(high)))


STORED = {**TYPES, "int32": "int", "int64": "long long", "bool": "unsigned char"}
"""The element types of all values; a bool is a byte of 0 or 1."""

HELPERS = "typedef long long int64;\n" + CUDA.fill(WHOLE_FUNCTIONS)
"""What expressions of whole numbers need; ``@`` is the kernel's name."""


def is_whole(dtype: str | None) -> bool:
    """Whether a dtype is one of whole numbers, which are computed as 64 bits."""
    return dtype in INTEGERS


def read(element: str, dtype: str, whole: bool) -> str:
    """An element as a float, or as 64 bits."""
    value = f"md_value({element})" if dtype in TYPES else element
    return f"({'long long' if whole else 'float'})({value})"


def stored(value: str, dtype: str) -> str:
    """A number as an element: fractions of whole numbers are cut off."""
    if dtype in TYPES:
        return f"md_as<{TYPES[dtype]}>((float)({value}))"
    return f"({value}) != 0" if dtype == "bool" else f"({STORED[dtype]})({value})"


_CALLED = frozenset(("div", "sqrt", *BOUNDS))
"""Operations that call a function for some operands, a division for infinite ones for example."""


def may_part(code: Sequence[Instruction]) -> bool:
    """Whether threads of a warp may be apart behind it."""
    return any(line.op in _CALLED for line in code)
