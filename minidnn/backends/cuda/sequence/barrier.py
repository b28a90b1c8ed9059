"""The barrier between a block's threads."""

from __future__ import annotations

from ....fusion.plan import KernelPlan
from ..warp import may_part
from .grid import WARP


def barrier_of(plan: KernelPlan, threads: int) -> str:
    """The statement for a block of so many threads.

    A block of one warp needs none of hardware's barriers.  Averages divide, too.
    """
    if threads > WARP:
        return "__syncthreads();"
    operations = plan.operations
    finishes = any(o.window is not None and not o.window.is_finished for o in operations)
    parts = finishes or any(may_part(o.code) for o in operations)
    return "md_sync_warp();" if parts else "__syncwarp();"
