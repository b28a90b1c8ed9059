"""Prints a kernel plan as one CUDA kernel.

The printer decides nothing: buffers, extents, steps and code are in the plan, the spread of its
work over threads is in the :class:`.mapping.Mapping`.  A block computes one task of one group of
channels of one image; between steps its threads wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....errors import GraphError
from ....fusion.geometry import Extent
from ....fusion.plan import Binding, KernelPlan, Plane, PlanOperation, PlanStep
from ....graph.types import ITEMSIZE
from ...codegen.code import Code
from ..machine import Machine
from ..prelude import TYPES
from ..tensor import Tensor
from .flat import Flat, choose_flat, print_flat
from .grid import Grid, choose_grid, sums_in_shared_memory
from .mapping import Mapping, choose_mapping, reads_units, skips, unit_of
from .plans import absorb_prologues, barrier_of, positive_planes
from .resident import print_resident
from .rolling import Rolling, choose_rolling, print_rolling
from .step import StepPrinter, StoreTarget
from .vectors import SequenceKernel, kernel_of, vector_at
from .view import Function, Functions, Lanes, PlaneView, Span


def print_sequence(
    plan: KernelPlan,
    binding: Binding,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    machine: Machine,
    mapping: Mapping | Grid | Flat | Rolling | None = None,
) -> SequenceKernel:
    """Returns the kernel of a plan on tensors in their layouts, for a machine, spread over threads
    by ``mapping``, or as seems fastest.

    GraphError if the plan computes in place (on a GPU, rows are computed in no order), or if its
    patch does not fit shared memory.
    """
    if plan.schedule.in_place:
        raise GraphError(
            f"schedule {plan.schedule}: a GPU computes rows in no order; valid are schedules "
            "that compute nothing in place"
        )
    tensors = (*inputs, *outputs)
    if mapping is None and plan.summed:
        mapping = choose_grid(plan, binding, tensors)
        if mapping is None:
            raise GraphError(f"schedule {plan.schedule}: planes that are added up are no patches")
    if mapping is None:
        flat = choose_flat(plan, binding, tensors)
        if flat is not None:
            return print_flat(plan, binding, tensors, flat)
        absorbed = absorb_prologues(plan)
        rolling = choose_rolling(absorbed, binding, tensors)
        if rolling is not None:
            return print_rolling(absorbed, binding, tensors, rolling)
        mapping = choose_mapping(absorbed, binding, tensors, machine)
        fits = 2 * mapping.places.bytes <= machine.shared_bytes
        grid = None
        if not reads_units(plan, tensors) and not (fits and sums_in_shared_memory(plan, tensors)):
            grid = choose_grid(plan, binding, tensors)
        if grid is not None:
            printed = print_resident(plan, binding, tensors, machine, grid)
            if printed.launch.shared_bytes <= machine.shared_bytes:
                return printed
        plan = absorbed
    if isinstance(mapping, Flat):
        return print_flat(plan, binding, tensors, mapping)
    if isinstance(mapping, Rolling):
        return print_rolling(plan, binding, tensors, mapping)
    if isinstance(mapping, Grid):
        return print_resident(plan, binding, tensors, machine, mapping)
    if mapping.places.bytes > machine.shared_bytes:
        raise GraphError(
            f"schedule {plan.schedule}: a patch takes {mapping.places.bytes} bytes of shared "
            f"memory; {machine.arch} has {machine.shared_bytes} a block"
        )
    return _Printer(plan, binding, tensors, machine, mapping).print()


class _Printer:
    """Prints a plan whose patches are in shared memory, spread over threads by a mapping."""

    def __init__(
        self,
        plan: KernelPlan,
        binding: Binding,
        tensors: tuple[Tensor, ...],
        machine: Machine,
        mapping: Mapping,
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.tensors = tensors
        self.slots = binding.slots
        self.mapping = mapping
        self.barrier = barrier_of(plan, mapping.threads)
        self.across = len(plan.patches(1))
        self.tasks = len(plan.tasks()) * self.across
        self.rolls = plan.schedule.strips > 1
        # Kernels of such windows are 2 or 3 % slower with known lengths and 16-byte stores: the
        # compiler then takes fewer registers for loading ahead.
        self.skips = not mapping.planar and len(plan.steps) == 1 and skips(plan)
        self.positive = positive_planes(plan)
        self.triples = machine.has_max3
        self.frame = max(end for _, end in binding.segments)
        self.functions = Functions()

    def print(self) -> SequenceKernel:
        sizes = [end - begin for begin, end in self.binding.segments]
        groups = [-(-size // self.mapping.group) for size in sizes]
        body = self._body(groups)
        blocks = self.binding.batch * sum(groups) * self.tasks
        threads, shared = self.mapping.threads, self.mapping.places.bytes
        return kernel_of(
            self.binding,
            self.tensors,
            body,
            blocks,
            threads,
            shared,
            self.functions,
        )

    def _body(self, groups: Sequence[int]) -> Code:
        """The body of the kernel, which finds the block's task, and its segment and group of
        channels."""
        code = Code()
        total = sum(groups)
        with code.block(""):
            if self.mapping.places.bytes:
                code.line("MD_SHARED;")
            code.line(f"const unsigned int task = blockIdx.x / {self.tasks}u;")
            code.line(f"const int patch = blockIdx.x % {self.tasks}u;")
            code.line(f"const int group = task % {total}u;")
            code.line(f"const long long image = task / {total}u;")
            first = 0
            for segment, count in enumerate(groups):
                test = f"if (group >= {first} && group < {first + count})" if count < total else ""
                with code.block(test):
                    self._segment(code, segment, f"(group - {first})" if first else "group")
                first += count
        return code

    # A segment of channels

    def _segment(self, code: Code, segment: int, group: str) -> None:
        """Prints what a block does with a group of a segment's channels."""
        begin, end = self.binding.segments[segment]
        size = self.mapping.group
        code.line(f"const int first = {begin} + {group} * {size};")
        self.full = (end - begin) % size == 0
        if not self.full:
            code.line(f"const int channels = min({size}, {end} - first);")
        used = self._used(segment)
        for number in used:
            plane = self.plan.planes[number]
            if (plane.input, plane.output) != (None, None):
                self._tensor(code, number)
        self._loops(code, segment)

    def _used(self, segment: int) -> list[int]:
        """The planes that a segment's operations read and compute, in order."""
        numbers = {
            n
            for step in self.plan.steps
            for o in step.segments[segment]
            for n in (*o.operands, o.result)
        }
        return sorted(numbers)

    def _at(self, plane: Plane) -> int:
        """The index of a plane among the kernel's tensors."""
        at = self.binding.slot_of(plane)
        assert at is not None
        return at

    def _tensor(self, code: Code, number: int) -> None:
        """Declares a tensor's pointer to the block's first channel."""
        plane = self.plan.planes[number]
        at = self._at(plane)
        tensor, slot = self.tensors[at], self.slots[at]
        terms = [f"a{at}"]
        if tensor.offset:
            terms.append(str(tensor.offset))
        if not plane.one_image:
            terms.append(f"image * {tensor.image}")
        if not plane.one_channel:
            terms.append(f"(long long)(first - {slot.channel}) * {tensor.channel}")
        const = "const " if plane.input is not None else ""
        code.line(f"{const}{TYPES[tensor.dtype]} *const t{number} = {' + '.join(terms)};")

    # Loops

    def _loops(self, code: Code, segment: int) -> None:
        """Prints the steps of the block's task, one patch or several."""
        plan, schedule = self.plan, self.plan.schedule
        height, width = plan.anchor
        steps = [(i, step) for i, step in enumerate(plan.steps) if step.segments[segment]]
        self._spans: dict[tuple[str, str], Span] = {}
        if self.across > 1:
            code.line(f"const int cb = patch % {self.across} * {schedule.columns};")
            code.line(f"const int ce = min(cb + {schedule.columns}, {width});")
        tall = schedule.rows * schedule.strips
        if len(plan.tasks()) > 1:
            code.line(f"const int sb = patch / {self.across} * {tall};")
            code.line(f"const int se = min(sb + {tall}, {height});")
        self._declare_spans(code, segment)
        if not self.rolls:
            for k, (i, step) in enumerate(steps):
                rows = self._span(code, step.rows, 0)
                self._step(code, segment, i, step, rows, k + 1 < len(steps))
            return
        self._roll(code, segment, steps)

    def _declare_spans(self, code: Code, segment: int) -> None:
        """Declares the spans that differ between tasks, in the scope of the whole segment."""
        extents = [(step.rows, step.columns) for step in self.plan.steps]
        for number in self._used(segment):
            plane = self.plan.planes[number]
            if plane.buffer is not None:
                extents.append((plane.rows, plane.columns))
            if plane.owned is not None:
                extents.append(plane.owned)
        for rows, columns in extents:
            self._span(code, columns, 1)
            if not self.rolls:
                self._span(code, rows, 0)

    def _roll(self, code: Code, segment: int, steps: Sequence[tuple[int, PlanStep]]) -> None:
        """Prints the loop over patches one below the other, which keep rows from one to the
        next."""
        plan, schedule = self.plan, self.plan.schedule
        height, _ = plan.anchor
        single = len(plan.tasks()) == 1
        begin, end = ("0", str(height)) if single else ("sb", "se")
        for i, step in steps:
            low, _ = _ends(step.rows, begin, begin, height)
            code.line(f"int done{i} = {low};")
        first = f"{begin} - {plan.lead * schedule.rows}"
        with code.block(f"for (int rb = {first}; rb < {end}; rb += {schedule.rows})"):
            code.line(f"const int re = min(rb + {schedule.rows}, {end});")
            for i, step in steps:
                low, high = _ends(step.rows, "rb", "re", height)
                with code.block(""):
                    code.line(f"const int yb = max({low}, done{i});")
                    code.line(f"const int ye = {high};")
                    with code.block("if (yb < ye)"):
                        self._step(code, segment, i, step, Span("yb", "ye"), False)
                        code.line(f"done{i} = ye;")
                    code.line(self.barrier)

    def _span(self, code: Code, extent: Extent, axis: int) -> Span:
        """Returns the positions of the task along an axis: integers, if all tasks have the same."""
        patches = plan_patches(self.plan, axis)
        known = {extent.interval(*patch) for patch in patches}
        if len(known) == 1:
            return Span(*known.pop())
        begin, end, size = ("sb", "se", self.plan.anchor[0]) if axis == 0 else (
            "cb", "ce", self.plan.anchor[1])  # fmt: skip
        low, high = _ends(extent, begin, end, size)
        if (low, high) not in self._spans:
            names = f"l{len(self._spans)}", f"h{len(self._spans)}"
            for name, text in zip(names, (low, high), strict=True):
                code.line(f"const int {name} = {text};")
            lengths = {end - begin for begin, end in known}
            known_length = len(lengths) == 1 and not self.skips
            self._spans[low, high] = Span(*names, lengths.pop() if known_length else None)
        return self._spans[low, high]

    # Steps

    def _step(
        self, code: Code, segment: int, i: int, step: PlanStep, rows: Span, wait: bool
    ) -> None:
        """Prints one step as a device function, and calls it."""
        operations = step.segments[segment]
        columns = self._span(code, step.columns, 1)
        if columns.size == 0 or rows.size == 0:
            return
        function = Function()
        if self.mapping.places.bytes:
            function.body.line("MD_SHARED;")
        if not self.full:
            function.formals.append("const int channels")
            function.actuals.append("channels")
        local = {
            number: k
            for k, number in enumerate(
                dict.fromkeys(n for o in operations for n in (*o.operands, o.result))
            )
        }
        sources: dict[int, PlaneView] = {}
        targets: dict[int, list[StoreTarget]] = {}
        results = {o.result for o in operations}
        for operation in operations:
            for number in operation.operands:
                if number not in results:
                    sources[local[number]] = self._view(code, function, number, operation.result)
            targets[local[operation.result]] = self._targets(code, function, operation.result, rows)
        copies = {local[o.result]: self._copied(o) for o in operations}
        if not all(copies.values()):
            copies = {}
        StepPrinter(
            function.body,
            [self._local(function, o, local) for o in operations],
            [self.plan.planes[number] for number in local],
            sources,
            targets,
            function.span(rows),
            function.span(columns),
            self.mapping.tiles[i],
            self._lanes,
            frozenset(local[n] for n in local if n in self.positive),
            self.triples,
            copies,
        ).print()
        if copies:
            function.body.line("md_copy_wait();")
        code.line(self.functions.call(function))
        if wait:
            code.line(self.barrier)

    def _copied(self, operation: PlanOperation) -> int:
        """The bytes of one access, if an operation only copies a tensor to a buffer; else 0."""
        plane = self.plan.planes[operation.result]
        if len(operation.operands) != 1 or [line.op for line in operation.code] != ["argument"]:
            return 0
        source = self.plan.planes[operation.operands[0]]
        if source.input is None or source.extent != plane.extent or source.one_channel:
            return 0
        if plane.output is not None or plane.buffer is None or source.dtype != plane.dtype:
            return 0
        bytes = ITEMSIZE[plane.dtype] * self.mapping.pack
        return bytes if bytes >= 4 else 0

    @property
    def _lanes(self) -> Lanes:
        mapping = self.mapping
        begins = [number for segment in self.binding.segments for number in segment]
        steps = (mapping.pack, mapping.group, self.frame, *begins)
        aligned = not mapping.planar and all(step % 4 == 0 for step in steps)
        threads = mapping.threads
        return Lanes(mapping.planar, mapping.group, mapping.pack, threads, self.full, aligned)

    def _local(
        self, function: Function, operation: PlanOperation, local: dict[int, int]
    ) -> PlanOperation:
        """An operation in which planes have the step's own numbers, and vectors are arguments of
        its function."""
        vectors = []
        for number in operation.vectors:
            at = vector_at(self.binding, number, "first")
            name = function.take("const float *__restrict__", at)
            vectors.append(int(name[1:]))
        return replace(
            operation,
            result=local[operation.result],
            operands=tuple(local[n] for n in operation.operands),
            vectors=tuple(vectors),
        )

    def _view(self, code: Code, function: Function, number: int, reader: int) -> PlaneView:
        """The view of an operand: its buffer, or the tensor that it is read from."""
        plane = self.plan.planes[number]
        if plane.buffer is not None:
            return self._buffer(code, function, number)
        assert plane.input is not None
        extent = self.plan.planes[reader].extent
        flat = tuple(
            size == 1 != reader_size for size, reader_size in zip(plane.extent, extent, strict=True)
        )
        return self._outside(function, number, (flat[0], flat[1]))

    def _buffer(self, code: Code, function: Function, number: int) -> PlaneView:
        """The view of a plane's buffer in shared memory."""
        plane = self.plan.planes[number]
        assert plane.buffer is not None
        buffer = self.mapping.places.of[plane.buffer.storage]
        rows = Span(0, plane.extent[0]) if self.rolls else self._span(code, plane.rows, 0)
        before = len(function.formals)
        offset = function.take("const int", str(buffer.offset), f"storage {plane.buffer.storage}")
        pointer = f"b{offset}"
        if len(function.formals) > before:
            type = TYPES[buffer.dtype]
            function.body.line(f"{type} *const {pointer} = ({type} *)(md_shared + {offset});")
        return PlaneView(
            pointer,
            buffer.dtype,
            plane.extent,
            function.span(rows),
            function.span(self._span(code, plane.columns, 1)),
            buffer.row,
            buffer.column,
            buffer.channel,
            plane.buffer.rows if self.rolls else 0,
            shared=True,
        )

    def _outside(
        self, function: Function, number: int, flat: tuple[bool, bool] = (False, False)
    ) -> PlaneView:
        """The view of a plane's tensor in global memory."""
        plane = self.plan.planes[number]
        tensor = self.tensors[self._at(plane)]
        const = "const " if plane.input is not None else ""
        type = f"{const}{TYPES[tensor.dtype]} *__restrict__ const"
        return PlaneView(
            function.take(type, f"t{number}"),
            tensor.dtype,
            plane.extent,
            Span(0, plane.extent[0]),
            Span(0, plane.extent[1]),
            tensor.row,
            tensor.pixel,
            tensor.channel,
            flat=flat,
            one_channel=plane.one_channel,
            unit=unit_of(tensor),
            in_parts=self.skips,
            wide=tensor.is_wide,
        )

    def _targets(
        self, code: Code, function: Function, number: int, rows: Span
    ) -> list[StoreTarget]:
        """Returns where a result is stored: its buffer and its output, if it has these."""
        plane = self.plan.planes[number]
        targets: list[StoreTarget] = []
        if plane.buffer is not None:
            targets.append(StoreTarget(self._buffer(code, function, number)))
        if plane.output is not None:
            assert plane.owned is not None
            owned_rows = self._owned_rows(code, plane.owned[0])
            owned_columns = self._span(code, plane.owned[1], 1)
            targets.append(
                StoreTarget(
                    self._outside(function, number),
                    None if owned_rows == rows else function.span(owned_rows),
                    None
                    if owned_columns == self._span(code, plane.columns, 1)
                    else function.span(owned_columns),
                )
            )
        return targets

    def _owned_rows(self, code: Code, extent: Extent) -> Span:
        """The rows of an output that a task writes."""
        if not self.rolls:
            return self._span(code, extent, 0)
        if len(self.plan.tasks()) == 1:
            return Span(0, extent.size)
        low, high = _ends(extent, "sb", "se", self.plan.anchor[0])
        return Span(low, high)


def plan_patches(plan: KernelPlan, axis: int) -> list[tuple[int, int, bool]]:
    """The positions of the anchor that tasks compute along an axis, all patches of a task
    together."""
    if axis == 1:
        return plan.patches(1)
    return [(task[0][0], task[-1][1], task[-1][2]) for task in plan.tasks()]


def _ends(extent: Extent, begin: str, end: str, size: int) -> tuple[str, str]:
    """An extent's begin and end, as text, for the anchor's positions between two variables."""
    if extent.scale == 0:
        return "0", str(extent.size)
    low = f"min(max({extent.scale} * ({begin}) + {extent.low}, 0), {extent.size})"
    high = f"min(max({extent.scale} * ({end}) + {extent.high}, 0), {extent.size})"
    if extent.to_end:
        high = f"({end} == {size} ? {extent.size} : {high})"
    return low, high
