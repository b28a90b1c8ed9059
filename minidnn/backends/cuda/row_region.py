"""Kernels of regions over rows: a row stays in the registers of a few threads of a warp, or of a
block if it is long, from the first operator to the last.

Sums along a row are added pack by pack and then over threads, in an order that follows from shapes
alone.  Sums over rows are added by each thread over the rows that it has, then over those of its
block; a second kernel adds what blocks leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...fusion.rows import FusedRows, Role, is_along_rows, is_column_sum
from ...graph.expression import argument, linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.operators import LayerNorm, LogSoftmax, Reduce, Softmax
from ...graph.types import HALVES, ITEMSIZE
from ..codegen.code import Code
from ..codegen.dialect import CUDA, literal
from .kernels import Launch
from .prelude import TYPES
from .row_tiles import RowTile, choose_tile, longest_row
from .sum_parts import SumParts, Total, join_parts

_WARP = 32
_BLOCKS = 512
"""So many blocks of sums over rows run at once, or nearly, and keep the card busy."""
_ADDED = 64
"""Rows that a thread adds up at most, one after the other, so that errors stay small."""

# y = x / d, exact: of r, 1 / d rounded, and of a quotient that is off by a unit in the last place
# at most, the second correction gives the nearest float (Markstein), as long as no remainder is
# lost below the least number.  A remainder is subtracted so that zeros keep their sign.  CUDA's own
# division takes a branch for each element, beside which nothing else is computed.
_QUOTIENT = """\
MD_FUNCTION bool @_is_plain(float x) {
  const float a = fabsf(x);
  return a < 0x1p+100f && (a > 0x1p-100f || a == 0.0f);
}
MD_FUNCTION float @_quotient(float x, float d, float r) {
  const float q = x * r;
  const float y = md_fma(-md_fma(q, d, -x), r, q);
  return md_fma(-md_fma(y, d, -x), r, y);
}
MD_FUNCTION float @_over(float x, float d, float r) {
  return @_is_plain(x) ? @_quotient(x, d, r) : x / d;
}
template <int T, int N>
MD_FUNCTION void @_divide(float (&y)[T][N], const float (&x)[T][N], float d) {
  const float r = 1.0f / d;
  bool plain = d > 0x1p-20f && d < 0x1p+20f;
  #pragma unroll
  for (int t = 0; t < T; t++) {
    #pragma unroll
    for (int j = 0; j < N; j++) {
      plain = plain & @_is_plain(x[t][j]);
      y[t][j] = @_quotient(x[t][j], d, r);
    }
  }
  if (plain) return;
  #pragma unroll
  for (int t = 0; t < T; t++) {
    #pragma unroll
    for (int j = 0; j < N; j++) y[t][j] = x[t][j] / d;
  }
}
"""

_JOIN = {"max": "md_max({0}, {1})", "min": "md_min({0}, {1})", "prod": "{0} * {1}"}
_JOIN |= {"sum": "{0} + {1}", "mean": "{0} + {1}"}
_NEUTRAL = {"sum": "0.0f", "mean": "0.0f", "prod": "1.0f"}
_NEUTRAL |= {"max": literal(float("-inf")), "min": literal(float("inf"))}


@dataclass(frozen=True)
class RowLaunches:
    """The kernels of a region over rows.

    Attributes:
        operands: the values of the body that the first kernel reads, then those that it writes;
            behind these it takes the workspace, if there is a second kernel.
        sums: the numbers of the results that the second kernel writes, behind the workspace.
    """

    first: Launch
    operands: tuple[Value, ...]
    sums: tuple[int, ...] = ()
    parts: Launch | None = None
    bytes: int = 0


def why_not_rows(op: FusedRows) -> str | None:
    """Why the rows of a region do not stay in registers; None if they do."""
    most = longest_row(kept_of(op))
    if op.rows.length > most:
        return f"rows of {op.rows.length} elements do not stay in registers; valid are {most}"
    return None


def print_rows(op: FusedRows, tile: RowTile | None = None) -> RowLaunches:
    """The kernels of a region whose values are dense; under a ``tile`` that is chosen by price if
    none is given."""
    return _Printer(op, tile or tile_of(op)).print()


def tile_of(op: FusedRows) -> RowTile:
    """How the rows of a region are spread over threads."""
    values = (*op.body.inputs, *op.body.constants, *op.body.outputs)
    sizes = tuple(ITEMSIZE[v.dtype] for v in values if op.role(v) is Role.ROW) or (4,)
    reductions = sum(map(is_along_rows, op.body.nodes))
    return choose_tile(op.rows, sizes, kept_of(op), reductions)


def kept_of(op: FusedRows) -> int:
    """How many values with an element for each of a row a thread keeps at once: inputs from the
    beginning on, and a sum over rows for as long as the kernel runs."""
    nodes = op.body.nodes
    last = {value: i for i, node in enumerate(nodes) for value in node.inputs}
    alive = {v for v in op.body.inputs if op.role(v) is Role.ROW}
    most = len(alive)
    for i, node in enumerate(nodes):
        made = set(node.outputs)
        if is_column_sum(node) or op.role(node.output) is not Role.ROW:
            made = set()
        beside = isinstance(node.op, (LayerNorm, Softmax, LogSoftmax))  # distances or powers
        most = max(most, len({v for v in alive if last[v] > i} | made) + beside)
        alive = {v for v in alive | made if last.get(v, -1) > i}
    return max(1, most + len(op.sums))


class _Printer:
    def __init__(self, op: FusedRows, tile: RowTile) -> None:
        self.op = op
        self.tile = tile
        self.count = op.rows.count
        self.code = Code()
        self.given = (*op.body.inputs, *op.body.constants)
        results = [v for i, v in enumerate(op.body.outputs) if i not in op.sums]
        self.results = {value: f"y{i}" for i, value in enumerate(results)}
        #: What each value is called: an array of a thread's elements, or one number.
        self.names: dict[Value, str] = {}
        self.vectors = {v: f"x{i}" for i, v in enumerate(self.given) if self._is(v, Role.VECTOR)}
        self.sums = {node: f"sum{i}" for i, node in enumerate(op.sums.values())}
        #: The nodes that compute rows element by element and are not printed yet.
        self.pending: list[Node] = []

    def print(self) -> RowLaunches:
        code, op, tile = self.code, self.op, self.tile
        pointers = [f"const {TYPES[v.dtype]} *__restrict__ x{i}" for i, v in enumerate(self.given)]
        pointers += [f"{TYPES[v.dtype]} *__restrict__ {y}" for v, y in self.results.items()]
        pointers += ["float *__restrict__ part"] if self.sums else []
        tiles = -(-self.count // tile.beside)
        self.each = max(1, min(_ADDED, -(-tiles // _BLOCKS))) if self.sums else 1
        blocks = -(-tiles // self.each)
        code.lines(_QUOTIENT.splitlines())
        head = f"void __launch_bounds__({tile.threads}) @({', '.join(pointers)})"
        with code.block(f'extern "C" __global__ {head}'):
            if self.sums or tile.lanes > _WARP:
                code.line("MD_SHARED;")
                code.line("float *const shared = (float *)md_shared;")
            code.line(f"const int lane = threadIdx.x % {tile.lanes}u;")
            for name in self.sums.values():
                code.line(f"float {name}[{tile.turns}][{tile.pack}] = {{}};")
            own = f"blockIdx.x * {tile.beside * self.each}ll + threadIdx.x / {tile.lanes}u"
            with code.block(f"for (int k = 0; k < {self.each}; k++)" if self.each > 1 else ""):
                step = f" + k * {tile.beside}ll" if self.each > 1 else ""
                code.line(f"const long long row = {own}{step};")
                code.line(f"const bool there = row < {self.count}ll;")
                self._rows()
            for place, name in enumerate(self.sums.values()):
                self._add_block(name, place * blocks)
        shared = tile.threads * tile.elements if self.sums else 0
        shared = max(shared, tile.lanes // _WARP if tile.lanes > _WARP else 0)
        launch = Launch.named("rows", code, blocks, tile.threads, 4 * shared)
        operands = (*self.given, *self.results)
        if not self.sums:
            return RowLaunches(launch, operands)
        found = tuple(Total(node, i) for i, node in op.sums.items())
        dtypes = {i: node.output.dtype for i, node in op.sums.items()}
        parts = SumParts(found, dtypes, op.rows.length, 1, blocks, 1)
        return RowLaunches(launch, operands, tuple(op.sums), join_parts(parts), parts.bytes)

    def _rows(self) -> None:
        """Prints what is done for each row."""
        for i, value in enumerate(self.given):
            role = self.op.role(value)
            if role is Role.ROW:
                self._load(f"x{i}", value)
            elif role is not Role.VECTOR:
                place = "there ? row : 0" if role is Role.NUMBER else "0"
                self.names[value] = self._float(f"md_value(x{i}[{place}])")
        nodes = self.op.body.nodes
        for i, node in enumerate(nodes):
            if is_along_rows(node):
                self._flush(nodes[i:])
                self._along(node)
            elif self._is_quotient(node):
                self._flush(nodes[i:])
                x, d = (self.names[value] for value in node.inputs)
                self._quotients(node, x, d)
            elif is_column_sum(node) or self._is(node.output, Role.ROW):
                self.pending.append(node)
            else:
                self._of_numbers(node)
        self._flush(())

    def _is(self, value: Value, role: Role) -> bool:
        return self.op.role(value) is role

    # Memory and loops

    def _load(self, pointer: str, value: Value) -> None:
        name = self._array(value)
        with self._packs():
            load = f"md_load<{self.tile.pack}>({name}[t], {pointer} + {self._place});"
            clear = f"for (int j = 0; j < {self.tile.pack}; j++) {name}[t][j] = 0.0f;"
            self.code.line(f"if ({self._there}) {load} else {clear}")

    def _store(self, value: Value, array: str) -> None:
        """Stores a pack, if others read it."""
        if (pointer := self.results.get(value)) is not None:
            store = f"md_store<{self.tile.pack}>({pointer} + {self._place}, {array});"
            self.code.line(f"if ({self._there}) {store}")

    @property
    def _place(self) -> str:
        """Where pack ``t`` of a row begins."""
        tile = self.tile
        return f"row * {tile.length}ll + (lane + t * {tile.lanes}) * {tile.pack}"

    @property
    def _there(self) -> str:
        return "there" if self.tile.is_full else f"there && {self._inside}"

    @property
    def _inside(self) -> str:
        """Whether a thread has a pack ``t``."""
        return f"lane + t * {self.tile.lanes} < {self.tile.packs}"

    def _array(self, value: Value) -> str:
        """Declares what a thread has of a value's rows."""
        name = self.names[value] = self.code.fresh()
        self.code.line(f"float {name}[{self.tile.turns}][{self.tile.pack}];")
        return name

    @contextmanager
    def _packs(self) -> Iterator[None]:
        """A loop over a thread's packs ``t``."""
        self.code.line("#pragma unroll")
        with self.code.block(f"for (int t = 0; t < {self.tile.turns}; t++)"):
            yield

    @contextmanager
    def _elements(self) -> Iterator[None]:
        """A loop over the elements ``j`` of a pack."""
        self.code.line("#pragma unroll")
        with self.code.block(f"for (int j = 0; j < {self.tile.pack}; j++)"):
            yield

    def _float(self, text: str, dtype: str = "float32") -> str:
        """Declares a number that is rounded to a dtype."""
        name = self.code.fresh()
        rounded = f"md_round<{TYPES[dtype]}>({text})" if dtype in HALVES else text
        self.code.line(f"const float {name} = {rounded};")
        return name

    def _vector(self, value: Value) -> str:
        """Loads pack ``t`` of a vector."""
        name, pointer = self.code.fresh(), self.vectors[value]
        tile = self.tile
        self.code.line(f"float {name}[{tile.pack}] = {{}};")
        place = f"{pointer} + (lane + t * {tile.lanes}) * {tile.pack}"
        inside = "" if tile.is_full else f"if ({self._inside}) "
        self.code.line(f"{inside}md_load<{tile.pack}>({name}, {place});")
        return name

    # What is computed element by element

    def _of_numbers(self, node: Node) -> None:
        """Prints a node that computes a number of each row, or gives it another shape."""
        name = self.names[node.inputs[0]]
        if isinstance(node.op, Elementwise):
            operands = [self.names[value] for value in node.inputs]
            lines, result = CUDA.print_code(node.op.lines, operands, self.code.fresh)
            self.code.lines(lines)
            name = self._float(result, node.output.dtype)
        self._made_number(node.output, name)

    def _made_number(self, value: Value, name: str) -> None:
        self.names[value] = name
        if (pointer := self.results.get(value)) is not None:
            element = f"md_as<{TYPES[value.dtype]}>({name})"
            self.code.line(f"if (there && lane == 0) {pointer}[row] = {element};")

    def _flush(self, behind: Sequence[Node]) -> None:
        """Prints what computes rows element by element and has waited so far, in one loop; the
        nodes ``behind`` it may read what it makes."""
        nodes, self.pending = self.pending, []
        if not nodes:
            return
        code = self.code
        read = {value for node in behind for value in node.inputs}
        made = [node.output for node in nodes if not is_column_sum(node)]
        arrays = {value: self._array(value) for value in made if value in read}
        operands = dict.fromkeys(value for node in nodes for value in node.inputs)
        with self._packs():
            local = {v: f"{self._vector(v)}[j]" for v in operands if v in self.vectors}
            local |= {v: self._at(v) for v in operands if v in self.names and v not in made}
            stored = {v: code.fresh() for v in made if v in self.results}
            for name in stored.values():
                code.line(f"float {name}[{self.tile.pack}];")
            with self._elements():
                for node in nodes:
                    self._element(node, local)
                code.lines(f"{name}[t][j] = {local[v]};" for v, name in arrays.items())
                code.lines(f"{name}[j] = {local[v]};" for v, name in stored.items())
            for value, name in stored.items():
                self._store(value, name)

    def _at(self, value: Value) -> str:
        """An element of rows, or what is the same for all of them."""
        return f"{self.names[value]}[t][j]" if self._is(value, Role.ROW) else self.names[value]

    def _element(self, node: Node, local: dict[Value, str]) -> None:
        """Prints what a node does to one element."""
        first = local[node.inputs[0]]
        if is_column_sum(node):
            whole = self.count % (self.tile.beside * self.each) == 0 and self.tile.is_full
            added = first if whole else f"{self._there} ? {first} : 0.0f"
            self.code.line(f"{self.sums[node]}[t][j] += {added};")
        elif isinstance(node.op, Elementwise):
            given = [local[value] for value in node.inputs]
            lines, result = CUDA.print_code(node.op.lines, given, self.code.fresh)
            self.code.lines(lines)
            local[node.output] = self._float(result, node.output.dtype)
        else:  # it has another shape, or is repeated
            local[node.output] = first

    # What needs all of a row

    def _along(self, node: Node) -> None:
        op, x = node.op, self._at(node.inputs[0])
        if isinstance(op, Reduce):
            name = self._joined(x, op.how)
            self._made_number(node.output, self._float(name, node.output.dtype))
        elif isinstance(op, LayerNorm):
            self._layer_norm(node, op, x)
        else:
            assert isinstance(op, (Softmax, LogSoftmax))
            self._softmax(node, x, isinstance(op, LogSoftmax))

    def _joined(self, element: str, how: str) -> str:
        """What all threads of a row know of its elements: the name of a number."""
        code, join = self.code, _JOIN[how]
        name, part = code.fresh(), code.fresh()
        code.line(f"float {name} = {_NEUTRAL[how]};")
        with self._packs(), code.block("" if self.tile.is_full else f"if ({self._inside})"):
            code.line(f"float {part} = {_NEUTRAL[how]};")
            with self._elements():
                code.line(f"{part} = {join.format(part, f'({element})')};")
            code.line(f"{name} = {join.format(name, part)};")
        other = f"__shfl_xor_sync(0xffffffffu, {name}, s)"
        code.line("#pragma unroll")
        loop = f"for (int s = {min(self.tile.lanes, _WARP) // 2}; s; s >>= 1)"
        with code.block(loop):
            code.line(f"{name} = {join.format(name, other)};")
        if self.tile.lanes > _WARP:
            code.line("__syncthreads();")
            code.line(f"if (threadIdx.x % {_WARP} == 0) shared[threadIdx.x / {_WARP}] = {name};")
            code.line("__syncthreads();")
            code.line(f"{name} = shared[0];")
            loop = f"for (int w = 1; w < {self.tile.lanes // _WARP}; w++)"
            code.line(f"{loop} {name} = {join.format(name, 'shared[w]')};")
        if how != "mean":
            return name
        length = np.float32(self.tile.length)
        factor = literal(float(np.float32(1.0) / length))
        return self._float(f"@_over({name}, {literal(float(length))}, {factor})")

    def _is_quotient(self, node: Node) -> bool:
        """Whether a node divides rows by their numbers, and does nothing else."""
        if not isinstance(node.op, Elementwise) or len(node.inputs) != 2:
            return False
        plain = linearize(argument(0) / argument(1))
        roles = list(map(self.op.role, node.inputs))
        return roles == [Role.ROW, Role.NUMBER] and node.op.lines == plain

    def _quotients(self, node: Node, x: str, d: str) -> None:
        """Prints rows that are divided by their numbers, and then scaled and shifted by vectors
        that a normalization has."""
        quotient = self.code.fresh()
        self.code.line(f"float {quotient}[{self.tile.turns}][{self.tile.pack}];")
        self.code.line(f"@_divide({quotient}, {x}, {d});")
        self._made_rows(node, f"{quotient}[t][j]")

    def _made_rows(self, node: Node, element: str) -> None:
        """Prints rows of elements, which are scaled and then shifted by a normalization's
        vectors."""
        code, name = self.code, self._array(node.output)
        vectors = node.inputs[1:] if isinstance(node.op, LayerNorm) else ()
        with self._packs():
            loaded = [self._vector(value) for value in vectors]
            with self._elements():
                value = element
                for sign, vector in zip("*+", loaded, strict=False):
                    value = self._float(f"{value} {sign} {vector}[j]")
                code.line(f"{name}[t][j] = {self._float(value, node.output.dtype)};")
            self._store(node.output, f"{name}[t]")

    def _layer_norm(self, node: Node, op: LayerNorm, x: str) -> None:
        code = self.code
        apart = code.fresh()
        code.line(f"float {apart}[{self.tile.turns}][{self.tile.pack}];")
        for _ in range(2):  # the second mean is what rounding the first one left
            mean = self._joined(x, "mean")
            with self._packs(), self._elements():
                code.line(f"{apart}[t][j] = {x} - {mean};")
            x = f"{apart}[t][j]"
        variance = self._joined(f"{x} * {x}", "mean")
        scale = self._float(f"sqrtf({variance} + {literal(op.eps)})")
        self._quotients(node, apart, scale)

    def _softmax(self, node: Node, x: str, logarithm: bool) -> None:
        code = self.code
        top = self._joined(x, "max")
        if logarithm:
            scale = self._float(f"md_log({self._joined(f'md_exp({x} - {top})', 'sum')})")
            self._made_rows(node, f"({x} - {top}) - {scale}")
            return
        power = code.fresh()
        code.line(f"float {power}[{self.tile.turns}][{self.tile.pack}];")
        with self._packs(), self._elements():
            code.line(f"{power}[t][j] = md_exp({x} - {top});")
        scale = self._joined(f"{power}[t][j]", "sum")
        self._quotients(node, power, scale)

    # What needs all rows

    def _add_block(self, name: str, place: int) -> None:
        """Prints how the threads of a block add what they have of a sum over rows; blocks leave
        these from row ``place`` of the workspace on."""
        code, tile = self.code, self.tile
        column = f"(lane + t * {tile.lanes}) * {tile.pack} + j"
        whole = f"part[({place}ll + blockIdx.x) * {tile.length} + "
        if tile.beside == 1:
            with self._packs(), self._elements():
                inside = "" if tile.is_full else f"if ({self._inside}) "
                code.line(f"{inside}{whole}{column}] = {name}[t][j];")
            return
        some = min(16, tile.beside)
        code.line("__syncthreads();")
        with self._packs(), self._elements():
            inside = "" if tile.is_full else f"if ({self._inside}) "
            to = f"shared[threadIdx.x / {tile.lanes}u * {tile.length} + {column}]"
            code.line(f"{inside}{to} = {name}[t][j];")
        code.line("__syncthreads();")
        with code.block(f"for (int c = threadIdx.x; c < {tile.length}; c += {tile.threads})"):
            code.line("float all = 0.0f;")
            with code.block(f"for (int r = 0; r < {tile.beside}; r += {some})"):
                code.line("float some = 0.0f;")
                loop = f"for (int q = r; q < r + {some}; q++)"
                code.line(f"{loop} some += shared[q * {tile.length} + c];")
                code.line("all += some;")
            code.line(f"{whole}c] = all;")
