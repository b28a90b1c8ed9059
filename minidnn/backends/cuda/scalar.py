"""Prints scalar expressions as CUDA.

A maximum or minimum is one instruction that gives NaN if either operand is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minidnn.graph.expression import Instruction

from ..cpu.scalar import literal, print_lines

__all__ = ["literal", "may_part", "print_code"]

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">"}
_INFIX |= {"ge": ">="}
_CALLS = {"fma": "md_fma", "maximum": "md_max", "minimum": "md_min", "abs": "fabsf"}
_CALLS |= {"sqrt": "sqrtf", "floor": "floorf", "round": "rintf"}
_FUNCTIONS = ("exp", "expm1", "log", "log1p", "tanh", "erf", "pow", "sin", "cos", "atan")
_CALLS |= {name: f"md_{name}" for name in _FUNCTIONS}


_CALLED = frozenset(("div", "sqrt", *_FUNCTIONS))
"""Those that call a function for some operands, a division for infinite ones for example."""


def may_part(code: Sequence[Instruction]) -> bool:
    """Whether threads of a warp may be apart behind it: see :mod:`.dialect`, *Warps*."""
    return any(line.op in _CALLED for line in code)


def print_code(
    code: Sequence[Instruction], arguments: Sequence[str], fresh: Callable[[], str]
) -> tuple[list[str], str]:
    """Lines that compute straight-line code over named float32 arguments, and the result's name.

    ``fresh`` gives a new variable name each time.  The result is a float: 1 or 0 of a comparison.
    """
    return print_lines(code, arguments, fresh, _print)


def _print(op: str, operands: list[str], numbers: list[bool]) -> str:
    if op in _INFIX:
        return f"{operands[0]} {_INFIX[op]} {operands[1]}"
    if op in _CALLS:
        return f"{_CALLS[op]}({', '.join(operands)})"
    if op == "neg":
        return f"-{operands[0]}"
    if op == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    raise AssertionError(f"no CUDA for scalar operation {op!r}")
