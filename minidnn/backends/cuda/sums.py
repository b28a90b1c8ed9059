"""Kernels of sums over all axes but channels, of what is computed of tensors, several in a sweep.

Blocks add parts, each for some channels; a second kernel adds up the parts, if there are several.
How a sum is parted depends on shapes and layouts alone, so that every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, prod

from ...fusion.region import FusedSums
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.operators import Reduce
from ...graph.types import ITEMSIZE
from ...graph.window import LONG
from ..codegen.code import Code
from ..codegen.dialect import CUDA, literal
from .kernels import Launch
from .prelude import TYPES
from .target import HALVES
from .tensor import Tensor

_THREADS = 256
_ACCESS = 16  # bytes
_BLOCKS = 1024
"""So many blocks keep every card busy."""
_LEAST, _MOST = 4, 64
"""Elements of a channel that a thread adds, in packs."""
_COLUMNS = 32
"""Packs side by side that a block adds."""


@dataclass(frozen=True)
class SumsLaunches:
    """The kernels of a sweep.

    Attributes:
        operands: the tensors, then the vectors that the first takes, before where it writes.
        parts: what adds parts; it takes the workspace behind its operands.  None: the first kernel
            writes the results.
        bytes: of the workspace.
    """

    first: Launch
    operands: tuple[Value, ...]
    parts: Launch | None = None
    bytes: int = 0


def print_sums(op: FusedSums, lies: Callable[[Value], Tensor]) -> SumsLaunches:
    """The kernels of a region.

    Args:
        lies: how a value of the body, which one of the inputs or constants is, lies in memory.
    """
    return _Printer(op, lies).print()


class _Printer:
    def __init__(self, op: FusedSums, lies: Callable[[Value], Tensor]) -> None:
        self.op = op
        self.batch, self.channels = op.shape[:2]
        self.plane = prod(op.shape[2:])
        operands = (*op.body.inputs, *op.body.constants)
        self.tensors = {v: lies(v) for v in operands if v.shape == op.shape}
        self.vectors = tuple(v for v in operands if v not in self.tensors)
        self.many = len(op.reductions)
        self.code = Code()

    def print(self) -> SumsLaunches:
        by_columns = all(t.channel == 1 for t in self.tensors.values())
        self.lanes = self._lanes(by_columns)
        if by_columns:
            packs = self.channels // self.lanes
            wide = min(_COLUMNS, 1 << (packs - 1).bit_length())
            beside, step = -(-packs // wide), _THREADS // wide
            count = self.batch * self.plane
        else:
            wide, beside, step = 1, self.channels, _THREADS
            count = self.batch * self.plane // self.lanes
        part = step * max(_LEAST, min(_MOST, -(-count * beside // (step * _BLOCKS))))
        parts = -(-count // part)
        to = self._results() if parts == 1 else ["float *part"]
        with self._kernel(to):
            self.code.line(f"const int column = blockIdx.x % {beside}, p = blockIdx.x / {beside};")
            self.code.line(f"const unsigned begin = p * {part}u;")
            self.code.line(f"const unsigned end = min(begin + {part}u, {count}u);")
            add = self._columns if by_columns else self._planes
            add(wide, step)
            self._join(by_columns, wide, step, parts)
        shared = self.many * _THREADS * (self.lanes if by_columns else 1) * 4
        first = Launch.named("sums", self.code, beside * parts, _THREADS, shared)
        operands = (*self.tensors, *self.vectors)
        if parts == 1:
            return SumsLaunches(first, operands)
        bytes = self.many * parts * self.channels * 4
        return SumsLaunches(first, operands, self._of_parts(parts), bytes)

    def _lanes(self, by_columns: bool) -> int:
        """Neighbours that an access moves: channels, or pixels of a plane."""
        tensors = self.tensors.values()
        lanes = _ACCESS // max(t.itemsize for t in tensors)
        if by_columns:
            steps = [s for t in tensors for s in (t.offset, t.pixel, t.row, t.image)]
            return gcd(lanes, self.channels, *steps)
        return gcd(lanes, self.plane, *(s for t in tensors for s in (t.offset, t.channel, t.image)))

    def _results(self) -> list[str]:
        return [f"{TYPES[v.dtype]} *y{i}" for i, v in enumerate(self.op.body.outputs)]

    @contextmanager
    def _kernel(self, to: Sequence[str]) -> Iterator[None]:
        given = [f"const {TYPES[v.dtype]} *x{i}" for i, v in enumerate(self.tensors)]
        given += [f"const {TYPES[v.dtype]} *v{i}" for i, v in enumerate(self.vectors)]
        head = f"void __launch_bounds__({_THREADS}) @({', '.join((*given, *to))})"
        with self.code.block(f'extern "C" __global__ {head}'):
            self.code.line("MD_SHARED;")
            self.code.line("float *const shared = (float *)md_shared;")
            yield

    def _columns(self, wide: int, step: int) -> None:
        """Channels side by side: a thread adds a pack of them over some pixels."""
        code, lanes = self.code, self.lanes
        code.line(f"const int beside = threadIdx.x % {wide}, down = threadIdx.x / {wide};")
        code.line(f"const int first = (column * {wide} + beside) * {lanes};")
        self._declare("sum")
        with code.block(f"if (first < {self.channels})"):
            for i, vector in enumerate(self.vectors):
                code.line(f"float w{i}[{lanes}];")
                wide = ITEMSIZE[vector.dtype] * lanes > _ACCESS
                load = "md_load_floats" if wide else f"md_load<{lanes}>"
                code.line(f"{load}(w{i}, v{i} + first);")
                assert vector.type.size == self.channels, vector
            places = [_pixel(tensor, self.plane) for tensor in self.tensors.values()]
            self._sweep(step, "down", [f"first + {place}" for place in places], "w{}[j]")

    def _planes(self, wide: int, step: int) -> None:
        """Pixels side by side: a block adds a channel of some images."""
        code = self.code
        self._declare("sum")
        for i, _ in enumerate(self.vectors):
            code.line(f"const float w{i} = md_value(v{i}[column]);")
        packs = self.plane // self.lanes
        places = [
            f"column * {t.channel}ll + r / {packs}u * {t.image}ll + r % {packs}u * {self.lanes}"
            + (f" + {t.offset}" if t.offset else "")
            for t in self.tensors.values()
        ]
        self._sweep(step, "threadIdx.x", places, "w{}")

    def _declare(self, name: str) -> None:
        for i in range(self.many):
            self.code.line(f"float {name}{i}[{self.lanes}] = {{}};")

    def _sweep(self, step: int, own: str, places: Sequence[str], vector: str) -> None:
        """A thread adds every ``step``-th pack of its part, a few at a time, and these."""
        code, lanes = self.code, self.lanes
        most = step * LONG
        with code.block(f"for (unsigned b = begin + {own}; b < end; b += {most}u)"):
            self._declare("block")
            code.line(f"const unsigned past = min(b + {most}u, end);")
            with code.block(f"for (unsigned r = b; r < past; r += {step}u)"):
                for i, place in enumerate(places):
                    code.line(f"float a{i}[{lanes}];")
                    code.line(f"md_load<{lanes}>(a{i}, x{i} + ({place}));")
                code.line("#pragma unroll")
                with code.block(f"for (int j = 0; j < {lanes}; j++)"):
                    for i, value in enumerate(self._computed(vector)):
                        code.line(f"block{i}[j] += {value};")
            code.line("#pragma unroll")
            with code.block(f"for (int j = 0; j < {lanes}; j++)"):
                for i in range(self.many):
                    code.line(f"sum{i}[j] += block{i}[j];")

    def _computed(self, vector: str) -> list[str]:
        """Prints what is computed of one element of each operand; what is added of it."""
        code = self.code
        names = {value: f"a{i}[j]" for i, value in enumerate(self.tensors)}
        names |= {value: vector.format(i) for i, value in enumerate(self.vectors)}
        added: dict[Node, str] = {}
        for node in self.op.body.nodes:
            given = [names[value] for value in node.inputs]
            if isinstance(node.op, Reduce):
                added[node] = given[0]
            elif isinstance(node.op, Elementwise):
                lines, result = CUDA.print_code(linearize(node.op.expression()), given, code.fresh)
                code.lines(lines)
                dtype = node.output.dtype
                if dtype in HALVES and any(value.dtype != dtype for value in node.inputs):
                    result = f"md_round<{TYPES[dtype]}>({result})"
                names[node.output] = result
            else:
                names[node.output] = given[0]  # a vector that is repeated
        return [added[node] for node in self.op.reductions]

    def _join(self, by_columns: bool, wide: int, step: int, parts: int) -> None:
        """The threads of a block add what they have, in a fixed order."""
        code, lanes = self.code, self.lanes
        width = wide * lanes if by_columns else 1
        for i in range(self.many):
            if by_columns:
                place = f"{i * _THREADS * lanes} + down * {width} + beside * {lanes} + j"
                code.line(f"for (int j = 0; j < {lanes}; j++) shared[{place}] = sum{i}[j];")
                continue
            half = lanes // 2
            while half:
                code.line(f"for (int j = 0; j < {half}; j++) sum{i}[j] += sum{i}[j + {half}];")
                half //= 2
            code.line(f"shared[{i * _THREADS} + threadIdx.x] = sum{i}[0];")
        code.line("__syncthreads();")
        size = _THREADS * lanes if by_columns else _THREADS
        with code.block(f"for (int s = {step // 2}; s; s >>= 1)"):
            loop = f"for (int k = threadIdx.x; k < s * {width}; k += {_THREADS})"
            with code.block(loop):
                for i in range(self.many):
                    code.line(f"shared[{i * size} + k] += shared[{i * size} + k + s * {width}];")
            code.line("__syncthreads();")
        with code.block(f"for (int k = threadIdx.x; k < {width}; k += {_THREADS})"):
            code.line(f"const int c = column * {width} + k;")
            code.line(f"if (c >= {self.channels}) break;")
            for i in range(self.many):
                value = f"shared[{i * size} + k]"
                if parts == 1:
                    code.line(self._result(i, value))
                else:
                    code.line(f"part[({i * parts}ll + p) * {self.channels} + c] = {value};")

    def _result(self, number: int, total: str) -> str:
        node, count = self.op.reductions[number], float(self.batch * self.plane)
        assert isinstance(node.op, Reduce)
        value = f"{total} / {literal(count)}" if node.op.how == "mean" else total
        return f"y{number}[c] = md_as<{TYPES[node.output.dtype]}>({value});"

    def _of_parts(self, parts: int) -> Launch:
        """Adds the parts of each channel: threads of a block take every eighth."""
        code, rows = Code(), _THREADS // _COLUMNS
        columns = -(-self.channels // _COLUMNS)
        head = ", ".join(("const float *part", *self._results()))
        with code.block(f'extern "C" __global__ void __launch_bounds__({_THREADS}) @({head})'):
            code.line("MD_SHARED;")
            code.line("float *const shared = (float *)md_shared;")
            code.line(f"const int which = blockIdx.x / {columns};")
            place = f"blockIdx.x % {columns} * {_COLUMNS} + threadIdx.x % {_COLUMNS}"
            code.line(f"const int c = {place}, down = threadIdx.x / {_COLUMNS};")
            code.line("float total = 0.0f;")
            most = rows * LONG
            loop = f"for (int b = down; b < {parts}; b += {most})"
            with code.block(f"if (c < {self.channels}) {loop}"):
                code.line("float block = 0.0f;")
                code.line(f"const int past = min(b + {most}, {parts});")
                one = f"part[(which * {parts}ll + r) * {self.channels} + c]"
                code.line(f"for (int r = b; r < past; r += {rows}) block += {one};")
                code.line("total += block;")
            code.line("shared[threadIdx.x] = total;")
            code.line("__syncthreads();")
            with code.block(f"for (int s = {rows // 2}; s; s >>= 1)"):
                other = f"shared[threadIdx.x + s * {_COLUMNS}]"
                code.line(f"if (down < s) shared[threadIdx.x] += {other};")
                code.line("__syncthreads();")
            code.line(f"if (down || c >= {self.channels}) return;")
            code.line("total = shared[threadIdx.x];")
            for i in range(self.many):
                code.line(f"if (which == {i}) {self._result(i, 'total')}")
        return Launch.named("sum_parts", code, self.many * columns, _THREADS, _THREADS * 4)


def _pixel(tensor: Tensor, plane: int) -> str:
    """Where pixel ``r`` of all images begins."""
    offset = f" + {tensor.offset}" if tensor.offset else ""
    if plane == 1:
        return f"r * {tensor.image}ll{offset}"
    if tensor.image == plane * tensor.pixel:
        return f"r * {tensor.pixel}ll{offset}"
    return f"r / {plane}u * {tensor.image}ll + r % {plane}u * {tensor.pixel}ll{offset}"
