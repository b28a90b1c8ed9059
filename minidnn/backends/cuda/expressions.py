"""Scalar expressions as kernels compute them: in integers, with half-precision results, and where
the threads of a warp may diverge (see :mod:`.prelude`, *Warps*).

Results of float16 and bfloat16 take cheaper instructions (:func:`narrowed`).  Exact divisions, and
functions that err by about one unit in the last place of float32, are far more accurate than such
a result, and would make kernels compute-bound that are else memory-bound.  So ``exp``, ``tanh``,
``erf`` and divisions become the prelude's ``md_narrow_...``.  NaN, infinities and limits stay what
they are.

A division by ``c + exp(u)`` with a positive ``c``, as in a sigmoid, becomes a multiplication by the
reciprocal, which several quotients share; a quotient whose divisor is above 2^126 is then 0.  Where
code has such functions or divisions, a product that a single sum reads becomes a fused
multiply-add.  Other code does not change, and neither do its bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite

import numpy as np

from ...graph.expression import Instruction
from ...graph.types import HALF_DTYPES, INTEGERS
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from ..codegen.functions import BOUNDS, INTEGER_FUNCTIONS
from .prelude import TYPES

_FUNCTIONS = {"exp": "narrow_exp", "tanh": "narrow_tanh", "erf": "narrow_erf"}
_LEAST_OFFSET = 2.0**-60
"""The least constant that, added to an exponential, hides whether a tiny one was flushed to 0."""
_NORMAL = (2.0**-100, 2.0**100)
"""Magnitudes of constant divisors whose reciprocal is computed at compile time."""


def print_as(
    code: Code, dtype: str, instructions: Sequence[Instruction], arguments: Sequence[str]
) -> str:
    """Prints straight-line code over named arguments, for a result that has this dtype in memory,
    whether it is rounded to that here or later; returns the name of the result."""
    precise = narrowed(instructions) if dtype in HALF_DTYPES else instructions
    lines, result = CUDA.print_code(precise, arguments, code.fresh)
    code.lines(lines)
    return result


def narrowed(code: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The code of a half-precision result in cheaper instructions; only CUDA's dialect has them."""
    if not any(line.op in _FUNCTIONS or line.op == "div" for line in code):
        return tuple(code)
    return _Narrowing(code).made


