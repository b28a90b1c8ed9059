"""Prints a plan whose planes stay in registers (see :mod:`.grid`): one channel a block, or several
whose planes are small.

Inputs are staged through shared memory, unless windows have computed taps, and outputs are stored
through it, so that every access of global memory is wide.  Where blocks' planes are not aligned to
8 bytes, words of 16 bytes are moved all the same: in shared memory the planes have the offset from
such a word that they have in global memory.

A plain window is reduced along rows and along columns, one after the other; before each, threads
exchange the edges of their rectangles.  A window with computed taps, as the gradient of a maximum
is, has all edges exchanged first, and is reduced tap by tap.  Slot ``thread + k * pitch`` of shared
memory holds element k of a thread's edges; two more slots for each k hold the identities of maxima
and sums, for threads without a neighbour.  Runs of equal steps are a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from minidnn.graph.types import ITEMSIZE
from minidnn.graph.window import COMBINERS

from ....fusion.plan import Binding, KernelPlan, PlanStep, roundings
from ...codegen.code import Code
from ...codegen.dialect import literal
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import Tensor
from .grid import Grid, assign_arrays, edges_of, is_number, planes_of
from .plans import barrier_of, positive_planes
from .rectangle import RectanglePrinter
from .sums import PlaneSums
from .vectors import SequenceKernel, are_separate_operands, kernel_of, vector_at
from .view import Functions

_HALVES = frozenset(("float16", "bfloat16"))
"""Dtypes of which a 32-bit word holds two.  Where rows of rectangles begin at odd elements too,
moving words saves a third of shared memory's accesses: 0.90 of a copy's rate over 35x35 instead of
0.82."""

_UNITS = (16, 8, 4, 2)
"""Widths of accesses in bytes."""
_LEAST_UNIT = 8
"""The narrowest access in bytes: narrower ones would take most of a kernel's instructions."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a step's function: its text, with ``<vector k>`` for vectors, and the vectors'
    numbers."""

    text: str
    vectors: tuple[int, ...]


def print_resident(
    plan: KernelPlan,
    binding: Binding,
    tensors: Sequence[Tensor],
    machine: Machine,
    grid: Grid,
) -> SequenceKernel:
    """Returns the kernel of a plan that is spread over a grid."""
    return _Printer(plan, binding, tensors, machine, grid).print()


class _Printer:
    """Prints a plan whose planes stay in the registers of a grid's threads."""

    def __init__(
        self,
        plan: KernelPlan,
        binding: Binding,
        tensors: Sequence[Tensor],
        machine: Machine,
        grid: Grid,
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.tensors = tensors
        self.grid = grid
        self.positive = positive_planes(plan)
        self.triples = machine.has_max3
        self.frame = max(end for _, end in binding.segments)
        self.functions = Functions(inline=True)
        self.barrier = barrier_of(plan, grid.threads)
        self.size = plan.anchor[0] * plan.anchor[1]
        #: Whether threads read inputs from global memory.  Windows with computed taps have little
        #: use for wide accesses, and more for room for further blocks.
        self.direct = any(o.window is not None and not o.window.is_plain for o in plan.operations)
        self.by_words: frozenset[str] = frozenset()
        self._lay_out()

    def _lay_out(self) -> None:
        """Divides shared memory: edges first, then regions for whole planes."""
        grid = self.grid
        counts = [0, 0]
        for operation in self.plan.operations:
            if operation.window is not None:
                for phase, edges in enumerate(edges_of(operation.window, grid)):
                    counts[phase] = max(counts[phase], edges)
        self.pitch = grid.threads + len(COMBINERS)
        # A window's second exchange writes to other slots than its first, so that one barrier in
        # each is enough: all threads have read a phase's slots before the other phase's barrier.
        self.phase_offsets = (0, counts[0] * self.pitch)
        self.slots = max(1, sum(counts))
        self.overlaid = self._overlays()
        self.edges_bytes = -(-self.slots * self.pitch * 4 // 16) * 16
        self.regions_offset = 0 if self.overlaid else self.edges_bytes
        planes = planes_of(self.plan, self.tensors)
        widest = max(ITEMSIZE[t.dtype] for t in planes)
        self.region_bytes = -(-self.grid.channels * self.size * widest // 16) * 16
        begins_anywhere = any(self._unit(tensor) < _LEAST_UNIT for tensor in planes)
        self.region_bytes += 16 if begins_anywhere else 0
        # The elements from one rectangle to the next along columns, rows and channels.
        steps = (grid.columns, self.plan.anchor[1], self.size)
        if (
            not self.direct
            and grid.columns > 1
            and (begins_anywhere or any(step % 2 for step in steps))
        ):
            self.by_words = _HALVES.intersection(t.dtype for t in planes)
        if self.by_words:
            self.region_bytes += -(-2 * (grid.columns + 2) // 16) * 16  # the last row, and beyond
        self.regions = 1 if self.direct else max(1, len(self.binding.inputs))

    def _overlays(self) -> bool:
        """Whether edges share memory with the regions: if whole planes are in these only before the
        first window and after the last."""
        steps = self.plan.steps
        has_window = [any(o.window is not None for o in step.operations) for step in steps]
        first = has_window.index(True)
        last = len(steps) - 1 - has_window[::-1].index(True)
        for i, step in enumerate(steps):
            for operation in step.operations:
                planes = [self.plan.planes[n] for n in operation.operands]
                if i >= first and any(plane.input is not None for plane in planes):
                    return False
                if i < last and self.plan.planes[operation.result].output is not None:
                    return False
        return True

    def print(self) -> SequenceKernel:
        body = self._body()
        shared = self.regions_offset + self.regions * self.region_bytes
        sums = 4 * len(self.plan.summed) * self.grid.threads
        shared = max(shared, self.edges_bytes, sums)
        blocks = self.binding.batch * (self.frame // self.grid.channels)
        threads = self.grid.threads
        return kernel_of(self.binding, self.tensors, body, blocks, threads, shared, self.functions)

    def _body(self) -> Code:
        code, grid = Code(), self.grid
        with code.block(""):
            code.line("MD_SHARED;")
            code.line("float *const edges = (float *)md_shared;")
            blocks = self.frame // grid.channels
            by = f" * {grid.channels}" if grid.channels > 1 else ""
            code.line(f"const int first = blockIdx.x % {blocks}u{by};")
            code.line(f"const long long image = blockIdx.x / {blocks}u;")
            code.line("const int thread = threadIdx.x;")
            # Surplus threads compute the last rectangle again, and store nothing.
            code.line(f"const int at = min(thread, {grid.used - 1});")
            of_plane = grid.down * grid.across
            row = (
                f"at / {grid.across} % {grid.down}" if grid.channels > 1 else f"at / {grid.across}"
            )
            code.line(f"const int channel = at / {of_plane};")
            code.line(f"const int ty = {row}, tx = at % {grid.across};")
            code.line(f"const int y = ty * {grid.rows}, x = tx * {grid.columns};")
            width = self.plan.anchor[1]
            code.line(f"const int corner = channel * {self.size} + y * {width} + x;")
            segments = self.binding.segments
            for segment, (begin, end) in enumerate(segments):
                test = f"if (first >= {begin} && first < {end})" if len(segments) > 1 else ""
                with code.block(test):
                    self._segment(code, segment)
        return code

    # A segment of channels

    def _segment(self, code: Code, segment: int) -> None:
        """Prints what a block does with its channels of a segment: stage inputs, run steps, store
        outputs."""
        plan, grid = self.plan, self.grid
        self.arrays = assign_arrays(plan, segment)
        operations = [o for step in plan.steps for o in step.segments[segment]]
        self.dtypes = roundings(operations, plan.planes)
        used = dict.fromkeys(
            n for s in plan.steps for o in s.segments[segment] for n in (*o.operands, o.result)
        )
        for number in used:
            self._tensor(code, number)
        for number in used:
            plane = plan.planes[number]
            if plane.input is None or is_number(plan, plane):
                continue
            if self.direct:
                type = TYPES[self.tensors[plane.input].dtype]
                code.line(f"const {type} *const in{number} = t{number};")
            else:
                self._stage(code, number)
        if not self.direct:
            code.line("md_copy_wait();")
            code.line(self.barrier)
        for array in sorted(set(self.arrays.values())):
            code.line(f"float r{array}[{grid.rows * grid.columns}];")
        sums = [n for n in used if plan.planes[n].output in plan.summed]
        if sums:
            plane_sums = PlaneSums(code, plan, grid, self.barrier, tuple(sums))
            plane_sums.declare()
        calls: list[_Call] = []
        has_identities = False
        for step in plan.steps:
            if not step.segments[segment]:
                continue
            if not has_identities and any(o.window is not None for o in step.segments[segment]):
                self._run(code, calls)
                calls = []
                self._write_identities(code)
                has_identities = True
            calls.append(self._call(step, segment))
            results = [o.result for o in step.segments[segment]]
            outputs = [n for n in results if plan.planes[n].output is not None and n not in sums]
            if outputs:
                self._run(code, calls)
                calls = []
            for number in outputs:
                self._write(code, number, segment)
        self._run(code, calls)
        if sums:
            first = len(self.binding.inputs)
            plane_sums.write([TYPES[tensor.dtype] for tensor in self.tensors[first:]])

    def _write_identities(self, code: Code) -> None:
        """Fills the slots of missing neighbours; the first exchange has a barrier before they are
        read."""
        if self.overlaid:
            code.line(self.barrier)
        threads = self.grid.threads
        with code.block(f"for (int i = thread; i < {self.slots}; i += {threads})"):
            for k, combiner in enumerate(COMBINERS.values()):
                value = literal(combiner.identity)
                code.line(f"edges[i * {self.pitch} + {threads + k}] = {value};")

    def _tensor(self, code: Code, number: int) -> None:
        """Declares the pointer to the block's first channel of a plane's tensor."""
        plane = self.plan.planes[number]
        at = self.binding.slot_of(plane)
        if at is None:
            return
        const = "const " if plane.input is not None else ""
        tensor = self.tensors[at]
        slot = self.binding.slots[at]
        terms = [f"a{at}", str(tensor.offset)]
        if not plane.one_image:
            terms.append(f"image * {tensor.image}")
        if not plane.one_channel:
            terms.append(f"(long long)(first - {slot.channel}) * {tensor.channel}")
        if is_number(self.plan, plane) and self.grid.channels > 1 and not plane.one_channel:
            terms.append(f"channel * {tensor.channel}")
        code.line(f"{const}{TYPES[tensor.dtype]} *const t{number} = {' + '.join(terms)};")

    def _unit(self, tensor: Tensor) -> int:
        """The bytes of the widest access that a tensor's planes allow in every block."""
        size = self.grid.channels * self.size
        step = self.grid.channels * tensor.channel
        common = gcd(size, tensor.image, step, tensor.offset) * tensor.itemsize
        return next(unit for unit in _UNITS if common % unit == 0)

    def _region(self, index: int, dtype: str) -> str:
        """The pointer to a region for a whole plane, as elements of a dtype."""
        return (
            f"(({TYPES[dtype]} *)(md_shared + {self.regions_offset + index * self.region_bytes}))"
        )

    def _stage(self, code: Code, number: int) -> None:
        """Starts the copy of an input's planes to its region, and declares ``in``, which points
        there."""
        index = self.plan.planes[number].input
        assert index is not None
        tensor = self.tensors[index]
        region, type, unit = self._region(index, tensor.dtype), TYPES[tensor.dtype], 16
        size = self._count(number)
        shift = self._shift(code, number, tensor)
        if not shift:
            unit = self._unit(tensor)
        vector = unit // tensor.itemsize
        step = self.grid.threads * vector
        code.line(f"const {type} *const in{number} = {region}{shift};")
        margin = f" - {vector - 1}{shift}" if shift else ""
        back = shift.replace("+", "-")
        with code.block(f"for (int i = thread * {vector}; i < {size}{margin}; i += {step})"):
            code.line(f"md_copy<{unit}>({region} + i, t{number}{back} + i);")
        if shift:
            code.line(f"const int rest{number} = ({size}{shift}) / {vector} * {vector} + thread;")
            inside = f"rest{number} >= s{number} && rest{number} < {size}{shift}"
            code.line(f"if ({inside}) {region}[rest{number}] = t{number}[rest{number}{back}];")

    def _shift(self, code: Code, number: int, tensor: Tensor) -> str:
        """Declares and returns `` + s``: the elements by which the block's part of a tensor is
        offset from a multiple of 16 bytes; empty where every block's is a multiple of 8."""
        if self._unit(tensor) >= _LEAST_UNIT:
            return ""
        vector = 16 // tensor.itemsize
        code.line(
            f"const int s{number} = (unsigned long long)t{number} / {tensor.itemsize} % {vector};"
        )
        return f" + s{number}"

    def _count(self, number: int) -> int:
        """The elements of a block's planes."""
        return self.size * (1 if self.plan.planes[number].one_channel else self.grid.channels)

    def _write(self, code: Code, number: int, segment: int) -> None:
        """Stores planes from registers to their tensor, through a region."""
        plane, grid = self.plan.planes[number], self.grid
        assert plane.output is not None
        tensor = self.tensors[len(self.binding.inputs) + plane.output]
        region = self._region(self._idle_region(number, segment), tensor.dtype)
        shift = self._shift(code, number, tensor)
        code.line(self.barrier)
        with code.block(f"if (thread < {grid.used})" if grid.used < grid.threads else ""):
            for row in range(grid.rows):
                self._write_row(code, number, row, f"{region} + corner{shift}", tensor.dtype)
        code.line(self.barrier)
        unit, size, back = 16 if shift else self._unit(tensor), self._count(number), ""
        vector = unit // tensor.itemsize
        head = f"for (int i = thread * {vector}; i < {size}{shift}; i += {grid.threads * vector})"
        with code.block(head):
            if shift:
                back = f" - s{number}"
                code.line(f"if (i < s{number} || i + {vector} > {size}{shift})")
                code.line(
                    f"  for (int j = max(i, s{number}); j < min(i + {vector}, {size}{shift}); j++)"
                )
                code.line(f"    t{number}[j{back}] = {region}[j];")
                code.line("else")
            word = f"md_word<{unit}>::type"
            code.line(f"*({word} *)(t{number}{back} + i) = *(const {word} *)({region} + i);")

    def _write_row(self, code: Code, number: int, row: int, region: str, dtype: str) -> None:
        """Copies a row of the rectangle from registers to the region."""
        columns, width = self.grid.columns, self.plan.anchor[1]
        values = [f"r{self.arrays[number]}[{row * columns + column}]" for column in range(columns)]
        to = f"{region} + {row * width}"
        if dtype not in self.by_words:
            for column, value in enumerate(values):
                test = self._inside(row, column)
                store = f"*({to} + {column}) = md_as<{TYPES[dtype]}>({value});"
                code.line(f"if ({test}) {store}" if test else store)
            return
        test = self._inside(row, 0)
        with code.block(f"if ({test})" if test else ""):
            # The last threads of a row may have fewer columns.
            last_columns = width - (self.grid.across - 1) * columns
            for count in dict.fromkeys((columns, last_columns)):
                if last_columns < columns:
                    code.line("else" if count == last_columns else f"if (x + {columns} <= {width})")
                with code.block(""):
                    code.line(f"const float row[{count}] = {{{', '.join(values[:count])}}};")
                    code.line(f"md_store_row({to}, row);")

    def _idle_region(self, number: int, segment: int) -> int:
        """The region of an input that nobody reads any more once a plane is computed, or else a new
        region."""
        if self.direct:
            return 0
        last_read: dict[int, int] = {}
        computed_in = 0
        for i, step in enumerate(self.plan.steps):
            for operation in step.segments[segment]:
                if operation.result == number:
                    computed_in = i
                for operand in operation.operands:
                    index = self.plan.planes[operand].input
                    if index is not None:
                        last_read[index] = i
        for index in range(len(self.binding.inputs)):
            if last_read.get(index, -1) <= computed_in:
                return index
        self.regions = len(self.binding.inputs) + 1
        return len(self.binding.inputs)

    def _inside(self, row: int, column: int) -> str:
        """The condition for a position of the rectangle to be in the plane; empty if it always
        is."""
        grid, (height, width) = self.grid, self.plan.anchor
        tests = []
        if (grid.down - 1) * grid.rows + row >= height:
            tests.append(f"y + {row} < {height}")
        if (grid.across - 1) * grid.columns + column >= width:
            tests.append(f"x + {column} < {width}")
        return " && ".join(tests)

    # Steps

    def _call(self, step: PlanStep, segment: int) -> _Call:
        """Prints the function of a step, and returns its call."""
        operations = step.segments[segment]
        printer = RectanglePrinter(
            self.plan,
            operations,
            self.grid,
            self.arrays,
            self.positive,
            self.triples,
            self.dtypes,
            self.phase_offsets,
            self.pitch,
            self.barrier,
            self._inside,
            self.by_words,
        )
        function = printer.print()
        call = self.functions.call(function)
        return _Call(call, tuple(printer.vectors))

    def _run(self, code: Code, calls: Sequence[_Call]) -> None:
        """Prints calls one after the other; those that differ in their vectors alone, as a loop."""
        by = " + channel" if self.grid.channels > 1 else ""
        i = 0
        while i < len(calls):
            count, steps = _repeats(calls, i)
            call = calls[i]
            if are_separate_operands(self.binding):
                count = 1
            rows = [f"{v} + k * {s}" if count > 1 else str(v)
                    for v, s in zip(call.vectors, steps, strict=True)]  # fmt: skip
            text = call.text
            for j, row in enumerate(rows):
                at = vector_at(self.binding, row, f"first{by}")
                text = text.replace(f"<vector {j}>", at)
            if count > 1:
                code.line('_Pragma("unroll 1")')
                with code.block(f"for (int k = 0; k < {count}; k++)"):
                    code.line(text)
            else:
                code.line(text)
            i += count


def _repeats(calls: Sequence[_Call], first: int) -> tuple[int, tuple[int, ...]]:
    """Returns how many calls from the first one on differ only in vectors, by equal steps, and
    those steps."""
    call = calls[first]
    none = tuple(0 for _ in call.vectors)
    if first + 1 >= len(calls) or calls[first + 1].text != call.text:
        return 1, none
    steps = tuple(b - a for a, b in zip(call.vectors, calls[first + 1].vectors, strict=True))
    count = 1
    while first + count < len(calls):
        other = calls[first + count]
        expected = tuple(v + count * s for v, s in zip(call.vectors, steps, strict=True))
        if other.text != call.text or other.vectors != expected:
            break
        count += 1
    return count, steps
