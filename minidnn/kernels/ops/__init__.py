"""Operators as kernels, a file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...graph.index_map import Indexed
from ...graph.operator import Operator
from ...graph.operators import Gather, RandomDrop, ScatterAdd, TakeChannels
from ..ir import Kernel
from ..schedule import AxisSchedule
from . import gather, move, random_drop, scatter_add, take_channels
from .pitched import Pitched

#: What makes the kernel of an operator for its operands, then its result, on an engine.
LOWERINGS: Mapping[type[Operator], Callable[[Any, Sequence[Pitched], AxisSchedule], Kernel]]
LOWERINGS = MappingProxyType(
    {
        Gather: gather.lower,
        RandomDrop: random_drop.lower,
        ScatterAdd: scatter_add.lower,
        TakeChannels: take_channels.lower,
    }
)


def lower(op: Operator, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel | None:
    """The kernel of an operator for its operands, then its result; None if it has none here."""
    if isinstance(op, Indexed):
        given, target = operands
        return move.lower(op.index_map(given.type.shape), given, target, schedule)
    found = LOWERINGS.get(type(op))
    return None if found is None else found(op, operands, schedule)
