"""Kernels that move elements by an index map, or by indices that are computed.

Elements are moved as integers of their size.  A thread moves one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...graph.index_map import IndexMap
from ...graph.operators import ScatterAdd
from ...graph.operators.indexing import split_axes
from ...graph.types import ITEMSIZE, TensorType
from ...runtime.arrays import to_bits
from ..codegen.code import Code
from .kernels import Launch
from .strided import THREADS, Strided, element_of

RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_INDICES = {"int32": "int", "int64": "long long"}
#: So many threads make sums at indices where there are as many places.
_SCATTERING = 1 << 17


def print_move(
    index: IndexMap, shape: tuple[int, ...], x: Strided
) -> tuple[Launch, Callable[[], np.ndarray]]:
    """The kernel of a move from a value of that shape to a dense one, and its table of offsets.

    Pointers are the input, the table (int64), the output.
    """
    raw = RAW[ITEMSIZE[x.dtype]]
    small = index.collapsed()
    offsets = small.offsets or (np.zeros(1, np.int64),)
    count = prod(len(axis) for axis in offsets)
    bits = to_bits(np.array([small.fill]), x.dtype)
    fill = int(bits.view(f"u{ITEMSIZE[x.dtype]}")[0])
    code = Code()
    head = f"const {raw} *x, const long long *table, {raw} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        code.line(f"long long from = {small.base};")
        code.line("bool inside = true;")
        begin, inner = 0, count
        for axis in offsets:
            inner //= len(axis)
            with code.block(""):
                place = f"t / {inner} % {len(axis)}"
                code.line(f"const long long offset = table[{begin} + {place}];")
                code.line("inside = inside && offset >= 0;")
                code.line("from += offset;")
            begin += len(axis)
        element = element_of("from", shape, x)
        code.line(f"y[t] = inside ? x[{element}] : ({raw}){fill}ull;")
    launch = Launch.named("move", code, -(-count // THREADS), THREADS)
    return launch, lambda: np.concatenate(offsets).astype(np.int64)


def print_scatter_add(op: ScatterAdd, type: TensorType, x: Strided, indices: TensorType) -> Launch:
    """The kernel of sums at computed indices; pointers are values, indices, the output.

    A thread makes the sums at a range of the axis's places, for one element of all other axes: it
    looks at all indices in their order, so that sums have the same bits in every run.
    """
    picks = prod(indices.shape[op.batch :])
    behind = type.shape[op.axis + indices.rank - op.batch :]
    shape = (*type.shape[: op.axis], op.size, *behind)
    images, outer, size, inner = split_axes(shape, op.axis, op.batch)
    lines = images * outer * inner
    ranges = max(1, min(size, _SCATTERING // max(1, lines)))
    length = -(-size // ranges)
    ranges = -(-size // length)
    code = Code()
    head = f"const float *x, const {_INDICES[indices.dtype]} *indices, float *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {lines * ranges}) return;")
        # Neighbours are neighbours along the last axis.
        code.line(f"const long long in = t % {inner}, row = t / {inner * ranges};")
        code.line(f"const long long first = t / {inner} % {ranges} * {length};")
        code.line(f"const long long end = first + {length} < {size} ? first + {length} : {size};")
        code.line(f"y += row * {size * inner} + in;")
        code.line(f"indices += row / {outer} * {picks};")
        code.line(f"for (long long at = first; at < end; at++) y[at * {inner}] = 0;")
        with code.block(f"for (long long k = 0; k < {picks}; k++)"):
            code.line("long long at = indices[k];")
            _move_inside(code, size)
            code.line("if (at < first || at >= end) continue;")
            code.line(f"const long long from = (row * {picks} + k) * {inner} + in;")
            code.line(f"y[at * {inner}] += x[{element_of('from', type.shape, x)}];")
    return Launch.named("scatter_add", code, -(-lines * ranges // THREADS), THREADS)


def _move_inside(code: Code, size: int) -> None:
    """An index counted from the beginning, and moved inside the axis."""
    code.line(f"at = at < 0 ? at + {size} : at;")
    code.line(f"at = at < 0 ? 0 : (at >= {size} ? {size - 1} : at);")


def print_pick(count: int, dtype: str) -> Launch:
    """The kernel that picks elements by a table of their places, zeros where those are negative;
    pointers are the value, the table (int64), the output."""
    raw = RAW[ITEMSIZE[dtype]]
    code = Code()
    head = f"const {raw} *x, const long long *table, {raw} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t < {count}) y[t] = table[t] < 0 ? ({raw})0 : x[table[t]];")
    return Launch.named("pick", code, -(-count // THREADS), THREADS)
