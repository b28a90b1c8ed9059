"""Prints the function that packs a block of inputs as products of pairs read it.

It applies the prologue, and puts zeros where the convolution pads and where channels fill up a
block: what is behind the last pixel is computed with and dropped.
"""

from __future__ import annotations

from .....fusion.contraction import Parts
from ....codegen.code import Code
from ..numbers import PARAMETER, Numbers
from ..pack import Prologue
from .products import BLOCK
from .scheme import DotScheme

_SHORT = "unsigned int16"


class DotPacker(Prologue):
    """Prints ``@_pack`` for a scheme.

    Attributes:
        stored: ISPC's name of a packed number.
        stored_bytes: of one.
    """

    stored = _SHORT
    stored_bytes = 2

    def __init__(self, parts: Parts, scheme: DotScheme, numbers: Numbers) -> None:
        super().__init__(parts, scheme.problem.source, numbers)
        self.scheme = scheme

    @property
    def parameters(self) -> list[str]:
        given = [PARAMETER, f"{self.pointer} x", f"uniform {self.stored} * uniform packed"]
        if self.scheme.packing == "unrolled":
            given.append(f"uniform {self.stored} * uniform lines")
        given += [f"const uniform float * uniform p{i}" for i in range(len(self.vectors))]
        return given + [f"uniform int {n}" for n in ("group", "r0", "r1", "c0", "c1")]

    def print(self, code: Code) -> None:
        head = f"static noinline unmasked void @_pack({', '.join(self.parameters)})"
        with code.block(head), self.numbers.declared(code):
            match self.scheme.packing:
                case "features":
                    self._rows_of_features(code)
                case "blocks":
                    self._blocks(code)
                case "unrolled":
                    self._unrolled(code)

    def _read(self, code: Code, at: str) -> str:
        """A number after the prologue, as it is stored."""
        if not self.parts.prologue:
            return at
        code.line(f"float v = {self.element.load(at)};")
        return self.element.narrows.format(self.apply(code))

    def _rows_of_features(self, code: Code) -> None:
        inputs = self.numbers("inputs", self.scheme.problem.inputs)
        size = self.numbers("packed_column", self.scheme.pixel_bytes // 2)
        column = self.numbers("x_column", self.scheme.problem.source.column)
        with code.block("for (uniform int c = c0; c < c1; c++)"):
            code.line(f"{self.pointer} from = x + (uniform int64)c * {column};")
            code.line(f"uniform {_SHORT} * uniform to = packed + (c - c0) * {size};")
            with code.block(f"foreach (f = 0 ... {inputs})"):
                for i in range(len(self.vectors)):
                    code.line(f"float q{i} = p{i}[f];")
                code.line(f"to[f] = {self._read(code, 'from[f]')};")
            code.line(f"foreach (f = {inputs} ... {size}) {{ to[f] = 0; }}")

    def _blocks(self, code: Code) -> None:
        """Blocks of 32 channels, which are two of 16 in memory."""
        scheme, number, lanes = self.scheme, self.numbers, self.scheme.lanes
        problem = scheme.problem
        source = problem.source
        halves = number("input_blocks", -(-problem.inputs // lanes))
        plane, x_row = number("x_plane", source.plane), number("x_row", source.row)
        size = number("packed_plane", scheme.plane_bytes // 2)
        width, phase = number("packed_width", scheme.packed_width), number("phase", scheme.phase)
        down = number("row_stride", scheme.row_stride)
        # Of a 1x1 convolution only the pixels that it reads are packed.
        skipped = problem.stride if scheme.reads_all else (1, 1)
        apart, across = number("rows_apart", skipped[0]), skipped[1]
        before, left = (number(f"before_{n}", problem.padding[a][0]) for a, n in enumerate("yx"))
        height, columns = (number(f"size_{n}", problem.size[a]) for a, n in enumerate("yx"))
        rows = "r1 - r0" if scheme.reads_all else number("packed_rows", scheme.packed_rows)
        first = "r0" if scheme.reads_all else f"r0 * {down}"
        stop = "c1 - c0" if scheme.reads_all else width
        with (
            code.block(f"for (uniform int b = 0; b < ({halves} + 1) / 2 * 2; b++)"),
            code.block(f"for (uniform int i = 0; i < ({rows}) * {down}; i++)"),
        ):
            code.line(
                f"uniform {_SHORT} * uniform to = packed + (uniform int64)(b >> 1) * {size} + "
                f"(b & 1) * {lanes} + (i % {down} * {phase} + i / {down} * {width}) * {BLOCK};"
            )
            code.line(f"const uniform int y = ({first} + i) * {apart} - {before};")
            code.line(f"const uniform int x0 = c0 * {across} - {left};")
            code.line(f"const uniform bool outside = b >= {halves} || y < 0 || y >= {height};")
            code.line(f"const uniform int count = {stop};")
            code.line("const uniform int begin = outside ? count : clamp(-x0, 0, count);")
            end = f"({columns} - x0 + {across - 1}) / {across}"
            code.line(f"const uniform int end = outside ? count : clamp({end}, begin, count);")
            zero = f"to[j * {BLOCK} + programIndex] = 0;"
            code.line(f"for (uniform int j = 0; j < begin; j++) {zero}")
            with code.block("if (begin < end)"):
                code.line(f"const uniform int64 block = group * {halves} + b;")
                code.line(f"{self.pointer} from = x + block * {plane} + y * {x_row};")
                for i in range(len(self.vectors)):
                    code.line(f"const float q{i} = p{i}[block * {lanes} + programIndex];")
                with code.block("for (uniform int j = begin; j < end; j++)"):
                    at = f"from[(x0 + j * {across}) * {source.column} + programIndex]"
                    code.line(f"to[j * {BLOCK} + programIndex] = {self._read(code, at)};")
            code.line(f"for (uniform int j = end; j < count; j++) {zero}")

    def _unrolled(self, code: Code) -> None:
        """First rows with all channels of a pixel side by side, then what each result reads."""
        scheme, number, lanes = self.scheme, self.numbers, self.scheme.lanes
        problem = scheme.problem
        source = problem.source
        inputs = number("inputs", problem.inputs)
        width = number("line_width", scheme.line_width)
        taps, between = number("kernel_rows", problem.kernel[0]), problem.dilation
        down = number("row_stride", problem.stride[0])
        apart = number("tap_rows_apart", between[0])
        before, left = (number(f"before_{n}", problem.padding[a][0]) for a, n in enumerate("yx"))
        height, columns = (number(f"size_{n}", problem.size[a]) for a, n in enumerate("yx"))
        across = number("column_stride", problem.stride[1])
        x_row = number("x_row", source.row)
        code.line(f"const uniform int rows = (r1 - r0 - 1) * {down} + ({taps} - 1) * {apart} + 1;")
        code.line(f"const uniform int x0 = c0 * {across} - {left};")
        with code.block("for (uniform int i = 0; i < rows; i++)"):
            code.line(f"const uniform int y = r0 * {down} - {before} + i;")
            code.line(f"const uniform bool outside = y < 0 || y >= {height};")
            code.line(f"uniform {_SHORT} * uniform to = lines + i * {width} * {inputs};")
            if source.block == lanes:
                with code.block(f"for (uniform int j = 0; j < {width}; j++)"):
                    code.line("const uniform int at = x0 + j;")
                    code.line(f"{_SHORT} value = 0;")
                    with code.block(f"if (!outside && at >= 0 && at < {columns})"):
                        for i in range(len(self.vectors)):
                            code.line(f"const float q{i} = p{i}[programIndex];")
                        read = f"x[y * {x_row} + at * {source.column} + programIndex]"
                        code.line(f"value = {self._read(code, read)};")
                    code.line(f"to[j * {inputs} + programIndex] = value;")
            else:
                plane = number("x_plane", source.plane)
                with code.block(f"for (uniform int c = 0; c < {inputs}; c++)"):
                    for i in range(len(self.vectors)):
                        code.line(f"const float q{i} = p{i}[c];")
                    code.line(
                        f"{self.pointer} from = x + (uniform int64)c * {plane} + y * {x_row};"
                    )
                    with code.block(f"foreach (j = 0 ... {width})"):
                        code.line("const int at = x0 + j;")
                        code.line(f"{_SHORT} value = 0;")
                        with code.block(f"if (!outside && at >= 0 && at < {columns})"):
                            read = self._read(code, f"from[at * {source.column}]")
                            code.line(f"value = {read};")
                        code.line(f"to[j * {inputs} + c] = value;")
        self._windows(code)

    def _windows(self, code: Code) -> None:
        scheme, number, lanes = self.scheme, self.numbers, self.scheme.lanes
        problem = scheme.problem
        size = number("packed_pixel", scheme.pixel_bytes // self.stored_bytes)
        inputs, width = number("inputs", problem.inputs), number("line_width", scheme.line_width)
        down, apart = (
            number("row_stride", problem.stride[0]),
            number("tap_rows_apart", problem.dilation[0]),
        )
        across = number("column_stride", problem.stride[1])
        rows, columns = problem.kernel
        taps = number("kernel_rows", rows)
        side = problem.dilation[1] == 1
        run = number("run", problem.inputs * (columns if side else 1))
        many = number("runs", 1 if side else columns)
        beside = number("tap_columns_apart", problem.dilation[1])
        with code.block("for (uniform int r = 0; r < r1 - r0; r++)"):
            code.line("uniform int count = c1 - c0;")
            with code.block("for (uniform int c = 0; c < count; c++)"):
                code.line(
                    f"uniform {self.stored} * uniform to = packed + (r * count + c) * {size};"
                )
                code.line(f"uniform {self.stored} * uniform last = to + {size};")
                with (
                    code.block(f"for (uniform int ky = 0; ky < {taps}; ky++)"),
                    code.block(f"for (uniform int kx = 0; kx < {many}; kx++)"),
                ):
                    code.line(
                        f"const uniform {self.stored} * uniform from = lines + ((r * {down} + "
                        f"ky * {apart}) * {width} + c * {across} + kx * {beside}) * {inputs};"
                    )
                    # Whole vectors: what is behind a run is written again by the next one.
                    with code.block(f"for (uniform int f = 0; f < {run}; f += {lanes})"):
                        code.line(
                            f"if (to + f + {lanes} <= last) "
                            "to[f + programIndex] = from[f + programIndex];"
                        )
                        code.line(
                            f"else if (f + programIndex < {run}) "
                            "to[f + programIndex] = from[f + programIndex];"
                        )
                    code.line(f"to += {run};")
                code.line(
                    "for (; to < last; to += programCount) "
                    "if (to + programIndex < last) to[programIndex] = 0;"
                )
