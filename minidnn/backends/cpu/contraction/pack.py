"""Prints the function of the direct algorithm that packs a block of inputs: that copies it into
scratch in the layout in which tiles read it.

It applies the prologue, and writes zeros where the convolution pads: padding is zero after the
prologue, not before it.
"""

from __future__ import annotations

from ....fusion.region import Parts
from ....graph.ir import Value
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.kernel import shared_function
from ..tensor import ELEMENTS
from .numbers import PARAMETER, Numbers
from .problem import BlockedView
from .scheme import Scheme


class Prologue:
    """Prints the prologue of a contraction: the point-wise operations on inputs as they are read.

    ``vectors`` are the constants over channels that the prologue reads, in order of first use.
    """

    def __init__(self, parts: Parts, source: BlockedView, numbers: Numbers) -> None:
        self.parts = parts
        self.numbers = numbers
        self.element = source.element
        self.pointer = self.element.constant_pointer
        vectors = [v.value for o in parts.prologue for v in o.vectors]
        self.vectors: tuple[Value, ...] = tuple(dict.fromkeys(vectors))

    def apply(self, code: Code) -> str:
        """Prints the prologue of ``v``, with ``q<i>`` for vectors; returns the result, not rounded
        to its dtype yet."""
        names: dict[Value, str] = {self.parts.source: "v"}
        result = "v"
        for operation in self.parts.prologue:
            arguments = [names[v] for v in operation.operands]
            arguments += [f"q{self.vectors.index(o.value)}" for o in operation.vectors]
            lines, result = ISPC.print_code(operation.code, arguments, code.fresh)
            code.lines(lines)
            if operation is not self.parts.prologue[-1]:
                result = ELEMENTS[operation.output.dtype].round(result)
            names[operation.output] = result
        return result

    def rounded(self, code: Code) -> str:
        """Like :meth:`apply`, with the result rounded to the dtype that the contraction reads."""
        result = self.apply(code)
        last = self.parts.prologue[-1:]
        return ELEMENTS[last[0].output.dtype].round(result) if last else result


