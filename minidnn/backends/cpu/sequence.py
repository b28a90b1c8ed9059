"""Prints a kernel plan as ISPC: lanes are channels, loops are over patches.

The printer decides nothing: buffers, extents, steps and code stand in the plan.  What it adds is
how tensors are addressed.  A task is one column of patches of one block of channels of one
image.  Where a window may reach into padding, columns are split into an edge, where each tap is
tested, and an interior, where none is; rows that touch padding take the tested code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cache import digest
from ...fusion.geometry import Extent
from ...fusion.plan import Binding, KernelPlan, PlanOperation, PlanStep
from ...graph.window import Window, WindowAxis
from .code import Code
from .isa import Isa
from .kernels import KernelSource
from .scalar import literal, print_code
from .tensor import Tensor

UNROLLED_TAPS = 36
"""Windows with more taps are loops."""


@dataclass(frozen=True)
class SequenceKernel:
    """A printed plan: its source, tasks an image, and the scratch memory of a thread."""

    source: KernelSource
    tasks_per_image: int
    scratch_bytes: int


def print_sequence(
    plan: KernelPlan,
    binding: Binding,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    isa: Isa,
) -> SequenceKernel:
    """The kernel of a plan on tensors that lie as given.

    Its pointers are the inputs, the outputs, then the vectors, whose first element belongs to
    their first channel.
    """
    printer = _Printer(plan, binding, tuple(inputs), tuple(outputs), isa)
    return printer.print()


class _Printer:
    def __init__(
        self,
        plan: KernelPlan,
        binding: Binding,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        isa: Isa,
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.inputs = inputs
        self.outputs = outputs
        self.lanes = isa.lanes
        self.code = Code()
        strips = len(plan.patches(0))
        self.chunks = -(-strips // plan.schedule.strips)
        self.across = len(plan.patches(1))
        self.buffers: dict[int, int] = {}
        floats = 0
        for number, plane in enumerate(plan.planes):
            if plane.buffer is not None:
                self.buffers[number] = floats
                floats += plane.buffer[0] * plane.buffer[1] * self.lanes
        self.scratch_bytes = floats * 4

    def print(self) -> SequenceKernel:
        blocks = [-(-(end - begin) // self.lanes) for begin, end in self.binding.segments]
        per_block = self.chunks * self.across
        for segment in range(len(blocks)):
            self._segment(segment)
        code = self.code
        with (
            code.block("MD_KERNEL(@)"),
            code.block("for (uniform int item = md_begin; item < md_end; item++)"),
        ):
            code.line(f"uniform int patch = item % {per_block};")
            code.line(f"uniform int block = item / {per_block} % {sum(blocks)};")
            code.line(f"uniform int64 image = item / {per_block * sum(blocks)};")
            first = 0
            for segment, count in enumerate(blocks):
                with code.block(f"if (block >= {first} && block < {first + count})"):
                    self._call(segment, f"block - {first}")
                first += count
        name = f"seq_{digest(str(code), self.plan.digest)[:20]}"
        text = str(code).replace("@", name)
        source = KernelSource(name, text)
        return SequenceKernel(source, per_block * sum(blocks), self.scratch_bytes)

    def _call(self, segment: int, block: str) -> None:
        begin, end = self.binding.segments[segment]
        call = f"@_{segment}(md_pointers, image, {block}, patch, md_scratch);"
        if (end - begin) % self.lanes == 0:
            self.code.line(call)
            return
        self.code.line(f"if (({block}) * {self.lanes} + programIndex < {end - begin}) {call}")

    def _segment(self, segment: int) -> None:
        begin, end = self.binding.segments[segment]
        full = (end - begin) % self.lanes == 0
        code = self.code
        with code.block(
            f"static inline {'unmasked ' if full else ''}void @_{segment}("
            "uniform int8 * uniform * uniform md_pointers, uniform int64 image, "
            "uniform int block, uniform int patch, uniform int8 * uniform md_scratch)"
        ):
            for number in range(len(self.inputs)):
                self._tensor(f"i{number}", number, self.inputs[number], segment, "const ")
            for number in range(len(self.outputs)):
                at = len(self.inputs) + number
                self._tensor(f"o{number}", at, self.outputs[number], segment, "")
            for number, vector in enumerate(self.binding.vectors):
                at = len(self.inputs) + len(self.outputs) + number
                if self._vector_is_used(segment, number):
                    shift = begin - vector.channel
                    code.line(
                        f"const float v{number} = MD_IN(float, {at})"
                        f"[{shift} + block * {self.lanes} + programIndex];"
                    )
            for number, offset in self.buffers.items():
                code.line(
                    f"uniform float * uniform b{number} = "
                    f"(uniform float * uniform)md_scratch + {offset};"
                )
            self._loops(segment)

    def _vector_is_used(self, segment: int, number: int) -> bool:
        return any(number in o.vectors for s in self.plan.steps for o in s.segments[segment])

    # Tensors

    def _tensor(self, name: str, at: int, tensor: Tensor, segment: int, const: str) -> None:
        """Declares a tensor's pointer for this task; for lanes that do not lie side by side also
        their offsets."""
        plane_number = self._plane_of(name)
        if plane_number is None or not self._is_used(plane_number, segment):
            return
        plane = self.plan.planes[plane_number]
        slots = self.binding.inputs if plane.input is not None else self.binding.outputs
        slot = slots[int(name[1:])]
        begin = self.binding.segments[segment][0] - slot.channel
        macro = "MD_IN" if const else "MD_OUT"
        image = "" if plane.one_image else f" + image * {tensor.image}"
        base = f"{macro}(float, {at}){image}"
        kind = self._access(name, segment)
        if kind == "vector":
            step = tensor.plane if tensor.block > 1 else self.lanes
            first = begin // tensor.block * tensor.plane if tensor.block > 1 else begin
            base += f" + {first} + (uniform int64)block * {step}"
        elif kind == "gather":
            self.code.line(f"const int c_{name} = {begin} + block * {self.lanes} + programIndex;")
            lane = f"c_{name} / {tensor.block} * {tensor.plane} + c_{name} % {tensor.block}"
            self.code.line(f"const int l_{name} = {lane};")
        self.code.line(f"{const}uniform float * uniform {name} = {base};")

    def _access(self, name: str, segment: int) -> str:
        """How lanes are read: "vector" side by side, "one" for all, "gather" one by one."""
        number = self._plane_of(name)
        assert number is not None
        plane = self.plan.planes[number]
        if plane.one_channel:
            return "one"
        tensor = (self.inputs if name[0] == "i" else self.outputs)[int(name[1:])]
        slots = self.binding.inputs if name[0] == "i" else self.binding.outputs
        begin = self.binding.segments[segment][0] - slots[int(name[1:])].channel
        aligned = tensor.block == self.lanes and begin % self.lanes == 0
        return "vector" if aligned or tensor.lanes_contiguous else "gather"

    def _plane_of(self, name: str) -> int | None:
        wanted = int(name[1:])
        for number, plane in enumerate(self.plan.planes):
            if (plane.input if name[0] == "i" else plane.output) == wanted:
                return number
        return None

    def _is_used(self, number: int, segment: int) -> bool:
        return any(
            number in (*o.operands, o.result)
            for step in self.plan.steps
            for o in step.segments[segment]
        )

    def _at(self, name: str, segment: int, row: str, column: str) -> str:
        """The element of a tensor at a position, for all lanes."""
        tensor = (self.inputs if name[0] == "i" else self.outputs)[int(name[1:])]
        pixel = f"(({row}) * {tensor.columns} + ({column})) * {tensor.block}"
        kind = self._access(name, segment)
        lane = {"vector": " + programIndex", "one": "", "gather": f" + l_{name}"}[kind]
        return f"{name}[{pixel}{lane}]"

    def _buffer_at(self, number: int, row: str, column: str) -> str:
        buffer = self.plan.planes[number].buffer
        assert buffer is not None
        ring = f"(({row}) % {buffer[0]})"
        return (
            f"b{number}[({ring} * {buffer[1]} + ({column}) - x_{number}) * {self.lanes}"
            " + programIndex]"
        )

    def _read(self, number: int, segment: int, reader: int, row: str, column: str) -> str:
        """A plane at a position of its pointwise reader, or at that of a window's tap."""
        plane = self.plan.planes[number]
        if plane.input is None:
            return self._buffer_at(number, row, column)
        if reader >= 0:
            extent = self.plan.planes[reader].extent
            row = "0" if plane.extent[0] == 1 != extent[0] else row
            column = "0" if plane.extent[1] == 1 != extent[1] else column
        return self._at(f"i{plane.input}", segment, row, column)

    # Loops

    def _loops(self, segment: int) -> None:
        code, plan = self.code, self.plan
        height, width = plan.anchor
        schedule = plan.schedule
        code.line(f"uniform int cb = patch % {self.across} * {schedule.columns};")
        code.line(f"uniform int ce = min(cb + {schedule.columns}, {width});")
        code.line(f"uniform int sb = patch / {self.across} * {schedule.rows * schedule.strips};")
        code.line(f"uniform int se = min(sb + {schedule.rows * schedule.strips}, {height});")
        for number, plane in enumerate(plan.planes):
            if (
                plane.output is not None
                and plane.owned is not None
                and self._is_used(number, segment)
            ):
                self._interval(f"oy{number}", plane.owned[0], "sb", "se", height)
                self._interval(f"ox{number}", plane.owned[1], "cb", "ce", width)
        for number in self.buffers:
            self._interval(f"x_{number}", plan.planes[number].columns, "cb", "ce", width, "")
        for i, step in enumerate(plan.steps):
            if step.segments[segment]:
                self._interval(f"x{i}", step.columns, "cb", "ce", width)
                if schedule.strips > 1:
                    code.line(f"uniform int done{i} = 0;")
        if schedule.strips > 1:
            with code.block(f"for (uniform int rb = sb; rb < se; rb += {schedule.rows})"):
                code.line(f"uniform int re = min(rb + {schedule.rows}, se);")
                self._steps(segment, "rb", "re")
        else:
            self._steps(segment, "sb", "se")

    def _interval(
        self, name: str, extent: Extent, begin: str, end: str, size: int, suffix: str = "b"
    ) -> None:
        """Declares the begin (and end, unless ``suffix`` is empty) of an extent."""
        code = self.code
        if extent.scale == 0:
            low, high = "0", str(extent.size)
        else:
            low = f"clamp({extent.scale} * {begin} + {extent.low}, 0, {extent.size})"
            high = f"clamp({extent.scale} * {end} + {extent.high}, 0, {extent.size})"
            if extent.to_end:
                high = f"({end} == {size} ? {extent.size} : {high})"
        code.line(f"uniform int {name}{suffix} = {low};")
        if suffix:
            code.line(f"uniform int {name}e = {high};")

    def _steps(self, segment: int, begin: str, end: str) -> None:
        code = self.code
        for i, step in enumerate(self.plan.steps):
            operations = step.segments[segment]
            if not operations:
                continue
            with code.block(""):
                self._interval(f"y{i}", step.rows, begin, end, self.plan.anchor[0])
                if self.plan.schedule.strips > 1:
                    code.line(f"y{i}b = max(y{i}b, done{i});")
                    code.line(f"done{i} = max(done{i}, y{i}e);")
                with code.block(f"for (uniform int y = y{i}b; y < y{i}e; y++)"):
                    self._row(i, step, segment)

    def _row(self, i: int, step: PlanStep, segment: int) -> None:
        operations = step.segments[segment]
        window = operations[0].window
        if window is None:
            self._columns(f"x{i}b", f"x{i}e", operations, segment, edge=False)
            return
        plane = self.plan.planes[operations[0].operands[0]]
        inside = [_interior(a, s) for a, s in zip(window.axes, plane.extent, strict=True)]
        out = self.plan.planes[operations[0].result].extent
        whole = [span == (0, size) for span, size in zip(inside, out, strict=True)]
        if all(whole):
            self._columns(f"x{i}b", f"x{i}e", operations, segment, edge=False)
            return
        (top, bottom), (left, right) = inside
        if top >= bottom or left >= right:
            self._columns(f"x{i}b", f"x{i}e", operations, segment, edge=True)
            return
        code = self.code
        rows = "true" if whole[0] else f"y >= {top} && y < {bottom}"
        with code.block(f"if ({rows})"):
            code.line(f"uniform int xl = clamp({left}, x{i}b, x{i}e);")
            code.line(f"uniform int xr = clamp({right}, xl, x{i}e);")
            if not whole[1]:
                self._columns(f"x{i}b", "xl", operations, segment, edge=True)
            self._columns("xl", "xr", operations, segment, edge=False)
            if not whole[1]:
                self._columns("xr", f"x{i}e", operations, segment, edge=True)
        if not whole[0]:
            with code.block("else"):
                self._columns(f"x{i}b", f"x{i}e", operations, segment, edge=True)

    def _columns(
        self, begin: str, end: str, operations: Sequence[PlanOperation], segment: int, edge: bool
    ) -> None:
        with self.code.block(f"for (uniform int x = {begin}; x < {end}; x++)"):
            names: dict[int, str] = {}
            for operation in operations:
                result = self._operation(operation, segment, names, edge)
                names[operation.result] = result
                self._store(operation.result, segment, result)

    def _operation(
        self, operation: PlanOperation, segment: int, names: dict[int, str], edge: bool
    ) -> str:
        if operation.window is not None:
            return self._window(operation, segment, edge)
        arguments = []
        for number in operation.operands:
            if number not in names:
                name = self.code.fresh()
                read = self._read(number, segment, operation.result, "y", "x")
                self.code.line(f"float {name} = {read};")
                if self.plan.planes[number].input is None:
                    names[number] = name
                arguments.append(name)
            else:
                arguments.append(names[number])
        arguments += [f"v{number}" for number in operation.vectors]
        lines, result = print_code(operation.code, arguments, self.code.fresh)
        self.code.lines(lines)
        return result

    def _store(self, number: int, segment: int, result: str) -> None:
        plane = self.plan.planes[number]
        if plane.buffer is not None:
            self.code.line(f"{self._buffer_at(number, 'y', 'x')} = {result};")
        if plane.output is None:
            return
        assert plane.owned is not None
        store = f"{self._at(f'o{plane.output}', segment, 'y', 'x')} = {result};"
        tests = []
        if plane.owned[0] != plane.rows:
            tests.append(f"y >= oy{number}b && y < oy{number}e")
        if plane.owned[1] != plane.columns:
            tests.append(f"x >= ox{number}b && x < ox{number}e")
        self.code.line(f"if ({' && '.join(tests)}) {store}" if tests else store)

    # Windows

    def _window(self, operation: PlanOperation, segment: int, edge: bool) -> str:
        window = operation.window
        assert window is not None
        code = self.code
        total = code.fresh()
        code.line(f"float {total} = {literal(window.identity)};")
        join = "md_max(%s, %s)" if window.reduce == "max" else "%s + %s"
        if window.taps <= UNROLLED_TAPS:
            for row in range(window.rows.kernel):
                part = code.fresh()
                code.line(f"float {part} = {literal(window.identity)};")
                for column in range(window.columns.kernel):
                    self._tap(operation, window, segment, edge, part, str(row), str(column))
                code.line(f"{total} = {join % (total, part)};")
        else:
            with code.block(f"for (uniform int ky = 0; ky < {window.rows.kernel}; ky++)"):
                code.line(f"float part = {literal(window.identity)};")
                with code.block(f"for (uniform int kx = 0; kx < {window.columns.kernel}; kx++)"):
                    self._tap(operation, window, segment, edge, "part", "ky", "kx")
                code.line(f"{total} = {join % (total, 'part')};")
        if window.reduce == "average":
            code.line(f"{total} = {total} / {self._divisor(operation, window)};")
        return total

    def _tap(
        self,
        operation: PlanOperation,
        window: Window,
        segment: int,
        edge: bool,
        total: str,
        row: str,
        column: str,
    ) -> None:
        (source,) = operation.operands
        plane = self.plan.planes[source]
        at = [
            f"{var} * {axis.stride} + {tap} * {axis.dilation} - {axis.padding[0]}"
            for var, axis, tap in zip("yx", window.axes, (row, column), strict=True)
        ]
        read = self._read(source, segment, -1, *at)
        join = f"md_max({total}, {read})" if window.reduce == "max" else f"{total} + {read}"
        test = ""
        if edge:
            test = (
                f"if ({at[0]} >= 0 && {at[0]} < {plane.extent[0]} && "
                f"{at[1]} >= 0 && {at[1]} < {plane.extent[1]}) "
            )
        self.code.line(f"{test}{total} = {join};")

    def _divisor(self, operation: PlanOperation, window: Window) -> str:
        """How many taps count at this position: a constant, or a formula of the position."""
        extent = self.plan.planes[operation.operands[0]].extent
        counts = window.divisors(extent)
        parts = []
        for var, axis, size, table in zip("yx", window.axes, extent, counts, strict=True):
            if len(set(table.tolist())) == 1:
                parts.append(str(int(table[0])))
                continue
            parts.append(_count(var, axis, size, window.count_padding))
        return f"(uniform float)(({parts[0]}) * ({parts[1]}))"


def _interior(axis: WindowAxis, size: int) -> tuple[int, int]:
    """The outputs all of whose taps lie inside the input."""
    first = -(-axis.padding[0] // axis.stride)
    past = (size - axis.reach + axis.padding[0]) // axis.stride + 1
    outputs = axis.output_size(size)
    return min(first, outputs), max(0, min(past, outputs))


def _count(var: str, axis: WindowAxis, size: int, count_padding: bool) -> str:
    """Taps of a position inside the (padded) input, for a window without dilation."""
    before, after = axis.padding if count_padding else (0, 0)
    start = f"({var} * {axis.stride} - {axis.padding[0]})"
    return f"min({start} + {axis.kernel}, {size + after}) - max({start}, {-before})"
