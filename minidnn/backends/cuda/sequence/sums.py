"""Which sequences add up planes on the way: those whose planes stay in registers."""

from __future__ import annotations

from ....fusion.region import FusedSequence
from ....graph.ir import Constant
from ....graph.layout import PLANAR
from ....graph.types import TensorType
from ..tensor import tensor_of
from .grid import MOST_RESIDENT, Grid, grids, planes_at_once, shared_bytes

LEAST = 4
"""Numbers that a thread has of a large plane: with fewer, edges take more than sums spare."""


def choose_sums(region: FusedSequence, shared: int) -> Grid | None:
    """The grid on which a sequence whose values lie in NCHW is computed, with so many bytes of
    shared memory; None if it had better not add up planes."""
    plan, binding = region.kernel
    if any(isinstance(slot.value, Constant) for slot in binding.slots):
        return None
    sums = {region.body.outputs[number] for number in region.summed}
    types = [
        TensorType((*s.value.type.plane[:2], 1, 1)) if s.value in sums else s.value.type
        for s in binding.slots
    ]
    found = next(iter(grids(plan, binding, [tensor_of(type, PLANAR) for type in types])), None)
    if found is None or planes_at_once(plan) * LEAST > MOST_RESIDENT:
        return None
    return found if shared_bytes(plan, found) <= shared else None
