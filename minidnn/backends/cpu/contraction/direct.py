"""The direct algorithm: it computes the sums of a contraction as they are defined.

A kernel loops over tasks, packs blocks of inputs (:mod:`.pack`), and calls functions for register
tiles (:mod:`.tile`).  All decisions about it are those of a :class:`.scheme.Scheme`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ....fusion.operations import Operation
from ....fusion.region import Parts
from ....graph.expression import argument, linearize
from ....graph.ir import Constant, Value
from ....graph.operators import Conv2d, Linear
from ....graph.types import INT8_DTYPES, TensorType
from ...codegen.code import Code
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..stage import Pointer, PrintedContraction, Stage
from ..tensor import ELEMENTS
from .choose import Algorithm, Speed, choose_scheme, grain_of, predict_seconds, schemes_for
from .epilogue import Epilogue
from .integer_kernel import MOST_EXACT
from .numbers import PARAMETER, Numbers, absorbed, printed_once
from .pack import Packer
from .problem import BlockedView, Problem
from .scheme import AHEAD_FLOATS, LINE_FLOATS, Scheme, Tile
from .tile import print_block, print_by_width, print_tile, tile_name
from .weights import packed_inputs, packed_outputs, packed_weights


def print_scheme(parts: Parts, scheme: Scheme, threads: int = 1) -> PrintedContraction:
    """Prints the kernel of a scheme, with its pointers and tasks."""
    printer = _Kernel(parts, scheme, short=scheme.any_size)
    if scheme.any_size:
        key = scheme, absorbed(parts)
        print_source = partial(_whole, printer)
        source = printed_once(key, printer.numbers, print_source, of_weight=printer.finite)
    else:
        source = printer.source()
    weight, *bias = parts.node.inputs[1:]
    others = len(parts.others)
    pointers: list[Pointer] = [
        *range(others + 2),
        packed_weights(weight, scheme),
        packed_outputs(bias, scheme),
    ]
    pointers += [packed_inputs(v, scheme) for v in printer.packer.vectors]
    pointers += [packed_outputs([v], scheme) for v in printer.epilogue.vectors]
    stage = Stage(
        source,
        (*pointers, printer.numbers.pack),
        scheme.tasks,
        grain_of(scheme, threads),
        scheme.scratch_bytes,
    )
    return PrintedContraction("direct", (stage,))


_MOST_KNOWN = 2048
#: Kernels for any size that a process has printed, by their text with short tiles and their tile.
_texts: dict[tuple[str, Tile], KernelSource] = {}


def _whole(short: _Kernel) -> KernelSource:
    """The full kernel for a printer that is ``short``: tiles have two pixels, steps two channels.

    The short text and the tile determine the full text, and the numbers are the same.  So the short
    text is a key for kernels that were printed for another size; to print the full one takes ten
    times as long.
    """
    short.print()
    key = str(short.code), short.scheme.tile
    if (known := _texts.get(key)) is None:
        full = _Kernel(short.parts, short.scheme)
        known = full.source()
        assert list(full.numbers.values) == list(short.numbers.values)
        if len(_texts) >= _MOST_KNOWN:
            _texts.clear()
        _texts[key] = known
    return known


def _finite(weight: Value) -> int:
    """1 if all weights are constant and finite, else 0; read when constants are packed."""
    return int(isinstance(weight, Constant) and weight.is_finite)


class _Kernel:
    """Prints a kernel; with ``short`` tiles have only two pixels, and steps only two channels."""

    def __init__(self, parts: Parts, scheme: Scheme, short: bool = False) -> None:
        self.parts = parts
        self.scheme = scheme
        self.problem = scheme.problem
        self.short = short
        self.code = Code()
        self.numbers = Numbers()
        self.epilogue = Epilogue(parts, scheme, self.numbers)
        self.packer = Packer(parts, scheme, self.numbers)
        self.packing = ""
        self.shared: tuple[str, ...] = ()
        self.finite = partial(_finite, parts.node.inputs[1])

    def source(self) -> KernelSource:
        self.print()
        return KernelSource.named("conv", str(self.code), shared=self.shared)

    def print(self) -> None:
        scheme, tile, code = self.scheme, self.scheme.tile, self.code
        if scheme.packing != "none":
            self.packing, function = self.packer.print()
            self.shared = (function,)
        for rows, columns in self._shapes():
            for count, vectors in ((tile.wide, tile.vectors), (tile.narrow, tile.vectors - 1)):
                if count:
                    shape = rows, columns, vectors
                    print_tile(code, scheme, self.epilogue, self.numbers, *shape, short=self.short)
        with code.block("MD_KERNEL(@)"):
            self._pointers()
            with self.numbers.declared(code):
                if scheme.packing != "none":
                    code.line("uniform int held = -1;")
                with code.block("for (uniform int t = md_begin; t < md_end; t++)"):
                    self._task()
            if self.epilogue.streams:
                code.line("memory_barrier();")

    def _shapes(self) -> list[tuple[int, int]]:
        """Rows and columns of the tiles: the full tile, and the remainders of rows and columns."""
        tile, out = self.scheme.tile, self.problem.out_size
        if self.short:
            return [(1, min(2, tile.columns))]
        shapes = [(tile.rows, tile.columns)]
        shapes += [(1, columns) for columns in self.scheme.narrower]
        if out[0] % tile.rows:
            shapes.append((out[0] % tile.rows, tile.columns))
        return shapes

    def _pointers(self) -> None:
        code = self.code
        names = (
            ["x"] + [f"z{i}" for i in range(len(self.problem.others))] + ["y", "weights", "bias"]
        )
        names += [f"p{i}" for i in range(len(self.packer.vectors))]
        names += [f"e{i}" for i in range(len(self.epilogue.vectors))]
        views = {"x": self.problem.source, **self.problem.result_views}
        for i, name in enumerate(names):
            element = views[name].element if name in views else ELEMENTS["float32"]
            if name == "y":
                code.line(f"{element.pointer} y = MD_OUT({element.type}, {i});")
            else:
                code.line(f"{element.constant_pointer} {name} = MD_IN({element.type}, {i});")
        code.line(f"{PARAMETER} = MD_IN(int32, {len(names)});")

    def _scratch(self) -> None:
        line = "uniform float * uniform {} = (uniform float * uniform)md_scratch + {};"
        if self.scheme.packing != "none":
            self.code.line(line.format("packed", 0))
        if self.scheme.part:
            floats = self.numbers("packed_floats", self.scheme.packed_floats)
            self.code.line(line.format("sums", floats))

    def _task(self) -> None:
        scheme, problem, code, number = self.scheme, self.problem, self.code, self.numbers
        tile = scheme.tile
        parts = number("parts", tile.groups)
        blocks = number("blocks", scheme.blocks)
        code.line(f"const uniform int part = t % {parts};")
        code.line(f"uniform int block = t / {parts};")
        code.line("uniform int group = 0;")
        if scheme.groups > 1:
            groups = number("groups", scheme.groups)
            code.line(f"group = block % {groups};")
            code.line(f"block /= {groups};")
        code.line(f"const uniform int64 image = block / {blocks};")
        code.line(f"block %= {blocks};")
        print_block(code, scheme, number)
        self._scratch()
        x_image = number("x_image", problem.source.image)
        code.line(f"{problem.source.element.constant_pointer} xn = x + image * {x_image};")
        if scheme.packing != "none":
            key = "t" if scheme.spread else f"t / {parts}"
            with code.block(f"if (held != {key})"):
                group = "part" if scheme.spread else "group"
                vectors = "".join(f"p{i}, " for i in range(len(self.packer.vectors)))
                arguments = f"numbers, xn, packed, {vectors}{group}, r0, r1, c0, c1"
                code.line(f"{self.packing}({arguments});")
                code.line(f"held = {key};")
        elif scheme.groups > 1:
            code.line(f"xn += {self._group_offset(problem.source)};")
        y_image = number("y_image", problem.result.image)
        code.line(f"{problem.result.element.pointer} yn = y + image * {y_image};")
        for i, view in enumerate(problem.others):
            z_image = number(f"z{i}_image", view.image)
            code.line(f"{view.element.constant_pointer} zn{i} = z{i} + image * {z_image};")
        print_by_width(code, tile, number, self._tiles)

    def _group_offset(self, source: BlockedView) -> str:
        first = f"group * {self.numbers('inputs', self.problem.in_channels)}"
        if source.contiguous:
            return first
        plane = self.numbers("x_plane", source.plane)
        if source.block == 1:
            return f"(uniform int64)({first}) * {plane}"
        return f"(uniform int64)({first}) / {source.block} * {plane}"

    def _tiles(self, vectors: int, slot: str) -> None:
        """All tiles of a task, for its ``vectors`` vectors of channels from ``slot`` on."""
        scheme, problem, code, number = self.scheme, self.problem, self.code, self.numbers
        depth, lanes = number("depth", problem.depth), scheme.lanes
        outputs = number("group_outputs", scheme.outputs)
        code.line(f"const uniform int slot = ({slot}) * {lanes};")
        code.line(f"const uniform int first = group * {outputs} + slot;")
        code.line(f"const uniform int limit = (group + 1) * {outputs};")
        at = f"group * {number('slots', scheme.slots)} + slot"
        code.line(f"const uniform float * uniform bs = bias + {at};")
        code.line(f"const uniform float * uniform ws = weights + (uniform int64)({at}) * {depth};")
        for i in range(len(self.epilogue.vectors)):
            code.line(f"const uniform float * uniform es{i} = e{i} + {at};")
        width = vectors * lanes
        if not scheme.chunk:
            code.line(f"const uniform float * uniform ahead = ws + {depth} * {width};")
            code.line(f"const uniform float * uniform asked = ahead + {depth} * {width};")
            self._pixels(vectors, "ws")
            return
        steps, chunk = number("steps", scheme.steps), number("chunk", scheme.chunk)
        taps = problem.kernel[0] * problem.kernel[1]
        terms = number("step_terms", scheme.unit * taps)
        with code.block(f"for (uniform int begin = 0; begin < {steps}; begin += {chunk})"):
            code.line(f"const uniform int end = min(begin + {chunk}, {steps});")
            code.line("uniform float * uniform kept = sums;")
            code.line(
                f"const uniform float * uniform wc = ws + (uniform int64)begin * {terms} * {width};"
            )
            next_chunk = f"min(end * {terms}, {depth}) * (uniform int64){width}"
            code.line(f"const uniform float * uniform ahead = ws + {next_chunk};")
            code.line("const uniform float * uniform asked = ahead + (ahead - wc);")
            self._pixels(vectors, "wc")

    def _pixels(self, vectors: int, weights: str) -> None:
        tile, out, code = self.scheme.tile, self.problem.out_size, self.code
        if tile.rows > 1:
            code.line("uniform int r = r0;")
            with code.block(f"for (; r + {tile.rows} <= r1; r += {tile.rows})"):
                self._call(tile.rows, tile.columns, vectors, weights, "r", "0")
            if remainder := out[0] % tile.rows:
                with code.block("if (r < r1)"):
                    self._call(remainder, tile.columns, vectors, weights, "r", "0")
            return
        with code.block("for (uniform int r = r0; r < r1; r++)"):
            code.line("uniform int c = c0;")
            with code.block(f"for (; c + {tile.columns} <= c1; c += {tile.columns})"):
                self._call(1, tile.columns, vectors, weights, "r", "c")
            for columns in self.scheme.narrower:
                several = f"for (; c + {columns} <= c1; c += {columns})"
                with code.block(several if self.scheme.any_size else "if (c < c1)"):
                    self._call(1, columns, vectors, weights, "r", "c")

    def _call(
        self, rows: int, columns: int, vectors: int, weights: str, row: str, column: str
    ) -> None:
        scheme, problem, code, number = self.scheme, self.problem, self.code, self.numbers
        read = scheme.read
        down, across = problem.stride
        if scheme.packing != "none":
            row_in, column_in = f"({row} - r0)", f"({column} - c0)"
            base = "packed"
        else:
            row_in, column_in, base = row, column, "xn"
        x_row = number("tile_row", down * read.row)
        x = f"{base} + {row_in} * {x_row} + {column_in} * {across * read.column}"
        # The tiles of a block share the prefetches of its next weights, of which the last tiles may
        # have none left.  A block's only tile prefetches at a fixed distance, if at all.
        far = "NULL" if scheme.uses_hardware_prefetch else f"{weights} + {AHEAD_FLOATS}"
        code.line(
            f"const uniform float * uniform later = {number('one_tile', int(scheme.tiles == 1))}"
            f" ? {far} : ahead < asked ? ahead : NULL;"
        )
        arguments = ["numbers", x, weights, "later", "bs"]
        if scheme.chunk:
            arguments += ["begin", "end"]
        if scheme.part:
            arguments.append("kept" if scheme.chunk else "sums")
        if scheme.skips:
            self._tap_rows(rows, row)
            arguments += ["ky0", "ky1"]
        views = [("y", "yn", problem.result)]
        views += [(f"z{i}", f"zn{i}", view) for i, view in enumerate(problem.others)]
        arguments += [
            f"{base} + {row} * {number(f'{name}_row', view.row)} + {column} * {view.column}"
            for name, base, view in views
        ]
        arguments += [f"es{i}" for i in range(len(self.epilogue.vectors))]
        arguments += ["first", "limit"]
        code.line(f"{tile_name(rows, columns, vectors)}({', '.join(arguments)});")
        if scheme.chunk:
            # With a single chunk, sums are unfinished within their tile only: all tiles use the
            # same scratch, which stays in the first-level cache.
            size = scheme.kept_floats(rows, columns, vectors)
            code.line(f"kept += {size} * {number('several_chunks', int(scheme.several_chunks))};")
        iterations = (scheme.chunk or scheme.steps) * problem.kernel[0] * problem.kernel[1]
        shift = iterations * scheme.lines_per_iteration * LINE_FLOATS
        code.line(f"ahead += {number('ahead_shift', shift if scheme.tiles > 1 else 0)};")

    def _tap_rows(self, rows: int, row: str) -> None:
        """Prints the range ``ky0`` to ``ky1`` of kernel rows that a tile computes; see
        :meth:`.problem.Problem.tap_rows`."""
        problem, code, number = self.problem, self.code, self.numbers
        taps = number("kernel_rows", problem.kernel[0])
        dilation = number("tap_rows_apart", problem.dilation[0])
        stride = number("rows_down", problem.stride[0])
        before = number("rows_before", problem.padding[0][0])
        height = number("rows_of_input", problem.in_size[0])
        finite = number("finite", self.finite)
        first = f"max(0, {before} - ({row} + {rows - 1}) * {stride} + {dilation} - 1) / {dilation}"
        last = f"max(0, {height} + {before} - {row} * {stride} + {dilation} - 1) / {dilation}"
        code.line(f"const uniform int ky0 = {finite} ? min({first}, {taps}) : 0;")
        code.line(f"const uniform int ky1 = {finite} ? max(ky0, min({last}, {taps})) : {taps};")


class Direct(Algorithm):
    """The sums as they are defined, for every shape.

    With ``compensated`` for the least error: partial sums are short, and the rounding errors of
    adding them are added at the end (whole networks take 1.25 to 1.4 times as long as with
    ``accuracy="normal"``, which may choose Winograd).  It multiplies int8 and uint8, too, where
    sums are so short that float32 holds them exactly.
    """

    error = 1.0
    factors = ("float32", "bfloat16", *INT8_DTYPES)

    def __init__(self, compensated: bool) -> None:
        self.compensated = compensated
        self.name = "direct, compensated" if compensated else "direct"
        self.accuracies = ("high",) if compensated else ("normal", "direct")

    def why_not(self, problem: Problem, has_prologue: bool, isa: Isa) -> str | None:
        if problem.source.dtype in INT8_DTYPES and problem.depth > MOST_EXACT:
            return f"sums of {problem.depth} products of int8 have more digits than float32"
        return None

    def scheme(self, problem: Problem, has_prologue: bool, isa: Isa, threads: int) -> Scheme:
        return choose_scheme(problem, has_prologue, isa, threads, self.compensated)

    def schemes(
        self, problem: Problem, has_prologue: bool, isa: Isa, threads: int
    ) -> Iterable[Scheme]:
        return schemes_for(problem, has_prologue, isa, self.compensated)

    def describe(self, scheme: Scheme) -> dict[str, int]:
        tile = scheme.tile
        figures = {"rows": tile.rows, "columns": tile.columns, "vectors": tile.vectors}
        gathered = int(scheme.packing == "gathered")
        return {**figures, "block": scheme.block, "gathered": gathered}

    def seconds(self, scheme: Scheme, speed: Speed) -> float:
        return predict_seconds(scheme, speed)

    def operations(self, scheme: Scheme) -> int:
        return round(scheme.problem.operations * scheme.taken_rows)

    def weight_bytes(self, scheme: Scheme) -> int:
        return 4 * scheme.groups * scheme.slots * scheme.problem.depth

    def print(self, parts: Parts, scheme: Scheme, threads: int) -> PrintedContraction:
        if parts.source.dtype in INT8_DTYPES:
            parts = _without_zero(parts)
        return replace(print_scheme(parts, scheme, threads), algorithm=self.name)


def _without_zero(parts: Parts) -> Parts:
    """The contraction with a prologue that subtracts the zero point from its input; so the padding,
    which is zero after the prologue, stands for 0 as well."""
    op = parts.node.op
    assert isinstance(op, (Conv2d, Linear)) and not parts.prologue
    source = parts.source
    difference = Value(TensorType(source.shape), f"{source.name}.number")
    code = linearize(argument(0) - float(op.zero))
    return replace(parts, prologue=(Operation(difference, (source,), code=code),))
