"""Prints regions of one step for planes of any size: sizes and strides are operands.

What is printed depends on how many channels there are and how tensors lie, not on rows and
columns.  A task is some positions of the plane of one block of channels of one image, one after
the other in order.  Each result has the bits that :mod:`.sequence` gives it, a zero's sign aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ....fusion.operations import Operation, operation_of
from ....graph.ir import Graph, Value
from ....graph.window import Window
from ...codegen.any_size import print_window
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.kernel import KernelSource
from ..element import ELEMENTS
from ..execution.packing import PackedVectors
from ..isa import Isa
from ..tensor import Access, Tensor
from .transpose import Move

POSITIONS = 256
"""Of a task: rows of so many that are transposed fit the first-level cache."""


@dataclass(frozen=True)
class AnySizeKernel:
    """A printed region: its source, tasks, and the scratch memory of a thread.

    Its pointers are the values of ``operands``, the region's outputs, and ``more``.
    """

    source: KernelSource
    tasks: int
    scratch_bytes: int
    operands: tuple[Value, ...]
    more: tuple[PackedVectors | Callable[[], np.ndarray], ...]


def print_for_any_size(
    body: Graph, tensors: Callable[[Value], Tensor], isa: Isa, channel: int = 0
) -> AnySizeKernel:
    """The kernel of a region of which :func:`kernels.ops.region.why_not` says nothing.

    Args:
        tensors: how the values that it reads and its outputs lie.
        channel: where the channels of its outputs begin in these.
    """
    return _Printer(body, tensors, isa.lanes, channel).print()


class _Printer:
    def __init__(
        self, body: Graph, tensors: Callable[[Value], Tensor], lanes: int, channel: int
    ) -> None:
        self.operations = [operation_of(node, 0) for node in body.nodes]
        self.windows = [o.window for o in self.operations if o.window is not None]
        self.outputs, self.lanes, self.channel = tuple(body.outputs), lanes, channel
        self.batch, self.channels, *self.extent = body.nodes[0].output.type.plane
        made = [operation.output for operation in self.operations]
        read = dict.fromkeys(v for o in self.operations for v in o.operands if v not in made)
        self.operands = tuple(read)
        self.vectors = list(dict.fromkeys(v.value for o in self.operations for v in o.vectors))
        self.blocks = -(-self.channels // lanes)
        self.full = self.channels % lanes == 0
        self.under = {v for o in self.operations for v, window in o.reads if window is not None}
        #: Values outside of the kernel by their pointers' numbers.
        self.outside = {value: i for i, value in enumerate((*self.operands, *self.outputs))}
        self.tensors = {value: tensors(value) for value in self.outside}
        self.access = {value: self._access(value) for value in self.outside}
        planar = [value for value in self.outside if self.access[value] == "planar"]
        #: Where the rows of planes in NCHW lie in scratch memory while they are transposed.
        self.rows = {v: lanes + i * POSITIONS * lanes for i, v in enumerate(planar)}
        self.moves: set[Move] = set()
        self.numbers: dict[str, int] = {}
        self.code = Code()

    def print(self) -> AnySizeKernel:
        code, lanes, vectors = self.code, self.lanes, len(self.vectors)
        positions = self.extent[0] * self.extent[1]
        chunks = -(-positions // POSITIONS)
        sizes_at = len(self.outside) + bool(vectors)
        with code.block("MD_KERNEL($)"):
            code.line(f"const uniform int32 * uniform n = MD_IN(int32, {sizes_at});")
            words = "uniform unsigned int * uniform"
            code.line(f"{words} seen = ({words})md_scratch;")
            code.line("uniform float * uniform rows = (uniform float * uniform)md_scratch;")
            code.line("seen[programIndex] = 0;")
            count, width = self._number("count", positions), self._number("width", self.extent[1])
            parts, blocks = self._number("parts", chunks), self._number("blocks", self.blocks)
            with code.block("for (uniform int item = md_begin; item < md_end; item++)"):
                code.line(f"const uniform int begin = item % {parts} * {POSITIONS};")
                code.line(f"const uniform int block = item / {parts} % {blocks};")
                code.line(f"const uniform int64 image = item / {parts} / {blocks};")
                code.line(f"const uniform int size = min({count} - begin, {POSITIONS});")
                left = f"{self._number('channels', self.channels)} - block * {lanes}"
                code.line(f"const uniform int channels = min({left}, {lanes});")
                for value in self.outside:
                    self._pointer(value)
                for i in range(vectors):
                    at = f"(block * {vectors} + {i}) * {lanes} + programIndex"
                    code.line(f"const float v{i} = MD_IN(float, {len(self.outside)})[{at}];")
                self._move("load", self.operands)
                code.line(f"uniform int y = begin / {width}, x = begin % {width};")
                with code.block("for (uniform int j = 0; j < size; j++)"):
                    self._position()
                    code.line("x++;")
                    code.line(f"if (x == {width}) {{ x = 0; y++; }}")
                self._move("store", self.outputs)
        shared = tuple(sorted(move.text(lanes) for move in self.moves))
        packed = PackedVectors(self.vectors, self._packed, ("blocks", self.channels, lanes))
        sizes = np.array(list(self.numbers.values()), np.int32)
        return AnySizeKernel(
            KernelSource.named("any_size", str(code), "$", shared=shared),
            self.batch * self.blocks * chunks,
            4 * lanes * (1 + len(self.rows) * POSITIONS),
            self.operands,
            (*([packed] if vectors else []), lambda: sizes),
        )

    def _packed(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """All vectors, block by block of channels, each block filled up with zeros."""
        wide = np.zeros((len(given), self.blocks * self.lanes), given[0].dtype)
        wide[:, : self.channels] = given
        return wide.reshape(len(given), self.blocks, self.lanes).swapaxes(0, 1).reshape(-1)

    def _number(self, name: str, value: int) -> str:
        """How a number that depends on sizes is read."""
        self.numbers[name] = value
        return f"n[{list(self.numbers).index(name)}]"

    # Tensors

    def _first(self, value: Value) -> int:
        """The tensor's channel that is the first of those that are computed."""
        return self.channel if value in self.outputs else 0

    def _access(self, value: Value) -> Access:
        _, channels, *extent = value.type.plane
        shared = channels == 1 < self.channels
        access = self.tensors[value].access(self._first(value), self.lanes, shared)
        elsewhere = value in self.under or extent != self.extent
        return "gather" if access == "planar" and elsewhere else access

    def _pointer(self, value: Value) -> None:
        """Declares where the task's block of channels lies in a tensor."""
        code, tensor, at = self.code, self.tensors[value], self.outside[value]
        first, access, reads = self._first(value), self.access[value], value in self.operands
        base = f"{'MD_IN' if reads else 'MD_OUT'}({tensor.element.type}, {at})"
        if not value.type.plane[0] == 1 < self.batch:
            base += f" + image * {self._number(f'image{at}', tensor.image)}"
        if access != "one":
            apart = self._number(f"plane{at}", tensor.plane)
        if access == "planar":
            begin = self._number(f"first{at}", first)
            base += f" + (uniform int64)({begin} + block * {self.lanes}) * {apart}"
        elif access == "vector":
            begin = self._number(f"first{at}", first // tensor.block)
            base += f" + ({begin} + (uniform int64)block) * {apart}"
        elif access == "gather":
            begin = self._number(f"first{at}", first)
            code.line(f"const int c{at} = {begin} + block * {self.lanes} + programIndex;")
            lane = f"c{at} / {tensor.block} * {apart} + c{at} % {tensor.block}"
            code.line(f"const int l{at} = {lane};")
        if not reads and access in ("vector", "gather"):
            code.line(f"const uniform int f{at} = {self._fill(value)};")
        code.line(f"{tensor.element.pointer_type(reads)} p{at} = {base};")

    def _fill(self, value: Value) -> str:
        """The lanes that an output has to fill, with zeros past its channels."""
        tensor, at = self.tensors[value], self.outside[value]
        if self.full:
            return f"{self.lanes}"
        end = self._first(value) + self.channels
        padding = tensor.blocks * tensor.block - end if end == tensor.channels else 0
        more = self._number(f"padding{at}", padding)
        return f"channels < {self.lanes} ? min(channels + {more}, {self.lanes}) : channels"

    def _move(self, kind: str, values: Iterable[Value]) -> None:
        """Transposes the task's positions of planes in NCHW to or from scratch memory."""
        for value in values:
            if value not in self.rows:
                continue
            tensor, at = self.tensors[value], self.outside[value]
            move = Move(kind, False, self.full, tensor.element)
            self.moves.add(move)
            given = [f"p{at} + begin", self._number(f"plane{at}", tensor.plane)]
            given += ["0" if self.full else "channels", "size", f"rows + {self.rows[value]}"]
            self.code.line(f"{move.name}({', '.join(given)}, seen);")

    # Positions

    def _position(self) -> None:
        names: dict[Value, str] = {}
        for operation in self.operations:
            if operation.window is not None:
                result = self._windowed(operation, operation.window, names)
            else:
                given = [self._operand(value, names) for value in operation.operands]
                given += [f"v{self.vectors.index(each.value)}" for each in operation.vectors]
                lines, result = ISPC.print_code(operation.code, given, self.code.fresh)
                self.code.lines(lines)
            names[operation.output] = result
            if operation.output in self.outside:
                self._store(operation.output, result)
            self._round(operation.output, names)

    def _round(self, value: Value, names: dict[Value, str]) -> None:
        """What others read of a result in a narrower dtype than that in which it is computed."""
        if value.dtype != "float32" and any(value in each.operands for each in self.operations):
            rounded = self.code.fresh()
            text = ELEMENTS[value.dtype].round(names[value])
            self.code.line(f"const float {rounded} = {text};")
            names[value] = rounded

    def _index(self, value: Value, y: str, x: str) -> str:
        """Where a position of a plane lies behind the first one."""
        at, (rows, columns) = self.outside[value], value.type.plane[2:]
        pixel = self.tensors[value].block
        repeats = value not in self.under
        if repeats and [rows, columns] == self.extent:
            return f"(begin + j) * {pixel}"
        down = 0 if repeats and rows == 1 else columns * pixel
        across = 0 if repeats and columns == 1 else pixel
        row, column = self._number(f"row{at}", down), self._number(f"column{at}", across)
        return f"({y}) * {row} + ({x}) * {column}"

    def _operand(self, value: Value, names: dict[Value, str]) -> str:
        if value not in names:
            names[value] = name = self.code.fresh()
            if value in self.rows:
                read = f"rows[{self.rows[value]} + j * {self.lanes} + programIndex]"
            else:
                read = self._read(value, "y", "x")
            self.code.line(f"const float {name} = {read};")
        return names[value]

    def _read(self, value: Value, y: str, x: str) -> str:
        place, access, at = self._index(value, y, x), self.access[value], self.outside[value]
        if access == "vector":
            place += " + programIndex"
        elif access == "gather":  # lanes past the channels read the first one's element
            place += f" + (programIndex < channels ? l{at} : 0)"
        return self.tensors[value].element.load(f"p{at}[{place}]")

    def _store(self, value: Value, result: str) -> None:
        code, access, at = self.code, self.access[value], self.outside[value]
        if value in self.rows:
            row = f"rows[{self.rows[value]} + j * {self.lanes} + programIndex]"
            code.line(f"{row} = {result};")
            return
        lane = "programIndex" if access == "vector" else f"l{at}"
        place = f"p{at}[{self._index(value, 'y', 'x')} + {lane}]"
        element = self.tensors[value].element
        if self.full and access == "vector":
            code.line(element.store(place, result))
            return
        kept = f"(programIndex < channels ? {result} : 0.0f)"
        code.line(f"if (programIndex < f{at}) {element.store(place, kept)}")

    def _windowed(self, operation: Operation, window: Window, names: dict[Value, str]) -> str:
        """Joins the taps of one output, each by itself, and finishes it; the result's name."""
        code = self.code
        under, here = operation.operands[: window.under], operation.operands[window.under :]
        own = [self._operand(value, names) for value in here]
        at, (height, width) = self.outside[under[0]], under[0].type.plane[2:]
        extent = self._number(f"height{at}", height), self._number(f"width{at}", width)

        def read() -> list[str]:
            return [self._read(each, "sy", "sx") for each in under]

        return print_window(code, ISPC, "uniform ", window, extent, ("y", "x"), read, own)
