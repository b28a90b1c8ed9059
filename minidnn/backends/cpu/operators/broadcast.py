"""Kernels of element-wise operators that no sequence computes: operands of any rank and dtype.

A kernel knows the expression, the dtypes and how many axes there are, but no sizes: those are
operands, so that one kernel serves all shapes.

Small regions are computed as one loop over elements: patches are of use where windows read them or
caches overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ....graph.expression import Expression, Instruction, argument, linearize
from ....graph.ir import Graph, Node, Value
from ....graph.operator import Elementwise
from ....graph.substitution import substituted
from ....graph.types import BYTES, TensorType
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.functions import WHOLE_FUNCTIONS
from ...codegen.kernel import KernelSource
from ..element import ELEMENTS

MOST_BYTES = 256 << 10
"""Of a region's output: with more, sequences write past the caches."""


def is_flat(body: Graph, any_size: bool = False) -> bool:
    """Whether a region is element-wise, with one output, which is small or of ``any_size``.

    In bfloat16 each result is rounded, and so are bytes that are made: one expression of all does
    not do that, but for the output.
    """
    made = [value for node in body.nodes for value in node.outputs if value not in body.outputs]
    return (
        all(isinstance(node.op, Elementwise) for node in body.nodes)
        and not any(value.dtype == "bfloat16" for value in body.values)
        and not any(value.dtype in BYTES for value in made)
        and len(body.outputs) == 1
        and (any_size or body.outputs[0].type.bytes <= MOST_BYTES)
    )


def print_flat(body: Graph) -> tuple[Shaped, list[Value]]:
    """The kernel of a region whose values are dense, and the values that it reads, in order.

    Its pointers are these values, the output and the sizes.
    """
    operands: dict[tuple[Value, bool], int] = {}
    found: dict[Value, Expression] = {}
    for node in body.nodes:
        op = node.op
        assert isinstance(op, Elementwise)
        split = len(node.inputs) - op.channel_count
        given = []
        for i, value in enumerate(node.inputs):
            if value in found:
                given.append(found[value])
            else:
                given.append(argument(operands.setdefault((value, i >= split), len(operands))))
        found[node.output] = substituted(op.expression(), dict(enumerate(given)))
    out = body.outputs[0]
    types = [_of_rank(value.type, vector, out.type.rank) for value, vector in operands]
    values = [value for value, _ in operands]
    computed = "float32" if out.dtype in BYTES else out.dtype
    return print_elementwise(found[out], types, out.type, computed), values


def _of_rank(type: TensorType, vector: bool, rank: int) -> TensorType:
    return type.with_shape(type.shape + (1,) * (rank - 2)) if vector else type


#: ISPC's names of how elements lie in memory; a bool is a byte of 0 or 1.
STORED = {"float32": "float", "int32": "int32", "int64": "int64", "bool": "unsigned int8"}
STORED |= {"uint8": "unsigned int8", "int8": "int8"}
STORED |= {"bfloat16": ELEMENTS["bfloat16"].type}

#: Elements of a row that one task computes, and elements that are worth a call.
CHUNK = 1 << 13
WORTH = 1 << 12


@dataclass(frozen=True)
class Shaped:
    """A kernel without sizes, the sizes for it (its last operand, int64), its tasks, and the
    tables that it reads, which are operands before the output."""

    source: KernelSource
    sizes: np.ndarray
    tasks: int
    grain: int = 1
    tables: tuple[np.ndarray, ...] = ()


def print_broadcast(node: Node) -> Shaped:
    """The kernel of an element-wise node over NCHW values.

    Its pointers are the operands, the output, and the sizes: length, chunks a row, then the outer
    sizes, and for each operand its strides over them.  A task is a chunk of a row.
    """
    assert isinstance(node.op, Elementwise)
    operands = [_aligned(node, i) for i in range(len(node.inputs))]
    computed = node.op.computed_in([x.dtype for x in operands])
    return print_elementwise(node.op.expression(), operands, node.output.type, computed)


