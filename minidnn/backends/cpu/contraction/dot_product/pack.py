"""Packs inputs and weights for bf16 dot products: as words of two neighbouring input channels.

The function that packs a block of inputs applies the prologue, and writes zeros where the
convolution pads and where channels pad a block.  Pixels past the last one may be anything: their
results are dropped.  Where results multiply inputs that they do not depend on by zero
(:attr:`.DotScheme.reads_padding`), the function returns whether any input is NaN or infinite.
"""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from minidnn.fusion.region import Parts
from minidnn.graph.ir import Constant, Value
from minidnn.runtime.arrays import to_bits

from ....codegen.code import Code
from ...execution.buffers import Array
from ...execution.packing import Packed, data_of
from ...tensor import ELEMENTS
from ..numbers import PARAMETER
from ..pack import Prologue
from ..weights import print_pair_packing
from .products import BF16_PAIR, SchemeNumbers
from .scheme import DotScheme

_SHORT, BLOCK = BF16_PAIR.stored, BF16_PAIR.block


class DotPacker(Prologue):
    """Prints ``@_pack``, the function that packs a block of inputs for a scheme, and the fallback
    ``@_exact`` where the scheme needs it."""

    def __init__(self, parts: Parts, scheme: DotScheme, numbers: SchemeNumbers) -> None:
        super().__init__(parts, scheme.problem.source, numbers)
        self.numbers: SchemeNumbers = numbers
        self.scheme = scheme

    @property
    def parameters(self) -> list[str]:
        stored = f"uniform {self.scheme.word.stored} * uniform"
        declared = [PARAMETER, f"{self.pointer} x", f"{stored} packed"]
        if self.scheme.packing == "unrolled":
            declared.append(f"{stored} lines")
        declared += [f"const uniform float * uniform p{i}" for i in range(len(self.vectors))]
        return declared + [f"uniform int {n}" for n in ("group", "r0", "r1", "c0", "c1")]

    def print(self, code: Code) -> None:
        checks = self.scheme.reads_padding
        declared = ", ".join(self.parameters)
        head = f"static noinline unmasked {'uniform bool' if checks else 'void'} @_pack({declared})"
        with code.block(head), self.numbers.declared(code):
            if checks:
                code.line("unsigned int most = 0;")
            match self.scheme.packing:
                case "features":
                    self._rows_of_features(code)
                case "blocks":
                    self._blocks(code)
                case "rows" | "unrolled":
                    self._few_channels(code)
            if checks:
                code.line("return reduce_max(most) >= 0x7f80;")
        if checks:
            self._exact(code)

    def _read(self, code: Code, at: str, channel: str | None = None) -> str:
        """Prints the prologue of an element and returns it as it is packed; 0 if ``channel`` only
        pads a block: memory there may hold NaN or infinity, which times a weight of zero is NaN."""
        element = at
        if self.parts.prologue:
            code.line(f"float v = {self.element.load(at)};")
            element = ELEMENTS[self.scheme.problem.factors].narrows.format(self.apply(code))
        if channel is None or self.scheme.problem.in_channels % self.scheme.lanes == 0:
            return element
        code.line(f"{_SHORT} stays = {element};")
        code.line(f"if ({channel} >= {self.numbers('inputs')}) stays = 0;")
        return "stays"

    def _rows_of_features(self, code: Code) -> None:
        inputs = self.numbers("inputs")
        size = self.numbers("packed_column")
        column = self.numbers("x_column")
        with code.block("for (uniform int c = c0; c < c1; c++)"):
            code.line(f"{self.pointer} from = x + (uniform int64)c * {column};")
            code.line(f"uniform {_SHORT} * uniform to = packed + (c - c0) * {size};")
            with code.block(f"foreach (f = 0 ... {inputs})"):
                for i in range(len(self.vectors)):
                    code.line(f"float q{i} = p{i}[f];")
                code.line(f"to[f] = {self._read(code, 'from[f]')};")
            code.line(f"foreach (f = {inputs} ... {size}) {{ to[f] = 0; }}")

    def _zero(self) -> str:
        """An element of the padding, as it is packed."""
        return "0"

    def _blocks(self, code: Code) -> None:
        """Packs blocks of ``word.block`` channels, which are several blocks of ``lanes`` channels
        in memory."""
        scheme, number, lanes = self.scheme, self.numbers, self.scheme.lanes
        problem, word = scheme.problem, scheme.word
        source, stored, size_of_block = problem.source, word.stored, word.block
        blocks = number("input_blocks")
        # Of two blocks of 16 channels in memory the second may be missing.
        halves = word is BF16_PAIR
        count = f"({blocks} + 1) / 2 * 2" if halves else blocks
        missing = f"b >= {blocks} || " if halves else ""
        parts = size_of_block // lanes
        packed_block, part = ("b >> 1", "b & 1") if halves else (f"b / {parts}", f"b % {parts}")
        plane, x_row = number("x_plane"), number("x_row")
        size = number("packed_plane")
        width, phase = number("packed_width"), number("phase")
        down = number("row_stride")
        # For a 1x1 convolution only the pixels that it reads are packed.
        strides = problem.stride if scheme.reads_all else (1, 1)
        row_step, across = number("rows_apart"), strides[1]
        step = number("stride_x") if halves else across
        before, left = (number(f"before_{n}") for n in "yx")
        height, columns = (number(f"size_{n}") for n in "yx")
        rows = "r1 - r0" if scheme.reads_all else number("packed_rows")
        first = "r0" if scheme.reads_all else f"r0 * {down}"
        stop = "c1 - c0" if scheme.reads_all else width
        zero = f"to[j * {size_of_block} + programIndex] = {self._zero()};"
        with (
            code.block(f"for (uniform int b = 0; b < {count}; b++)"),
            code.block(f"for (uniform int i = 0; i < ({rows}) * {down}; i++)"),
        ):
            code.line(
                f"uniform {stored} * uniform to = packed + (uniform int64)({packed_block}) * "
                f"{size} + ({part}) * {lanes} + (i % {down} * {phase} + i / {down} * {width}) * "
                f"{size_of_block};"
            )
            code.line(f"const uniform int y = ({first} + i) * {row_step} - {before};")
            code.line(f"const uniform int x0 = c0 * {step} - {left};")
            code.line(f"const uniform bool outside = {missing}y < 0 || y >= {height};")
            code.line(f"const uniform int count = {stop};")
            code.line("const uniform int begin = outside ? count : clamp(-x0, 0, count);")
            end = f"({columns} - x0 + {across - 1}) / {across}"
            code.line(f"const uniform int end = outside ? count : clamp({end}, begin, count);")
            code.line(f"for (uniform int j = 0; j < begin; j++) {zero}")
            with code.block("if (begin < end)"):
                code.line(f"const uniform int64 block = group * {blocks} + b;")
                code.line(f"{self.pointer} from = x + block * {plane} + y * {x_row};")
                for i in range(len(self.vectors)):
                    code.line(f"const float q{i} = p{i}[block * {lanes} + programIndex];")
                with code.block("for (uniform int j = begin; j < end; j++)"):
                    at = f"from[(x0 + j * {across}) * {source.column} + programIndex]"
                    read = self._read(code, at, f"b * {lanes} + programIndex")
                    if scheme.reads_padding:
                        code.line(f"const {stored} n = {read};")
                        code.line("most = max(most, (unsigned int)n & 0x7fff);")
                        read = "n"
                    code.line(f"to[j * {size_of_block} + programIndex] = {read};")
            code.line(f"for (uniform int j = end; j < count; j++) {zero}")

    def _few_channels(self, code: Code) -> None:
        """Packs rows of pixels whose few channels are contiguous."""
        scheme, number = self.scheme, self.numbers
        problem = scheme.problem
        terms = scheme.row_terms
        x_row, across = number("x_row"), number("stride_x")
        width, phase = number("packed_width"), number("phase")
        down = number("row_stride")
        before, left = (number(f"before_{n}") for n in "yx")
        height, columns = (number(f"size_{n}") for n in "yx")
        with code.block(f"for (uniform int i = 0; i < {number('packed_rows')} * {down}; i++)"):
            code.line(
                f"uniform {_SHORT} * uniform to = packed + "
                f"(i % {down} * {phase} + i / {down} * {width}) * {terms};"
            )
            code.line(f"const uniform int y = r0 * {down} + i - {before};")
            code.line(f"const uniform int x0 = c0 * {across} - {left};")
            code.line(f"const uniform bool outside = y < 0 || y >= {height};")
            code.line(f"const uniform int begin = outside ? {width} : clamp(-x0, 0, {width});")
            end = f"clamp({columns} - x0, begin, {width})"
            code.line(f"const uniform int end = outside ? {width} : {end};")
            zeros = "foreach (f = {} * {terms} ... {} * {terms}) {{ to[f] = 0; }}"
            code.line(zeros.format(0, "begin", terms=terms))
            with code.block("if (begin < end)"):
                code.line(f"{self.pointer} from = x + (uniform int64)y * {x_row};")
                if problem.source.block == 1:
                    self._planes(code)
                else:
                    self._pixels(code)
            code.line(zeros.format("end", width, terms=terms))
        size = number("packed_plane")
        run = number("run")
        code.line(f"foreach (f = 0 ... {run}) {{ packed[{size} + f] = 0; }}")

    def _planes(self, code: Code) -> None:
        """Interleaves the channels of each pixel of a row, which are planes in memory (NCHW)."""
        terms, inputs = self.scheme.row_terms, self.scheme.problem.in_channels
        plane = self.numbers("x_plane")
        column = self.scheme.problem.source.column
        pixel_type = f"unsigned int{16 * terms}"
        code.line(f"uniform {pixel_type} * uniform whole = (uniform {pixel_type} * uniform)to;")
        with code.block("foreach (j = begin ... end)"):
            for c in range(inputs):
                code.line(f"unsigned int n{c};")
                with code.block(""):
                    for i in range(len(self.vectors)):
                        code.line(f"const uniform float q{i} = p{i}[{c}];")
                    at = f"(from + {c} * (uniform int64){plane})[(x0 + j) * {column}]"
                    code.line(f"n{c} = {self._read(code, at)};")
                code.line(f"most = max(most, n{c} & 0x7fff);")
            shifted = [f"(({pixel_type})n{c} << {16 * c})" for c in range(inputs)]
            code.line(f"whole[j] = {' | '.join(shifted)};")

    def _pixels(self, code: Code) -> None:
        """Copies the pixels of a row, whose channels are contiguous."""
        terms, column = self.scheme.row_terms, self.scheme.problem.source.column
        for i in range(len(self.vectors)):
            code.line(f"const float q{i} = p{i}[programIndex];")
        with code.block("for (uniform int j = begin; j < end; j++)"):
            at = f"from[(x0 + j) * {column} + programIndex]"
            read = self._read(code, at, "programIndex")
            code.line(f"const unsigned int16 n = {read};")
            code.line("most = max(most, (unsigned int)n & 0x7fff);")
            code.line(f"to[j * {terms} + programIndex] = n;")

    def _exact(self, code: Code) -> None:
        """Prints the fallback ``@_exact``, a function that packs the terms of some pixels again:
        those of one group, with zeros in place of others."""
        number = self.numbers
        parameters = [PARAMETER, f"const uniform {_SHORT} * uniform from"]
        parameters += ["const uniform int32 * uniform offsets", f"uniform {_SHORT} * uniform to"]
        parameters += ["uniform int count", "uniform int group"]
        head = f"static noinline unmasked void @_exact({', '.join(parameters)})"
        with (
            code.block(head),
            self.numbers.declared(code),
            code.block("for (uniform int p = 0; p < count; p++)"),
        ):
            step, taps = number("pixel_step"), number("taps")
            run, next = number("run"), number("next")
            real = number("exact_terms")
            with code.block(f"for (uniform int tap = 0; tap < {taps}; tap++)"):
                code.line(f"uniform {_SHORT} * uniform y = to + (p * {taps} + tap) * {run};")
                with code.block(f"for (uniform int b = 0; b < {run} / {BLOCK}; b++)"):
                    code.line(f"const uniform {_SHORT} * uniform x = from + p * {step};")
                    code.line(f"x += offsets[tap] / 2 + b * ({next} / 2);")
                    with code.block(f"foreach (f = 0 ... {BLOCK})"):
                        code.line(f"{_SHORT} term = 0;")
                        code.line(f"if ((b * {BLOCK} + f) / {real} == group) term = x[f];")
                        code.line(f"y[b * {BLOCK} + f] = term;")


