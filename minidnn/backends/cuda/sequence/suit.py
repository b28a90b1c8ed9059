"""The schedule of a sequence once it is known how its values lie.

Sequences are cut before layouts are chosen.  What a patch takes and how wide its rows are read
depend on the layout, so the schedule is chosen again here, by the same cost model, with the
channels that a block computes in that layout.  Every schedule gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from ....errors import GraphError
from ....fusion.collapse import cheapest
from ....fusion.device import H200, Device
from ....fusion.operations import lower
from ....fusion.plan import Binding
from ....fusion.region import Sequence as Region
from ....fusion.sequence import Schedule, Sequence
from ....graph.ir import Value
from ....graph.types import ITEMSIZE
from ..arch import shared_limit
from ..tensor import Tensor
from .mapping import SECTOR_BYTES, TILE_ROWS, moves_by_one, reads_units
from .printer import print_sequence
from .prologue import absorb_prologues
from .vectors import SequenceKernel

PIXELS = 128
"""About as many outputs has a patch of a lone window whose channels lie side by side: a block of
several channels is then busy, and its patch small enough that rows are found in the caches again.
Measured on pooling layers: patches of two rows reach more of the memory's rate than of eight."""


@dataclass(frozen=True)
class Suited:
    """A printed sequence and what it is bound to."""

    kernel: SequenceKernel
    binding: Binding


def print_region(region: Region, lies: Callable[[Value], Tensor], arch: str) -> Suited:
    """The kernel of a sequence whose values lie as given, for ``arch``.

    ``lies`` is asked for values of the region's body.
    """
    body = region.body
    stack = lower(body.nodes, body.outputs)
    sequence = Sequence(stack.steps, body.outputs, stack.batch, stack.channels)
    values = (*sequence.inputs, *sequence.outputs)
    wide = [v for v in values if v.type.plane[2] * v.type.plane[3] > 1 and v.type.plane[1] > 1]
    planar = all(lies(value).is_planar for value in wide)
    schedule = _schedule(region, sequence, lies, planar, arch)
    suited = region if schedule == region.schedule else replace(region, schedule=schedule)
    plan, binding = suited.kernel
    inputs = [lies(slot.value) for slot in binding.inputs]
    outputs = [lies(slot.value) for slot in binding.outputs]
    return Suited(print_sequence(plan, binding, inputs, outputs, arch), binding)


def _schedule(
    region: Region, sequence: Sequence, lies: Callable[[Value], Tensor], planar: bool, arch: str
) -> Schedule:
    _, _, rows, columns = sequence.anchor.type.plane
    # The cost model's choice may be to copy what a lone window reads; here caches do better.
    schedule = replace(region.schedule, stage=False)
    direct = region if schedule == region.schedule else replace(region, schedule=schedule)
    lone = len(sequence.steps) <= 2 and len(absorb_prologues(direct.kernel[0]).steps) == 1
    resident = planar and sequence.stays_in_registers
    if resident and lone:
        whole = replace(region, schedule=Schedule(rows, columns))
        tensors = [lies(value) for value in (*sequence.inputs, *sequence.outputs)]
        resident = not reads_units(whole.kernel[0], tensors)
    if lone and not resident:
        if planar or sequence.is_whole:
            return Schedule(rows, columns)
        windows = [o.window for o in sequence.operations if o.window is not None]
        if any(moves_by_one(window.rows) for window in windows):
            return _overlapping_patches(rows, columns)
        patches = ceil(rows / max(1, PIXELS // columns))
        return Schedule(ceil(rows / patches), columns)  # of equal size, if that can be
    choice = cheapest(sequence, _device(sequence, planar, arch))
    if choice is None:
        raise GraphError(
            f"no patch of the sequence {region.body.name!r} fits the shared memory of {arch} in "
            f"its layout; valid are sequences of fewer steps (strategy='one')"
        )
    return choice.schedule


def _overlapping_patches(rows: int, columns: int) -> Schedule:
    """Patches whose rows are read again by those above and below: of twice as many pixels, and of
    as few rows as a tile only where planes are wide."""
    across = ceil(columns / ceil(columns * TILE_ROWS / (2 * PIXELS)))
    down = max(TILE_ROWS, 2 * PIXELS // across // TILE_ROWS * TILE_ROWS)
    return Schedule(min(rows, down), across)


def _device(sequence: Sequence, planar: bool, arch: str) -> Device:
    limit = shared_limit(arch)
    if planar:
        return replace(H200, local_bytes=limit)
    lanes = min(SECTOR_BYTES // _itemsize(sequence), sequence.channels)
    return replace(H200, local_bytes=limit, lanes=lanes, register_bytes=1)


def _itemsize(sequence: Sequence) -> int:
    return min(ITEMSIZE[value.dtype] for value in sequence.outputs)
