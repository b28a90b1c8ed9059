"""Kernels that move elements by an index map, or by a table.

Elements are moved as integers of their size.  A thread moves one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ...graph.index_map import IndexMap
from ...graph.types import ITEMSIZE
from ...runtime.arrays import to_bits
from ..codegen.code import Code
from .kernels import Launch
from .strided import THREADS, Strided, element_of

RAW = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


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
