"""Kernels of sums over all axes but channels, of expressions of tensors; several share one sweep.

Lanes are channels.  A task adds a part of the pixels of a block of channels: blocks of pixels, and
these in a tree; a second kernel adds the partial sums, if there are several parts.  All this
follows from shapes alone, so neither the number of threads nor other sums of a sweep change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ....fusion.region import FusedSums
from ....graph.expression import linearize
from ....graph.ir import Constant, Node, Value
from ....graph.operator import Elementwise
from ....graph.operators import Reduce, Variance
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.kernel import KernelSource
from ..isa import Isa
from ..stage import CASCADE, LEVELS, Staged, Workspace, stage
from ..tensor import ELEMENTS, Tensor

_LEAST = 256
"""The fewest pixels of a part."""
_ENOUGH_TASKS = 32
"""So many tasks keep all threads busy: pixels are not split further."""
_BLOCK = 64
"""Pixels of a block, which are added in four partial sums."""

_SIZES = ("channels", "plane", "pixels", "part", "parts", "blocks")
"""The names of the first kernel's sizes; after them come each tensor's strides from image to image
and from block to block of channels."""


@dataclass(frozen=True)
class Sums:
    """The kernels of a sweep, whose pointers are ``operands``, then the results."""

    staged: Staged
    operands: tuple[Value, ...]


def why_not_sums(region: FusedSums) -> str | None:
    """Why there is no sweep for these sums; None if there is."""
    if region.stored:
        return "sweeps over channels store sums alone"
    for node in region.reductions.values():
        if isinstance(node.op, Variance):
            return "it is the mean of squares that are computed with it"
        (x,) = node.inputs
        if x.dtype not in ("float32", "bfloat16") or node.output.dtype != "float32":
            return f"it adds up {x.dtype} in {node.output.dtype}"
        if x.type.rank != 4:
            return "only the channels of images are vectorized"
    return None


def print_sums(op: FusedSums, layout_of: Callable[[Value], Tensor], isa: Isa) -> Sums:
    """The kernels of a region.

    Args:
        layout_of: returns the layout of a tensor of the body: blocks of as many channels as there
            are lanes.
    """
    return _Printer(op, layout_of, isa).print()


class _Printer:
    """Prints the kernels of one region."""

    def __init__(self, op: FusedSums, layout_of: Callable[[Value], Tensor], isa: Isa) -> None:
        self.op, self.lanes = op, isa.lanes
        operands = (*op.body.inputs, *op.body.constants)
        # A constant of one pixel is a vector that has the tensor's shape.
        tensors = (v for v in operands if v.shape == op.shape and not isinstance(v, Constant))
        self.tensors = {v: layout_of(v) for v in tensors}
        assert all(tensor.block == isa.lanes for tensor in self.tensors.values())
        self.vectors = tuple(v for v in operands if v not in self.tensors)
        self.many = len(op.reductions)
        self.channels, self.plane = op.shape[1], prod(op.shape[2:])
        self.pixels = op.shape[0] * self.plane
        self.blocks = -(-self.channels // isa.lanes)
        self.parts = max(1, min(self.pixels // _LEAST, -(-_ENOUGH_TASKS // self.blocks)))
        self.part = -(-self.pixels // self.parts)
        self.parts = -(-self.pixels // self.part)
        self.code = Code()

    def print(self) -> Sums:
        operands = (*self.tensors, *self.vectors)
        results = tuple(range(len(operands), len(operands) + self.many))
        is_single = self.parts == 1
        sizes = [self.channels, self.plane, self.pixels, self.part, self.parts, self.blocks]
        sizes += [stride for t in self.tensors.values() for stride in (t.image, t.plane)]
        first = stage(
            self._first(is_single),
            (*range(len(operands)), *(results if is_single else (Workspace(0),))),
            sizes,
            self.blocks * self.parts,
            self.part * self.lanes,
        )
        if is_single:
            return Sums(Staged((first,)), operands)
        second = stage(
            self._second(),
            (Workspace(0), *results),
            [self.channels, self.pixels, self.parts, self.blocks],
            self.blocks,
            self.parts * self.lanes,
        )
        bytes = 4 * self.many * self.parts * self.blocks * self.lanes
        return Sums(Staged((first, second), bytes), operands)

    def _first(self, is_single: bool) -> KernelSource:
        """The kernel that adds the pixels of a part."""
        code = Code()
        cascade = CASCADE.format(wide="float", combine="c + a")
        sizes = len(self.tensors) + len(self.vectors) + (self.many if is_single else 1)
        with code.block("MD_KERNEL(@)"):
            code.line(f"const uniform int64 * uniform n = MD_IN(int64, {sizes});")
            code.lines(f"const uniform int64 {name} = n[{i}];" for i, name in enumerate(_SIZES))
            with code.block("for (uniform int64 t = md_begin; t < md_end; t++)"):
                code.line("const uniform int64 b = t / parts, begin = t % parts * part;")
                code.line("const uniform int64 end = min(begin + part, pixels);")
                code.line(f"const int64 c = min(b * {self.lanes} + programIndex, channels - 1);")
                for i, value in enumerate(self.vectors):
                    element = ELEMENTS[value.dtype]
                    read = element.load(f"MD_IN({element.type}, {len(self.tensors) + i})[c]")
                    code.line(f"const float w{i} = {read};")
                self._part(code)
                self._finish(code, is_single, sizes)
        return KernelSource.named("sums", cascade + str(code))

    def _part(self, code: Code) -> None:
        """Prints the loops over the pixels from ``begin`` to ``end``, image after image."""
        code.lines(f"float levels{i}[{LEVELS}];" for i in range(self.many))
        code.line("uniform int64 count = 0, r = begin;")
        with code.block("while (r < end)"):
            code.line("const uniform int64 image = r / plane, q = r % plane;")
            code.line("const uniform int run = (uniform int)min(end - r, plane - q);")
            for i, value in enumerate(self.tensors):
                at = f"image * n[{len(_SIZES) + 2 * i}] + b * n[{len(_SIZES) + 2 * i + 1}]"
                element = ELEMENTS[value.dtype]
                address = f"MD_IN({element.type}, {i}) + {at} + q * {self.lanes}"
                code.line(f"{element.constant_pointer} x{i} = {address};")
            with code.block(f"for (uniform int p = 0; p < run; p += {_BLOCK})"):
                code.line(f"const uniform int past = min(p + {_BLOCK}, run);")
                code.lines(f"float s{i}_{k} = 0.0f;" for i in range(self.many) for k in range(4))
                code.line("uniform int k = p;")
                with code.block("for (; k + 4 <= past; k += 4)"):
                    for k in range(4):
                        self._pixel(code, k)
                with code.block("for (; k < past; k++)"):
                    self._pixel(code, 0)
                code.line("count++;")
                for i in range(self.many):
                    block = f"(s{i}_0 + s{i}_1) + (s{i}_2 + s{i}_3)"
                    code.line(f"@_push(levels{i}, count, {block});")
            code.line("r += run;")

    def _pixel(self, code: Code, number: int) -> None:
        """Prints the expressions of a pixel, whose results go to the partial sums ``number``."""
        with code.block(""):
            names: dict[Value, str] = {v: f"w{i}" for i, v in enumerate(self.vectors)}
            for i, tensor in enumerate(self.tensors):
                names[tensor] = f"a{i}"
                at = f"(k + {number}) * {self.lanes} + programIndex"
                code.line(f"const float a{i} = {ELEMENTS[tensor.dtype].load(f'x{i}[{at}]')};")
            added: dict[Node, str] = {}
            for node in self.op.body.nodes:
                arguments = [names[value] for value in node.inputs]
                if isinstance(node.op, Reduce):
                    added[node] = arguments[0]
                elif isinstance(node.op, Elementwise):
                    lines, result = ISPC.print_code(
                        linearize(node.op.expression()), arguments, code.fresh
                    )
                    code.lines(lines)
                    # A value that is stored in a narrower dtype elsewhere is rounded as there.
                    names[node.output] = ELEMENTS[node.output.dtype].round(result)
                else:
                    names[node.output] = arguments[0]  # a vector that is repeated
            for i, node in self.op.reductions.items():
                code.line(f"s{i}_{number} += {added[node]};")

    def _finish(self, code: Code, is_single: bool, sizes: int) -> None:
        """Prints the stores of a task's sums: as results, or as partial sums in workspace."""
        for i in range(self.many):
            total = f"@_rest(levels{i}, count, 0.0f)"
            code.line(f"const float total{i} = {total};")
            if is_single:
                to = f"MD_OUT(float, {sizes - self.many + i})"
                code.line(self._store(i, to))
            else:
                index = f"(({i} * parts + t % parts) * blocks + b) * {self.lanes} + programIndex"
                code.line(f"MD_OUT(float, {sizes - 1})[{index}] = total{i};")

    def _store(self, number: int, to: str) -> str:
        op = self.op.reductions[number].op
        assert isinstance(op, Reduce)
        value = f"total{number}"
        if op.how == "mean":
            value += " / (uniform float)pixels"
        inside = f"b * {self.lanes} + programIndex < channels"
        return f"if ({inside}) {to}[b * {self.lanes} + programIndex] = {value};"

    def _second(self) -> KernelSource:
        """The kernel that adds the partial sums of all parts."""
        code = Code()
        with code.block("MD_KERNEL(@)"):
            code.line(f"const uniform int64 * uniform n = MD_IN(int64, {self.many + 1});")
            names = ("channels", "pixels", "parts", "blocks")
            code.lines(f"const uniform int64 {name} = n[{i}];" for i, name in enumerate(names))
            with code.block("for (uniform int64 b = md_begin; b < md_end; b++)"):
                for i in range(self.many):
                    with code.block(""):
                        code.line(f"float levels[{LEVELS}];")
                        index = f"(({i} * parts + p) * blocks + b) * {self.lanes} + programIndex"
                        partial = f"MD_IN(float, 0)[{index}]"
                        with code.block("for (uniform int64 p = 0; p < parts; p++)"):
                            code.line(f"@_push(levels, p + 1, {partial});")
                        code.line(f"const float total{i} = @_rest(levels, parts, 0.0f);")
                        code.line(self._store(i, f"MD_OUT(float, {i + 1})"))
        cascade = CASCADE.format(wide="float", combine="c + a")
        return KernelSource.named("sum_parts", cascade + str(code))
