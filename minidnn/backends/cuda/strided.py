"""Kernels of element-wise operators that broadcast, over values of any rank that lie as NCHW, or in
a slice of a join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...graph.expression import Instruction, linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...memory.annotations import Annotations
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from .kernels import Launch
from .narrow import print_as
from .whole import HELPERS, STORED, is_whole, read, stored

THREADS = 256


@dataclass(frozen=True)
class Strided:
    """Element ``i`` lies at ``offset + sum(i * strides)`` of what the pointer points to."""

    dtype: str
    strides: tuple[int, ...]
    offset: int = 0


def strided_of(annotations: Annotations, value: Value) -> Strided:
    """How a value lies whose layout is NCHW."""
    place = annotations.within(value)
    offset = place.channel * prod(value.shape[2:])
    return Strided(value.dtype, _dense(place.buffer.shape), offset)


def print_broadcast(annotations: Annotations, node: Node) -> Launch:
    """The kernel of an element-wise node; its pointers are the operands, then the output."""
    op, out = node.op, node.output.shape
    assert isinstance(op, Elementwise)
    tensors = len(node.inputs) - op.channel_count
    operands = []
    for i, value in enumerate(node.inputs):
        if i >= tensors:  # a vector over channels, which are axis 1
            strides = (0, 1, *(0 for _ in out[2:]))
            operands.append(Strided(value.dtype, strides))
            continue
        own = strided_of(annotations, value)
        steps = zip(value.shape, own.strides, strict=True)
        known = tuple(0 if size == 1 else step for size, step in steps)
        missing = (0,) * (len(out) - len(known))
        operands.append(Strided(own.dtype, (*missing, *known), own.offset))
    result = strided_of(annotations, node.output)
    computed = op.computed_in([operand.dtype for operand in operands])
    return _print(out, operands, result, linearize(op.expression()), is_whole(computed))


def _print(
    shape: Sequence[int],
    operands: Sequence[Strided],
    output: Strided,
    expression: Sequence[Instruction],
    whole: bool,
) -> Launch:
    """A thread computes one element; neighbours are neighbours along the last axis."""
    count = prod(shape)
    code = Code()
    pointers = [f"const {STORED[o.dtype]} *x{i}" for i, o in enumerate(operands)]
    pointers.append(f"{STORED[output.dtype]} *y")
    if whole:
        code.lines(HELPERS.splitlines())
    with code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        names = []
        for i, operand in enumerate(operands):
            names.append(code.fresh())
            kind = "long long" if whole else "float"
            value = read(f"x{i}[{_index(shape, operand)}]", operand.dtype, whole)
            code.line(f"const {kind} {names[-1]} = {value};")
        if whole:
            lines, result = CUDA.print_code(expression, names, code.fresh, whole)
        else:
            lines, result = print_as(output.dtype, expression, names, code.fresh)
        code.lines(lines)
        code.line(f"y[{_index(shape, output)}] = {stored(result, output.dtype)};")
    return Launch.named("strided", code, -(-count // THREADS), THREADS)


def element_of(index: str, shape: Sequence[int], x: Strided) -> str:
    """Where element ``index`` of the dense value lies; samples may lie apart."""
    sample = prod(shape[1:])
    if not shape or x.strides[0] == sample or shape[0] == 1:
        return index if not x.offset else f"{index} + {x.offset}"
    return f"{index} / {sample} * {x.strides[0]} + {index} % {sample} + {x.offset}"


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _index(shape: Sequence[int], tensor: Strided) -> str:
    """Where element ``t`` of the shape lies."""
    terms = [str(tensor.offset)] if tensor.offset else []
    for axis, (size, step) in enumerate(zip(shape, tensor.strides, strict=True)):
        if size > 1 and step:
            inner = prod(shape[axis + 1 :])
            place = "t" if inner == 1 else f"t / {inner}"
            wrapped = place if prod(shape[:axis]) == 1 else f"{place} % {size}"
            terms.append(wrapped if step == 1 else f"{wrapped} * {step}")
    return " + ".join(terms) or "0"
