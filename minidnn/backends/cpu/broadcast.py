"""Kernels of element-wise operators that no sequence computes: operands of any rank, broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...cache import digest
from ...graph.expression import linearize
from ...graph.ir import Node
from ...graph.operator import Elementwise
from .code import Code
from .kernels import KernelSource
from .scalar import print_code


def print_broadcast(node: Node) -> tuple[KernelSource, int]:
    """The kernel of an element-wise node over NCHW values, and its number of tasks.

    Its pointers are the operands, then the output.  A task is one run along the last axis.
    """
    op, out = node.op, node.output.shape
    assert isinstance(op, Elementwise)
    outer, length = out[:-1], out[-1] if out else 1
    tensors = len(node.inputs) - op.channel_count
    code = Code()
    with (
        code.block("MD_KERNEL(@)"),
        code.block("for (uniform int64 t = md_begin; t < md_end; t++)"),
    ):
        arguments = []
        for i, value in enumerate(node.inputs):
            shape = value.shape
            if i >= tensors:  # a vector over channels, which are axis 1
                shape = shape + (1,) * (len(out) - 2)
            strides = _strides(shape, len(out))
            code.line(
                f"const uniform float * uniform x{i} = MD_IN(float, {i}){_row(outer, strides)};"
            )
            arguments.append(f"x{i}[i]" if strides and strides[-1] else f"x{i}[0]")
        code.line(f"uniform float * uniform y = MD_OUT(float, {len(arguments)}) + t * {length};")
        with code.block(f"foreach (i = 0 ... {length})"):
            for i, argument in enumerate(arguments):
                code.line(f"const float a{i} = {argument};")
            names = [f"a{i}" for i in range(len(arguments))]
            lines, result = print_code(linearize(op.expression()), names, code.fresh)
            code.lines(lines)
            code.line(f"y[i] = {result};")
    name = f"broadcast_{digest(str(code))[:20]}"
    return KernelSource(name, str(code).replace("@", name)), prod(outer)


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    """From one element to the next on each axis of the output, 0 where the operand repeats."""
    padded = (1,) * (rank - len(shape)) + tuple(shape)
    return [0 if size == 1 else prod(padded[axis + 1 :]) for axis, size in enumerate(padded)]


def _row(outer: Sequence[int], strides: Sequence[int]) -> str:
    """What is added to an operand's address for the run of task ``t``."""
    terms = [
        f" + t / {prod(outer[axis + 1 :])} % {size} * {strides[axis]}"
        for axis, size in enumerate(outer)
        if strides[axis]
    ]
    return "".join(terms)
