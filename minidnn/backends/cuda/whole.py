"""Values that are no floating-point numbers: their types in memory, and expressions of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.expression import Instruction
from ...graph.types import INTEGERS
from ..cpu.scalar import print_lines, print_whole
from .dialect import TYPES

STORED = {**TYPES, "int32": "int", "int64": "long long", "bool": "unsigned char"}
STORED |= {"uint8": "unsigned char"}
"""The element types of all values; a bool is a byte of 0 or 1."""

HELPERS = """\
typedef long long int64;
MD_FUNCTION int64 @_div(int64 a, int64 b) {
  if (b == 0) return 0;
  return b == -1 ? (int64)(0ull - (unsigned long long)a) : a / b;
}
MD_FUNCTION int64 @_pow(int64 a, int64 b) {
  if (b < 0) return a == 1 ? 1 : (a == -1 ? ((b & 1) ? -1 : 1) : 0);
  int64 result = 1;
  for (; b; b >>= 1, a *= a) if (b & 1) result *= a;
  return result;
}"""
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


def print_whole_code(
    code: Sequence[Instruction], arguments: Sequence[str], fresh: Callable[[], str]
) -> tuple[list[str], str]:
    """:func:`.scalar.print_code` of whole numbers, beside :data:`HELPERS`."""
    return print_lines(code, arguments, fresh, _print, True)


def _print(op: str, operands: list[str], numbers: list[bool]) -> str:
    return print_whole(op, operands, numbers).replace("abs(", "llabs(")