class Packer(Prologue):
    """Prints the packing function of a scheme whose ``packing`` is not "none".

    For "lanes", each constant over channels has the order of the packed channels.
    """

    def __init__(self, parts: Parts, scheme: Scheme, numbers: Numbers) -> None:
        super().__init__(parts, scheme.problem.source, numbers)
        self.scheme = scheme

    @property
    def parameters(self) -> list[str]:
        declared = [PARAMETER, f"{self.pointer} x", "uniform float * uniform packed"]
        declared += [f"const uniform float * uniform p{i}" for i in range(len(self.vectors))]
        return declared + [f"uniform int {n}" for n in ("group", "r0", "r1", "c0", "c1")]

    def print(self) -> tuple[str, str]:
        """Prints the function; returns its name and its text."""
        code = Code()
        self._print(code)
        return shared_function("conv_pack", str(code), self.scheme.by_columns)

    def _print(self, code: Code) -> None:
        head = f"static noinline unmasked void <name>({', '.join(self.parameters)})"
        with code.block(head), self.numbers.declared(code):
            if self.scheme.packing == "features":
                self._features(code)
                return
            if self.scheme.packing == "gathered":
                self._gathered(code)
                return
            problem = self.scheme.problem
            for axis, name in enumerate(("row", "column")):
                begin, end = ("r0", "r1") if axis == 0 else ("c0", "c1")
                reach = (problem.kernel[axis] - 1) * problem.dilation[axis] + 1
                reach_name = self.numbers(f"reach_{name}", reach)
                stride = self.numbers(f"stride_{name}", problem.stride[axis])
                code.line(
                    f"const uniform int {name}s = ({end} - {begin} - 1) * {stride} + {reach_name};"
                )
                before = self.numbers(f"before_{name}", problem.padding[axis][0])
                code.line(f"const uniform int {name}0 = {begin} * {stride} - {before};")
            width = self.numbers("width", problem.in_size[1])
            code.line("const uniform int left = clamp(-column0, 0, columns);")
            code.line(f"const uniform int right = clamp({width} - column0, left, columns);")
            if self.scheme.packing == "pixels":
                self._pixels(code)
            else:
                self._vectors(code)

    def _features(self, code: Code) -> None:
        inputs = self.numbers("inputs", self.scheme.problem.in_channels)
        column = self.numbers("x_column", self.scheme.problem.source.column)
        row = self.numbers("packed_column", self.scheme.packed.column)
        with (
            code.block("for (uniform int c = c0; c < c1; c++)"),
            code.block(f"foreach (f = 0 ... {inputs})"),
        ):
            code.line(f"float v = {self.element.load(f'x[c * {column} + f]')};")
            for i in range(len(self.vectors)):
                code.line(f"float q{i} = p{i}[f];")
            code.line(f"packed[(c - c0) * {row} + f] = {self.rounded(code)};")

    def _vectors(self, code: Code) -> None:
        """Packs vectors: blocks of channels (one of them, if it holds several groups), or for each
        output lane its own channels."""
        scheme = self.scheme
        problem, packed, lanes = scheme.problem, scheme.packed, scheme.lanes
        spread = scheme.packing == "lanes"
        inputs = self.numbers("inputs", problem.in_channels)
        blocks = inputs
        if not spread:
            blocks = self.numbers("input_blocks", -(-problem.in_channels // lanes))
        if spread:
            outputs = self.numbers("outputs", problem.out_channels)
            total = self.numbers("all_outputs", problem.out_channels * problem.groups)
            code.line(f"const int lane = group * {lanes} + programIndex;")
            code.line(f"const bool real = lane < {total};")
        with code.block(f"for (uniform int b = 0; b < {blocks}; b++)"):
            if spread:
                code.line(f"const int channel = lane / {outputs} * {inputs} + b;")
                code.line(f"const int at = {self._channel_offset()};")
            else:
                code.line(f"uniform int64 first = group * {blocks} + b;")
                plane = self.numbers("x_plane", problem.source.plane)
                code.line(f"{self.pointer} xb = x + first * {plane};")
            for i in range(len(self.vectors)):
                where = f"(group * {blocks} + b) * {lanes}"
                code.line(f"const float q{i} = p{i}[{where} + programIndex];")
            with code.block("for (uniform int i = 0; i < rows; i++)"):
                block = self.numbers("packed_block", packed.block)
                row = self.numbers("packed_row", packed.row)
                self._to(code, f"b * {block} + i * {row}")
                self._row_of_vectors(code)

    def _gathered(self, code: Code) -> None:
        """Packs the pixels that are read so that they are contiguous, one segment per row."""
        scheme = self.scheme
        source, lanes = scheme.problem.source, scheme.lanes
        inputs = self.numbers("inputs", scheme.problem.in_channels)
        width = self.numbers("width", scheme.problem.width)
        with code.block(f"for (uniform int b = 0; b < ({inputs} + {lanes - 1}) / {lanes}; b++)"):
            code.line(f"const uniform int64 block = group * ({inputs} / {lanes}) + b;")
            code.line(f"{self.pointer} xb = x + block * {self.numbers('x_plane', source.plane)};")
            block = self.numbers("packed_block", scheme.packed.block)
            code.line(f"uniform float * uniform to = packed + b * {block};")
            for i in range(len(self.vectors)):
                code.line(f"const float q{i} = p{i}[block * {lanes} + programIndex];")
            code.line(f"uniform int row = c0 / {width}, column = c0 % {width};")
            with code.block("for (uniform int c = c0; c < c1;)"):
                code.line(f"const uniform int count = min({width} - column, c1 - c);")
                row = self.numbers("x_row", source.row)
                code.line(f"{self.pointer} from = xb + row * {row} + column * {source.column};")
                with code.block("for (uniform int j = 0; j < count; j++)"):
                    read = self.element.load(f"from[j * {source.column} + programIndex]")
                    code.line(f"float v = {read};")
                    code.line(f"to[j * {lanes} + programIndex] = {self.rounded(code)};")
                code.line(f"to += count * {lanes};")
                code.line("c += count;")
                code.line("row++;")
                code.line("column = 0;")

    def _channel_offset(self) -> str:
        source = self.scheme.problem.source
        plane = self.numbers("x_plane", source.plane)
        if source.block == 1:
            return f"channel * {plane}"
        block = self.numbers("x_channels", source.block)
        return f"channel / {block} * {plane} + channel % {block}"

    def _to(self, code: Code, offset: str) -> None:
        """Prints the destination of row ``i``, and which row of the input it is."""
        code.line(f"uniform float * uniform to = packed + {offset};")
        code.line("const uniform int y = row0 + i;")
        height = self.numbers("height", self.scheme.problem.in_size[0])
        code.line(f"const uniform bool outside = y < 0 || y >= {height};")

    def _row_of_vectors(self, code: Code) -> None:
        source, lanes = self.scheme.problem.source, self.scheme.lanes
        zeros = "for (uniform int j = {}; j < {}; j++) " + f"to[j * {lanes} + programIndex] = 0.0f;"
        code.line("const uniform int l = outside ? columns : left, r = outside ? columns : right;")
        code.line(zeros.format("0", "l"))
        with code.block("for (uniform int j = l; j < r; j++)"):
            row = self.numbers("x_row", source.row)
            pixel = f"y * {row} + (column0 + j) * {source.column}"
            if self.scheme.packing == "lanes":
                code.line("float v = 0.0f;")
                code.line(f"if (real) v = {self.element.load(f'x[{pixel} + at]')};")
            else:
                code.line(f"float v = {self.element.load(f'xb[{pixel} + programIndex]')};")
            code.line(f"to[j * {lanes} + programIndex] = {self.rounded(code)};")
        code.line(zeros.format("r", "columns"))

    def _pixels(self, code: Code) -> None:
        scheme = self.scheme
        problem, packed, lanes = scheme.problem, scheme.packed, scheme.lanes
        source = problem.source
        inputs = self.numbers("inputs", problem.in_channels)
        with code.block(f"for (uniform int c = 0; c < {inputs}; c++)"):
            code.line(f"const uniform int64 channel = group * {inputs} + c;")
            code.line(f"{self.pointer} xc = x + {self._channel_offset()};")
            for i in range(len(self.vectors)):
                code.line(f"const float q{i} = p{i}[channel];")
            with code.block("for (uniform int i = 0; i < rows; i++)"):
                channel = self.numbers("packed_channel", packed.channel)
                packed_row = self.numbers("packed_row", packed.row)
                row = self.numbers("x_row", source.row)
                self._to(code, f"c * {channel} + i * {packed_row}")
                with code.block(f"for (uniform int j = 0; j < columns; j += {lanes})"):
                    code.line("const int jj = j + programIndex;")
                    code.line("float v = 0.0f;")
                    with code.block("if (!outside && jj >= left && jj < right)"):
                        at = f"xc[y * {row} + (column0 + jj) * {source.column}]"
                        code.line(f"v = {self.element.load(at)};")
                        code.line(f"v = {self.rounded(code)};")
                    code.line("to[jj] = v;")
