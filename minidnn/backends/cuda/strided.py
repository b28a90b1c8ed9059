"""Kernels of element-wise operators: one that broadcasts, or a region, over values of any rank that
lie as NCHW, or in a slice of a join.

Members of a region have blocks of their own, and a thread computes an element of each result of a
member.  Everything of a member is read before anything is written, so that a result may lie over an
operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...fusion.region import FusedElements
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.types import HALVES
from ...kernels.ops import elementwise
from ...kernels.ops.pitched import Pitched
from ...memory import Annotations
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from .expressions import HELPERS, STORED, is_whole, narrowed, print_as, read, stored
from .kernels import SCHEDULE, Launch

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
    offset, shape = place.channel * prod(value.shape[2:]), place.buffer.shape
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return Strided(value.dtype, strides, offset)


def pitched(annotations: Annotations, value: Value) -> Pitched:
    """How a value lies whose layout is NCHW, as kernels that are described once have it."""
    lies = strided_of(annotations, value)
    return Pitched(value.type, lies.strides[0] if lies.strides else 1, lies.offset)


def print_broadcast(annotations: Annotations, node: Node) -> Launch:
    """The kernel of an element-wise node; its pointers are the operands, then the output."""
    op, out = node.op, node.output
    assert isinstance(op, Elementwise)
    tensors = len(node.inputs) - op.channel_count
    given = [pitched(annotations, value) for value in node.inputs[:tensors]]
    over_channels = (value.type for value in node.inputs[tensors:])
    ones = (1,) * (out.type.rank - 2)
    given += [Pitched.dense(type.with_shape(type.shape + ones)) for type in over_channels]
    whole = is_whole(op.computed_in([x.type.dtype for x in given]))
    code = linearize(op.expression())
    if out.dtype in HALVES and not whole:
        code = narrowed(code)
    made, number = pitched(annotations, out), "int64" if whole else "float32"
    return Launch.of(elementwise.lower(code, given, made, number, SCHEDULE))


def element_of(index: str, shape: Sequence[int], x: Strided) -> str:
    """Where element ``index`` of the dense value lies; samples may lie apart."""
    sample = prod(shape[1:])
    if not shape or x.strides[0] == sample or shape[0] == 1:
        return index if not x.offset else f"{index} + {x.offset}"
    return f"{index} / {sample} * {x.strides[0]} + {index} % {sample} + {x.offset}"


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
            first, blocks = blocks, blocks - (-count // THREADS)
            with code.block("" if len(op.members) == 1 else f"if (blockIdx.x < {blocks})"):
                before = f"(blockIdx.x - {first})" if first else "blockIdx.x"
                code.line(f"const long long t = {before} * {THREADS}ll + threadIdx.x;")
                code.line(f"if (t >= {count}) return;")
                _member(code, nodes, places, results, lie)
                code.line("return;")
    return Launch.named("elements", code, blocks, THREADS)


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
