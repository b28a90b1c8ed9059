"""Contractions of int8 and uint8 by VNNI or AMX: dot products of four elements, summed in int32.

Tensors have blocks of channels, like those of float32.  Packed inputs, tiles and blocks of pixels
are those of :mod:`.dot_product.scheme`; here are the scheme's differences, the function that packs
a block of inputs, and the packing of weights.

Packing writes the zero point where the convolution pads.  Channels that pad a block keep whatever
they have: their weights are zero, and integers are finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from minidnn.fusion.region import Parts
from minidnn.graph.ir import Value
from minidnn.graph.operators import Conv2d, Linear
from minidnn.graph.types import INT8_DTYPES

from ...codegen.code import Code
from ..execution.buffers import Array
from ..execution.packing import data_of, first_terms
from ..isa import Isa
from ..stage import PrintedContraction
from .dot_product.kernel import DotProduct, print_products
from .dot_product.pack import DotPacker, packed_words
from .dot_product.products import DOT_NUMBERS, INT8_QUAD, LINE, PackedElement, SchemeNumbers, Table
from .dot_product.scheme import DotScheme, Packing, cheapest, packing_of, schemes_of
from .problem import Problem


@dataclass(frozen=True)
class VnniScheme(DotScheme):
    """All decisions about a kernel of int8 dot products; see :class:`.DotScheme`.

    For "unrolled" packing, rows of inputs are first packed as lines (scratch of ``line_bytes``),
    from which the window of each result is then copied.
    """

    word: ClassVar[PackedElement] = INT8_QUAD

    @property
    def row_terms(self) -> int:
        return _row_terms(self.problem)

    @property
    def terms(self) -> int:
        if self.packing != "unrolled":
            return super().terms
        rows, columns = self.problem.kernel
        return rows * columns * self.row_terms

    @property
    def line_bytes(self) -> int:
        if self.packing != "unrolled":
            return 0
        rows, down = self.problem.kernel[0], self.problem.dilation[0]
        high = (self.shape[0] - 1) * self.problem.stride[0] + (rows - 1) * down + 1
        size = high * self.line_width * self.row_terms + LINE
        return -(-size // 64) * 64

    @property
    def line_width(self) -> int:
        """Columns of a line: of a row of inputs from which the windows of results are copied."""
        columns, across = self.problem.kernel[1], self.problem.dilation[1]
        return (self.shape[1] - 1) * self.problem.stride[1] + (columns - 1) * across + 1

    @property
    def reads_padding(self) -> bool:
        """Integers are finite: zero times any is zero."""
        return False


def _row_terms(problem: Problem) -> int:
    """Channels of a pixel in packed rows: three channels of NCHW are padded to a word of four."""
    planar = problem.source.block == 1
    return 4 if planar and problem.in_channels == 3 else problem.in_channels


def vnni_packing(problem: Problem, lanes: int) -> Packing | None:
    """How inputs are packed; None if no packing here supports their layout."""
    packing = packing_of(problem, lanes)
    if packing != "unrolled":
        return packing
    fits = problem.kernel[1] * _row_terms(problem) <= LINE
    return "rows" if fits and problem.dilation[1] == 1 else "unrolled"


@lru_cache(4096)
def choose_vnni(problem: Problem, isa: Isa, threads: int, any_size: bool = False) -> VnniScheme:
    """The scheme with the least predicted time; ``any_size``: see :class:`.DotScheme`."""
    return cheapest(vnni_schemes(problem, isa, any_size), threads)


def vnni_schemes(problem: Problem, isa: Isa, any_size: bool = False) -> Iterator[VnniScheme]:
    """Yields schemes with blocks of all sizes that fit the cache, or with one of the smallest."""
    packing = vnni_packing(problem, isa.lanes)
    assert packing is not None
    tiles = isa.int8_products == "tiles"
    yield from schemes_of(VnniScheme, problem, isa, packing, tiles, any_size=any_size)


_BYTE, BLOCK = INT8_QUAD.stored, INT8_QUAD.block


class VnniPacker(DotPacker):
    """Prints ``@_pack``, the function that packs a block of inputs as uint8, for a scheme."""

    def __init__(self, parts: Parts, scheme: VnniScheme, numbers: SchemeNumbers) -> None:
        super().__init__(parts, scheme, numbers)
        self.inputs = scheme.row_terms
        self.by_rows = scheme.packing == "rows"
        self.turn = " ^ 0x80" if parts.source.dtype == "int8" else ""

    def _read(self, code: Code, at: str, channel: str | None = None) -> str:
        """An element as it is packed: as uint8, to which int8 is shifted by 128."""
        return f"({_BYTE}){at}{self.turn}"

    def _zero(self) -> str:
        return self.numbers("zero")

    def _rows_of_features(self, code: Code) -> None:
        number = self.numbers
        inputs = number("inputs")
        size = number("packed_column")
        column = number("x_column")
        with code.block("for (uniform int c = c0; c < c1; c++)"):
            code.line(f"{self.pointer} from = x + (uniform int64)c * {column};")
            code.line(f"uniform {_BYTE} * uniform to = packed + (c - c0) * {size};")
            code.line(f"foreach (f = 0 ... {inputs}) {{ to[f] = {self._read(code, 'from[f]')}; }}")

    def _few_channels(self, code: Code) -> None:
        """Packs rows in which the channels of a pixel are contiguous, as the packed block ("rows"),
        or as lines from which the window of each result is then copied ("unrolled")."""
        scheme, number = self.scheme, self.numbers
        inputs, in_rows = number("line_inputs"), self.by_rows
        assert isinstance(scheme, VnniScheme)
        width = number("line_width")
        taps = number("kernel_rows")
        down = number("row_stride")
        dy = number("tap_rows_apart")
        before, left = (number(f"before_{n}") for n in "yx")
        height, columns = (number(f"size_{n}") for n in "yx")
        across, zero = number("column_stride"), number("zero")
        code.line(f"const uniform int rows = (r1 - r0 - 1) * {down} + ({taps} - 1) * {dy} + 1;")
        code.line(f"const uniform int x0 = c0 * {across} - {left};")
        code.line(f"const uniform int begin = clamp(-x0, 0, {width});")
        code.line(f"const uniform int end = clamp({columns} - x0, begin, {width});")
        with code.block("for (uniform int i = 0; i < rows; i++)"):
            code.line(f"const uniform int y = r0 * {down} - {before} + i;")
            line = f"lines + i * {width}"
            if in_rows:
                phase = number("phase")
                line = f"packed + (i % {down} * {phase} + i / {down} * {width})"
            code.line(f"uniform {_BYTE} * uniform to = {line} * {inputs};")
            with code.block(f"if (y < 0 || y >= {height})"):
                code.line(f"foreach (f = 0 ... {width} * {inputs}) {{ to[f] = {zero}; }}")
                code.line("continue;")
            code.line(f"foreach (f = 0 ... begin * {inputs}) {{ to[f] = {zero}; }}")
            code.line(f"foreach (f = end * {inputs} ... {width} * {inputs}) {{ to[f] = {zero}; }}")
            self._line(code, inputs)
        if not in_rows:
            self._windows(code)

    def _line(self, code: Code, inputs: str) -> None:
        """Packs the pixels of a row that are not padding."""
        scheme, number = self.scheme, self.numbers
        source, count = scheme.problem.source, scheme.problem.in_channels
        x_row, lanes = number("x_row"), scheme.lanes
        if source.block == lanes:
            with code.block("for (uniform int j = begin; j < end; j++)"):
                read = f"x[y * {x_row} + (x0 + j) * {source.column} + programIndex]"
                code.line(f"to[j * {inputs} + programIndex] = {self._read(code, read)};")
            return
        plane = number("x_plane")
        start = f"x + y * {x_row} + x0 * {source.column} + (uniform int64){{}} * {plane}"
        if self.inputs == count:
            with code.block(f"for (uniform int c = 0; c < {inputs}; c++)"):
                code.line(f"{self.pointer} from = {start.format('c')};")
                with code.block("foreach (j = begin ... end)"):
                    read = self._read(code, f"from[j * {source.column}]")
                    code.line(f"to[j * {inputs} + c] = {read};")
            return
        # A word of each pixel: the weight of its last byte is zero.
        code.line("uniform unsigned int32 * uniform word = (uniform unsigned int32 * uniform)to;")
        for c in range(count):
            code.line(f"{self.pointer} from{c} = {start.format(c)};")
        with code.block("foreach (j = begin ... end)"):
            for c in range(count):
                read = self._read(code, f"from{c}[j * {source.column}]")
                code.line(f"const unsigned int32 b{c} = {read};")
            shifted = [f"b{c} << {8 * c}" for c in range(1, count)]
            code.line(f"word[j] = b0 | {' | '.join(shifted)};")

    def _windows(self, code: Code) -> None:
        """Copies the window of each result from lines, 64 bytes at a time: bytes past the end of a
        run are overwritten by the next run, or their weights are zero."""
        scheme, number = self.scheme, self.numbers
        size = number("packed_pixel")
        assert isinstance(scheme, VnniScheme)
        inputs, width = number("line_inputs"), number("line_width")
        down, across = (
            number("row_stride"),
            number("column_stride"),
        )
        dy, taps = (
            number("tap_rows_apart"),
            number("kernel_rows"),
        )
        run = number("run")
        runs = number("runs")
        dx = number("tap_columns_apart")
        with (
            code.block("for (uniform int r = 0; r < r1 - r0; r++)"),
            code.block("for (uniform int c = 0; c < c1 - c0; c++)"),
        ):
            code.line(f"uniform {_BYTE} * uniform to = packed + (r * (c1 - c0) + c) * {size};")
            with (
                code.block(f"for (uniform int ky = 0; ky < {taps}; ky++)"),
                code.block(f"for (uniform int kx = 0; kx < {runs}; kx++)"),
            ):
                code.line(
                    f"const uniform {_BYTE} * uniform from = lines + ((r * {down} + "
                    f"ky * {dy}) * {width} + c * {across} + kx * {dx}) * {inputs};"
                )
                with code.block(f"for (uniform int f = 0; f < {run}; f += {BLOCK})"):
                    for name, const in (("from", "const "), ("to", "")):
                        pointer = f"{const}uniform int32 * uniform"
                        code.line(f"{pointer} {name}_line = ({pointer})({name} + f);")
                    code.line("to_line[programIndex] = from_line[programIndex];")
                code.line(f"to += {run};")


def packed_zero(parts: Parts) -> int:
    """The zero point of packed inputs: int8 is packed as uint8, 128 larger."""
    assert isinstance(parts.node.op, (Conv2d, Linear))
    return parts.node.op.zero + (128 if parts.source.dtype == "int8" else 0)


def pack_int8(weight: Value, scheme: VnniScheme) -> partial[Array]:
    """Weights (O, I, KH, KW) or (O, I) in int8, in the layout of
    :func:`.dot_product.pack.packed_words`.

    Where the taps of a window are packed as channels, they are channels here, too; input channels
    are the fastest of these.
    """
    return partial(_pack, weight, scheme.of_weights())


def _pack(weight: Value, scheme: VnniScheme) -> Array:
    problem = scheme.problem
    terms = data_of(weight).reshape(problem.groups, problem.out_channels, problem.in_channels, -1)
    if scheme.packing in ("rows", "unrolled"):
        padding = scheme.row_terms - problem.in_channels
        terms = np.pad(terms, ((0, 0), (0, 0), (0, padding), (0, 0))).swapaxes(2, 3)
        # The taps that are not packed as channels remain taps.
        terms = terms.reshape(problem.groups, problem.out_channels, scheme.taps, -1).swapaxes(2, 3)
    return packed_words(terms, scheme)


def _starts(values: Sequence[Value], zero: int, scheme: VnniScheme) -> Array:
    """The first terms of sums in int32, each group padded to whole vectors: the bias minus the
    contribution of the input's zero point."""
    packed = np.zeros((scheme.groups, scheme.slots), np.int32)
    packed[:, : scheme.outputs] = first_terms(values, zero).reshape(scheme.groups, scheme.outputs)
    return packed.reshape(-1)