def print_elementwise(
    expression: Expression, operands: Sequence[TensorType], out: TensorType, computed: str | None
) -> Shaped:
    """The kernel of an expression over dense operands that broadcast; see
    :func:`print_broadcast`."""
    sizes, strides = collapse(out.shape, [_strides(x.shape, out.rank) for x in operands])
    *outer, length = sizes or [1]
    strides = [operand or [0] for operand in strides]
    stored, inner = [x.dtype for x in operands], [operand[-1] for operand in strides]
    text = _print(
        linearize(expression), stored, out.dtype, computed or "float32", len(outer), inner
    )
    chunks = -(-length // CHUNK)
    given = [length, chunks, *outer, *(s for operand in strides for s in operand[:-1])]
    tasks = prod(outer) * chunks
    grain = max(1, min(WORTH // max(length, 1), tasks // 8))
    source = KernelSource.named("broadcast", text)
    return Shaped(source, np.array(given, np.int64), tasks, grain)


def _print(
    expression: Sequence[Instruction],
    dtypes: Sequence[str],
    made: str,
    computed: str,
    rank: int,
    inner: Sequence[int],
) -> str:
    stored, result = [STORED[dtype] for dtype in dtypes], STORED[made]
    whole = computed.startswith("int")
    kind = "int64" if whole else "float"
    code = Code()
    count = len(stored)
    with (
        code.block("MD_KERNEL(@)"),
        code.block("for (uniform int64 t = md_begin; t < md_end; t++)"),
    ):
        code.line(f"const uniform int64 * uniform n = MD_IN(int64, {count + 1});")
        code.line("uniform int64 row = t / n[1];")
        code.line(f"const uniform int64 first = (t % n[1]) * {CHUNK};")
        code.line(f"const uniform int64 left = n[0] - first, most = {CHUNK};")
        code.line("const uniform int count = (uniform int)(left < most ? left : most);")
        code.line(f"uniform {result} * uniform y = MD_OUT({result}, {count}) + row * n[0] + first;")
        for i in range(count):
            start = " + first" if inner[i] else ""
            code.line(f"const uniform {stored[i]} * uniform x{i} = MD_IN({stored[i]}, {i}){start};")
        for axis in reversed(range(rank)):
            code.line(f"const uniform int64 i{axis} = row % n[{2 + axis}]; row /= n[{2 + axis}];")
            for i in range(count):
                code.line(f"x{i} += i{axis} * n[{2 + rank + i * rank + axis}];")
        with code.block("foreach (i = 0 ... count)"):
            for i in range(count):
                read = f"x{i}[{'i' if inner[i] else '0'}]"
                if (element := ELEMENTS.get(dtypes[i])) is not None:
                    read = element.load(read)
                code.line(f"const {kind} a{i} = ({kind}){read};")
            names = [f"a{i}" for i in range(count)]
            lines, value = ISPC.print_code(expression, names, code.fresh, whole)
            code.lines(lines)
            if made == "bfloat16":
                code.line(ELEMENTS[made].store("y[i]", value))
            else:
                code.line(f"y[i] = {converted(value, made)};")
    return (ISPC.fill(WHOLE_FUNCTIONS) if whole else "") + str(code)


def converted(value: str, dtype: str) -> str:
    """A float or an int64 as it is stored; see :class:`.graph.operators.Formula`."""
    if dtype == "bool":
        value = f"({value} != 0) ? 1 : 0"
    if dtype in BYTES:
        bounds = np.iinfo(dtype)
        # The comparison is false of NaN, which becomes the least.
        low = f"({value} > {bounds.min} ? {value} : {bounds.min})"
        value = f"(int)({low} < {bounds.max} ? {low} : {bounds.max})"
    return f"({STORED[dtype]})({value})"


def collapse(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """The same walk with as few axes as possible: those of size 1 dropped, neighbours joined that
    every operand passes in one go."""
    sizes: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        steps = [operand[axis] for operand in strides]
        if sizes and all(kept[-1] == step * size for kept, step in zip(found, steps, strict=True)):
            sizes[-1] *= size
            for kept, step in zip(found, steps, strict=True):
                kept[-1] = step
            continue
        sizes.append(size)
        for kept, step in zip(found, steps, strict=True):
            kept.append(step)
    return sizes, found


def _aligned(node: Node, index: int) -> TensorType:
    """An operand's type, a vector over channels being along axis 1."""
    assert isinstance(node.op, Elementwise)
    type = node.inputs[index].type
    if index < len(node.inputs) - node.op.channel_count:
        return type
    return type.with_shape(type.shape + (1,) * (node.output.type.rank - 2))


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    """From one element to the next on each axis of the output, 0 where the operand repeats."""
    padded = (1,) * (rank - len(shape)) + tuple(shape)
    return [0 if size == 1 else prod(padded[axis + 1 :]) for axis, size in enumerate(padded)]
