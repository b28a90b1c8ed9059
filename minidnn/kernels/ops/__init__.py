"""Operators as kernels, a file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ...graph.operator import Operator
from ...graph.operators import Gather, RandomDrop, ScatterAdd, TakeChannels
from ..ir import Kernel
from ..schedule import AxisSchedule
from . import gather, random_drop, scatter_add, take_channels
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
