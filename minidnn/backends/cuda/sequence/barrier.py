"""The barrier between a block's threads."""

from __future__ import annotations

from ....fusion.plan import KernelPlan
from .grid import WARP, operations_of

_CALLED = frozenset(("div", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "erf", "pow"))
"""Scalar operations that call a function for some operands, as averages do when they divide."""


def barrier_of(plan: KernelPlan, threads: int) -> str:
    """The statement for a block of so many threads.

    A block of one warp needs none of hardware's barriers, and where its threads cannot have come
    apart the compiler leaves this one out; see :mod:`..dialect`, *Warps*.
    """
    if threads > WARP:
        return "__syncthreads();"
    return "md_sync_warp();" if _may_part(plan) else "__syncwarp();"


def _may_part(plan: KernelPlan) -> bool:
    """Whether some threads may call a function that others do not."""
    operations = operations_of(plan)
    if any(o.window is not None and o.window.reduce == "average" for o in operations):
        return True
    return any(line.op in _CALLED for o in operations for line in o.code)
