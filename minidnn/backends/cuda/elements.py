"""Kernels of element-wise operators: members of a region have blocks of their own, and a thread
computes an element of each result of a member.

Everything of a member is read before anything is written, so that a result may lie over an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...fusion.region import FusedElements
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...memory import Annotations
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from .kernels import Launch
from .narrow import print_as
from .strided import Strided, element_of, strided_of
from .whole import HELPERS, STORED, is_whole, read, stored

_THREADS = 256


def print_elements(annotations: Annotations, node: Node) -> Launch:
    """The kernel of a region; its pointers are the operands, the constants, then the results."""
    op = node.op
    assert isinstance(op, FusedElements)
    body = op.body
    given = (*body.inputs, *body.constants)
    outer = dict(zip((*body.inputs, *body.outputs), (*node.inputs, *node.outputs), strict=True))
    lie = {
        value: strided_of(annotations, outer.get(value, value)) for value in (*given, *body.outputs)
    }
    code, blocks = Code(), 0
    pointers = [f"const {STORED[v.dtype]} *x{i}" for i, v in enumerate(given)]
    pointers += [f"{STORED[v.dtype]} *y{i}" for i, v in enumerate(body.outputs)]
    places = {value: f"x{i}" for i, value in enumerate(given)}
    results = {value: f"y{i}" for i, value in enumerate(body.outputs)}
    if any(map(_is_whole, body.nodes)):
        code.lines(HELPERS.splitlines())
    with code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
        for nodes in op.members:
            count = nodes[0].output.type.size
            first, blocks = blocks, blocks - (-count // _THREADS)
            with code.block("" if len(op.members) == 1 else f"if (blockIdx.x < {blocks})"):
                before = f"(blockIdx.x - {first})" if first else "blockIdx.x"
                code.line(f"const long long t = {before} * {_THREADS}ll + threadIdx.x;")
                code.line(f"if (t >= {count}) return;")
                _member(code, nodes, places, results, lie)
                code.line("return;")
    return Launch.named("elements", code, blocks, _THREADS)


def _member(
    code: Code,
    nodes: Sequence[Node],
    places: Mapping[Value, str],
    results: Mapping[Value, str],
    lie: Mapping[Value, Strided],
) -> None:
    """Prints what is computed of element ``t`` by nodes of one shape."""
    shape = nodes[0].output.shape
    names: dict[Value, str] = {}

    def name(value: Value, number: str) -> None:
        names[value] = code.fresh()
        code.line(f"const {STORED[value.dtype]} {names[value]} = {number};")

    for value in dict.fromkeys(value for node in nodes for value in node.inputs):
        if value in places:
            name(value, f"{places[value]}[{_place(value, shape, lie[value])}]")
    for node in nodes:
        assert isinstance(node.op, Elementwise)
        whole = _is_whole(node)
        operands = []
        for value in node.inputs:
            operands.append(code.fresh())
            kind = "long long" if whole else "float"
            number = read(names[value], value.dtype, whole)
            code.line(f"const {kind} {operands[-1]} = {number};")
        expression = linearize(node.op.expression())
        if whole:
            lines, result = CUDA.print_code(expression, operands, code.fresh, whole)
        else:
            lines, result = print_as(node.output.dtype, expression, operands, code.fresh)
        code.lines(lines)
        name(node.output, stored(result, node.output.dtype))
    for node in nodes:
        if (to := results.get(node.output)) is not None:
            code.line(
                f"{to}[{_place(node.output, shape, lie[node.output])}] = {names[node.output]};"
            )


def _is_whole(node: Node) -> bool:
    assert isinstance(node.op, Elementwise)
    return is_whole(node.op.computed_in([value.dtype for value in node.inputs]))


def _place(value: Value, shape: tuple[int, ...], lies: Strided) -> str:
    """Where element ``t`` of a value is, or its only one."""
    return str(lies.offset) if value.shape != shape else element_of("t", shape, lies)
