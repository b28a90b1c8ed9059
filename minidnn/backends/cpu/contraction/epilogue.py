"""Prints the epilogue of a kernel: what happens to finished sums, that is point-wise operations,
which may read further tensors and vectors over channels, and the store.

The direct algorithm, Winograd's transforms and dot products share it: it only needs to know how the
lanes of each tensor are addressed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....fusion.operations import Operation
from ....fusion.plan import chooses
from ....fusion.region import Parts
from ....graph.ir import Value
from ....graph.quantization import before_rounding
from ....graph.types import INT8_DTYPES
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ..tensor import ELEMENTS
from .numbers import Numbers
from .problem import BlockedView
from .scheme import LINE_BYTES, ResultScheme

MOST_UNROLLED = 12
"""Scalar operations, at most, of an epilogue that is unrolled for each pixel; longer ones loop."""

#: The offset of a pixel from the tile's first one, in the tensor of that name and view.
Where = Callable[[str, BlockedView], str]


@dataclass(frozen=True)
class Channels:
    """How the lanes of a vector of output channels address a tensor.

    ``kind`` is "one" (all lanes read its only channel), "vectors" (blocks of lanes), "row"
    (contiguous channels, the last lanes may be out of bounds), or "gather" (an offset per lane).
    With ``masked`` lanes past the last channel are masked.
    """

    kind: str
    masked: bool
    view: BlockedView

    def base(self, name: str, first: str, lanes: int, plane: str) -> str:
        """The pointer to the tile's first channel, which is ``first``."""
        if self.kind == "vectors":
            return f"{name} + (uniform int64)({first} / {lanes}) * {plane}"
        return f"{name} + {first}" if self.kind == "row" else name

    def at(self, name: str, pixel: str, vector: int, lanes: int) -> str:
        """The elements of a vector of channels at a pixel, one per lane."""
        match self.kind:
            case "one":
                return f"{name}[{pixel}]"
            case "vectors":
                return f"{name}_at{vector}[{pixel} + programIndex]"
            case "row":
                return f"{name}[{pixel} + {vector * lanes} + programIndex]"
        return f"{name}[{pixel} + {name}_{vector}]"


def channels_of(view: BlockedView, scheme: ResultScheme) -> Channels:
    """How the output channels of a tensor are addressed."""
    lanes = scheme.lanes
    total = scheme.problem.out_channels * scheme.problem.groups
    aligned = scheme.groups == 1 or scheme.outputs % lanes == 0
    masked = scheme.outputs % lanes != 0
    if view.broadcasts(total):
        return Channels("one", False, view)
    if view.block == lanes and not (view.contiguous and view.plane == 0) and aligned:
        return Channels("vectors", False, view)
    return Channels("row" if view.contiguous else "gather", masked, view)


