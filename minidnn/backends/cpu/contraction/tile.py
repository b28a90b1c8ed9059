"""Prints the functions that compute register tiles of the direct algorithm and of Winograd's
matrix products: the loops over a sum's terms, between initial values and the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...codegen.code import Code
from .epilogue import Epilogue
from .numbers import PARAMETER, Numbers
from .scheme import LINE_FLOATS, OFTEN, ResultScheme, Scheme, Tile


def tile_name(rows: int, columns: int, vectors: int) -> str:
    """The name of the function that :func:`print_tile` prints for such a tile."""
    return f"@_tile_{rows}x{columns}x{vectors}"


def print_block(code: Code, scheme: ResultScheme, numbers: Numbers) -> None:
    """Prints the rows, from ``r0`` up to ``r1``, and columns, from ``c0`` up to ``c1``, of the
    results of the block number ``block``."""
    out = scheme.problem.out_size
    end = numbers("end_of_out", out[1 if scheme.by_columns else 0])
    size = numbers("block_size", scheme.block)
    if scheme.by_columns:
        code.line(f"const uniform int r0 = 0, r1 = 1, c0 = block * {size};")
        code.line(f"const uniform int c1 = min(c0 + {size}, {end});")
    else:
        columns = numbers("out_columns", out[1])
        code.line(f"const uniform int c0 = 0, c1 = {columns}, r0 = block * {size};")
        code.line(f"const uniform int r1 = min(r0 + {size}, {end});")


def print_by_width(
    code: Code, tile: Tile, numbers: Numbers, print: Callable[[int, str], None]
) -> None:
    """Prints what a task's ``part`` of the output channels does, by ``print``: it gets the number
    of vectors of output channels, and the index of the first one."""
    if tile.narrow and tile.wide:
        wide = numbers("wide", tile.wide)
        with code.block(f"if (part < {wide})"):
            print(tile.vectors, f"part * {tile.vectors}")
        with code.block("else"):
            print(tile.vectors - 1, f"part * {tile.vectors - 1} + {wide}")
    else:
        print(tile.vectors, f"part * {tile.vectors}")


def print_tile(
    code: Code,
    scheme: Scheme,
    epilogue: Epilogue,
    numbers: Numbers,
    rows: int,
    columns: int,
    vectors: int,
    bias: bool = True,
    short: bool = False,
) -> None:
    """Prints the function for ``rows`` x ``columns`` pixels and ``vectors`` vectors of channels.

    Its parameters are the first pixel's inputs ``x``, weights ``w``, later weights to prefetch
    (``ahead``; NULL: none) and initial values ``bias`` (zeros without it); with chunks the range
    ``begin`` to ``end`` of steps; with partial sums the scratch ``kept`` for unfinished sums; where
    kernel rows are left out, the range ``ky0`` to ``ky1`` of those that are computed; and those of
    the epilogue.  With ``short`` a step has only two channels (see :mod:`.direct`).
    """
    lanes = scheme.lanes
    parameters = [PARAMETER]
    parameters += [f"const uniform float * uniform {name}" for name in ("x", "w", "ahead")]
    if bias:
        parameters.append("const uniform float * uniform bias")
    if scheme.chunk:
        parameters += ["uniform int begin", "uniform int end"]
    if scheme.part:
        parameters.append("uniform float * uniform kept")
    if scheme.skips:
        parameters += ["uniform int ky0", "uniform int ky1"]
    parameters += epilogue.parameters
    head = f"static noinline unmasked void {tile_name(rows, columns, vectors)}("
    with code.block(head + ", ".join(parameters) + ")"), numbers.declared(code):
        names = [(p, v) for p in range(rows * columns) for v in range(vectors)]
        for v in range(vectors):
            start = f"bias[{v * lanes} + programIndex]" if bias else "0.0f"
            code.line(f"float b{v} = {f'begin > 0 ? 0.0f : {start}' if scheme.chunk else start};")
        for p, v in names:
            code.line(f"float a{p}_{v} = b{v};")
        epilogue.begin(code, vectors)
        lines = numbers("lines_ahead", scheme.lines_ahead)
        code.line(f"const uniform int lines = ahead == NULL ? 0 : {lines};")
        steps = numbers("steps", scheme.steps)
        with code.block(f"if (end == {steps})" if scheme.chunk else ""):
            epilogue.prefetch(code, rows, columns, vectors)
        sums = _Sums(code, scheme, numbers, rows, columns, vectors, short)
        if scheme.chunk:
            code.line(f"x += (uniform int64)begin * {numbers('x_block', scheme.read.block)};")
        if scheme.part:
            _print_partial_sums(code, scheme, numbers, sums)
        else:
            sums.print()
        if scheme.chunk:
            code.line(f"if (end < {steps}) return;")
        epilogue.print(code, rows, columns, vectors)


def _print_partial_sums(code: Code, scheme: Scheme, numbers: Numbers, sums: _Sums) -> None:
    """Prints the sums as partial sums, each of which is added to those before it; sums that are
    unfinished at the end of a part are stored in ``kept``."""
    steps, part = numbers("steps", scheme.steps), numbers("part", scheme.part)
    begin, end = ("begin", "end") if scheme.chunk else ("0", steps)
    count = sums.rows * sums.columns
    names = [f"a{p}_{v}" for p in range(count) for v in range(sums.vectors)]
    scratch = partial("kept[{} + programIndex]".format)
    stored_sums = {name: scratch(i * scheme.lanes) for i, name in enumerate(names)}
    stored_errors = {name: scratch((len(names) + i) * scheme.lanes) for i, name in enumerate(names)}
    if not scheme.compensated:
        stored_errors = {}
    code.line("#pragma nounroll")
    with code.block(f"for (uniform int from = {begin}; from < {end}; from += {part})"):
        code.line(f"const uniform int to = min(from + {part}, {end});")
        sums.print("from", "to")
        with code.block("if (from > 0)"):
            for name, address in stored_sums.items():
                if name in stored_errors:
                    _print_exact_addition(code, name, address, stored_errors[name])
                else:
                    code.line(f"{name} = {address} + {name};")
        if stored_errors:
            with code.block("else"):
                for address in stored_errors.values():
                    code.line(f"{address} = 0.0f;")
        with code.block(f"if (to < {steps})"):
            for name, address in stored_sums.items():
                code.line(f"{address} = {name};")
                code.line(f"{name} = 0.0f;")
        if stored_errors:
            with code.block("else"):
                for name, address in stored_errors.items():
                    # The error is NaN where the sum became infinite; the sum then stays so.
                    code.line(f"const float error_{name} = {address};")
                    code.line(f"{name} += error_{name} == error_{name} ? error_{name} : 0.0f;")


def _print_exact_addition(code: Code, name: str, kept: str, error: str) -> None:
    """Prints the addition of a partial sum to the sum of those before it, and of its rounding error
    to ``error`` (the six operations of Knuth, The Art of Computer Programming 2, 4.2.2, theorem
    B)."""
    with code.block(""):
        code.line(f"const float old = {kept};")
        code.line(f"const float sum = old + {name};")
        code.line("const float added = sum - old;")
        code.line(f"{error} += (old - (sum - added)) + ({name} - added);")
        code.line(f"{name} = sum;")


class _Sums:
    """Prints the loops over the terms of a tile's sums.

    The strides between the pixels of a tile are constants of the text: a tile has few rows.
    """

    def __init__(
        self,
        code: Code,
        scheme: Scheme,
        numbers: Numbers,
        rows: int,
        columns: int,
        vectors: int,
        short: bool,
    ) -> None:
        self.code = code
        self.scheme = scheme
        self.numbers = numbers
        self.rows, self.columns, self.vectors = rows, columns, vectors
        self.short = short

    def print(self, begin: str = "", end: str = "") -> None:
        """Prints the sums of all terms, or of the steps from ``begin`` to ``end``."""
        scheme, code, numbers = self.scheme, self.code, self.numbers
        steps, rest_channels = divmod(scheme.problem.in_channels, scheme.unit)
        full = numbers("full", steps)
        block = numbers("x_block", scheme.read.block)
        first, last = (begin, f"min({end}, {full})") if end else ("0", full)
        code.line("#pragma nounroll")
        with code.block(f"for (uniform int step = {first}; step < {last}; step++)"):
            self._step(scheme.unit)
            code.line(f"x += {block};")
        if rest_channels:
            with code.block(f"if ({end} > {full})" if end else ""):
                self._step(rest_channels)

    def _step(self, channels: int) -> None:
        """Prints the loops over the taps of one step of channels."""
        read, problem, code = self.scheme.read, self.scheme.problem, self.code
        down, across = (k > 1 for k in problem.kernel)
        code.line("const uniform float * uniform xr = x;")
        loop = "for (uniform int {0} = {1}; {0} < {2}; {0}++)"
        begin, end = "0", self.numbers("kernel_rows", problem.kernel[0]) if down else ""
        if self.scheme.skips:
            row = self.numbers("row_terms", problem.kernel[1])
            row = f"{row} * {channels * self.vectors * self.scheme.lanes}"
            code.line(f"xr += ky0 * {self.numbers('tap_row', problem.dilation[0] * read.row)};")
            code.line(f"const uniform float * uniform w_end = w + {end} * {row};")
            code.line(f"w += ky0 * {row};")
            begin, end = "ky0", "ky1"
        if down:
            code.line("#pragma nounroll")
        with code.block(loop.format("ky", begin, end) if down else ""):
            code.line("const uniform float * uniform xi = xr;")
            if across:
                code.line("#pragma nounroll")
            count = self.numbers("kernel_columns", problem.kernel[1]) if across else ""
            with code.block(loop.format("kx", "0", count) if across else ""):
                self._products(channels)
                if across:
                    shift = self.numbers("tap_column", problem.dilation[1] * read.column)
                    code.line(f"xi += {shift};")
            if down:
                code.line(f"xr += {self.numbers('tap_row', problem.dilation[0] * read.row)};")
        if self.scheme.skips:
            code.line("w = w_end;")

    def _products(self, channels: int) -> None:
        """Prints one tap: each channel of each pixel times the weights of all vectors."""
        code, scheme = self.code, self.scheme
        self._prefetch_inputs()
        if not scheme.prefetches_often or channels % OFTEN:
            self._prefetch_weights("l2")
            self._channels(channels, "xi")
            return
        code.line("const uniform float * uniform xs = xi;")
        code.line("#pragma nounroll")
        with code.block(f"for (uniform int some = 0; some < {channels // OFTEN}; some++)"):
            self._prefetch_weights("l1")
            self._channels(OFTEN, "xs")
            code.line(f"xs += {OFTEN};")

    def _channels(self, channels: int, first: str) -> None:
        """Prints the products of some channels, unrolled; ``first`` points to the inputs of the
        first one."""
        scheme, code = self.scheme, self.code
        lanes, vectors = scheme.lanes, self.vectors
        for channel in range(min(channels, 2) if self.short else channels):
            with code.block(""):
                for v in range(vectors):
                    offset = (channel * vectors + v) * lanes
                    code.line(f"float w{v} = w[{offset} + programIndex];")
                base = first
                if channel and scheme.read.channel > 1:
                    stride = self.numbers("x_channel", scheme.read.channel)
                    code.line(f"const uniform float * uniform xc = {first} + {channel} * {stride};")
                    base = "xc"
                shift = channel if scheme.read.channel == 1 and not scheme.spread else 0
                for p in range(self.rows * self.columns):
                    offset = self._pixel(p) + shift
                    names = (f"a{p}_{v}" for v in range(vectors))
                    sums = " ".join(f"{a} = md_fma(w{v}, x0, {a});" for v, a in enumerate(names))
                    code.line(f"{{ float x0 = {self._input(base, offset, channel)}; {sums} }}")
        code.line(f"w += {channels * vectors * lanes};")

    def _input(self, base: str, offset: int, channel: int) -> str:
        """A pixel's input of a channel: broadcast to all lanes, or each lane's own, which is in one
        vector with the others of its group, or in a vector of this channel."""
        scheme = self.scheme
        if not scheme.spread:
            return f"{base}[{offset}]"
        vector, inputs = f"{base}[{offset} + programIndex]", scheme.problem.in_channels
        if scheme.packing == "lanes" or inputs == 1:
            return vector
        # The mask is read at run time: with a constant the compiler would shuffle in two
        # instructions, and hoist what these share for all channels, without registers for it.
        mask = self.numbers("lanes_of_group", -inputs)
        return f"shuffle({vector}, (programIndex & {mask}) + {channel})"

    def _prefetch_weights(self, level: str) -> None:
        """Prints prefetches of later weights."""
        code = self.code
        code.line("#pragma nounroll")
        with code.block("for (uniform int line = 0; line < lines; line++)"):
            code.line(f"prefetch_{level}((void * uniform)ahead);")
            code.line(f"ahead += {LINE_FLOATS};")

    def _prefetch_inputs(self) -> None:
        """Prints prefetches of the next tile's inputs."""
        scheme, code = self.scheme, self.code
        if scheme.prefetches_inputs:
            size = self.rows * self.columns
            shift = size * scheme.problem.stride[1] * scheme.read.column
            for p in range(size):
                if (offset := self._pixel(p) + shift) % LINE_FLOATS == 0:
                    code.line(f"prefetch_l1((void * uniform)(xi + {offset}));")

    def _pixel(self, pixel: int) -> int:
        """The offset of a pixel's inputs from the first pixel's, in floats."""
        down, across = self.scheme.problem.stride
        row, column = divmod(pixel, self.columns)
        read = self.scheme.read
        return row * down * read.row + column * across * read.column
