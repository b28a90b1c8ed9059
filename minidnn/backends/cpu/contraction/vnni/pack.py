"""Prints the function that packs a block of inputs as products of quads read it.

What stands for zero is put where the convolution pads.  Channels that fill up a block have no
weight, and bytes are finite whatever they are: nothing is put there.
"""

from __future__ import annotations

from minidnn.fusion.contraction import Parts

from ....codegen.code import Code
from ..dot_product.numbers import SchemeNumbers
from ..dot_product.pack import DotPacker
from ..dot_product.packed_element import QUADS
from .scheme import VnniScheme

_BYTE, BLOCK = QUADS.stored, QUADS.block


class VnniPacker(DotPacker):
    """Prints ``@_pack`` for a scheme."""

    def __init__(self, parts: Parts, scheme: VnniScheme, numbers: SchemeNumbers) -> None:
        super().__init__(parts, scheme, numbers)
        self.inputs = scheme.row_terms
        self.by_rows = scheme.packing == "rows"
        self.turn = " ^ 0x80" if parts.source.dtype == "int8" else ""

    def _packed(self, at: str) -> str:
        """An element as it is packed."""
        return f"({_BYTE}){at}{self.turn}"

    def _rows_of_features(self, code: Code) -> None:
        number = self.numbers
        inputs = number("inputs")
        size = number("packed_column")
        column = number("x_column")
        with code.block("for (uniform int c = c0; c < c1; c++)"):
            code.line(f"{self.pointer} from = x + (uniform int64)c * {column};")
            code.line(f"uniform {_BYTE} * uniform to = packed + (c - c0) * {size};")
            code.line(f"foreach (f = 0 ... {inputs}) {{ to[f] = {self._packed('from[f]')}; }}")

    def _blocks(self, code: Code) -> None:
        """Blocks of 64 channels, which are several of as many as there are lanes in memory."""
        scheme, number, lanes = self.scheme, self.numbers, self.scheme.lanes
        problem = scheme.problem
        source, parts = problem.source, BLOCK // lanes
        blocks = number("input_blocks")
        plane, x_row = number("x_plane"), number("x_row")
        size = number("packed_plane")
        width, phase = number("packed_width"), number("phase")
        down = number("row_stride")
        # Of a 1x1 convolution only the pixels that it reads are packed.
        skipped = problem.stride if scheme.reads_all else (1, 1)
        apart, across = number("rows_apart"), skipped[1]
        before, left = (number(f"before_{n}") for n in "yx")
        height, columns = (number(f"size_{n}") for n in "yx")
        rows = "r1 - r0" if scheme.reads_all else number("packed_rows")
        first = "r0" if scheme.reads_all else f"r0 * {down}"
        stop = "c1 - c0" if scheme.reads_all else width
        zero = f"to[j * {BLOCK} + programIndex] = {number('zero')};"
        with (
            code.block(f"for (uniform int b = 0; b < {blocks}; b++)"),
            code.block(f"for (uniform int i = 0; i < ({rows}) * {down}; i++)"),
        ):
            code.line(
                f"uniform {_BYTE} * uniform to = packed + (uniform int64)(b / {parts}) * {size} + "
                f"(b % {parts}) * {lanes} + (i % {down} * {phase} + i / {down} * {width}) * "
                f"{BLOCK};"
            )
            code.line(f"const uniform int y = ({first} + i) * {apart} - {before};")
            code.line(f"const uniform int x0 = c0 * {across} - {left};")
            code.line(f"const uniform bool outside = y < 0 || y >= {height};")
            code.line(f"const uniform int count = {stop};")
            code.line("const uniform int begin = outside ? count : clamp(-x0, 0, count);")
            end = f"({columns} - x0 + {across - 1}) / {across}"
            code.line(f"const uniform int end = outside ? count : clamp({end}, begin, count);")
            code.line(f"for (uniform int j = 0; j < begin; j++) {zero}")
            with code.block("if (begin < end)"):
                code.line(f"const uniform int64 block = group * {blocks} + b;")
                code.line(f"{self.pointer} from = x + block * {plane} + y * {x_row};")
                with code.block("for (uniform int j = begin; j < end; j++)"):
                    at = f"from[(x0 + j * {across}) * {source.column} + programIndex]"
                    code.line(f"to[j * {BLOCK} + programIndex] = {self._packed(at)};")
            code.line(f"for (uniform int j = end; j < count; j++) {zero}")

    def _few_channels(self, code: Code) -> None:
        """Rows with all channels of a pixel side by side, then perhaps what each result reads."""
        scheme, number = self.scheme, self.numbers
        inputs, rows = number("line_inputs"), self.by_rows
        assert isinstance(scheme, VnniScheme)
        width = number("line_width")
        taps = number("kernel_rows")
        down = number("row_stride")
        apart = number("tap_rows_apart")
        before, left = (number(f"before_{n}") for n in "yx")
        height, columns = (number(f"size_{n}") for n in "yx")
        across, zero = number("column_stride"), number("zero")
        code.line(f"const uniform int rows = (r1 - r0 - 1) * {down} + ({taps} - 1) * {apart} + 1;")
        code.line(f"const uniform int x0 = c0 * {across} - {left};")
        code.line(f"const uniform int begin = clamp(-x0, 0, {width});")
        code.line(f"const uniform int end = clamp({columns} - x0, begin, {width});")
        with code.block("for (uniform int i = 0; i < rows; i++)"):
            code.line(f"const uniform int y = r0 * {down} - {before} + i;")
            line = f"lines + i * {width}"
            if rows:
                phase = number("phase")
                line = f"packed + (i % {down} * {phase} + i / {down} * {width})"
            code.line(f"uniform {_BYTE} * uniform to = {line} * {inputs};")
            with code.block(f"if (y < 0 || y >= {height})"):
                code.line(f"foreach (f = 0 ... {width} * {inputs}) {{ to[f] = {zero}; }}")
                code.line("continue;")
            code.line(f"foreach (f = 0 ... begin * {inputs}) {{ to[f] = {zero}; }}")
            code.line(f"foreach (f = end * {inputs} ... {width} * {inputs}) {{ to[f] = {zero}; }}")
            self._line(code, inputs)
        if not rows:
            self._windows(code)

    def _line(self, code: Code, inputs: str) -> None:
        """The pixels of a row that are no padding."""
        scheme, number = self.scheme, self.numbers
        source, count = scheme.problem.source, scheme.problem.inputs
        x_row, lanes = number("x_row"), scheme.lanes
        if source.block == lanes:
            with code.block("for (uniform int j = begin; j < end; j++)"):
                read = f"x[y * {x_row} + (x0 + j) * {source.column} + programIndex]"
                code.line(f"to[j * {inputs} + programIndex] = {self._packed(read)};")
            return
        plane = number("x_plane")
        start = f"x + y * {x_row} + x0 * {source.column} + (uniform int64){{}} * {plane}"
        if self.inputs == count:
            with code.block(f"for (uniform int c = 0; c < {inputs}; c++)"):
                code.line(f"{self.pointer} from = {start.format('c')};")
                with code.block("foreach (j = begin ... end)"):
                    read = self._packed(f"from[j * {source.column}]")
                    code.line(f"to[j * {inputs} + c] = {read};")
            return
        # A word of each pixel: its last byte has no weight.
        code.line("uniform unsigned int32 * uniform word = (uniform unsigned int32 * uniform)to;")
        for c in range(count):
            code.line(f"{self.pointer} from{c} = {start.format(c)};")
        with code.block("foreach (j = begin ... end)"):
            for c in range(count):
                read = self._packed(f"from{c}[j * {source.column}]")
                code.line(f"const unsigned int32 b{c} = {read};")
            shifted = [f"b{c} << {8 * c}" for c in range(1, count)]
            code.line(f"word[j] = b0 | {' | '.join(shifted)};")

    def _windows(self, code: Code) -> None:
        """Whole lines of 64 bytes: what is behind a run is written again, or has no weight."""
        scheme, number = self.scheme, self.numbers
        size = number("packed_pixel")
        assert isinstance(scheme, VnniScheme)
        inputs, width = number("line_inputs"), number("line_width")
        down, across = (
            number("row_stride"),
            number("column_stride"),
        )
        apart, taps = (
            number("tap_rows_apart"),
            number("kernel_rows"),
        )
        run = number("run")
        many = number("runs")
        beside = number("tap_columns_apart")
        with (
            code.block("for (uniform int r = 0; r < r1 - r0; r++)"),
            code.block("for (uniform int c = 0; c < c1 - c0; c++)"),
        ):
            code.line(f"uniform {_BYTE} * uniform to = packed + (r * (c1 - c0) + c) * {size};")
            with (
                code.block(f"for (uniform int ky = 0; ky < {taps}; ky++)"),
                code.block(f"for (uniform int kx = 0; kx < {many}; kx++)"),
            ):
                code.line(
                    f"const uniform {_BYTE} * uniform from = lines + ((r * {down} + "
                    f"ky * {apart}) * {width} + c * {across} + kx * {beside}) * {inputs};"
                )
                with code.block(f"for (uniform int f = 0; f < {run}; f += {BLOCK})"):
                    for name, const in (("from", "const "), ("to", "")):
                        pointer = f"{const}uniform int32 * uniform"
                        code.line(f"{pointer} {name}_line = ({pointer})({name} + f);")
                    code.line("to_line[programIndex] = from_line[programIndex];")
                code.line(f"to += {run};")
