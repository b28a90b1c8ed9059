"""Lowerings: operators as kernels, an operator or a family of them a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...graph.index_map import Indexed
from ...graph.operator import Operator
from ...graph.operators import Gather, RandomDrop, ScatterAdd, TakeChannels
from ..ir import Kernel
from ..schedule import AxisSchedule
from . import move, random_drop
from .indexing import lower_gather, lower_scatter_add, lower_take_channels
from .pitched import Pitched

#: The lowering of an operator: from its operands, then its result, and an engine's schedule.
LOWERINGS: Mapping[type[Operator], Callable[[Any, Sequence[Pitched], AxisSchedule], Kernel]]
LOWERINGS = MappingProxyType(
    {
        Gather: lower_gather,
        RandomDrop: random_drop.lower,
        ScatterAdd: lower_scatter_add,
        TakeChannels: lower_take_channels,
    }
)


def lower(op: Operator, operands: Sequence[Pitched], schedule: AxisSchedule) -> Kernel | None:
    """Returns the kernel of an operator for its operands, then its result; None if it has none
    here."""
    if isinstance(op, Indexed):
        source, target = operands
        return move.lower(op.index_map(source.type.shape), source, target, schedule)
    lowering = LOWERINGS.get(type(op))
    return None if lowering is None else lowering(op, operands, schedule)
