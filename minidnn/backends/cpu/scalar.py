"""Prints scalar expressions as ISPC.

A maximum or minimum gives NaN if either operand is NaN, as in the reference.  ``a > b ? a : b``
is one instruction, which gives ``b`` if either is NaN, so where one operand is a constant the
order settles it; else one comparison and one blend are added.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from minidnn.graph.expression import Instruction

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">"}
_INFIX |= {"ge": ">="}
_CALLS = {
    "fma": "md_fma",
    "abs": "abs",
    "sqrt": "sqrt",
    "exp": "md_exp",
    "expm1": "md_expm1",
    "log": "md_log",
    "log1p": "md_log1p",
    "tanh": "md_tanh",
    "erf": "md_erf",
    "pow": "md_pow",
}
_COMPARISONS = ("lt", "le", "gt", "ge")


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
    code: Sequence[Instruction], arguments: Sequence[str], fresh: Callable[[], str]
) -> tuple[list[str], str]:
    """Lines that compute straight-line code over named arguments, and the result's name.

    ``fresh`` gives a new variable name each time.
    """
    lines: list[str] = []
    names: list[str] = []
    for instruction in code:
        if instruction.op == "argument":
            names.append(arguments[int(instruction.value or 0)])
        elif instruction.op == "constant":
            names.append(literal(float(instruction.value or 0.0)))
        else:
            kinds = [code[i].op == "constant" for i in instruction.operands]
            text = _print(instruction.op, [names[i] for i in instruction.operands], kinds)
            name = fresh()
            type = "bool" if instruction.op in _COMPARISONS else "float"
            lines.append(f"{type} {name} = {text};")
            names.append(name)
    return lines, names[-1]


def _print(op: str, operands: list[str], constant: list[bool]) -> str:
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
        if constant[1]:
            first, second = second, first
        if any(constant):  # the comparison gives its second operand if either is NaN
            sign = ">" if op == "maximum" else "<"
            return f"{first} {sign} {second} ? {first} : {second}"
        return f"md_{op[:3]}({first}, {second})"
    raise AssertionError(f"no ISPC for scalar operation {op!r}")