class _Narrowing:
    """Rewrites code for a half-precision result, instruction by instruction; ``made`` is the new
    code."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        self.reads = Counter(i for line in code for i in line.operands)
        self.lines: list[Instruction] = []
        #: For each instruction of the code, the index of its result among the new lines.
        self.at: list[int] = []
        self.flushed = self._exponentials_of_sums()
        for index, line in enumerate(code):
            self.at.append(self._narrow(index, line))
        self.made = self._live()

    def _live(self) -> tuple[Instruction, ...]:
        """The new lines without those that the result does not need."""
        needed = {self.at[-1]}
        for index in range(self.at[-1], -1, -1):
            if index in needed:
                needed.update(self.lines[index].operands)
        order = {index: number for number, index in enumerate(sorted(needed))}
        return tuple(
            Instruction(line.op, tuple(order[i] for i in line.operands), line.value)
            for line in map(self.lines.__getitem__, order)
        )

    def _exponentials_of_sums(self) -> set[int]:
        """The indices of the exponentials that only sums with a positive constant read."""
        sums = [i for i in range(len(self.code)) if self._exponential(i) is not None]
        counts = Counter(self._exponential(i) for i in sums)
        return {i for i, count in counts.items() if i is not None and self.reads[i] == count}

    def _exponential(self, index: int) -> int | None:
        """The index of the exponential to which an instruction adds a positive constant; None if it
        adds none."""
        line = self.code[index]
        if line.op != "add":
            return None
        for offset, other in (line.operands, line.operands[::-1]):
            number = self.code[offset]
            if number.op == "constant" and self.code[other].op == "exp":
                return other if float(number.value or 0.0) >= _LEAST_OFFSET else None
        return None

    def _narrow(self, index: int, line: Instruction) -> int:
        """Appends the cheaper form of an instruction; returns the index of its result."""
        operands = tuple(self.at[i] for i in line.operands)
        if index in self.flushed:
            return self._add("flushed_exp", *operands)
        if line.op in _FUNCTIONS:
            return self._add(_FUNCTIONS[line.op], *operands)
        if line.op == "div":
            return self._quotient(line)
        if line.op == "add":
            return self._sum(line)
        return self._add(line.op, *operands, value=line.value)

    def _quotient(self, line: Instruction) -> int:
        """Appends a division, as a multiplication by a reciprocal where that is possible."""
        dividend, divisor = line.operands
        constant = self.code[divisor]
        x, d = self.at[dividend], self.at[divisor]
        if self._exponential(divisor) is not None:
            inverse = self._add("inverse", d)
            numerator = self.code[dividend]
            if numerator.op == "constant" and numerator.value == 1.0:
                return inverse
            return self._add("mul", x, inverse)
        if constant.op == "constant" and (parts := _inverse_of(float(constant.value or 0.0))):
            high, low = (self._add("constant", value=part) for part in parts)
            return self._add("fma", x, high, self._add("mul", x, low))
        return self._add("narrow_div", x, d)

    def _sum(self, line: Instruction) -> int:
        """Appends a sum, fused with a product among its operands that nothing else reads."""
        for term, other in (line.operands[::-1], line.operands):
            if term == other or self.reads[term] != 1:
                continue
            sign = self.code[term].op == "neg"
            product = self.code[term].operands[0] if sign else term
            if sign and self.reads[product] != 1:
                continue
            factor_line = self.lines[self.at[product]]
            if factor_line.op == "mul":
                a, b = factor_line.operands
                a = self._add("neg", a) if sign else a
                return self._add("fma", a, b, self.at[other])
        return self._add("add", *(self.at[i] for i in line.operands))

    def _add(self, op: str, *operands: int, value: float | int | None = None) -> int:
        self.lines.append(Instruction(op, operands, value))
        return len(self.lines) - 1


def _inverse_of(divisor: float) -> tuple[float, float] | None:
    """``1 / divisor`` as the sum of two float32 numbers of one sign, so that infinity times both is
    infinity; None if they might not be normal numbers."""
    divisor = float(np.float32(divisor))
    if not isfinite(divisor) or not _NORMAL[0] <= abs(divisor) <= _NORMAL[1]:
        return None
    exact = 1.0 / divisor
    high = np.float32(exact)
    if abs(float(high)) >= abs(exact):
        high = np.nextafter(high, np.float32(0.0))
    return float(high), float(np.float32(exact - float(high)))


STORED = {**TYPES, "int32": "int", "int64": "long long", "bool": "unsigned char"}
"""The C++ type of an element in memory, by dtype; a bool is a byte of 0 or 1."""

HELPERS = "typedef long long int64;\n" + CUDA.fill(INTEGER_FUNCTIONS)
"""The functions that integer expressions need; ``@`` is the kernel's name."""


def is_integer_dtype(dtype: str | None) -> bool:
    """Whether a dtype is int32 or int64, which are computed in 64 bits."""
    return dtype in INTEGERS


def read(element: str, dtype: str, whole: bool) -> str:
    """An element as an operand: a float, or a 64-bit integer if ``whole``."""
    value = f"md_value({element})" if dtype in TYPES else element
    return f"({'long long' if whole else 'float'})({value})"


def stored(value: str, dtype: str) -> str:
    """A computed number as an element of a dtype; integers lose fractions."""
    if dtype in TYPES:
        return f"md_as<{TYPES[dtype]}>((float)({value}))"
    return f"({value}) != 0" if dtype == "bool" else f"({STORED[dtype]})({value})"


_CALLED = frozenset(("div", "sqrt", *BOUNDS))
"""Operations that branch to a function for some operands, as a division does for infinite ones."""


def may_diverge(code: Sequence[Instruction]) -> bool:
    """Whether the threads of a warp may have diverged after the code."""
    return any(line.op in _CALLED for line in code)