_TASK_WORDS = 1 << 13
"""Words that one task packs, about, as far as blocks of terms can be split so."""


def pack_bf16(weight: Value, scheme: DotScheme) -> partial[Array] | Packed:
    """Weights (O, I, KH, KW) or (O, I) in bfloat16, in the layout of :func:`packed_words`.

    Where the taps of a kernel row are packed as channels, they are channels here, too; input
    channels are the fastest of these.
    """
    if isinstance(weight, Constant):
        return partial(_pack, weight, scheme.of_weights())
    problem, tile = scheme.problem, scheme.tile
    blocks, taps, depth = scheme.blocks_of_terms, scheme.taps, problem.depth // scheme.merged
    step = min(blocks, max(1, _TASK_WORDS // (16 * taps * tile.vectors * scheme.lanes)))
    numbers = [
        problem.out_channels,
        scheme.lanes,
        tile.vectors,
        tile.wide,
        tile.groups,
        blocks,
        step,
    ]
    run, own_inputs = problem.in_channels, problem.in_channels // scheme.merged
    own_outputs = problem.out_channels // scheme.merged if scheme.merged > 1 else 0
    numbers += [taps, depth]
    if scheme.packing == "rows":
        rows, columns = problem.kernel
        layout = (scheme.row_terms, run, columns, own_inputs, rows * columns, columns, 1)
    else:
        layout = (run, run, 1, own_inputs, prod(problem.kernel), 1, 0)
    numbers += [*layout, own_outputs]
    return Packed(
        "pairs",
        [weight],
        [np.array(numbers, np.int64)],
        scheme.weight_bytes // 4,
        scheme.groups * tile.groups * -(-blocks // step),
        kernel=print_pair_packing(),
    )


def _merged(given: Array, scheme: DotScheme) -> Array:
    """Weights (O, I, KH, KW) for groups that are computed as one: block diagonal, zero between
    groups."""
    problem, count = scheme.problem, scheme.merged
    outputs, inputs = problem.out_channels // count, problem.in_channels // count
    merged = np.zeros((problem.groups, count, outputs, count, inputs, given[0, 0].size), np.uint16)
    parts = given.reshape(problem.groups, count, outputs, inputs, -1)
    for i in range(count):
        merged[:, i, :, i] = parts[:, i]
    return merged


def _pack(weight: Value, scheme: DotScheme) -> Array:
    problem = scheme.problem
    terms = to_bits(data_of(weight), "bfloat16")
    if scheme.merged > 1:
        terms = _merged(terms, scheme)
    terms = terms.reshape(problem.groups, problem.out_channels, problem.in_channels, -1)
    if scheme.packing == "rows":
        rows, columns = problem.kernel
        spread = np.zeros((problem.out_channels, columns, scheme.row_terms, rows), np.uint16)
        kernels = terms.reshape(problem.out_channels, problem.in_channels, rows, columns)
        spread[:, :, : problem.in_channels] = kernels.transpose(0, 3, 1, 2)
        terms = spread.reshape(1, problem.out_channels, -1, rows)
    return packed_words(terms, scheme)


def packed_words(terms: Array, scheme: DotScheme) -> Array:
    """Weights [group][output][term][tap] in the order in which kernels read them, [group]
    [group of vectors][block of terms][tap][word][vector][lane][term of a word].

    Outputs and terms that are padding are zero.
    """
    problem, lanes, word = scheme.problem, scheme.lanes, scheme.word
    _, outputs, count, taps = terms.shape
    blocks = scheme.blocks_of_terms
    padded = np.zeros((problem.groups, scheme.slots, blocks * word.block, taps), word.weight)
    padded[:, :outputs, :count] = terms
    shape = (problem.groups, scheme.slots // lanes, lanes, blocks, 16, word.terms, taps)
    # [group][vector][lane][block][word][term][tap] to [group][vector][block][tap][word][lane][term]
    vectors = padded.reshape(shape).transpose(0, 1, 3, 6, 4, 2, 5)
    parts = []
    for group in vectors:
        first = 0
        for size in scheme.vectors_of_parts:
            part = group[first : first + size]
            parts.append(part.transpose(1, 2, 3, 0, 4, 5).reshape(-1))
            first += size
    return np.concatenate(parts)
