"""Other kernels of a sequence, to be measured beside the one that the cost model chooses.

They differ in patches, in blocks (threads, channels), and in what a thread keeps.  All read and
write the same tensors and give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ....fusion.plan import Binding, KernelPlan
from ....fusion.region import FusedSequence as Region
from ....graph.ir import Value
from ..kernels import Launch
from ..machine import Machine
from ..tensor import Tensor
from .flat import Flat, choose_flat
from .grid import Grid, grids
from .mapping import MOST_THREADS, WARP, Mapping, choose_mapping
from .places import place_buffers
from .printer import print_sequence
from .prologue import absorb_prologues
from .rolling import Rolling, rollings
from .suit import LaidSequence

_SCHEDULES = 6
"""So many of the schedules that the cost model takes for the fastest; more are hardly ever near."""
_BLOCKS_OF = 2
"""Of so many of them other blocks are tried, too."""
_GRIDS = 6


def print_variants(
    region: Region, lies: Callable[[Value], Tensor], machine: Machine
) -> list[Launch]:
    """The launches of a sequence whose values lie as given, other than that of
    :func:`.suit.print_region`, which take the same pointers and give the same bits."""
    lying = LaidSequence(region, lies, machine)
    chosen = lying.schedule()
    usual, bound, inputs, outputs = lying.planned(chosen)
    first = print_sequence(usual, bound, inputs, outputs, machine).launch
    found: dict[Launch, None] = {}
    others = [one for one in lying.schedules()[:_SCHEDULES] if one != chosen]
    for place, schedule in enumerate((chosen, *others)):
        plan, binding, inputs, outputs = lying.planned(schedule)
        if binding != bound:
            continue  # its vectors lie in another order
        for spread_plan, spread in _spreads(plan, binding, (*inputs, *outputs), machine, place):
            printed = print_sequence(spread_plan, binding, inputs, outputs, machine, spread)
            if printed.launch.shared_bytes <= machine.shared_bytes:
                found[printed.launch] = None
    found.pop(first, None)
    return list(found)


def _spreads(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], machine: Machine, place: int
) -> Iterator[tuple[KernelPlan, Flat | Grid | Mapping | Rolling]]:
    """The ways to spread a plan over threads, with the plan as each takes it; ``place`` is that of
    its schedule among all."""
    flat = choose_flat(plan, binding, tensors)
    if flat is not None:
        if place == 0:  # patches are nothing to it
            for threads in (128, 256, 512):
                for rounds in (1, 2, 4):
                    yield plan, replace(flat, threads=threads, rounds=rounds)
        return
    for grid in grids(plan, binding, tensors)[:_GRIDS]:
        yield plan, grid
    if plan.summed:
        return
    joined = absorb_prologues(plan)
    if place == 0:
        for rolling in rollings(joined, binding, tensors):
            yield joined, rolling
    mapping = choose_mapping(joined, binding, tensors, machine)
    if mapping.places.bytes <= machine.shared_bytes:
        yield joined, mapping
        if place < _BLOCKS_OF:
            for other in _of_other_size(mapping, joined, binding):
                if other.places.bytes <= machine.shared_bytes:
                    yield joined, other


def _of_other_size(mapping: Mapping, plan: KernelPlan, binding: Binding) -> Iterator[Mapping]:
    """The mapping with half and twice the threads, half and twice the channels, and both."""
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
