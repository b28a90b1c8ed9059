"""Kernels that are described once for all engines, as this one runs them."""

from __future__ import annotations

import numpy as np

from ....kernels.ir import Kernel
from ....kernels.render.ispc import render
from ....kernels.schedule import AxisSchedule
from .broadcast import CHUNK, WORTH, Shaped

SCHEDULE = AxisSchedule(lanes=2, chunk=CHUNK, keeps_sizes=True)


def shaped(kernel: Kernel) -> Shaped:
    """The kernel as text, with its sizes, and as many tasks a call as are worth one."""
    grain = max(1, min(WORTH // max(kernel.work, 1), kernel.tasks // 8))
    sizes = np.array([*kernel.sizes.values()], np.int64)
    return Shaped(render(kernel), sizes, kernel.tasks, grain, kernel.tables)
