"""Prints a kernel plan as ISPC: lanes are channels, loops are over patches.

The printer decides nothing: buffers, extents, steps and code are in the plan.  It only adds the
addressing of tensors.  A task is one column of patches of one block of channels of one image.

A kernel with max windows has two variants.  The fast one takes a maximum in one instruction, which
is right as long as no operand is NaN; it records the largest magnitude among its inputs.  If that
is above the bound that :mod:`.finite` found, the task is computed again by the exact variant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....errors import GraphError
from ....fusion.geometry import Extent
from ....fusion.plan import Binding, KernelPlan, Plane, PlanOperation, PlanStep, roundings
from ....fusion.region import FusedSequence
from ....fusion.sequence import Schedule
from ....graph.operator import Windowed
from ....graph.window import COMBINERS
from ...codegen.code import Code
from ...codegen.dialect import literal
from ...codegen.kernel import KernelSource
from ...codegen.taps import is_looped
from ..execution.packing import PackedVectors
from ..isa import Isa
from ..tensor import ELEMENTS, Access, Tensor
from .finite import input_bound
from .patch import (
    CallerTensor,
    PlaneView,
    Ring,
    StepFunctions,
    Storage,
    identity_columns,
    print_identity,
    storages_of,
)
from .step import WORDS, StepPrinter
from .transpose import Move

STREAMED_BYTES = 8 << 20
"""Outputs at least that large are written past the caches: no line of them is read first."""


@dataclass(frozen=True)
class SequenceKernel:
    """A printed plan: its source, tasks an image, and the scratch memory of a thread.

    ``vectors``: the per-channel operands, which its last pointer points to, if there are any.
    """

    source: KernelSource
    tasks_per_image: int
    scratch_bytes: int
    vectors: PackedVectors


def print_sequence(
    plan: KernelPlan,
    binding: Binding,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    isa: Isa,
) -> SequenceKernel:
    """The kernel of a plan for tensors of these layouts and strides.

    Its pointers are the inputs, the outputs, then all vectors, packed.
    GraphError if a window reads an input that the plan does not stage.
    """
    reads = (read for o in plan.operations for read in o.reads)
    if any(plan.planes[number].buffer is None for number, window in reads if window is not None):
        raise GraphError(_reads_memory(plan.schedule))
    return _Printer(plan, binding, tuple(inputs), tuple(outputs), isa).print()


def why_unsupported(region: FusedSequence) -> str | None:
    """Why the CPU has no kernel for a region: a window reads an input that is not staged.

    The region alone is examined: its plan would have as many parts as there are patches.
    """
    inputs = set(region.body.inputs)
    windows = (node for node in region.body.nodes if isinstance(node.op, Windowed))
    under = (node.inputs[: node.op.window().under] for node in windows)  # type: ignore[attr-defined]
    if region.schedule.stage or not any(map(inputs.intersection, under)):
        return None
    return _reads_memory(region.schedule)


def _reads_memory(schedule: Schedule) -> str:
    return (
        f"schedule {schedule}: a window reads an input from memory; on the CPU valid are "
        "schedules that stage inputs"
    )


class _Printer:
    """Prints the kernel of one plan for tensors of given layouts."""

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
        self.tensors = (*inputs, *outputs)
        self.slots = binding.slots
        self.lanes = isa.lanes
        self.across = len(plan.patches(1))
        self.tasks = len(plan.tasks()) * self.across
        self.storages = storages_of(plan, isa.lanes)
        self.windows = [o.window for o in plan.operations if o.window is not None]
        self.checked = _seen_by_maxima(plan)
        self.bound = input_bound(plan, binding) if self.checked else None
        self.functions = StepFunctions()
        #: The transposing functions that steps call.
        self.moves: set[Move] = set()
        self.row_floats = 0
        #: By segment, the dtype to which each result is rounded before others read it.
        self.rounded = [
            roundings([o for step in plan.steps for o in step.segments[i]], plan.planes)
            for i in range(len(binding.segments))
        ]

    def print(self) -> SequenceKernel:
        blocks = [-(-(end - begin) // self.lanes) for begin, end in self.binding.segments]
        segments = Code()
        variants = ("fast", "exact") if self.bound is not None else ("exact",)
        for segment in range(len(blocks)):
            for variant in variants:
                self._segment(segments, segment, variant)
        main = self._main(blocks, variants)
        text, steps = self.functions.named(f"{segments}{main}")
        moves = sorted(move.text(self.lanes) for move in self.moves)
        shared = (*moves, *steps)
        source = KernelSource.named("seq", text, "$", shared=shared)
        floats = self._rows_offset + self.row_floats
        vectors = _packed(self.binding, self.lanes)
        return SequenceKernel(source, self.tasks * sum(blocks), floats * 4, vectors)

    # Scratch memory: seen magnitudes, a row of each identity, buffers, rows being transposed

    @property
    def _identity_floats(self) -> int:
        return identity_columns(self.plan) * self.lanes

    @property
    def _buffers_offset(self) -> int:
        return self.lanes + len(COMBINERS) * self._identity_floats

    @property
    def _rows_offset(self) -> int:
        return self._buffers_offset + sum(s.rows * s.pitch for s in self.storages)

    # The kernel

    def _main(self, blocks: list[int], variants: tuple[str, ...]) -> Code:
        code = Code()
        total = sum(blocks)
        with code.block("MD_KERNEL($)"):
            code.line(f"{WORDS} seen = ({WORDS})md_scratch;")
            if self.windows:
                code.line("uniform float * uniform rows = (uniform float * uniform)md_scratch;")
                size = self._identity_floats
                with code.block(f"for (uniform int i = 0; i < {size}; i += {self.lanes})"):
                    for k, reduction in enumerate(COMBINERS):
                        at = self.lanes + k * size
                        code.line(f"rows[{at} + i + programIndex] = {print_identity(reduction)};")
            with code.block("for (uniform int item = md_begin; item < md_end; item++)"):
                code.line(f"const uniform int patch = item % {self.tasks};")
                code.line(f"const uniform int block = item / {self.tasks} % {total};")
                code.line(f"const uniform int64 image = item / {self.tasks * total};")
                start = 0
                for segment, count in enumerate(blocks):
                    with code.block(f"if (block >= {start} && block < {start + count})"):
                        self._calls(code, segment, f"block - {start}", variants)
                    start += count
            if any(move.kind == "stream" for move in self.moves):
                code.line("memory_barrier();")
        return code

    def _calls(self, code: Code, segment: int, block: str, variants: tuple[str, ...]) -> None:
        arguments = f"(md_pointers, image, {block}, patch, md_scratch);"
        code.line("seen[programIndex] = 0;")
        code.line(f"$_{segment}_{variants[0]}{arguments}")
        if self.bound is not None:
            bits = literal(self.bound)
            code.line(
                f"if (any(seen[programIndex] > intbits({bits}))) $_{segment}_exact{arguments}"
            )

    # A segment of channels

    def _segment(self, code: Code, segment: int, variant: str) -> None:
        begin, end = self.binding.segments[segment]
        lanes = self.lanes
        with code.block(
            f"static noinline unmasked void $_{segment}_{variant}("
            "uniform int8 * uniform * uniform md_pointers, uniform int64 image, "
            "uniform int block, uniform int patch, uniform int8 * uniform md_scratch)"
        ):
            code.line(
                f"const uniform int channels = min({end - begin} - block * {lanes}, {lanes});"
            )
            code.line(f"{WORDS} md_seen = ({WORDS})md_scratch;")
            code.line("uniform float * uniform md_floats = (uniform float * uniform)md_scratch;")
            size = self._identity_floats
            for name, at in (
                *((f"identity_{each}", lanes + k * size) for k, each in enumerate(COMBINERS)),
                ("rows", self._rows_offset),
            ):
                code.line(f"uniform float * uniform md_{name} = md_floats + {at};")
            at = self._buffers_offset
            for i, storage in enumerate(self.storages):
                code.line(f"uniform float * uniform md_b{i} = md_floats + {at};")
                at += storage.rows * storage.pitch
            for number, plane in enumerate(self.plan.planes):
                if (plane.input, plane.output) != (None, None) and self._is_used(number, segment):
                    self._tensor(code, number, segment)
            used = {n for s in self.plan.steps for o in s.segments[segment] for n in o.vectors}
            for number in sorted(used):
                self._vector(code, number, segment)
            self._loops(code, segment, variant)

    def _vector(self, code: Code, number: int, segment: int) -> None:
        previous = self.binding.segments[:segment]
        blocks = sum(-(-(end - begin) // self.lanes) for begin, end in previous)
        size = len(self.binding.vectors) * self.lanes
        at = f"({blocks} + block) * {size} + {number * self.lanes} + programIndex"
        code.line(f"const float v{number} = MD_IN(float, {len(self.slots)})[{at}];")

    def _is_used(self, number: int, segment: int) -> bool:
        return any(
            number in (*o.operands, o.result)
            for step in self.plan.steps
            for o in step.segments[segment]
        )

    # Tensors

    def _at(self, plane: Plane) -> int:
        """The number of a plane's tensor among the kernel's tensors."""
        at = self.binding.slot_of(plane)
        assert at is not None
        return at

    def _access(self, number: int, segment: int) -> Access:
        plane = self.plan.planes[number]
        at = self._at(plane)
        begin = self.binding.segments[segment][0] - self.slots[at].channel
        access = self.tensors[at].access(begin, self.lanes, plane.one_channel)
        if access == "planar" and any(
            self.plan.planes[o.result].extent != plane.extent
            for o in self.plan.operations
            if number in o.operands
        ):
            return "gather"
        return access

    def _tensor(self, code: Code, number: int, segment: int) -> None:
        """Declares a tensor's pointer, the offsets of lanes that are gathered, and how many lanes
        of an output are written."""
        plane = self.plan.planes[number]
        at = self._at(plane)
        tensor = self.tensors[at]
        begin, end = (c - self.slots[at].channel for c in self.binding.segments[segment])
        pointer = tensor.element.pointer_type(plane.input is not None)
        base = f"{'MD_OUT' if plane.input is None else 'MD_IN'}({tensor.element.type}, {at})"
        if not plane.one_image:
            base += f" + image * {tensor.image}"
        access = self._access(number, segment)
        if access == "planar":
            base += f" + (uniform int64)({begin} + block * {self.lanes}) * {tensor.plane}"
        elif access == "vector":
            base += f" + ({begin // tensor.block} + (uniform int64)block) * {tensor.plane}"
        elif access == "gather":
            code.line(f"const int c{number} = {begin} + block * {self.lanes} + programIndex;")
            lane = f"c{number} / {tensor.block} * {tensor.plane} + c{number} % {tensor.block}"
            code.line(f"const int l{number} = {lane};")
        if plane.output is not None and access in ("vector", "gather"):
            fill = "channels"
            padding = tensor.blocks * tensor.block - end
            if end == tensor.channels and padding:
                last = (end - begin - 1) // self.lanes
                fill = f"(block == {last} ? min(channels + {padding}, {self.lanes}) : channels)"
            code.line(f"const uniform int f{number} = {fill};")
        code.line(f"{pointer} p{number} = {base};")

    # Loops

    def _loops(self, code: Code, segment: int, variant: str) -> None:
        plan, schedule = self.plan, self.plan.schedule
        height, width = plan.anchor
        tall = schedule.rows * schedule.strips
        if self.across > 1:
            code.line(f"const uniform int cb = patch % {self.across} * {schedule.columns};")
            code.line(f"const uniform int ce = min(cb + {schedule.columns}, {width});")
        code.line(f"const uniform int sb = patch / {self.across} * {tall};")
        code.line(f"const uniform int se = min(sb + {tall}, {height});")
        for number, plane in enumerate(plan.planes):
            if plane.owned is not None and self._is_used(number, segment):
                for axis, low, high, size in (("y", "sb", "se", height), ("x", "cb", "ce", width)):
                    extent = plane.owned["yx".index(axis)]
                    if axis == "y" or self.across > 1:
                        _declare(code, f"o{axis}{number}", extent, low, high, size)
        for i, storage in enumerate(self.storages):
            if any(self._is_used(number, segment) for number in storage.members):
                self._edges(code, i, storage)
        steps = [(i, step) for i, step in enumerate(plan.steps) if step.segments[segment]]
        calls = {i: self._step(i, step, segment, variant) for i, step in steps}
        for i, step in steps:
            if self.across > 1:
                _declare(code, f"x{i}", step.columns, "cb", "ce", width)
            low, _ = _ends(step.rows, "sb", "sb", height)
            code.line(f"uniform int done{i} = {low};")
        first = f"sb - {plan.lead * schedule.rows}"
        with code.block(f"for (uniform int rb = {first}; rb < se; rb += {schedule.rows})"):
            code.line(f"const uniform int re = min(rb + {schedule.rows}, se);")
            for i, step in steps:
                low, high = _ends(step.rows, "rb", "re", height)
                with code.block(""):
                    code.line(f"const uniform int yb = max({low}, done{i});")
                    code.line(f"const uniform int ye = {high};")
                    code.line(f"if (yb < ye) {{ {calls[i]} done{i} = ye; }}")

    def _origin(self, i: int) -> str:
        """The column of the plane with which the rows of a storage begin."""
        return str(self.storages[i].span(self.plan)[0]) if self.across == 1 else f"xs{i}"

    def _edges(self, code: Code, i: int, storage: Storage) -> None:
        """Fills the margin columns of a storage's rows with the identity of their readers."""
        if self.across == 1:
            begin, end = map(str, storage.span(self.plan))
        else:
            begin, end = f"xs{i}", f"xe{i}"
            for k, (low, high) in enumerate(self._hulls(storage)):
                # One after the other: ISPC's time doubles with each level of nested calls.
                declared = "" if k else "uniform int "
                code.line(f"{declared}{begin} = {f'min({begin}, {low})' if k else low};")
                code.line(f"{declared}{end} = {f'max({end}, {high})' if k else high};")
        if storage.reduction is None or storage.before + storage.after == 0:
            return
        value = print_identity(storage.reduction)
        with code.block(f"for (uniform int r = 0; r < {storage.rows}; r++)"):
            code.line(f"uniform float * uniform row = md_b{i} + r * {storage.pitch};")
            for k in range(storage.before):
                code.line(f"row[{k * self.lanes} + programIndex] = {value};")
            if storage.after:
                code.line(f"row += ({end} - {begin} + {storage.before}) * {self.lanes};")
            for k in range(storage.after):
                code.line(f"row[{k * self.lanes} + programIndex] = {value};")

    def _hulls(self, storage: Storage) -> list[tuple[str, str]]:
        """The begin and the end of the columns that a patch keeps in a storage, by planes' size.

        Planes of one size and scale need one text, since cutting to the plane keeps the order.
        """
        hulls: dict[tuple[int, int], Extent] = {}
        for number in storage.members:
            columns = self.plan.planes[number].columns
            key = columns.size, columns.scale
            hulls[key] = hulls[key].hull(columns) if key in hulls else columns
        return [_ends(hull, "cb", "ce", self.plan.anchor[1]) for hull in hulls.values()]

    # Steps

    def _step(self, i: int, step: PlanStep, segment: int, variant: str) -> str:
        """Prints a step's function, unless one of the same text exists; returns a call of it."""
        begin, end = self.binding.segments[segment]
        operations = step.segments[segment]
        numbers = dict.fromkeys(n for o in operations for n in (*o.operands, o.result))
        local = {number: k for k, number in enumerate(numbers)}
        columns = (f"x{i}b", f"x{i}e")
        patches = self.plan.patches(1)
        if self.across == 1:
            low, high = step.columns.interval(*patches[0])
            columns = (str(low), str(high))
        spans = [step.columns.interval(*patch) for patch in patches]
        printer = StepPrinter(
            [
                replace(o, result=local[o.result], operands=tuple(local[n] for n in o.operands))
                for o in operations
            ],
            {local[n]: self._view(n, segment, operations) for n in numbers},
            self.lanes,
            (end - begin) % self.lanes == 0,
            columns,
            max(1, *(past - first for first, past in spans)),
            variant == "fast",
            frozenset(local[n] for n in numbers if variant == "fast" and n in self.checked),
            {local[o.result]: ELEMENTS[self.rounded[segment][o.result]] for o in operations},
        )
        function = printer.print()
        self.row_floats = max(self.row_floats, function.scratch_floats)
        self.moves.update(printer.moves)
        return self.functions.call(function)

    def _view(self, number: int, segment: int, operations: Sequence[PlanOperation]) -> PlaneView:
        plane = self.plan.planes[number]
        ring, padded = None, True
        if plane.buffer is not None:
            storage = self.storages[plane.buffer.storage]
            ring = Ring(
                plane.buffer.rows,
                storage.pitch,
                f"md_b{plane.buffer.storage}",
                plane.buffer.shift,
                f"{storage.before} - {self._origin(plane.buffer.storage)}",
            )
            windows = [w for o in operations for n, w in o.reads if n == number]
            padded = all(w is None or w.reduction == storage.reduction for w in windows)
        source = self._outside(number, segment) if plane.input is not None else None
        # A step that only reads an output, from its ring, must not write it again.
        is_made = plane.output is not None and any(o.result == number for o in operations)
        target = self._outside(number, segment) if is_made else None
        return PlaneView(plane.extent, ring, source, target, padded)

    def _outside(self, number: int, segment: int) -> CallerTensor:
        plane = self.plan.planes[number]
        tensor = self.tensors[self._at(plane)]
        rows = columns = None
        if plane.owned is not None:
            if plane.owned[0] != plane.rows:
                rows = (f"oy{number}b", f"oy{number}e")
            if plane.owned[1] != plane.columns and self.across > 1:
                columns = (f"ox{number}b", f"ox{number}e")
            elif plane.owned[1] != plane.columns:
                low, high = plane.owned[1].interval(*self.plan.patches(1)[0])
                columns = (str(low), str(high))
        return CallerTensor(
            self._access(number, segment),
            f"p{number}",
            tensor.block,
            tensor.columns,
            tensor.plane,
            f"l{number}",
            f"f{number}",
            rows,
            columns,
            plane.output is not None
            and tensor.dtype == "float32"
            and tensor.image * self.binding.batch * 4 >= STREAMED_BYTES,
            tensor.element,
        )


