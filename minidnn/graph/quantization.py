"""Affine quantization to int8 and uint8: ``real = (integer - zero) * scale``, as ONNX defines it.

Quantizing and dequantizing are formulas, which fuse as others do.  Passes and exporters recognize
them by :func:`quantization_of` and :func:`dequantization_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.expression import Expression, Instruction, argument, linearize, rint
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Formula
from minidnn.graph.types import INT8_DTYPES


@dataclass(frozen=True)
class Steps:
    """The quantization parameters of a tensor: ``real = (integer - zero) * scale``.

    Attributes:
        scale: the distance from one number to the next, which float32 represents.
        zero: the zero point: the integer that stands for 0.
        dtype: "int8" or "uint8".
    """

    scale: float
    zero: int
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in INT8_DTYPES:
            raise GraphError(f"dtype={self.dtype!r}; valid are {', '.join(INT8_DTYPES)}")
        if not 0 < self.scale < float("inf") or float(np.float32(self.scale)) != self.scale:
            raise GraphError(f"scale={self.scale!r}; valid is a float32 above 0")
        bounds = np.iinfo(self.dtype)
        if type(self.zero) is not int or not bounds.min <= self.zero <= bounds.max:
            raise GraphError(f"zero={self.zero!r}; valid is an int of {self.dtype}")

    def quantize(self) -> Formula:
        """The operator from float32 to integers; it rounds to nearest even, and saturates."""
        body = quantized(argument(0), self.scale, self.zero)
        return Formula(body, title=QUANTIZE, dtype=self.dtype)

    def dequantize(self) -> Formula:
        """The operator from integers to float32."""
        return Formula(
            dequantized(argument(0), self.scale, self.zero), title=DEQUANTIZE, compute="float32"
        )


MAX_ZERO_POINT = 255
"""The largest absolute value of a zero point of int8 or uint8."""

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
Operand = Expression | float


def quantized(x: Expression, scale: Operand, zero: Operand) -> Expression:
    """The integer that stands for ``x``, before it is saturated to int8 or uint8."""
    return rint(x / scale) + zero


def before_rounding(code: Sequence[Instruction]) -> tuple[tuple[Instruction, ...], int] | None:
    """Matches code that ends as :func:`quantized` does, with a constant zero point.

    Returns the code of the number that is rounded, and the zero point; None for any other code.
    """
    if code[-1].op != "add":
        return None
    rounded, zero = (code[i] for i in code[-1].operands)
    if rounded.op != "round" or zero.op != "constant":
        return None
    zero_point = float(zero.value or 0)
    if not zero_point.is_integer() or abs(zero_point) > MAX_ZERO_POINT:
        return None
    return tuple(code[: rounded.operands[0] + 1]), int(zero_point)


def dequantized(whole: Expression, scale: Operand, zero: Operand) -> Expression:
    """The real number that the integer ``whole`` stands for."""
    return (whole - zero) * scale


#: Dequantizes with scales and zero points that are tensors and broadcast, as a weight has them per
#: channel.
PER_CHANNEL = Formula(
    dequantized(argument(0), argument(1), argument(2)), 3, title=DEQUANTIZE, compute="float32"
)


def quantization_of(op: Operator) -> Steps | None:
    """The parameters with which an operator quantizes all elements; None if it does not."""
    if not isinstance(op, Formula) or op.dtype not in INT8_DTYPES:
        return None
    return _steps(op, op.dtype)


def dequantization_of(op: Operator, dtype: str) -> Steps | None:
    """The parameters with which an operator dequantizes integers of ``dtype``; None if it does
    something else."""
    if not isinstance(op, Formula) or op.dtype is not None or dtype not in INT8_DTYPES:
        return None
    return _steps(op, dtype)


def _steps(op: Formula, dtype: str) -> Steps | None:
    """The parameters with which :class:`Steps` gives this very formula; None if there are none."""
    numbers = [float(line.value or 0) for line in linearize(op.body) if line.op == "constant"]
    if len(numbers) == 1:  # scale and zero point are equal, and so one instruction
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
        expected = steps.quantize() if op.dtype is not None else steps.dequantize()
        if linearize(expected.body) == linearize(op.body):
            return steps
    return None
