"""Chooses the patch of a sequence again, now that the layouts of its values are known, and prints
alternatives to the kernel that the cost model chooses, which are measured against it.

Sequences are cut before layouts are chosen.  The bytes of a patch and the width of its row accesses
depend on the layout, so the schedule is chosen again here, by the same cost model, with the number
of channels that a block computes in that layout.  Every schedule gives the same bits.

The alternative kernels differ in their patches, in their blocks (threads, channels), and in what a
thread keeps in registers.  All of them read and write the same tensors and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from ....errors import GraphError
from ....fusion.collapse import cheapest
from ....fusion.device import Device
from ....fusion.operations import lower
from ....fusion.plan import Binding, KernelPlan
from ....fusion.region import FusedSequence as Region
from ....fusion.sequence import Schedule, Sequence
from ....graph.ir import Value
from ....graph.types import ITEMSIZE
from ..kernels import Launch
from ..machine import Machine
from ..tensor import Tensor
from .flat import Flat, choose_flat
from .grid import Grid, grids, sums_in_shared_memory
from .mapping import (
    MOST_THREADS,
    SECTOR_BYTES,
    TILE_ROWS,
    WARP,
    Mapping,
    choose_mapping,
    moves_by_one,
    place_buffers,
    reads_units,
)
from .plans import absorb_prologues
from .printer import print_sequence
from .rolling import Rolling, rollings
from .vectors import SequenceKernel

PIXELS = 128
"""Approximate number of outputs in a patch of a lone channels-last window: a block of several
channels is then busy, and the patch is small enough that rows which it shares with other patches
are still in the caches.  Measured on pooling layers: patches of two rows reach a larger share of
the memory's rate than patches of eight."""

PATCH_OF_SUMS = 4608
"""Elements (float32) of a patch that a lone sum window reads from shared memory.  With patches of
33 rows of 131 a multiprocessor has eight blocks (0.87 of a copy's rate), with whole planes of
97x131 four (0.75)."""


@dataclass(frozen=True)
class RescheduledSequence:
    """A printed sequence, and the binding of its plan to values."""

    kernel: SequenceKernel
    binding: Binding


def print_region(
    region: Region, layout_of: Callable[[Value], Tensor], machine: Machine
) -> RescheduledSequence:
    """Returns the kernel of a sequence for a machine, its values in the layouts that ``layout_of``
    gives.

    ``layout_of`` is called with values of the region's body.
    """
    laid = LaidOutSequence(region, layout_of, machine)
    plan, binding, inputs, outputs = laid.planned(laid.schedule())
    return RescheduledSequence(print_sequence(plan, binding, inputs, outputs, machine), binding)


