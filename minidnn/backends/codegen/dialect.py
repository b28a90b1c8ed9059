"""Prints scalar expressions in C, CUDA C++ and ISPC.

The three share one table of snippets, an operation each; a :class:`Dialect` fills in the few words
by which they differ.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from ..._cached_property import cached_property
from ...graph.expression import Instruction
from ...graph.scalar_ops import COMPARISONS
from .functions import BOUNDS

#: The snippet of each float operation.  ``$`` marks functions that dialects name differently.
_FLOAT = {
    **{"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "-{}"},
    **{op: f"{{}} {symbol} {{}}" for op, symbol in COMPARISONS.items()},
    **{name: f"${name}({{}})" for name in ("abs", "floor", "round", "sqrt")},
    **{name: f"md_{name}({{}})" for name in BOUNDS},
    **{"pow": "md_pow({}, {})", "fma": "md_fma({}, {}, {})", "where": "{} ? {} : {}"},
    **{"maximum": "md_max({}, {})", "minimum": "md_min({}, {})"},
}
#: Maximum and minimum as a comparison and a choice, which gives the second operand if either is
#: NaN.
_CHOSEN = {"maximum": "{0} > {1} ? {0} : {1}", "minimum": "{0} < {1} ? {0} : {1}"}
#: The snippet of each int64 operation; ``@`` stands for the kernel's name.
_WHOLE = _FLOAT | _CHOSEN | {"abs": "$llabs({})", "div": "@_div({}, {})", "pow": "@_pow({}, {})"}


@dataclass(frozen=True)
class Dialect:
    """A language like C.

    Attributes:
        words: what stands for each ``$name`` in the tables here and in :mod:`.functions`.
        chooses: whether ``a > b ? a : b`` is one instruction.  A maximum gives NaN if either
            operand is NaN, as in the reference; a choice gives the second operand then.  So where
            one operand is a constant, a choice with the other one second replaces ``md_max``.
        own: snippets of float operations that this dialect alone has.
    """

    words: Mapping[str, str]
    chooses: bool = True
    own: Mapping[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """Replaces each ``$name`` of a text by this dialect's word."""
        return Template(text).substitute(self.words)

    @cached_property
    def _floats(self) -> Mapping[str, str]:
        return {op: self.fill(text) for op, text in _FLOAT.items()} | dict(self.own)

    @cached_property
    def _wholes(self) -> Mapping[str, str]:
        return {op: self.fill(text) for op, text in _WHOLE.items()}

    def print_code(
        self,
        code: Sequence[Instruction],
        arguments: Sequence[str],
        fresh: Callable[[], str],
        whole: bool = False,
    ) -> tuple[list[str], str]:
        """Prints straight-line code over named arguments as statements.

        Args:
            code: instructions, whose operands are indices of earlier ones.
            arguments: the variables that stand for the code's arguments.
            fresh: returns a new variable name each time.
            whole: whether all values are int64 instead of float; the unit then needs
                :data:`.functions.INTEGER_FUNCTIONS`, too.

        Returns:
            The statements and the name of the result, which is 1 or 0 of a comparison.
        """
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
                operands = [names[i] for i in instruction.operands]
                known = [_is_number(code[i]) for i in instruction.operands]
                if whole:
                    text = self._wholes[instruction.op].format(*operands)
                else:
                    text = self._float(instruction.op, operands, known)
                assign("bool" if instruction.op in COMPARISONS else number, text)
        if code[-1].op in COMPARISONS:
            assign(number, f"{names[-1]} ? {one} : {zero}")
        return lines, names[-1]

    def inline(self, code: Sequence[Instruction], arguments: Sequence[str]) -> str:
        """Prints straight-line code over named arguments as one float expression."""
        texts: list[str] = []
        for instruction in code:
            if instruction.op == "argument":
                texts.append(arguments[int(instruction.value or 0)])
            elif instruction.op == "constant":
                texts.append(literal(_value(instruction)))
            else:
                operands = [
                    f"({texts[i]})" if code[i].operands else texts[i] for i in instruction.operands
                ]
                known = [_is_number(code[i]) for i in instruction.operands]
                texts.append(self._float(instruction.op, operands, known))
        return texts[-1]

    def _float(self, op: str, operands: list[str], known: list[bool]) -> str:
        """Prints one operation; ``known`` says which operands are constants other than NaN."""
        if op in _CHOSEN and self.chooses and any(known):
            return _CHOSEN[op].format(*(reversed(operands) if known[1] else operands))
        return self._floats[op].format(*operands)


def literal(value: float) -> str:
    """The literal of a number rounded to float32, which compilers read as exactly these bits."""
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


def _value(constant: Instruction) -> float:
    assert constant.value is not None
    return float(constant.value)


def _is_number(instruction: Instruction) -> bool:
    """Whether an instruction is a constant other than NaN."""
    return instruction.op == "constant" and not math.isnan(_value(instruction))


_C_LIBRARY = {"abs": "fabsf", "floor": "floorf", "round": "rintf", "sqrt": "sqrtf"}
_ISPC_LIBRARY = {name: name for name in _C_LIBRARY}

C = Dialect({"inline": "static inline", "d": "", "llabs": "llabs", **_C_LIBRARY})
#: Functions for results that are rounded to float16 or bfloat16: faster, and less accurate.
_NARROW = {
    "flushed_exp": "md_flushed_exp({})",
    "inverse": "md_flushed_inverse({})",
    "narrow_div": "md_narrow_div({}, {})",
    **{name: f"md_{name}({{}})" for name in ("narrow_exp", "narrow_tanh", "narrow_erf")},
}
CUDA = Dialect({**C.words, "inline": "static __device__ inline"}, chooses=False, own=_NARROW)
ISPC = Dialect({"inline": "static inline", "d": "d", "llabs": "abs", **_ISPC_LIBRARY})
