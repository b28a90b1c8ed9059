"""Numbers as whole ones of a byte: ``(whole - zero) * scale``, as ONNX defines it.

Quantizing and its inverse are formulas, which fuse as others do.  Passes and exporters find out
what they are by :func:`quantization_of` and :func:`dequantization_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, Instruction, argument, linearize, rint
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Formula
from minidnn.graph.types import BYTES


@dataclass(frozen=True)
class Steps:
    """The numbers of a byte that a tensor has: ``(whole - zero) * scale``.

    Attributes:
        scale: from one number to the next, as float32 has it.
        zero: the whole number that stands for 0.
        dtype: "int8" or "uint8".
    """

    scale: float
    zero: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise GraphError(f"dtype={self.dtype!r}; valid are {', '.join(BYTES)}")
        if not 0 < self.scale < float("inf") or float(np.float32(self.scale)) != self.scale:
            raise GraphError(f"scale={self.scale!r}; valid is a float32 above 0")
        bounds = np.iinfo(self.dtype)
        if type(self.zero) is not int or not bounds.min <= self.zero <= bounds.max:
            raise GraphError(f"zero={self.zero!r}; valid is an int of {self.dtype}")

    def quantize(self) -> Formula:
        """The operator from float32 to whole numbers: to the nearest, ties to even; what is too
        large or too small becomes the largest or the least."""
        body = quantized(argument(0), self.scale, self.zero)
        return Formula(body, title=QUANTIZE, dtype=self.dtype)

    def dequantize(self) -> Formula:
        """The operator from whole numbers to float32."""
        return Formula(
            dequantized(argument(0), self.scale, self.zero), title=DEQUANTIZE, compute="float32"
        )


MOST_ZERO = 255
"""No byte's zero is further from 0."""

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
Operand = Expression | float


def quantized(x: Expression, scale: Operand, zero: Operand) -> Expression:
    """The whole number that stands for ``x``, which may be too large for a byte."""
    return rint(x / scale) + zero


def before_rounding(code: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], int] | None:
    """Of code that ends as :func:`quantized` does with a zero that is known, the code of what is
    rounded, and the zero; None of any other."""
    if code[-1].op != "add":
        return None
    rounded, zero = (code[i] for i in code[-1].operands)
    if rounded.op != "round" or zero.op != "constant":
        return None
    number = float(zero.value or 0)
    if not number.is_integer() or abs(number) > MOST_ZERO:
        return None
    return tuple(code[: rounded.operands[0] + 1]), int(number)


def dequantized(whole: Expression, scale: Operand, zero: Operand) -> Expression:
    """What a whole number stands for."""
    return (whole - zero) * scale


#: The operator of bytes, scales and zeros that broadcast, as those of a weight do.
PER_CHANNEL = Formula(
    dequantized(argument(0), argument(1), argument(2)), 3, title=DEQUANTIZE, compute="float32"
)


def quantization_of(op: Operator) -> Steps | None:
    """The numbers to which an operator rounds all elements alike; None if it does not."""
    if not isinstance(op, Formula) or op.dtype not in BYTES:
        return None
    return _steps(op, op.dtype)


def dequantization_of(op: Operator, dtype: str) -> Steps | None:
    """The numbers that whole ones of ``dtype`` stand for; None if an operator does something else
    than to compute them."""
    if not isinstance(op, Formula) or op.dtype is not None or dtype not in BYTES:
        return None
    return _steps(op, dtype)


def _steps(op: Formula, dtype: str) -> Steps | None:
    numbers = [float(line.value or 0) for line in linearize(op.body) if line.op == "constant"]
    if len(numbers) == 1:  # which is both, as equal constants are one
        numbers *= 2
    if len(numbers) != 2 or op.tensors != 1 or op.channel_vectors:
        return None
    for scale, zero in (numbers, numbers[::-1]):
        if not zero.is_integer():
            continue
        try:
            steps = Steps(scale, int(zero), dtype)
        except GraphError:
            continue
        same = steps.quantize() if op.dtype is not None else steps.dequantize()
        if linearize(same.body) == linearize(op.body):
            return steps
    return None