def _run(scheme: VnniScheme) -> int:
    """Bytes of a run: of contiguous inputs in the window of one result."""
    columns, is_contiguous = scheme.problem.kernel[1], scheme.problem.dilation[1] == 1
    return scheme.row_terms * (columns if is_contiguous else 1)


def _row_stride(scheme: VnniScheme) -> int:
    copies = scheme.packing in ("rows", "unrolled")
    return scheme.problem.stride[0] if copies else scheme.row_stride


QUAD_NUMBERS: Table = {
    **DOT_NUMBERS,
    "row_stride": _row_stride,
    # Lines and packed rows: inputs whose channels are contiguous, and the windows copied from them.
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


class Vnni(DotProduct):
    """Dot products of four int8 or uint8 elements, summed in int32 by VNNI or AMX: exact."""

    name = "int8 dot product"
    error = 0.0
    factors: tuple[str, ...] = INT8_DTYPES

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if not isa.int8_products:
            return f"{isa.name} has no instructions for it"
        if packing_of(problem, isa.lanes) is None:
            return "its input has few channels a group, or is not in the blocked layout"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> VnniScheme:
        return choose_vnni(problem, isa, threads)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[VnniScheme]:
        return vnni_schemes(problem, isa)

    def print(self, parts: Parts, scheme: DotScheme, threads: int) -> PrintedContraction:
        assert isinstance(scheme, VnniScheme)
        weight, zero = parts.node.inputs[1], packed_zero(parts)
        starts = partial(_starts, parts.node.inputs[1:], zero, scheme.of_weights())
        packer = VnniPacker(parts, scheme, SchemeNumbers(scheme, QUAD_NUMBERS, zero))
        return print_products(parts, scheme, threads, packer, (pack_int8(weight, scheme), starts))