class LaidOutSequence:
    """A sequence whose values have known layouts, and the schedules that suit these."""

    def __init__(
        self, region: Region, layout_of: Callable[[Value], Tensor], machine: Machine
    ) -> None:
        self.region = region
        self.machine = machine
        self._layout_of = layout_of
        body = region.body
        stack = lower(body.nodes, body.outputs)
        self.sequence = Sequence(stack.steps, body.outputs, stack.batch, stack.channels)
        sums = {body.outputs[number] for number in region.summed}
        values = [v for v in (*self.sequence.inputs, *self.sequence.outputs) if v not in sums]
        spatial = [
            v for v in values if v.type.plane[2] * v.type.plane[3] > 1 and v.type.plane[1] > 1
        ]
        self.is_planar = all(layout_of(value).is_planar for value in spatial)

    def planned(self, schedule: Schedule) -> tuple[KernelPlan, Binding, list[Tensor], list[Tensor]]:
        """Returns the plan under a schedule, its binding, and the layouts of its inputs and
        outputs."""
        same = schedule == self.region.schedule
        plan, binding = (self.region if same else replace(self.region, schedule=schedule)).kernel
        inputs = [self._layout_of(slot.value) for slot in binding.inputs]
        outputs = [self._layout_of(slot.value) for slot in binding.outputs]
        return plan, binding, inputs, outputs

    def schedule(self) -> Schedule:
        """Returns the schedule that the cost model chooses, or the one that suits a lone window.

        GraphError if no patch fits the shared memory.
        """
        region, sequence = self.region, self.sequence
        _, _, rows, columns = sequence.anchor.type.plane
        if region.summed:
            return Schedule(rows, columns)
        # The cost model may choose to stage the input of a lone window; here the caches do better.
        schedule = replace(region.schedule, stage=False)
        direct = region if schedule == region.schedule else replace(region, schedule=schedule)
        plan = absorb_prologues(direct.kernel[0])
        lone = len(plan.steps) == 1 or (not self.is_planar and _reads_tensors(plan))
        lone &= len(sequence.steps) <= 2
        resident = self.is_planar and sequence.stays_in_registers
        if resident and lone:
            whole_plan = replace(region, schedule=Schedule(rows, columns)).kernel[0]
            tensors = [self._layout_of(value) for value in (*sequence.inputs, *sequence.outputs)]
            resident = not reads_units(whole_plan, tensors)
            if resident and sums_in_shared_memory(whole_plan, tensors):
                planes = sequence.batch * sequence.channels
                copied = _copied_patches(rows, columns, planes, _reach(sequence), self.machine)
                if copied is not None:
                    return copied
        if lone and not resident:
            if self.is_planar or sequence.needs_whole_plane:
                return Schedule(rows, columns)
            windows = [o.window for o in sequence.operations if o.window is not None]
            if any(moves_by_one(window.rows) for window in windows):
                return _overlapping_patches(rows, columns)
            patches = ceil(rows / max(1, PIXELS // columns))
            return Schedule(ceil(rows / patches), columns)  # of equal size, if that can be
        choice = cheapest(sequence, self._device())
        if choice is None:
            raise GraphError(
                f"no patch of the sequence {region.body.name!r} fits the shared memory of "
                f"{self.machine.arch} in its layout; valid are sequences of fewer steps "
                "(strategy='one')"
            )
        return choice.schedule

    def schedules(self) -> list[Schedule]:
        """Returns all schedules that fit, in the order of their predicted times."""
        if self.region.summed:
            return [self.schedule()]
        device = self._device()
        priced = [(self.sequence.price(s, device), s) for s in self.sequence.candidates(device)]
        fitting = [(price.seconds, i) for i, (price, _) in enumerate(priced) if price is not None]
        return [priced[i][1] for _, i in sorted(fitting)]

    def _device(self) -> Device:
        """The device for the cost model: of channels-last values, with the channels of one memory
        sector as lanes, and without planes in registers."""
        device = self.machine.device("float32")
        if self.is_planar:
            return device
        itemsize = min(ITEMSIZE[value.dtype] for value in self.sequence.outputs)
        lanes = min(SECTOR_BYTES // itemsize, self.sequence.channels)
        return replace(device, lanes=lanes, register_bytes=1)


def _reads_tensors(plan: KernelPlan) -> bool:
    """Whether all windows read input tensors, and none of them a buffer."""
    read = {n for o in plan.operations for n, window in o.reads if window is not None}
    return all(plan.planes[number].buffer is None for number in read)


def _reach(sequence: Sequence) -> int:
    """The most rows under a window, from its first to its last."""
    windows = [o.window for o in sequence.operations if o.window is not None]
    return max((w.rows.kernel - 1) * w.rows.dilation + 1 for w in windows)


def _copied_patches(
    rows: int, columns: int, planes: int, reach: int, machine: Machine
) -> Schedule | None:
    """Patches of whole rows that a lone sum window stages in shared memory: of about
    ``PATCH_OF_SUMS`` elements, or smaller where there are few planes.  None if they would have few
    rows compared with the ``reach`` of a window, as planes are wide or windows tall: most rows
    would be copied for several patches, and such patches may not fit."""
    least = 2 * max(TILE_ROWS, reach)
    patches = ceil(rows * columns / PATCH_OF_SUMS)
    if rows < 2 * least * patches:
        return None
    while patches * planes < machine.enough_blocks and rows >= 2 * least * patches:
        patches *= 2
    return Schedule(ceil(rows / patches), columns, stage=True)


def _overlapping_patches(rows: int, columns: int) -> Schedule:
    """Patches of a window whose neighbouring rows of outputs share rows of taps: of twice as many
    pixels, and of as few rows as a tile only where planes are wide."""
    across = ceil(columns / ceil(columns * TILE_ROWS / (2 * PIXELS)))
    down = max(TILE_ROWS, 2 * PIXELS // across // TILE_ROWS * TILE_ROWS)
    return Schedule(min(rows, down), across)


_SCHEDULES = 6
"""How many schedules are measured, those that the cost model predicts to be the fastest; others are
hardly ever near."""
_BLOCKS_OF = 2
"""For how many of these schedules blocks of other sizes are measured, too."""
_GRIDS = 6
"""How many grids of planes in registers are measured for each schedule."""


def print_variants(
    region: Region, layout_of: Callable[[Value], Tensor], machine: Machine
) -> list[Launch]:
    """Returns the launches of a sequence, its values laid out by ``layout_of``, other than the
    launch of :func:`print_region`: they take the same pointers and give the same bits."""
    laid = LaidOutSequence(region, layout_of, machine)
    chosen = laid.schedule()
    usual, usual_binding, inputs, outputs = laid.planned(chosen)
    first = print_sequence(usual, usual_binding, inputs, outputs, machine).launch
    launches: dict[Launch, None] = {}
    alternatives = [one for one in laid.schedules()[:_SCHEDULES] if one != chosen]
    for rank, schedule in enumerate((chosen, *alternatives)):
        plan, binding, inputs, outputs = laid.planned(schedule)
        if binding != usual_binding:
            continue  # it takes its arguments in another order
        for spread_plan, spread in _spreads(plan, binding, (*inputs, *outputs), machine, rank):
            printed = print_sequence(spread_plan, binding, inputs, outputs, machine, spread)
            if printed.launch.shared_bytes <= machine.shared_bytes:
                launches[printed.launch] = None
    launches.pop(first, None)
    return list(launches)


def _spreads(
    plan: KernelPlan, binding: Binding, tensors: tuple[Tensor, ...], machine: Machine, place: int
) -> Iterator[tuple[KernelPlan, Flat | Grid | Mapping | Rolling]]:
    """Yields the mappings of a plan to threads, each with the plan as that mapping takes it;
    ``place`` is the rank of the plan's schedule among those that are measured."""
    flat = choose_flat(plan, binding, tensors)
    if flat is not None:
        if place == 0:  # a flat kernel has no patches
            for threads in (128, 256, 512):
                for rounds in (1, 2, 4):
                    yield plan, replace(flat, threads=threads, rounds=rounds)
        return
    for grid in grids(plan, binding, tensors)[:_GRIDS]:
        yield plan, grid
    if plan.summed:
        return
    absorbed = absorb_prologues(plan)
    if place == 0:
        for rolling in rollings(absorbed, binding, tensors):
            yield absorbed, rolling
    mapping = choose_mapping(absorbed, binding, tensors, machine)
    if mapping.places.bytes <= machine.shared_bytes:
        yield absorbed, mapping
        if place < _BLOCKS_OF:
            for other in _of_other_size(mapping, absorbed, binding):
                if other.places.bytes <= machine.shared_bytes:
                    yield absorbed, other


def _of_other_size(mapping: Mapping, plan: KernelPlan, binding: Binding) -> Iterator[Mapping]:
    """Yields the mapping with half and twice the threads, half and twice the channels, and both."""
    channels = max(end - begin for begin, end in binding.segments)
    for by_group in (0.5, 1, 2):
        group = int(mapping.group * by_group)
        if group < mapping.pack or group % mapping.pack or group >= 2 * channels:
            continue
        places = place_buffers(plan, group, mapping.planar)
        for by_threads in (0.5, 1, 2):
            threads = int(mapping.threads * by_threads)
            if threads % WARP or not WARP <= threads <= 2 * MOST_THREADS:
                continue
            yield replace(mapping, group=group, places=places, threads=threads)
