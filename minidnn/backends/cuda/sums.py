"""Kernels of channel sums: reductions over all axes but channels, or over each plane, of what
element-wise operators compute of tensors (``FusedSums``), several of them in one sweep over memory.

Each block reduces one part of the images and pixels, for some channels; a second kernel combines
the partial sums, if there are several parts.  How a sum is split depends on shapes and layouts
alone, so that every run gives the same bits.

A variance and its mean take one sweep.  Distances from the mean are not known yet, so each block
takes distances from a shift: the mean of a few of its elements.  The sum of these and the sum of
their squares give the mean of the part, and the squared distances from that.  The shift is a mean
because a single element may be so far off that digits are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd, prod

from ...fusion.region import FusedSums, Region
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.operators import Reduce, Variance
from ...graph.types import HALF_DTYPES, ITEMSIZE
from ..codegen.code import Code
from ..codegen.dialect import literal
from .expressions import print_as
from .kernels import Launch
from .partial_sums import (
    MeanAndVariance,
    PartialSums,
    SumsGrid,
    Total,
    grid_of_columns,
    grid_of_planes,
    reduce_few_partial_sums,
    reduce_partial_sums,
)
from .prelude import TYPES
from .tensor import Tensor

_ACCESS = 16  # bytes
_AROUND = 4
"""Elements of a channel whose mean is the shift of a block."""
_UNROLLED = 4
"""Packs of each tensor that a thread has in flight: loaded before it computes with any of them."""


@dataclass(frozen=True)
class SumsLaunches:
    """The kernels of a sweep.

    Attributes:
        first: the kernel that sweeps over the operands.
        operands: the values that ``first`` reads (tensors, those with a number for each plane,
            vectors), then those that it stores.  Pointers to the sums follow, or one to the
            workspace, if there is a second kernel.
        sums: which outputs of the body are sums.
        parts: the kernel that combines partial sums; it takes pointers to the workspace and then
            to the sums.  None if ``first`` writes the sums.
        bytes: the size of the workspace.
    """

    first: Launch
    operands: tuple[Value, ...]
    sums: tuple[int, ...]
    parts: Launch | None = None
    bytes: int = 0


def print_sums(op: FusedSums, layout_of: Callable[[Value], Tensor]) -> SumsLaunches:
    """The kernels of a region.

    Args:
        layout_of: the layout in memory of a value of the body: an input, a constant, or a result.
    """
    return _Printer(op, layout_of).print()


class _Printer:
    """Prints the kernels of one region."""

    def __init__(self, op: FusedSums, layout_of: Callable[[Value], Tensor]) -> None:
        self.op = op
        self.batch, self.channels = op.shape[:2]
        self.plane = prod(op.shape[2:])
        operands = (*op.body.inputs, *op.body.constants)
        self.tensors = {v: layout_of(v) for v in operands if v.shape == op.shape}
        self.numbers = {v: layout_of(v) for v in op.plane_numbers}
        self.read = (*self.tensors, *self.numbers)
        self.vectors = tuple(v for v in operands if v not in self.read)
        self.stored = {v: layout_of(v) for v in op.stored.values()}
        self.found = reductions_of(op)
        #: Sums that a thread accumulates for each channel.
        self.many = sum(each.sums for each in self.found)
        #: Groups of images that have sums of their own: each image in sums of planes, else all.
        self.groups = self.batch if op.by_plane else 1
        self.code = Code()
        self.grid: SumsGrid

    def print(self) -> SumsLaunches:
        moved = (*self._moved, *self.numbers.values())
        by_columns = self.by_columns = all(t.channel == 1 for t in moved)
        self.lanes = self._lanes()
        narrow = any(tensor.dtype in HALF_DTYPES for tensor in self._moved)
        if by_columns:
            pack_bytes = self.lanes * min(t.itemsize for t in self._moved)
            self.grid = grid_of_columns(self.channels // self.lanes, pack_bytes, narrow)
        else:
            self.grid = grid_of_planes(self.channels, narrow)
        pack_elements = 1 if by_columns else self.lanes
        count = self.batch // self.groups * self.plane // pack_elements
        threads, part = self.grid.threads, self.grid.part(count, self.groups)
        dtypes = {i: node.output.dtype for i, node in self.op.reductions.items()}
        parts = PartialSums(
            self.found, dtypes, self.groups * self.channels, part, count, pack_elements
        )
        pointers = [f"const {TYPES[v.dtype]} *x{i}" for i, v in enumerate(self.read)]
        pointers += [f"const {TYPES[v.dtype]} *v{i}" for i, v in enumerate(self.vectors)]
        pointers += [f"{TYPES[v.dtype]} *__restrict__ z{i}" for i, v in enumerate(self.stored)]
        targets = parts.results if parts.count == 1 else ["float *part"]
        head = f"void __launch_bounds__({threads}) @({', '.join((*pointers, *targets))})"
        code = self.code
        with code.block(f'extern "C" __global__ {head}'):
            code.line("MD_SHARED;")
            code.line("float *const shared = (float *)md_shared;")
            self._place(parts)
            print_sweep = self._columns if by_columns else self._planes
            print_sweep()
            lanes = self.lanes if by_columns else 1
            width, size = self.grid.wide * lanes, threads * lanes
            self._reduce_block(parts, width, size)
        shared = self.many * size + self._shift_count * width
        blocks = self.groups * self.grid.beside * parts.count
        first = Launch.named("sums", code, blocks, threads, shared * 4)
        operands, sums = (*self.read, *self.vectors, *self.stored), tuple(dtypes)
        if parts.count == 1:
            return SumsLaunches(first, operands, sums)
        second = reduce_partial_sums(parts) if self.groups == 1 else reduce_few_partial_sums(parts)
        return SumsLaunches(first, operands, sums, second, parts.bytes)

    def _place(self, parts: PartialSums) -> None:
        """Prints the channels and the group of a block, and its packs: ``begin`` to ``end``."""
        code, size, beside = self.code, parts.size, self.grid.beside
        if self.groups == 1:
            code.line(f"const int column = blockIdx.x % {beside}, p = blockIdx.x / {beside};")
            code.line(f"const unsigned begin = p * {size}u;")
            code.line(f"const unsigned end = min(begin + {size}u, {parts.packs}u);")
            return
        code.line(f"const int column = blockIdx.x % {beside};")
        code.line(f"const int p = blockIdx.x / {beside} % {parts.count};")
        code.line(f"const unsigned group = blockIdx.x / {beside * parts.count};")
        code.line(f"const unsigned past = (group + 1u) * {parts.packs}u;")
        code.line(f"const unsigned begin = past - {parts.packs}u + p * {size}u;")
        code.line(f"const unsigned end = min(begin + {size}u, past);")

    @property
    def _moved(self) -> tuple[Tensor, ...]:
        """The tensors that are read or stored, without those of a number for each plane."""
        return (*self.tensors.values(), *self.stored.values())

    @property
    def _shift_count(self) -> int:
        """How many variances there are, each of which has a shift (``first`` in the text)."""
        return sum(isinstance(each, MeanAndVariance) for each in self.found)

    def _lanes(self) -> int:
        """Elements of an access: neighbouring channels, or neighbouring pixels of a plane."""
        tensors = self._moved
        lanes = _ACCESS // max(t.itemsize for t in tensors)
        if self.by_columns:
            steps = [s for t in tensors for s in (t.offset, t.pixel, t.row, t.image)]
            steps += [s for t in self.numbers.values() for s in (t.offset, t.image)]
            return gcd(lanes, self.channels, *steps)
        return gcd(lanes, self.plane, *(s for t in tensors for s in (t.offset, t.channel, t.image)))

    def _columns(self) -> None:
        """Prints the sweep over channels-last tensors: a thread adds a pack of channels over some
        pixels."""
        code, lanes, wide = self.code, self.lanes, self.grid.wide
        code.line(f"const int beside = threadIdx.x % {wide}, down = threadIdx.x / {wide};")
        code.line(f"const int first = (column * {wide} + beside) * {lanes};")
        self._declare()
        with code.block(f"if (first < {self.channels})"):
            for i, vector in enumerate(self.vectors):
                code.line(f"float w{i}[{lanes}];")
                broad = ITEMSIZE[vector.dtype] * lanes > _ACCESS
                load = "md_load_floats" if broad else f"md_load<{lanes}>"
                code.line(f"{load}(w{i}, v{i} + first);")
                assert vector.type.size == self.channels, vector
            moved = (*self.tensors.values(), *self._broadcast_numbers, *self.stored.values())
            offsets = [f"first + {_pixel(tensor, self.plane)}" for tensor in moved]
            self._sweep("down", offsets)

    @property
    def _broadcast_numbers(self) -> list[Tensor]:
        """The operands with a number for each plane, with strides of 0 between pixels."""
        return [replace(t, row=0, pixel=0) for t in self.numbers.values()]

    def _planes(self) -> None:
        """Prints the sweep over planar tensors: a block adds one channel of some images."""
        code = self.code
        self._declare()
        for i, _ in enumerate(self.vectors):
            code.line(f"const float w{i} = md_value(v{i}[column]);")
        packs = self.plane // self.lanes
        offsets = [
            f"column * {t.channel}ll + r / {packs}u * {t.image}ll + r % {packs}u * {self.lanes}"
            + (f" + {t.offset}" if t.offset else "")
            for t in self._moved
        ]
        offsets[len(self.tensors) : len(self.tensors)] = [
            f"column * {t.channel}ll + r / {packs}u * {t.image}ll + {t.offset}"
            for t in self.numbers.values()
        ]
        self._sweep("threadIdx.x", offsets)

    def _declare(self) -> None:
        """Declares the accumulators of a thread, and the shifts."""
        for i in range(self.many):
            self.code.line(f"float sum{i}[{self.lanes}] = {{}};")
        for i in range(self._shift_count):
            self.code.line(f"float first{i}[{self.lanes}] = {{}};")

    def _sweep(self, thread: str, offsets: Sequence[str]) -> None:
        """Prints how a thread adds every ``grid.step``-th pack of the block.

        Args:
            thread: the number of the thread's first pack, below ``grid.step``.
            offsets: of pack ``r`` in each tensor that is read, each operand with a number for each
                plane, and each tensor that is stored.
        """
        code, lanes, step = self.code, self.lanes, self.grid.step
        moments = [each for each in self.found if isinstance(each, MeanAndVariance)]
        if moments:
            with code.block(f"for (unsigned k = 0; k < {_AROUND}u; k++)"):
                code.line(f"const unsigned r = begin + k * (end - begin) / {_AROUND}u;")
                with self._elements(offsets):
                    values = self._computed()
                    for i, each in enumerate(moments):
                        value = values[each.variance.inputs[0]]
                        code.line(f"first{i}[j] += {value} * {literal(1 / _AROUND)};")
            if not self.by_columns:
                for i, _ in enumerate(moments):
                    code.line(f"for (int j = 1; j < {lanes}; j++) first{i}[j] = first{i}[0];")
        if self.numbers:
            code.line("unsigned image = 0xffffffffu;")
            for i, _ in enumerate(self.numbers, len(self.tensors)):
                code.line(f"float a{i}[{lanes}];")
        packs = f"for (int k = 0; k < {_UNROLLED}; k++)"
        loop = f"for (unsigned s = begin + {thread}; s < end; s += {_UNROLLED * step}u)"
        with code.block(loop):
            for i, tensor in enumerate(self.tensors.values()):
                code.line(f"md_pack<{lanes}, {TYPES[tensor.dtype]}> q{i}[{_UNROLLED}];")
            with code.unrolled(packs):
                code.line(f"const unsigned r = s + k * {step}u;")
                code.line("if (r >= end) break;")
                for i, tensor in enumerate(self.tensors.values()):
                    word = f"md_word<{lanes * tensor.itemsize}>::type"
                    code.line(f"q{i}[k].word = *(const {word} *)(x{i} + ({offsets[i]}));")
            with code.unrolled(packs):
                code.line(f"const unsigned r = s + k * {step}u;")
                code.line("if (r >= end) break;")
                self._compute(offsets)

    def _compute(self, offsets: Sequence[str]) -> None:
        """Prints the computation of pack ``r``, the ``k``-th of those loaded: what it adds to the
        sums and what is stored of it."""
        code, lanes = self.code, self.lanes
        if self.numbers:
            images = self.plane if self.by_columns else self.plane // lanes
            with code.block(f"if (r / {images}u != image)"):
                code.line(f"image = r / {images}u;")
                self._load_numbers(offsets)
        for i, _ in enumerate(self.tensors):
            code.line(f"float a{i}[{lanes}];")
            code.line(f"md_unpack(a{i}, q{i}[k]);")
        for i, _ in enumerate(self.stored):
            code.line(f"float b{i}[{lanes}];")
        with code.unrolled(f"for (int j = 0; j < {lanes}; j++)"):
            values = self._computed()
            self._add(values)
            for i, result in enumerate(self.stored):
                code.line(f"b{i}[j] = {values[result]};")
        for i, offset in enumerate(offsets[len(self.read) :]):
            code.line(f"md_store<{lanes}>(z{i} + ({offset}), b{i});")

    def _load_numbers(self, offsets: Sequence[str]) -> None:
        """Prints the loads of operands with a number for each plane, for pack ``r``."""
        code, lanes, first = self.code, self.lanes, len(self.tensors)
        for i, (value, offset) in enumerate(
            zip(self.numbers, offsets[first:], strict=False), first
        ):
            if not self.by_columns:
                one = f"md_value(x{i}[{offset}])"
                code.line(f"for (int j = 0; j < {lanes}; j++) a{i}[j] = {one};")
                continue
            broad = ITEMSIZE[value.dtype] * lanes > _ACCESS
            load = "md_load_floats" if broad else f"md_load<{lanes}>"
            code.line(f"{load}(a{i}, x{i} + ({offset}));")

    @contextmanager
    def _elements(self, offsets: Sequence[str]) -> Iterator[None]:
        """Loads pack ``r`` and opens a loop over its elements ``j``."""
        code, lanes = self.code, self.lanes
        for i, _ in enumerate(self.tensors):
            code.line(f"float a{i}[{lanes}];")
            code.line(f"md_load<{lanes}>(a{i}, x{i} + ({offsets[i]}));")
        for i, _ in enumerate(self.numbers, len(self.tensors)):
            code.line(f"float a{i}[{lanes}];")
        self._load_numbers(offsets)
        with code.unrolled(f"for (int j = 0; j < {lanes}; j++)"):
            yield

    def _add(self, values: Mapping[Value, str]) -> None:
        """Prints what an element adds to the accumulators."""
        code, accumulator, shift = self.code, 0, 0
        for each in self.found:
            value = values[each.added]
            if isinstance(each, MeanAndVariance):
                distance = code.fresh()
                code.line(f"const float {distance} = {value} - first{shift}[j];")
                code.line(f"sum{accumulator}[j] += {distance};")
                code.line(f"sum{accumulator + 1}[j] += {distance} * {distance};")
                shift += 1
            else:
                code.line(f"sum{accumulator}[j] += {value};")
            accumulator += each.sums

    def _computed(self) -> dict[Value, str]:
        """Prints what the region computes of one element of each operand; returns the expression of
        each value."""
        names = {value: f"a{i}[j]" for i, value in enumerate(self.read)}
        element = "[j]" if self.by_columns else ""
        names |= {value: f"w{i}{element}" for i, value in enumerate(self.vectors)}
        return print_values(self.code, self.op, names)

    def _reduce_block(self, parts: PartialSums, width: int, size: int) -> None:
        """Prints how the threads of a block, which has ``width`` channels, combine their sums, of
        which they have ``size`` of each kind, in a fixed order."""
        code, lanes, step, threads = self.code, self.lanes, self.grid.step, self.grid.threads
        for i in range(self.many):
            if self.by_columns:
                index = f"{i * size} + down * {width} + beside * {lanes} + j"
                code.line(f"for (int j = 0; j < {lanes}; j++) shared[{index}] = sum{i}[j];")
                continue
            half = lanes // 2
            while half:
                code.line(f"for (int j = 0; j < {half}; j++) sum{i}[j] += sum{i}[j + {half}];")
                half //= 2
            code.line(f"shared[{i * size} + threadIdx.x] = sum{i}[0];")
        for i in range(self._shift_count):
            index = f"shared[{self.many * size + i * width}"
            if self.by_columns:
                copy = f"{index} + beside * {lanes} + j] = first{i}[j];"
                code.line(f"if (down == 0) for (int j = 0; j < {lanes}; j++) {copy}")
            else:
                code.line(f"if (threadIdx.x == 0) {index}] = first{i}[0];")
        code.line("__syncthreads();")
        with code.block(f"for (int n = {step}, s; n > 1; n = s)"):
            code.line("s = (n + 1) / 2;")
            loop = f"for (int k = threadIdx.x; k < (n - s) * {width}; k += {threads})"
            with code.block(loop):
                for i in range(self.many):
                    code.line(f"shared[{i * size} + k] += shared[{i * size} + k + s * {width}];")
            code.line("__syncthreads();")
        with code.block(f"for (int k = threadIdx.x; k < {width}; k += {threads})"):
            if self.groups == 1:
                code.line(f"const int c = column * {width} + k;")
                code.line(f"if (c >= {self.channels}) break;")
            else:
                code.line(f"if (column * {width} + k >= {self.channels}) break;")
                code.line(f"const int c = group * {self.channels} + column * {width} + k;")
            shifts = (
                f"shared[{self.many * size + i * width} + k]" for i in range(self._shift_count)
            )
            parts.print_part(code, [f"shared[{i * size} + k]" for i in range(self.many)], shifts)


def reductions_of(op: FusedSums) -> tuple[Total | MeanAndVariance, ...]:
    """The reductions of a region: sums, and each variance together with its mean.  The mean is
    computed whether it is a result or not, which changes no bit."""
    numbers: dict[Node | None, int] = {node: i for i, node in op.reductions.items()}
    means = {n: n.inputs[1].producer for n in numbers if n and isinstance(n.op, Variance)}
    return tuple(
        MeanAndVariance(node, numbers[node], numbers.get(means[node]))
        if node in means
        else Total(node, numbers[node])
        for node in op.reductions.values()
        if node not in means.values()
    )


def print_values(code: Code, op: Region, given: Mapping[Value, str]) -> dict[Value, str]:
    """Prints what a region computes of one element of each operand, whose expressions are
    ``given``; returns the expression of each value."""
    names = dict(given)
    for node in op.body.nodes:
        if isinstance(node.op, (Reduce, Variance)):
            continue
        operands = [names[value] for value in node.inputs]
        if isinstance(node.op, Elementwise):
            dtype = node.output.dtype
            result = print_as(code, dtype, node.op.lines, operands)
            if dtype in HALF_DTYPES and any(value.dtype != dtype for value in node.inputs):
                result = f"md_round<{TYPES[dtype]}>({result})"
            names[node.output] = result
        else:
            names[node.output] = operands[0]  # a broadcast vector
    return names


def _pixel(tensor: Tensor, plane: int) -> str:
    """The offset of pixel ``r``, counted through all images, in elements."""
    offset = f" + {tensor.offset}" if tensor.offset else ""
    if plane == 1:
        return f"r * {tensor.image}ll{offset}"
    if tensor.image == plane * tensor.pixel:
        return f"r * {tensor.pixel}ll{offset}"
    return f"r / {plane}u * {tensor.image}ll + r % {plane}u * {tensor.pixel}ll{offset}"
