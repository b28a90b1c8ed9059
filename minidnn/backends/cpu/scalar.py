"""Prints scalar expressions as ISPC.

A maximum or minimum gives NaN if either operand is NaN, as in the reference.  ``a > b ? a : b``
is one instruction, which gives ``b`` if either is NaN, so where one operand is a number known
here the order settles it; else one comparison and one blend are added.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from minidnn.graph.expression import Instruction

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">"}
_INFIX |= {"ge": ">="}
_CALLS = {
    "fma": "md_fma",
    "abs": "abs",
    "floor": "floor",
    "round": "round",
    "sqrt": "sqrt",
    "exp": "md_exp",
    "expm1": "md_expm1",
    "log": "md_log",
    "log1p": "md_log1p",
    "tanh": "md_tanh",
    "erf": "md_erf",
    "pow": "md_pow",
    "sin": "md_sin",
    "cos": "md_cos",
    "atan": "md_atan",
}
_COMPARISONS = ("lt", "le", "gt", "ge")
_WHOLE = {"abs": "abs", "div": "@_div", "pow": "@_pow"}

#: What expressions of whole numbers need beside ISPC's own, ``@`` being the kernel's name.  A
#: division by zero would end the process, in lanes that are switched off, too.
INTEGER_HELPERS = """\
static inline int64 @_div(int64 a, int64 b) {
  const int64 d = (b == 0 || b == -1) ? 1 : b;
  const int64 q = a / d;
  return b == 0 ? 0 : (b == -1 ? -q : q);
}
static inline int64 @_pow(int64 a, int64 b) {
  int64 result = 1, square = a, left = b;
  while (left > 0) {
    if (left & 1) result *= square;
    square *= square;
    left >>= 1;
  }
  const int64 inverse = a == 1 ? 1 : (a == -1 ? ((b & 1) ? -1 : 1) : 0);
  return b < 0 ? inverse : result;
}
"""


def literal(value: float) -> str:
    """A float32 constant with exactly these bits."""
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        bits = 0x7F800000 if value > 0 else 0xFF800000
    number = struct.unpack("<f", struct.pack("<I", bits))[0]
    if number != number or number in (float("inf"), float("-inf")):
        return f"floatbits(0x{bits:08x})"
    text = repr(number)
    mantissa, _, exponent = text.partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    text = f"{mantissa}e{exponent}" if exponent else mantissa
    return f"({text}f)" if number < 0 or text.startswith("-") else f"{text}f"


def print_code(
    code: Sequence[Instruction],
    arguments: Sequence[str],
    fresh: Callable[[], str],
    whole: bool = False,
) -> tuple[list[str], str]:
    """Lines that compute straight-line code over named arguments, and the result's name.

    ``fresh`` gives a new variable name each time.  The result is a float: 1 or 0 of a comparison;
    or an int64, as all is, if ``whole``.
    """
    return print_lines(code, arguments, fresh, print_whole if whole else _print, whole)


def print_lines(
    code: Sequence[Instruction],
    arguments: Sequence[str],
    fresh: Callable[[], str],
    show: Callable[[str, list[str], list[bool]], str],
    whole: bool = False,
) -> tuple[list[str], str]:
    """The same in any language like C: ``show(op, operands, numbers)`` prints one operation,
    where ``numbers`` tells which operands are constants and not NaN."""
    number, zero, one = ("int64", "0", "1") if whole else ("float", "0.0f", "1.0f")
    lines: list[str] = []
    names: list[str] = []

    def assign(type: str, text: str) -> None:
        names.append(fresh())
        lines.append(f"{type} {names[-1]} = {text};")

    for instruction in code:
        if instruction.op == "argument":
            names.append(arguments[int(instruction.value or 0)])
        elif instruction.op == "constant":
            value = _value(instruction)
            names.append(f"((int64){int(value)}ll)" if whole else literal(value))
        else:
            numbers = [_is_number(code[i]) for i in instruction.operands]
            text = show(instruction.op, [names[i] for i in instruction.operands], numbers)
            assign("bool" if instruction.op in _COMPARISONS else number, text)
    if code[-1].op in _COMPARISONS:
        assign(number, f"{names[-1]} ? {one} : {zero}")
    return lines, names[-1]


def _value(constant: Instruction) -> float:
    assert constant.value is not None
    return float(constant.value)


def _is_number(instruction: Instruction) -> bool:
    """Whether it is a constant, and not NaN."""
    return instruction.op == "constant" and not math.isnan(_value(instruction))


def print_whole(op: str, operands: list[str], numbers: list[bool]) -> str:
    """One operation of whole numbers; ``@_div`` and ``@_pow`` are functions beside the kernel."""
    if op in _WHOLE:
        return f"{_WHOLE[op]}({', '.join(operands)})"
    if op in ("maximum", "minimum"):
        sign = ">" if op == "maximum" else "<"
        return f"{operands[0]} {sign} {operands[1]} ? {operands[0]} : {operands[1]}"
    return _print(op, operands, numbers)


def _print(op: str, operands: list[str], numbers: list[bool]) -> str:
    if op in _INFIX:
        return f"{operands[0]} {_INFIX[op]} {operands[1]}"
    if op in _CALLS:
        return f"{_CALLS[op]}({', '.join(operands)})"
    if op == "neg":
        return f"-{operands[0]}"
    if op == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    if op in ("maximum", "minimum"):
        first, second = operands
        if numbers[1]:
            first, second = second, first
        if any(numbers):  # the comparison gives its second operand if either is NaN
            sign = ">" if op == "maximum" else "<"
            return f"{first} {sign} {second} ? {first} : {second}"
        return f"md_{op[:3]}({first}, {second})"
    raise AssertionError(f"no ISPC for scalar operation {op!r}")
