"""Kernels of element-wise operators with results of one shape; a thread computes an element of
each.

Everything is read before anything is written, so that a result may lie over an operand.
"""

from __future__ import annotations

from math import prod

from ...fusion.region import FusedElements
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...memory.annotations import Annotations
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from .kernels import Launch
from .strided import Strided, element_of, strided_of
from .whole import HELPERS, STORED, is_whole, read, stored

_THREADS = 256


def print_elements(annotations: Annotations, node: Node) -> Launch:
    """The kernel of a region; its pointers are the operands, the constants, then the results."""
    op = node.op
    assert isinstance(op, FusedElements)
    body, shape = op.body, op.shape
    given = (*body.inputs, *body.constants)
    outer = dict(zip((*body.inputs, *body.outputs), (*node.inputs, *node.outputs), strict=True))
    lie = {
        value: strided_of(annotations, outer.get(value, value)) for value in (*given, *body.outputs)
    }
    code, count = Code(), prod(shape)
    pointers = [f"const {STORED[v.dtype]} *x{i}" for i, v in enumerate(given)]
    pointers += [f"{STORED[v.dtype]} *y{i}" for i, v in enumerate(body.outputs)]
    if any(map(_is_whole, body.nodes)):
        code.lines(HELPERS.splitlines())
    with code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
        code.line(f"const long long t = blockIdx.x * {_THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        names: dict[Value, str] = {}

        def name(value: Value, number: str) -> None:
            names[value] = code.fresh()
            code.line(f"const {STORED[value.dtype]} {names[value]} = {number};")

        for i, value in enumerate(given):
            name(value, f"x{i}[{_place(value, shape, lie[value])}]")
        for each in body.nodes:
            assert isinstance(each.op, Elementwise)
            whole = _is_whole(each)
            operands = []
            for value in each.inputs:
                operands.append(code.fresh())
                kind = "long long" if whole else "float"
                number = read(names[value], value.dtype, whole)
                code.line(f"const {kind} {operands[-1]} = {number};")
            lines, result = CUDA.print_code(
                linearize(each.op.expression()), operands, code.fresh, whole
            )
            code.lines(lines)
            name(each.output, stored(result, each.output.dtype))
        for i, value in enumerate(body.outputs):
            code.line(f"y{i}[{_place(value, shape, lie[value])}] = {names[value]};")
    return Launch.named("elements", code, -(-count // _THREADS), _THREADS)


def _is_whole(node: Node) -> bool:
    assert isinstance(node.op, Elementwise)
    return is_whole(node.op.computed_in([value.dtype for value in node.inputs]))


def _place(value: Value, shape: tuple[int, ...], lies: Strided) -> str:
    """Where element ``t`` of a value is, or its only one."""
    return str(lies.offset) if value.shape != shape else element_of("t", shape, lies)
