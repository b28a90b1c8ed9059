"""Prints the kernel around products of quads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from minidnn.fusion.contraction import Parts
from minidnn.graph.ir import Value
from minidnn.graph.operators import Conv2d, Linear
from minidnn.graph.types import BYTES

from ...execution.buffers import Array
from ...execution.packing import data_of, first_terms
from ...isa import Isa
from ..dot_product.algorithm import DotProduct
from ..dot_product.kernel import print_products
from ..dot_product.numbers import DOT_NUMBERS, SchemeNumbers, Table
from ..dot_product.scheme import DotScheme, packing_of
from ..dot_product.weights import packed_words
from ..problem import Problem
from ..stage import PrintedContraction
from .pack import VnniPacker
from .scheme import VnniScheme, choose_quads, quad_schemes


def packed_zero(parts: Parts) -> int:
    """What stands for 0 in packed inputs: those of int8 are packed 128 larger, as uint8."""
    assert isinstance(parts.node.op, (Conv2d, Linear))
    return parts.node.op.zero + (128 if parts.source.dtype == "int8" else 0)


def packed_quads(weight: Value, scheme: VnniScheme) -> partial[Array]:
    """Weights (O, I, KH, KW) or (O, I) in int8, as
    :func:`..dot_product.weights.packed_words` lays them.

    Where a pixel's taps are packed as channels, they are channels here, the last of them input
    channels.
    """
    return partial(_pack, weight, scheme.of_weights())


def _pack(weight: Value, scheme: VnniScheme) -> Array:
    problem = scheme.problem
    given = data_of(weight).reshape(problem.groups, problem.outputs, problem.inputs, -1)
    if scheme.packing in ("rows", "unrolled"):
        more = scheme.row_terms - problem.inputs
        given = np.pad(given, ((0, 0), (0, 0), (0, more), (0, 0))).swapaxes(2, 3)
        # Of taps those that are no channels.
        given = given.reshape(problem.groups, problem.outputs, scheme.taps, -1).swapaxes(2, 3)
    return packed_words(given, scheme)


def packed_starts(parts: Parts, scheme: VnniScheme) -> partial[Array]:
    """The first terms of sums in int32, group by group filled up to whole vectors: the bias, less
    what the input's zero adds."""
    return partial(_starts, parts.node.inputs[1:], packed_zero(parts), scheme.of_weights())


def _starts(values: Sequence[Value], zero: int, scheme: VnniScheme) -> Array:
    packed = np.zeros((scheme.groups, scheme.slots), np.int32)
    packed[:, : scheme.outputs] = first_terms(values, zero).reshape(scheme.groups, scheme.outputs)
    return packed.reshape(-1)


def _run(scheme: VnniScheme) -> int:
    """Bytes that lie side by side in what one result reads."""
    columns, side = scheme.problem.kernel[1], scheme.problem.dilation[1] == 1
    return scheme.row_terms * (columns if side else 1)


def _row_stride(scheme: VnniScheme) -> int:
    copies = scheme.packing in ("rows", "unrolled")
    return scheme.problem.stride[0] if copies else scheme.row_stride


QUAD_NUMBERS: Table = {
    **DOT_NUMBERS,
    "row_stride": _row_stride,
    # Rows of inputs whose pixels lie side by side, of which what each result reads is copied.
    "column_stride": lambda s: s.problem.stride[1],
    "kernel_rows": lambda s: s.problem.kernel[0],
    "line_inputs": lambda s: s.row_terms,
    "line_width": lambda s: s.packed_width if s.packing == "rows" else s.line_width,
    "packed_pixel": lambda s: s.pixel_bytes,
    "run": _run,
    "runs": lambda s: 1 if s.problem.dilation[1] == 1 else s.problem.kernel[1],
    "tap_columns_apart": lambda s: s.problem.dilation[1],
    "tap_rows_apart": lambda s: s.problem.dilation[0],
}


def print_quads(parts: Parts, scheme: VnniScheme, threads: int) -> PrintedContraction:
    """The kernel that follows ``scheme``."""
    given = (packed_quads(parts.node.inputs[1], scheme), packed_starts(parts, scheme))
    numbers = SchemeNumbers(scheme, QUAD_NUMBERS, packed_zero(parts))
    return print_products(parts, scheme, threads, VnniPacker(parts, scheme, numbers), given)


class Vnni(DotProduct):
    """Products of four bytes, summed in int32 by instructions for them: exact."""

    name = "products of quads"
    error = 0.0
    factors: tuple[str, ...] = BYTES

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if not isa.quads:
            return f"{isa.name} has no instructions for it"
        if packing_of(problem, isa.lanes) is None:
            return "its input has few channels a group, or does not lie in blocks of channels"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> VnniScheme:
        return choose_quads(problem, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[VnniScheme]:
        return quad_schemes(problem, isa)

    def print(self, parts: Parts, scheme: DotScheme, threads: int) -> PrintedContraction:
        assert isinstance(scheme, VnniScheme)
        return print_quads(parts, scheme, threads)
