"""Kernels of row regions (:mod:`minidnn.fusion.rows`): chains of element-wise operators and of
reductions along the last axis, such as softmax or layer normalization with what surrounds it.

A row stays in registers from the first operator to the last: in those of a few threads of a warp,
or of a whole block if it is long (:mod:`.row_tiles`).

A reduction along a row combines the packs of each thread and then the threads, in an order that
follows from shapes alone.  For a column sum, which adds up rows, each thread accumulates its own
rows, and each block adds up its threads; a second kernel adds the partial sums of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from ...fusion.rows import FusedRows, Role, is_along_rows, is_column_sum
from ...graph.expression import argument, linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise
from ...graph.operators import LayerNorm, LogSoftmax, Reduce, Softmax
from ...graph.types import HALF_DTYPES, ITEMSIZE
from ..codegen.code import Code
from ..codegen.dialect import CUDA, literal
from .kernels import Launch
from .partial_sums import PartialSums, Total, reduce_partial_sums
from .prelude import TYPES
from .reduce import COMBINE, IDENTITIES
from .row_tiles import RowTile, choose_tile, longest_row

_WARP = 32
_BLOCKS = 512
"""Blocks that a kernel with column sums aims at: about all run at once and keep the GPU busy."""
_ADDED = 64
"""The most rows that a thread accumulates in sequence, so that rounding errors stay small."""

# y = x / d, correctly rounded: r is 1 / d, rounded, and the first correction gives a quotient that
# is off by at most one unit in the last place; the second one then gives the nearest float
# (Markstein), as long as no remainder underflows.  A remainder is subtracted so that zeros keep
# their sign.  CUDA's own division branches for each element, and nothing else is computed
# meanwhile.
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


@dataclass(frozen=True)
class RowLaunches:
    """The kernels of a row region.

    Attributes:
        first: the kernel that computes the rows.
        operands: the values of the body that ``first`` reads, then those that it writes; if there
            is a second kernel, the pointer to the workspace follows them.
        sums: which outputs of the body are column sums; ``parts`` takes pointers to the workspace
            and then to these.
        parts: the kernel that adds the partial sums of blocks; None if there are no column sums.
        bytes: the size of the workspace, which holds the partial sums.
    """

    first: Launch
    operands: tuple[Value, ...]
    sums: tuple[int, ...] = ()
    parts: Launch | None = None
    bytes: int = 0


def why_not_rows(op: FusedRows) -> str | None:
    """Why the rows of a region do not fit in registers; None if they do."""
    most = longest_row(kept_of(op))
    if op.rows.length > most:
        return f"rows of {op.rows.length} elements do not stay in registers; valid are {most}"
    return None


def print_rows(op: FusedRows, tile: RowTile | None = None) -> RowLaunches:
    """The kernels of a region whose values are dense, for a ``tile``; by default for the one that
    the cost model chooses."""
    return _Printer(op, tile or tile_of(op)).print()


def tile_of(op: FusedRows) -> RowTile:
    """Chooses how the rows of a region are distributed over threads."""
    values = (*op.body.inputs, *op.body.constants, *op.body.outputs)
    sizes = tuple(ITEMSIZE[v.dtype] for v in values if op.role(v) is Role.ROW) or (4,)
    reductions = sum(map(is_along_rows, op.body.nodes))
    return choose_tile(op.rows, sizes, kept_of(op), reductions)


def kept_of(op: FusedRows) -> int:
    """The most values of rows that are in registers at once.

    Inputs are loaded first, so they count from the beginning on; the accumulator of a column sum
    counts for as long as the kernel runs.
    """
    nodes = op.body.nodes
    last = {value: i for i, node in enumerate(nodes) for value in node.inputs}
    alive = {v for v in op.body.inputs if op.role(v) is Role.ROW}
    peak = len(alive)
    for i, node in enumerate(nodes):
        defined = set(node.outputs)
        if is_column_sum(node) or op.role(node.output) is not Role.ROW:
            defined = set()
        scratch = isinstance(node.op, (LayerNorm, Softmax, LogSoftmax))  # centered, or exponentials
        peak = max(peak, len({v for v in alive if last[v] > i} | defined) + scratch)
        alive = {v for v in alive | defined if last.get(v, -1) > i}
    return max(1, peak + len(op.sums))


class _Printer:
    """Prints the kernels of one region."""

    def __init__(self, op: FusedRows, tile: RowTile) -> None:
        self.op = op
        self.tile = tile
        self.count = op.rows.count
        self.code = Code()
        self.given = (*op.body.inputs, *op.body.constants)
        results = [v for i, v in enumerate(op.body.outputs) if i not in op.sums]
        self.results = {value: f"y{i}" for i, value in enumerate(results)}
        #: The C++ name of each value: of an array of the thread's elements, or of one number.
        self.names: dict[Value, str] = {}
        self.vectors = {v: f"x{i}" for i, v in enumerate(self.given) if self._is(v, Role.VECTOR)}
        self.sums = {node: f"sum{i}" for i, node in enumerate(op.sums.values())}
        #: Element-wise nodes, and column sums, that are not printed yet.
        self.pending: list[Node] = []

    def print(self) -> RowLaunches:
        code, op, tile = self.code, self.op, self.tile
        pointers = [f"const {TYPES[v.dtype]} *__restrict__ x{i}" for i, v in enumerate(self.given)]
        pointers += [f"{TYPES[v.dtype]} *__restrict__ {y}" for v, y in self.results.items()]
        pointers += ["float *__restrict__ part"] if self.sums else []
        tiles = -(-self.count // tile.beside)
        #: Tiles of rows that a block computes, one after the other.
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
                code.line(f"float {name}[{tile.iterations}][{tile.pack}] = {{}};")
            first_row = f"blockIdx.x * {tile.beside * self.each}ll + threadIdx.x / {tile.lanes}u"
            with code.block(f"for (int k = 0; k < {self.each}; k++)" if self.each > 1 else ""):
                step = f" + k * {tile.beside}ll" if self.each > 1 else ""
                code.line(f"const long long row = {first_row}{step};")
                code.line(f"const bool there = row < {self.count}ll;")
                self._rows()
            for index, name in enumerate(self.sums.values()):
                self._add_block(name, index * blocks)
        shared = tile.threads * tile.elements if self.sums else 0
        shared = max(shared, tile.lanes // _WARP if tile.lanes > _WARP else 0)
        launch = Launch.named("rows", code, blocks, tile.threads, 4 * shared)
        operands = (*self.given, *self.results)
        if not self.sums:
            return RowLaunches(launch, operands)
        totals = tuple(Total(node, i) for i, node in op.sums.items())
        dtypes = {i: node.output.dtype for i, node in op.sums.items()}
        parts = PartialSums(totals, dtypes, op.rows.length, 1, blocks, 1)
        return RowLaunches(
            launch, operands, tuple(op.sums), reduce_partial_sums(parts), parts.bytes
        )

    def _rows(self) -> None:
        """Prints the computation of one row: loads, then the nodes in order, with their stores."""
        for i, value in enumerate(self.given):
            role = self.op.role(value)
            if role is Role.ROW:
                self._load(f"x{i}", value)
            elif role is not Role.VECTOR:
                index = "there ? row : 0" if role is Role.NUMBER else "0"
                self.names[value] = self._float(f"md_value(x{i}[{index}])")
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
                self._print_numbers(node)
        self._flush(())

    def _is(self, value: Value, role: Role) -> bool:
        return self.op.role(value) is role

    # Memory and loops

    def _load(self, pointer: str, value: Value) -> None:
        """Loads the thread's elements of an input; they are 0 where it has none."""
        name = self._array(value)
        with self._packs():
            load = f"md_load<{self.tile.pack}>({name}[t], {pointer} + {self._place});"
            clear = f"for (int j = 0; j < {self.tile.pack}; j++) {name}[t][j] = 0.0f;"
            self.code.line(f"if ({self._there}) {load} else {clear}")

    def _store(self, value: Value, array: str) -> None:
        """Stores pack ``t`` of a value, if that is a result of the region."""
        if (pointer := self.results.get(value)) is not None:
            store = f"md_store<{self.tile.pack}>({pointer} + {self._place}, {array});"
            self.code.line(f"if ({self._there}) {store}")

    @property
    def _place(self) -> str:
        """The offset of pack ``t`` of the row in a value, in elements."""
        tile = self.tile
        return f"row * {tile.length}ll + (lane + t * {tile.lanes}) * {tile.pack}"

    @property
    def _there(self) -> str:
        """The condition under which there is a row, and a pack ``t`` of it for the thread."""
        return "there" if self.tile.is_full else f"there && {self._inside}"

    @property
    def _inside(self) -> str:
        """The condition under which a row has a pack ``t`` for the thread."""
        return f"lane + t * {self.tile.lanes} < {self.tile.packs}"

    def _array(self, value: Value) -> str:
        """Declares the array of the thread's elements of a value."""
        self.names[value] = self._fresh_array()
        return self.names[value]

    def _fresh_array(self) -> str:
        """Declares an array of the thread's elements."""
        name = self.code.fresh()
        self.code.line(f"float {name}[{self.tile.iterations}][{self.tile.pack}];")
        return name

    def _packs(self) -> AbstractContextManager[None]:
        """A loop over a thread's packs ``t``."""
        return self.code.unrolled(f"for (int t = 0; t < {self.tile.iterations}; t++)")

    def _elements(self) -> AbstractContextManager[None]:
        """A loop over the elements ``j`` of a pack."""
        return self.code.unrolled(f"for (int j = 0; j < {self.tile.pack}; j++)")

    def _float(self, text: str, dtype: str = "float32") -> str:
        """Declares a number that is rounded to a dtype; returns its name."""
        name = self.code.fresh()
        rounded = f"md_round<{TYPES[dtype]}>({text})" if dtype in HALF_DTYPES else text
        self.code.line(f"const float {name} = {rounded};")
        return name

    def _vector(self, value: Value) -> str:
        """Loads pack ``t`` of a vector; returns the name of an array."""
        name, pointer = self.code.fresh(), self.vectors[value]
        tile = self.tile
        self.code.line(f"float {name}[{tile.pack}] = {{}};")
        address = f"{pointer} + (lane + t * {tile.lanes}) * {tile.pack}"
        inside = "" if tile.is_full else f"if ({self._inside}) "
        self.code.line(f"{inside}md_load<{tile.pack}>({name}, {address});")
        return name

    # Element-wise nodes

    def _print_numbers(self, node: Node) -> None:
        """Prints a node that computes a number of each row, or gives such numbers a new shape."""
        name = self.names[node.inputs[0]]
        if isinstance(node.op, Elementwise):
            operands = [self.names[value] for value in node.inputs]
            name = self._computed(node, operands)
        self._define_number(node.output, name)

    def _computed(self, node: Node, operands: Sequence[str]) -> str:
        """Prints an element-wise node over single numbers; returns the name of its result."""
        assert isinstance(node.op, Elementwise)
        lines, result = CUDA.print_code(node.op.lines, operands, self.code.fresh)
        self.code.lines(lines)
        return self._float(result, node.output.dtype)

    def _define_number(self, value: Value, name: str) -> None:
        """Records the name of a number of each row, and stores it if it is a result."""
        self.names[value] = name
        if (pointer := self.results.get(value)) is not None:
            element = f"md_as<{TYPES[value.dtype]}>({name})"
            self.code.line(f"if (there && lane == 0) {pointer}[row] = {element};")

    def _flush(self, rest: Sequence[Node]) -> None:
        """Prints the pending element-wise nodes in one loop; values that ``rest``, the nodes that
        follow, read are kept in arrays."""
        nodes, self.pending = self.pending, []
        if not nodes:
            return
        code = self.code
        read = {value for node in rest for value in node.inputs}
        defined = [node.output for node in nodes if not is_column_sum(node)]
        arrays = {value: self._array(value) for value in defined if value in read}
        operands = dict.fromkeys(value for node in nodes for value in node.inputs)
        with self._packs():
            local = {v: f"{self._vector(v)}[j]" for v in operands if v in self.vectors}
            local |= {v: self._at(v) for v in operands if v in self.names and v not in defined}
            stored = {v: code.fresh() for v in defined if v in self.results}
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
        """The expression of an element of a row, or of the number that all its elements share."""
        return f"{self.names[value]}[t][j]" if self._is(value, Role.ROW) else self.names[value]

    def _element(self, node: Node, local: dict[Value, str]) -> None:
        """Prints a node for one element; ``local`` has the expressions of elements."""
        operand = local[node.inputs[0]]
        if is_column_sum(node):
            unmasked = self.count % (self.tile.beside * self.each) == 0 and self.tile.is_full
            added = operand if unmasked else f"{self._there} ? {operand} : 0.0f"
            self.code.line(f"{self.sums[node]}[t][j] += {added};")
        elif isinstance(node.op, Elementwise):
            operands = [local[value] for value in node.inputs]
            local[node.output] = self._computed(node, operands)
        else:  # a reshape or a broadcast
            local[node.output] = operand

    # Reductions along a row

    def _along(self, node: Node) -> None:
        """Prints a node that reduces or normalizes rows."""
        op, x = node.op, self._at(node.inputs[0])
        if isinstance(op, Reduce):
            name = self._row_reduction(x, op.how)
            self._define_number(node.output, self._float(name, node.output.dtype))
        elif isinstance(op, LayerNorm):
            self._layer_norm(node, op, x)
        else:
            assert isinstance(op, (Softmax, LogSoftmax))
            self._softmax(node, x, isinstance(op, LogSoftmax))

    def _row_reduction(self, element: str, how: str) -> str:
        """Reduces an expression over all elements of a row; returns the name of the result, which
        all threads of the row have."""
        code, combine, identity = self.code, COMBINE[how], IDENTITIES[how]
        name, part = code.fresh(), code.fresh()
        code.line(f"float {name} = {identity};")
        with self._packs(), code.block("" if self.tile.is_full else f"if ({self._inside})"):
            code.line(f"float {part} = {identity};")
            with self._elements():
                code.line(f"{part} = {combine.format(part, f'({element})')};")
            code.line(f"{name} = {combine.format(name, part)};")
        other = f"__shfl_xor_sync(0xffffffffu, {name}, s)"
        with code.unrolled(f"for (int s = {min(self.tile.lanes, _WARP) // 2}; s; s >>= 1)"):
            code.line(f"{name} = {combine.format(name, other)};")
        if self.tile.lanes > _WARP:
            code.line("__syncthreads();")
            code.line(f"if (threadIdx.x % {_WARP} == 0) shared[threadIdx.x / {_WARP}] = {name};")
            code.line("__syncthreads();")
            code.line(f"{name} = shared[0];")
            loop = f"for (int w = 1; w < {self.tile.lanes // _WARP}; w++)"
            code.line(f"{loop} {name} = {combine.format(name, 'shared[w]')};")
        if how != "mean":
            return name
        length = np.float32(self.tile.length)
        factor = literal(float(np.float32(1.0) / length))
        return self._float(f"@_over({name}, {literal(float(length))}, {factor})")

    def _is_quotient(self, node: Node) -> bool:
        """Whether a node divides each row by one number, and does nothing else."""
        if not isinstance(node.op, Elementwise) or len(node.inputs) != 2:
            return False
        plain = linearize(argument(0) / argument(1))
        roles = list(map(self.op.role, node.inputs))
        return roles == [Role.ROW, Role.NUMBER] and node.op.lines == plain

    def _quotients(self, node: Node, x: str, d: str) -> None:
        """Prints a node whose result is rows ``x`` divided by their numbers ``d``, before the scale
        and shift of a layer normalization."""
        quotient = self._fresh_array()
        self.code.line(f"@_divide({quotient}, {x}, {d});")
        self._define_rows(node, f"{quotient}[t][j]")

    def _define_rows(self, node: Node, element: str) -> None:
        """Prints the result of a node from the expression of an element, and stores it; that of a
        layer normalization is scaled and shifted by its vectors first."""
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
        """Prints a layer normalization, from rows that are centered in registers."""
        code = self.code
        centered = self._fresh_array()
        for _ in range(2):  # the second mean is the rounding error of the first
            mean = self._row_reduction(x, "mean")
            with self._packs(), self._elements():
                code.line(f"{centered}[t][j] = {x} - {mean};")
            x = f"{centered}[t][j]"
        variance = self._row_reduction(f"{x} * {x}", "mean")
        scale = self._float(f"sqrtf({variance} + {literal(op.eps)})")
        self._quotients(node, centered, scale)

    def _softmax(self, node: Node, x: str, logarithm: bool) -> None:
        """Prints a softmax or its logarithm, of rows whose maximum is subtracted first."""
        code = self.code
        top = self._row_reduction(x, "max")
        if logarithm:
            scale = self._float(f"md_log({self._row_reduction(f'md_exp({x} - {top})', 'sum')})")
            self._define_rows(node, f"({x} - {top}) - {scale}")
            return
        exponential = self._fresh_array()
        with self._packs(), self._elements():
            code.line(f"{exponential}[t][j] = md_exp({x} - {top});")
        scale = self._row_reduction(f"{exponential}[t][j]", "sum")
        self._quotients(node, exponential, scale)

    # Column sums

    def _add_block(self, name: str, first: int) -> None:
        """Prints how a block adds the accumulators ``name`` of its threads.  Each block writes one
        row of partial sums; those of this column sum begin at row ``first`` of the workspace."""
        code, tile = self.code, self.tile
        column = f"(lane + t * {tile.lanes}) * {tile.pack} + j"
        target = f"part[({first}ll + blockIdx.x) * {tile.length} + "
        if tile.beside == 1:
            with self._packs(), self._elements():
                inside = "" if tile.is_full else f"if ({self._inside}) "
                code.line(f"{inside}{target}{column}] = {name}[t][j];")
            return
        chunk = min(16, tile.beside)
        code.line("__syncthreads();")
        with self._packs(), self._elements():
            inside = "" if tile.is_full else f"if ({self._inside}) "
            to = f"shared[threadIdx.x / {tile.lanes}u * {tile.length} + {column}]"
            code.line(f"{inside}{to} = {name}[t][j];")
        code.line("__syncthreads();")
        with code.block(f"for (int c = threadIdx.x; c < {tile.length}; c += {tile.threads})"):
            code.line("float all = 0.0f;")
            with code.block(f"for (int r = 0; r < {tile.beside}; r += {chunk})"):
                code.line("float some = 0.0f;")
                loop = f"for (int q = r; q < r + {chunk}; q++)"
                code.line(f"{loop} some += shared[q * {tile.length} + c];")
                code.line("all += some;")
            code.line(f"{target}c] = all;")