def _packed(binding: Binding, lanes: int) -> PackedVectors:
    """All vectors, packed by blocks of channels; lanes without a channel are zero."""

    def pack(arrays: Sequence[np.ndarray]) -> np.ndarray:
        blocks = []
        for begin, end in binding.segments:
            for first in range(begin, end, lanes):
                past = min(first + lanes, end)
                for vector, data in zip(binding.vectors, arrays, strict=True):
                    part = np.zeros(lanes, data.dtype)
                    low, high = first - vector.channel, past - vector.channel
                    if low >= 0 and high <= data.size:
                        part[: high - low] = data[low:high]
                    blocks.append(part)
        return np.concatenate(blocks)

    return PackedVectors([vector.value for vector in binding.vectors], pack)


def _seen_by_maxima(plan: KernelPlan) -> frozenset[int]:
    """The inputs on which operands of max windows depend."""
    seen: set[int] = set()
    for operation in reversed(plan.operations):
        window = operation.window
        is_max = window is not None and window.reduction == "max" and not is_looped(window)
        if is_max or operation.result in seen:
            seen.update(operation.operands)
    return frozenset(n for n in seen if plan.planes[n].input is not None)


def _ends(extent: Extent, begin: str, end: str, size: int) -> tuple[str, str]:
    """Expressions of an extent's begin and end for the anchor's positions between two variables."""
    if extent.scale == 0:
        return "0", str(extent.size)
    low = f"clamp({extent.scale} * {begin} + {extent.low}, 0, {extent.size})"
    high = f"clamp({extent.scale} * {end} + {extent.high}, 0, {extent.size})"
    if extent.to_end:
        high = f"({end} == {size} ? {extent.size} : {high})"
    return low, high


def _declare(code: Code, name: str, extent: Extent, begin: str, end: str, size: int) -> None:
    low, high = _ends(extent, begin, end, size)
    code.line(f"const uniform int {name}b = {low};")
    code.line(f"const uniform int {name}e = {high};")
