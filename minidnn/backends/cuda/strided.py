"""Kernels of element-wise operators on NCHW values of any rank, also in slices of concatenations:
single operators with broadcasting, and regions (``FusedElements``).

Each member of a region has blocks of its own, in which a thread computes one element of each result
of the member.  A thread reads all of its operands before it writes, so that a result may share
memory with an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...fusion.region import FusedElements
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.types import HALF_DTYPES
from ...kernels.ops import elementwise
from ...kernels.ops.pitched import Pitched
from ...memory import Annotations
from ..codegen.code import Code
from ..codegen.dialect import CUDA
from .expressions import HELPERS, STORED, is_integer_dtype, narrowed, print_as, read, stored
from .kernels import SCHEDULE, Launch

THREADS = 256


@dataclass(frozen=True)
class Strided:
    """A strided view of memory: from the pointer, element ``i`` (an index for each axis) is at
    ``offset + sum(i * strides)``, in elements."""

    dtype: str
    strides: tuple[int, ...]
    offset: int = 0


def strided_of(annotations: Annotations, value: Value) -> Strided:
    """The view of a value whose layout is NCHW."""
    place = annotations.within(value)
    offset, shape = place.channel * prod(value.shape[2:]), place.buffer.shape
    strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return Strided(value.dtype, strides, offset)


def pitched(annotations: Annotations, value: Value) -> Pitched:
    """The view of a value whose layout is NCHW, for kernels that all engines share."""
    view = strided_of(annotations, value)
    return Pitched(value.type, view.strides[0] if view.strides else 1, view.offset)


def print_broadcast(annotations: Annotations, node: Node) -> Launch:
    """The kernel of an element-wise node; its pointers are the operands, then the output."""
    op, out = node.op, node.output
    assert isinstance(op, Elementwise)
    tensors = len(node.inputs) - op.channel_count
    operands = [pitched(annotations, value) for value in node.inputs[:tensors]]
    over_channels = (value.type for value in node.inputs[tensors:])
    ones = (1,) * (out.type.rank - 2)
    operands += [Pitched.dense(type.with_shape(type.shape + ones)) for type in over_channels]
    is_integer = is_integer_dtype(op.computed_in([x.type.dtype for x in operands]))
    code = linearize(op.expression())
    if out.dtype in HALF_DTYPES and not is_integer:
        code = narrowed(code)
    result, computed = pitched(annotations, out), "int64" if is_integer else "float32"
    return Launch.of(elementwise.lower(code, operands, result, computed, SCHEDULE))


def element_of(index: str, shape: Sequence[int], x: Strided) -> str:
    """The offset in a view of element ``index`` of the dense value; samples may have any stride."""
    sample = prod(shape[1:])
    if not shape or x.strides[0] == sample or shape[0] == 1:
        return index if not x.offset else f"{index} + {x.offset}"
    return f"{index} / {sample} * {x.strides[0]} + {index} % {sample} + {x.offset}"


def print_elements(annotations: Annotations, node: Node) -> Launch:
    """The kernel of a region; its pointers are the operands, the constants, then the results."""
    op = node.op
    assert isinstance(op, FusedElements)
    body = op.body
    operands = (*body.inputs, *body.constants)
    outer = dict(zip((*body.inputs, *body.outputs), (*node.inputs, *node.outputs), strict=True))
    views = {
        value: strided_of(annotations, outer.get(value, value))
        for value in (*operands, *body.outputs)
    }
    code, blocks = Code(), 0
    pointers = [f"const {STORED[v.dtype]} *x{i}" for i, v in enumerate(operands)]
    pointers += [f"{STORED[v.dtype]} *y{i}" for i, v in enumerate(body.outputs)]
    sources = {value: f"x{i}" for i, value in enumerate(operands)}
    results = {value: f"y{i}" for i, value in enumerate(body.outputs)}
    if any(map(_is_integer, body.nodes)):
        code.lines(HELPERS.splitlines())
    with code.block(f'extern "C" __global__ void @({", ".join(pointers)})'):
        for nodes in op.members:
            count = nodes[0].output.type.size
            first, blocks = blocks, blocks - (-count // THREADS)
            with code.block("" if len(op.members) == 1 else f"if (blockIdx.x < {blocks})"):
                block = f"(blockIdx.x - {first})" if first else "blockIdx.x"
                code.line(f"const long long t = {block} * {THREADS}ll + threadIdx.x;")
                code.line(f"if (t >= {count}) return;")
                _member(code, nodes, sources, results, views)
                code.line("return;")
    return Launch.named("elements", code, blocks, THREADS)


def _member(
    code: Code,
    nodes: Sequence[Node],
    sources: Mapping[Value, str],
    results: Mapping[Value, str],
    views: Mapping[Value, Strided],
) -> None:
    """Prints how nodes of one shape compute element ``t``.

    Args:
        sources: the pointers to values that are in memory.
        results: the pointers to values that are results.
        views: of both.
    """
    shape = nodes[0].output.shape
    names: dict[Value, str] = {}

    def name(value: Value, number: str) -> None:
        names[value] = code.fresh()
        code.line(f"const {STORED[value.dtype]} {names[value]} = {number};")

    for value in dict.fromkeys(value for node in nodes for value in node.inputs):
        if value in sources:
            name(value, f"{sources[value]}[{_place(value, shape, views[value])}]")
    for node in nodes:
        assert isinstance(node.op, Elementwise)
        is_integer = _is_integer(node)
        operands = []
        for value in node.inputs:
            operands.append(code.fresh())
            kind = "long long" if is_integer else "float"
            number = read(names[value], value.dtype, is_integer)
            code.line(f"const {kind} {operands[-1]} = {number};")
        expression = linearize(node.op.expression())
        if is_integer:
            lines, result = CUDA.print_code(expression, operands, code.fresh, is_integer)
            code.lines(lines)
        else:
            result = print_as(code, node.output.dtype, expression, operands)
        name(node.output, stored(result, node.output.dtype))
    for node in nodes:
        if (to := results.get(node.output)) is not None:
            code.line(
                f"{to}[{_place(node.output, shape, views[node.output])}] = {names[node.output]};"
            )


def _is_integer(node: Node) -> bool:
    assert isinstance(node.op, Elementwise)
    return is_integer_dtype(node.op.computed_in([value.dtype for value in node.inputs]))


def _place(value: Value, shape: tuple[int, ...], view: Strided) -> str:
    """The offset of element ``t`` of a value; of its only element, if it is broadcast."""
    return str(view.offset) if value.shape != shape else element_of("t", shape, view)