class Epilogue:
    """Prints the end of a tile function.

    Args:
        parts: the contraction whose epilogue it is; None where sums are stored as they are.
        scheme: the scheme, with the views of the tensors.
        numbers: the numbers of the kernel; ``prefix`` distinguishes those of this epilogue from
            those of other epilogues in the kernel.
        sums: ISPC's type of the sums and first terms that :meth:`print_rows` reads.
    """

    def __init__(
        self,
        parts: Parts | None,
        scheme: ResultScheme,
        numbers: Numbers,
        prefix: str = "",
        sums: str = "float",
    ) -> None:
        self.sums = sums
        self.operations = () if parts is None else parts.epilogue
        self.operands = () if parts is None else parts.others
        self.start = None if parts is None else parts.node.output
        self.scheme = scheme
        self.numbers = numbers
        self.prefix = prefix
        problem = scheme.problem
        self.others = [channels_of(view, scheme) for view in problem.others]
        self.result = channels_of(problem.result, scheme)
        self.element = problem.result.element
        self.streams = parts is not None and scheme.streams and self.result.kind == "vectors"
        self.tensors = [("y", self.result), *((f"z{i}", c) for i, c in enumerate(self.others))]
        vectors = [v.value for o in self.operations for v in o.vectors]
        self.vectors: tuple[Value, ...] = tuple(dict.fromkeys(vectors))
        #: The operations before the rounding to int8 or uint8, if they end with one, whose zero
        #: point is ``zero``; the store does the rounding.
        self._before_store = self.operations
        self.zero: int | None = None
        if self.element.dtype in INT8_DTYPES and self.operations:
            *before, last = self.operations
            if (split := before_rounding(last.code)) is not None:
                self._before_store = (*before, replace(last, code=split[0]))
                self.zero = split[1]
        self.is_long = sum(o.operations for o in self.operations) > MOST_UNROLLED

    @property
    def parameters(self) -> list[str]:
        """The declarations of a tile function's parameters for the epilogue."""
        declared = [f"{self.element.pointer} y_"]
        declared += [f"{c.view.element.constant_pointer} z{i}_" for i, c in enumerate(self.others)]
        declared += [f"const uniform float * uniform e{i}_" for i in range(len(self.vectors))]
        return [*declared, "uniform int first", "uniform int limit"]

    def number(self, name: str, value: int) -> str:
        return self.numbers(self.prefix + name, value)

    def row(self, name: str, view: BlockedView) -> str:
        """The stride between rows of a tensor."""
        return self.number(f"{name}_row", view.row)

    def begin(self, code: Code, vectors: int) -> None:
        """Prints pointers to the tile's first elements."""
        for name, channels in self.tensors:
            element = channels.view.element
            pointer = element.pointer if name == "y" else element.constant_pointer
            plane = ""
            if channels.kind == "vectors":
                plane = self.number(f"{name}_plane", channels.view.plane)
            base = channels.base(f"{name}_", "first", self.scheme.lanes, plane)
            code.line(f"{pointer} {name} = {base};")
            for v in range(vectors if plane else 0):
                code.line(f"{pointer} {name}_at{v} = {name} + {v} * {plane};")

    def prefetch(
        self, code: Code, rows: int, columns: int, vectors: int, next_tile: int | None = None
    ) -> None:
        """Prints prefetches of a later tile's results and further tensors.

        ``next_tile``: how many columns further that tile is; by default the scheme gives the
        prefetch distance.
        """
        if self.start is None:
            return
        out = self.scheme.problem.out_size
        for name, channels in self.tensors:
            view = channels.view
            if channels.kind != "vectors" or (name == "y" and self.streams):
                continue
            in_order = out[0] == 1 or view.row == out[1] * view.column
            ahead = self.scheme.tiles_ahead * view.column if in_order else 0
            if next_tile is None:
                shift = f"{rows * columns} * {self.number(f'{name}_ahead', ahead)}"
            else:
                shift = str(next_tile * view.column)
            fetch = "prefetchw_l1" if name == "y" else "prefetch_l1"
            for v in range(vectors):
                code.line(
                    f"uniform int8 * uniform {name}_p{v} = "
                    f"(uniform int8 * uniform)({name}_at{v} + {shift});"
                )
            for pixel in range(rows * columns):
                row, column = divmod(pixel, columns)
                for v in range(vectors):
                    at = view.element.bytes * column * view.column
                    if at % LINE_BYTES == 0:
                        row_bytes = view.element.bytes * row
                        below = f"{row_bytes} * {self.row(name, view)} + " if row else ""
                        code.line(f"{fetch}((void * uniform)({name}_p{v} + {below}{at}));")

    def print(
        self, code: Code, rows: int, columns: int, vectors: int, partial: bool = False
    ) -> None:
        """Prints everything from the sums ``a<pixel>_<vector>`` to the stores.

        ``partial``: only the first ``rows_`` rows and ``columns_`` columns are stored.
        """
        self._lanes(code, vectors)
        if not self.is_long and not partial:
            for pixel in range(rows * columns):
                row, column = divmod(pixel, columns)
                for v in range(vectors):
                    where = self._constant_pixel(row, column)
                    self._element(code, f"a{pixel}_{v}", where, v)
            return
        count = rows * columns * vectors
        code.line(f"float sums[{count}];")
        for pixel in range(rows * columns):
            for v in range(vectors):
                code.line(f"sums[{pixel * vectors + v}] = a{pixel}_{v};")
        last = ("rows_", "columns_") if partial else (rows, columns)
        where = self._loop_pixel if rows > 1 else _loop_column
        with (
            code.block(f"for (uniform int row = 0; row < {last[0]}; row++)"),
            code.block(f"for (uniform int column = 0; column < {last[1]}; column++)"),
        ):
            for v in range(vectors):
                name = code.fresh()
                at = f"(row * {columns} + column) * {vectors} + {v}"
                code.line(f"float {name} = sums[{at}];")
                self._element(code, name, where, v)

    def print_rows(self, code: Code, vectors: int, flat_width: str) -> None:
        """Prints everything from the sums of pixels ``begin`` to ``end - 1`` to the stores.

        The layout of ``sums`` is [pixel][vector][lane]; ``bias`` is added to them.  Pixels are
        counted across rows of ``flat_width``, of which the first ``width`` are results.
        """
        lanes = self.scheme.lanes
        self._lanes(code, vectors)
        for v in range(vectors):
            code.line(f"const {self.sums} b{v} = bias[{v * lanes} + programIndex];")
        code.line(f"uniform int row = begin / {flat_width}, column = begin % {flat_width};")
        code.line("uniform int left = end - begin;")
        with code.block("while (left > 0)"):
            code.line("const uniform int stop = min(column + left, width);")
            code.line(f"const uniform {self.sums} * uniform at = sums;")
            code.line(f"const uniform int taken = {flat_width} - column;")
            with code.block("for (; column < stop; column++)"):
                for v in range(vectors):
                    name = code.fresh()
                    sum = f"at[{v * lanes} + programIndex] + b{v}"
                    code.line(f"const float {name} = (float)({sum});")
                    self._element(code, name, self._loop_pixel, v)
                code.line(f"at += {vectors * lanes};")
            code.line(f"sums += taken * {vectors * lanes};")
            code.line("left -= taken;")
            code.line("row++;")
            code.line("column = 0;")

    def _lanes(self, code: Code, vectors: int) -> None:
        """Prints what each vector of channels needs at all pixels: offsets, masks, vectors."""
        lanes = self.scheme.lanes
        for name, channels in self.tensors:
            if channels.kind == "gather":
                self._offsets(code, name, channels.view, vectors)
        for v in range(vectors):
            for i in range(len(self.vectors)):
                code.line(f"const float e{i}_{v} = e{i}_[{v * lanes} + programIndex];")
            if any(channels.masked for _, channels in self.tensors):
                code.line(f"const bool m{v} = first + {v * lanes} + programIndex < limit;")

    def _offsets(self, code: Code, name: str, view: BlockedView, vectors: int) -> None:
        for v in range(vectors):
            channel = f"(first + {v * self.scheme.lanes} + programIndex)"
            plane = self.number(f"{name}_plane", view.plane)
            offset = f"{channel} * {plane}"
            if view.block > 1:
                block = self.number(f"{name}_block", view.block)
                offset = f"{channel} / {block} * {plane} + {channel} % {block}"
            code.line(f"const int {name}_{v} = {offset};")

    def _constant_pixel(self, row: int, column: int) -> Where:
        def where(name: str, view: BlockedView) -> str:
            below = f"{row} * {self.row(name, view)} + " if row else ""
            return f"{below}{column * view.column}"

        return where

    def _loop_pixel(self, name: str, view: BlockedView) -> str:
        return f"row * {self.row(name, view)} + column * {view.column}"

    def _element(self, code: Code, sum: str, where: Where, v: int) -> None:
        names: dict[Value, str] = {} if self.start is None else {self.start: sum}
        rounded = {*self.operands}
        result = sum
        for operation in self._before_store:
            self._round(code, operation, names, rounded)
            result = self._operation(code, operation, names, where, v)
        channels = self.result
        if self.streams:
            code.line(f"streaming_store(y_at{v} + {where('y', channels.view)}, {result});")
            return
        at = channels.at("y", where("y", channels.view), v, self.scheme.lanes)
        if self.zero is None:
            stored = self.element.store(at, result)
        else:
            stored = self.element.store_nearest(at, result, self.zero)
        code.line(f"if (m{v}) {stored}" if channels.masked else stored)

    def _round(
        self, code: Code, operation: Operation, names: dict[Value, str], rounded: set[Value]
    ) -> None:
        """Rounds the bfloat16 operands of an operation, as if they had been stored in memory; an
        operation that only chooses one of its operands does not need it."""
        dtypes = {value.dtype for value in (operation.output, *operation.operands)}
        if "bfloat16" not in dtypes:
            return
        chosen = len(dtypes) == 1 and not operation.vectors
        if chosen and chooses(operation.code, operation.output.dtype):
            if rounded.issuperset(operation.operands):
                rounded.add(operation.output)
            return
        for value in operation.operands:
            if value not in rounded and value.dtype == "bfloat16":
                name = code.fresh()
                code.line(f"float {name} = {ELEMENTS[value.dtype].round(names[value])};")
                names[value] = name
                rounded.add(value)

    def _operation(
        self,
        code: Code,
        operation: Operation,
        names: dict[Value, str],
        where: Where,
        v: int,
    ) -> str:
        arguments = []
        for value in operation.operands:
            if value not in names:
                index = self.operands.index(value)
                channels = self.others[index]
                names[value] = code.fresh()
                name = f"z{index}"
                at = channels.at(name, where(name, channels.view), v, self.scheme.lanes)
                at = channels.view.element.load(at)
                if channels.masked:
                    code.line(f"float {names[value]} = 0;")
                    code.line(f"if (m{v}) {names[value]} = {at};")
                else:
                    code.line(f"float {names[value]} = {at};")
            arguments.append(names[value])
        arguments += [f"e{self.vectors.index(o.value)}_{v}" for o in operation.vectors]
        lines, result = ISPC.print_code(operation.code, arguments, code.fresh)
        code.lines(lines)
        names[operation.output] = result
        return result


def _loop_column(name: str, view: BlockedView) -> str:
    return f"column * {view.column}"
