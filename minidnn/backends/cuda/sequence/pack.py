"""Packs: one float32 of a thread, or several neighbouring elements that one wide access moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidnn.graph.expression import Instruction

from ...codegen.code import Code
from ..expressions import print_as
from ..prelude import TYPES


@dataclass(frozen=True, slots=True)
class Pack:
    """Prints statements about packs of ``size`` elements, of which each printed variable holds
    one."""

    code: Code
    size: int

    def declare(self, name: str, text: str) -> None:
        """Declares a variable; ``text`` is the expression of one element, in which packs are named
        as by :meth:`at`."""
        if self.size == 1:
            self.code.line(f"float {name} = {text};")
        else:
            self.code.line(f"float {name}[{self.size}];")
            self.each(f"{name}[v] = {text};")

    def each(self, text: str) -> None:
        """Prints one statement for every element."""
        if self.size == 1:
            self.code.line(text)
        else:
            self.code.line(f'_Pragma("unroll") for (int v = 0; v < {self.size}; v++) {text}')

    def at(self, name: str) -> str:
        """The element of a pack that a statement is about."""
        return name if self.size == 1 else f"{name}[v]"

    def load(
        self,
        name: str,
        address: str,
        condition: str = "",
        otherwise: str = "0.0f",
        function: str = "md_load",
    ) -> None:
        """Declares a variable and loads it from memory, or ``otherwise`` where the condition does
        not hold; a pack by ``function``."""
        if self.size == 1:
            value = f"md_value(*({address}))"
            text = f"{condition} ? {value} : {otherwise}" if condition else value
            self.code.line(f"float {name} = {text};")
            return
        self.code.line(f"float {name}[{self.size}];")
        self._fetch(name, address, condition, otherwise, function)

    def _fetch(
        self, name: str, address: str, condition: str, otherwise: str, function: str
    ) -> None:
        if not condition:
            self.code.line(f"{function}({name}, {address});")
            return
        self.code.line(f"if ({condition}) {function}({name}, {address});")
        with self.code.block("else"):
            self.each(f"{name}[v] = {otherwise};")

    def store(
        self,
        address: str,
        name: str,
        dtype: str,
        condition: str = "",
        function: str = "md_store",
    ) -> None:
        """Stores a variable to memory where the condition holds; a pack by ``function``."""
        test = f"if ({condition}) " if condition else ""
        if self.size == 1:
            self.code.line(f"{test}*({address}) = md_as<{TYPES[dtype]}>({name});")
        else:
            self.code.line(f"{test}{function}({address}, {name});")

    def compute(
        self,
        name: str,
        code: Sequence[Instruction],
        arguments: Sequence[str],
        dtype: str,
        stored: str = "float32",
    ) -> None:
        """Declares a variable that is computed by straight-line code and rounded to ``dtype``.

        Arguments are single numbers or, as :meth:`at` prints them, elements of packs.  The code is
        as precise as results that are ``stored`` in that dtype need it.
        """
        if self.size == 1:
            self.code.line(f"float {name} = {self._computed(code, arguments, dtype, stored)};")
            return
        self.code.line(f"float {name}[{self.size}];")
        with self.code.block(f'_Pragma("unroll") for (int v = 0; v < {self.size}; v++)'):
            self.code.line(f"{name}[v] = {self._computed(code, arguments, dtype, stored)};")

    def _computed(
        self, code: Sequence[Instruction], arguments: Sequence[str], dtype: str, stored: str
    ) -> str:
        """Prints straight-line code; returns the expression of its rounded result."""
        result = print_as(self.code, stored, code, arguments)
        return result if dtype == "float32" else f"md_round<{TYPES[dtype]}>({result})"

    def maximum(self, a: str, b: str, positive: bool) -> str:
        """Returns the larger of two; ``positive``: neither has its sign bit set."""
        return f"md_max_positive({a}, {b})" if positive else f"md_max({a}, {b})"

    @property
    def least(self) -> str:
        """The least of all numbers, the identity of a maximum."""
        return "floatbits(0xff800000)"

    @property
    def zero(self) -> str:
        return "0.0f"

    def element(self, name: str, index: int | str) -> str:
        """Returns an element of a pack as a float."""
        return f"{name}[{index}]"


@dataclass(frozen=True, slots=True)
class Pairs(Pack):
    """Packs of float16 or bfloat16 as they are in memory, two in a 32-bit register: for maxima
    alone, of which one instruction computes two.  What :meth:`Pack.at` names is such a register."""

    dtype: str = "float16"

    def declare(self, name: str, text: str) -> None:
        self.code.line(f"unsigned int {name}[{self.size // 2}];")
        self.each(f"{name}[v] = {text};")

    def each(self, text: str) -> None:
        self.code.line(f'_Pragma("unroll") for (int v = 0; v < {self.size // 2}; v++) {text}')

    def load(
        self,
        name: str,
        address: str,
        condition: str = "",
        otherwise: str = "",
        function: str = "md_load_pairs",
    ) -> None:
        self.code.line(f"unsigned int {name}[{self.size // 2}];")
        self._fetch(name, address, condition, otherwise, function)

    def maximum(self, a: str, b: str, positive: bool) -> str:
        return f"md_max_pairs<{TYPES[self.dtype]}>({a}, {b})"

    @property
    def least(self) -> str:
        return "0xfc00fc00u" if self.dtype == "float16" else "0xff80ff80u"

    @property
    def zero(self) -> str:
        return "0u"

    def element(self, name: str, index: int | str) -> str:
        return f"md_of_pairs<{TYPES[self.dtype]}>({name}, {index})"


def unit_pack(code: Code, size: int, dtype: str) -> Pack:
    """Returns a pack for the neighbours of a row that one access loads, held as they are in
    memory."""
    return Pack(code, size) if dtype == "float32" else Pairs(code, size, dtype)


Loader = Callable[[int, int], str]
"""Loads the element at a row and a column from the first tap of a tile, and returns its
variable."""
